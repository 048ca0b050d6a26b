//! Header rules, request ids, redirects, fixed replies and rewritten paths of a switch.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::http::{Client, Reply, ask, get, metrics};
use crate::http2;
use crate::origin::{Origin, echoed_request, line, values};
use crate::process::{Process, until};

const ROUTES: &str = r#"
[switch.headers.request]
remove = ["x-debug", "x-internal-*"]
set = { x-client = "{client}", x-via-route = "{route}/{policy}/{class}", x-user = "{cookie:user}" }
add = { x-many = ["1", "{method}"] }

[switch.headers.reply]
remove = ["server"]
set = { strict-transport-security = "max-age=63072000", x-served = "{node} {status} {reason}" }

[switch.headers.request_id]
header = "X-Request-Id"

[[switch.routes]]
name = "api"
path = ["/api", "/api/*"]
rewrite = { prefix = "/api", to = "/v2" }
headers.request = { set = { host = "api.internal:8080", x-client = "route" }, remove = ["cookie"] }
headers.reply = { add = { x-served = "api" } }

[[switch.routes]]
name = "moved"
path = "/old/*"
redirect = { to = "{scheme}://new.example{path:2..}{query}", status = 301 }

[[switch.routes]]
name = "slash"
path = "*/dir"
redirect = { to = "{path}/{query}" }

[[switch.routes]]
name = "closed"
path = "/closed*"
respond = { status = 503, body = "back at noon\n" }
headers.reply = { set = { retry-after = "3600" } }

[[switch.routes]]
name = "gone"
path = "/gone"
respond = { status = 204 }

[[switch.routes]]
name = "safe"
path = "/safe/*"
redirect = { to = "http://{host_name}{path}{query}", status = 308, scheme = "https" }
"#;

/// Starts a switch before one origin.
fn start(folder: &Path, rest: &str) -> Process {
    let origin = Origin::start("o", "Server: secret/1.0\r\n");
    let (config, log) = (folder.join("larder.toml"), folder.join("access.log"));
    let head = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nh2c = true\naccess_log.file = {log:?}\nnodes = [{}]\n",
        origin.entry("")
    );
    fs::write(&config, head + rest).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"])
}

/// Sends the same request over HTTP/1.1 and HTTP/2.
fn both(switch: &Process, target: &str, fields: &str) -> [Reply; 2] {
    let uri = format!("http://localhost{target}");
    [ask(switch.address, "GET", target, fields), http2::ask(switch.address, "GET", &uri, fields)]
}

/// Sends raw bytes, and returns all received bytes.
fn raw(switch: &Process, bytes: &str) -> String {
    let mut tcp = TcpStream::connect(switch.address).unwrap();
    tcp.write_all(bytes.as_bytes()).unwrap();
    let mut text = String::new();
    tcp.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn headers_are_edited_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let switch = start(folder.path(), ROUTES);
    let fields =
        "X-Debug: 1\r\nX-Internal-Role: admin\r\nx-client: forged\r\nX-Many: 0\r\nCookie: a=b; user=ann\r\n";
    for reply in both(&switch, "/x?y", fields) {
        let asked = echoed_request(&reply);
        assert_eq!(line(&asked), "GET /x?y HTTP/1.1");
        assert_eq!(values(&asked, "host"), ["localhost"]);
        assert_eq!(values(&asked, "x-debug"), [""; 0]);
        assert_eq!(values(&asked, "x-internal-role"), [""; 0]);
        assert_eq!(values(&asked, "x-client"), ["127.0.0.1"]);
        assert_eq!(values(&asked, "x-via-route"), ["default/lard-r/n"]);
        assert_eq!(values(&asked, "x-user"), ["ann"]);
        assert_eq!(values(&asked, "x-many"), ["0", "1", "GET"]);
        assert_eq!(values(&reply.head, "server"), [""; 0]);
        assert_eq!(values(&reply.head, "strict-transport-security"), ["max-age=63072000"]);
        assert!(reply.header("x-served").unwrap().starts_with("o 200 "), "{}", reply.head);
        assert_eq!(values(&reply.head, "content-length"), [reply.body.len().to_string()]);
    }
    // Without the cookie all identity fields of the client are removed.
    for reply in both(&switch, "/x", "X-User: root\r\n") {
        assert_eq!(values(&echoed_request(&reply), "x-user"), [""; 0]);
    }
    // The rules also apply to the switch's own replies.
    let reply = get(switch.address, &format!("/{}", "l".repeat(9000)));
    assert_eq!((reply.status, reply.header("x-larder-error")), (414, Some("uri_too_long")));
    assert!(reply.header("strict-transport-security").is_some() && reply.header("x-request-id").is_some());
}

#[test]
fn a_request_is_found_by_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let switch = start(folder.path(), ROUTES);
    for reply in both(&switch, "/x", "X-Request-ID: order-66/a\r\n") {
        assert_eq!(values(&echoed_request(&reply), "x-request-id"), ["order-66/a"]);
        assert_eq!(values(&reply.head, "x-request-id"), ["order-66/a"]);
    }
    let mut ids = vec!["order-66/a".to_owned(); 2];
    for brought in ["", "X-Request-Id: two words\r\n", "X-Request-Id: a\r\nX-Request-Id: b\r\n"] {
        let reply = ask(switch.address, "GET", "/y", brought);
        let id = values(&reply.head, "x-request-id")[0].to_owned();
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{brought}: {id}");
        assert_eq!(values(&echoed_request(&reply), "x-request-id"), [&id]);
        assert!(!ids.contains(&id));
        ids.push(id);
    }
    let lines = until("all is logged", || {
        let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
        (text.lines().count() == ids.len()).then_some(text)
    });
    for (line, id) in lines.lines().zip(&ids) {
        assert!(line.ends_with(&format!(" request_id={id}")), "{line}");
    }
}

#[test]
fn paths_are_rewritten_for_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let switch = start(folder.path(), ROUTES);
    for (target, expected) in
        [("/api/x/y?q=1", "/v2/x/y?q=1"), ("/api", "/v2"), ("/api/", "/v2/"), ("/api?q", "/v2?q")]
    {
        for reply in both(&switch, target, "Cookie: user=ann\r\n") {
            let asked = echoed_request(&reply);
            assert_eq!(line(&asked), format!("GET {expected} HTTP/1.1"), "{target}");
            assert_eq!(values(&asked, "host"), ["api.internal:8080"]);
            assert_eq!(values(&asked, "x-client"), ["route"], "the route's rules come last");
            assert_eq!((values(&asked, "x-user"), values(&asked, "cookie")), (vec!["ann"], vec![]));
            assert_eq!(values(&reply.head, "x-served").last(), Some(&"api"));
        }
    }
    // The absolute form determines the host, whatever the field `Host` contains.
    let text = raw(&switch, "GET http://test/api/z HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    assert!(text.contains("\r\n\r\nGET /v2/z HTTP/1.1\r\n"), "{text}");
    // Routing uses the client's path.
    let explained = get(switch.admin.unwrap(), "/explain?target=localhost/api/x").json();
    assert_eq!(
        (explained["key"].as_str(), explained["node_path"].as_str()),
        (Some("localhost/api/x"), Some("/v2/x"))
    );
    let explained = get(switch.admin.unwrap(), "/explain?target=localhost/gone").json();
    assert_eq!((explained["answer"].as_str(), explained["route"].as_str()), (Some("respond"), Some("gone")));
}

#[test]
fn the_switch_sends_redirects_and_fixed_replies() {
    let folder = tempfile::tempdir().unwrap();
    let switch = start(folder.path(), ROUTES);
    for reply in both(&switch, "/old/a/b?c=d", "") {
        assert_eq!((reply.status, reply.header("location")), (301, Some("http://new.example/a/b?c=d")));
        assert_eq!((reply.header("content-length"), reply.body.len()), (Some("0"), 0));
        assert_eq!(reply.header("x-served"), Some("301"), "no node, no reason");
    }
    for (target, location) in [("/a/dir?b", "/a/dir/?b"), ("//evil.example/dir", "/evil.example/dir/")] {
        let reply = get(switch.address, target);
        assert_eq!((reply.status, reply.header("location")), (307, Some(location)), "{target}");
    }
    for reply in both(&switch, "/closed/x", "") {
        assert_eq!((reply.status, &*reply.body), (503, &b"back at noon\n"[..]));
        assert_eq!(reply.header("retry-after"), Some("3600"));
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    }
    for reply in both(&switch, "/gone", "") {
        assert_eq!((reply.status, reply.header("content-length"), reply.body.len()), (204, None, 0));
    }
    // Over HTTP the request is served.
    for reply in both(&switch, "/safe/x", "") {
        assert_eq!(line(&echoed_request(&reply)), "GET /safe/x HTTP/1.1");
    }
    // The connection stays open after a request with a body, and after a HEAD.
    let mut client = Client::connect(switch.address).unwrap();
    assert_eq!(client.ask("POST", "/old/x", "Content-Length: 0\r\n").unwrap().status, 301);
    let head = client.ask("HEAD", "/closed", "").unwrap();
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (503, Some("13"), 0));
    assert_eq!(client.ask("GET", "/x", "").unwrap().status, 200);
    let text = raw(
        &switch,
        "POST /old/x HTTP/1.1\r\nHost: test\r\nContent-Length: 21\r\n\r\nGET /forged HTTP/1.1\rGET /last HTTP/1.1\r\n\
         Host: test\r\nConnection: close\r\n\r\n",
    );
    assert!(text.starts_with("HTTP/1.1 301 ") && !text.contains("/forged"), "a body is no request: {text}");
    let lines = until("all is logged", || {
        let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
        text.contains("POST /old/x").then_some(text)
    });
    assert!(
        lines
            .lines()
            .any(|line| line.contains("/closed/x") && line.contains("node=- reason=respond error=-"))
    );
    assert!(
        lines.lines().any(|line| line.contains("/old/a") && line.contains("node=- reason=redirect error=-"))
    );
    let metrics = metrics(switch.admin.unwrap());
    assert!(metrics.contains("larder_switch_outstanding 0\n"), "no answer holds a place");
}
