//! Mirroring of requests by a switch.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use crate::http::{ask, get, metric};
use crate::http2;
use crate::origin::{Origin, echoed_request, line, values};
use crate::process::{Process, until};

/// Starts a switch that sends requests to `live`, and copies of requests for /shop to `shadow`.
fn start(folder: &Path, live: &Origin, shadow: SocketAddr, mirror: &str) -> Process {
    let text = format!(
        r#"
[switch]
listen = "127.0.0.1:0"
h2c = true
health = {{ check = "off", passive_fall = 0 }}
headers.request_id = {{ header = "x-request-id" }}
nodes = [
  {{ name = "live", address = "{}", groups = ["live"] }},
  {{ name = "shadow", address = "{shadow}", groups = ["shadow"] }},
]

[[switch.routes]]
name = "shop"
path = "/shop/*"
sticky = {{ cookie = "srv" }}
group = "live"

[[switch.routes]]
name = "rest"
path = "/rest"
group = "live"

[[switch.routes]]
name = "copies"
group = "shadow"
mirror = {{ of = "shop"{mirror} }}
rewrite = {{ prefix = "/shop", to = "/trial" }}
headers.request = {{ set = {{ x-copy = "{{route}} of {{client}}", host = "trial.internal" }}, remove = "authorization" }}
"#,
        live.address
    );
    let config = folder.join("larder.toml");
    fs::write(&config, text).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"])
}

fn copies(switch: &Process, outcome: &str) -> u64 {
    let labels = format!("{{route=\"copies\",outcome=\"{outcome}\"}}");
    metric(switch.admin.unwrap(), "larder_switch_copies_total", &[&labels]).unwrap()
}

fn await_copies(switch: &Process) {
    until("nothing is under way", || {
        let status = get(switch.admin.unwrap(), "/status").json();
        (status["outstanding"] == 0).then_some(())
    });
}

#[test]
fn a_copy_is_asked_for_and_nobody_sees_it() {
    let folder = tempfile::tempdir().unwrap();
    let (live, shadow) = (Origin::start("live", ""), Origin::start("shadow", ""));
    let switch = start(folder.path(), &live, shadow.address, "");
    let fields = "Authorization: secret\r\nX-A: 1\r\nCookie: srv=abc; kept=1\r\n";
    let first = ask(switch.address, "GET", "/shop/a?b=c", fields);
    assert_eq!(
        (first.header("x-origin"), line(&echoed_request(&first))),
        (Some("live"), "GET /shop/a?b=c HTTP/1.1")
    );
    let second = http2::ask(switch.address, "GET", "http://test/shop/h2", fields);
    assert_eq!(second.header("x-origin"), Some("live"));
    assert_eq!(get(switch.address, "/rest").status, 200);
    let mut tcp = TcpStream::connect(switch.address).unwrap();
    let body = "x".repeat(5000);
    write!(
        tcp,
        "POST /shop/post HTTP/1.1\r\nHost: test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    .unwrap();
    for piece in body.as_bytes().chunks(1000) {
        tcp.write_all(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).unwrap();
    }
    tcp.write_all(b"0\r\n\r\n").unwrap();
    until("three copies are done", || (copies(&switch, "done") == 3).then_some(()));
    let seen = shadow.requests.lock().unwrap().clone();
    assert_eq!(seen.len(), 3);
    let of = |target: &str| seen.iter().find(|text| line(text).contains(target)).unwrap();
    let copy = of("/trial/a");
    assert_eq!(line(copy), "GET /trial/a?b=c HTTP/1.1");
    assert_eq!(values(copy, "x-copy"), ["copies of 127.0.0.1"]);
    assert_eq!((values(copy, "host"), values(copy, "authorization")), (vec!["trial.internal"], vec![]));
    assert_eq!((values(copy, "x-a"), values(copy, "x-forwarded-for")), (vec!["1"], vec!["127.0.0.1"]));
    assert_eq!(values(copy, "cookie"), ["kept=1"], "the switch's own cookie is nobody else's business");
    assert_eq!(
        values(copy, "x-request-id"),
        values(&echoed_request(&first), "x-request-id"),
        "one id for both"
    );
    assert_eq!(line(of("/trial/h2")), "GET /trial/h2 HTTP/1.1");
    let post = of("/trial/post");
    assert_eq!((values(post, "content-length"), values(post, "transfer-encoding")), (vec!["5000"], vec![]));
    assert!(post.ends_with(&format!("\r\n\r\n{body}")), "the whole body");
    await_copies(&switch);
}

#[test]
fn a_quarter_of_the_requests_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (live, shadow) = (Origin::start("live", ""), Origin::start("shadow", ""));
    let switch = start(folder.path(), &live, shadow.address, ", share = 25.0, body_max = 10");
    for number in 0..40 {
        assert_eq!(get(switch.address, &format!("/shop/{number}")).status, 200);
    }
    until("ten copies are done", || (copies(&switch, "done") == 10).then_some(()));
    assert_eq!(shadow.requests.lock().unwrap().len(), 10);
    // A request with a body beyond the limit is forwarded and not copied.
    for _ in 0..4 {
        let mut tcp = TcpStream::connect(switch.address).unwrap();
        tcp.write_all(b"POST /shop/p HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 11\r\n\r\n01234567890")
            .unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut tcp, &mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("01234567890"), "{text}");
    }
    assert_eq!((copies(&switch, "too_large"), copies(&switch, "done")), (1, 10));
    await_copies(&switch);
}

#[test]
fn a_shadow_that_hangs_or_is_down_delays_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let live = Origin::start("live", "");
    // The server accepts connections and never answers.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hanging.local_addr().unwrap();
    let switch = start(folder.path(), &live, address, ", copies_max = 2, timeout = \"1s\"");
    for number in 0..20 {
        let reply = get(switch.address, &format!("/shop/{number}"));
        assert_eq!((reply.status, reply.header("x-origin")), (200, Some("live")));
    }
    let too_many = copies(&switch, "too_many");
    until("those under way have timed out", || (copies(&switch, "timed_out") + too_many == 20).then_some(()));
    assert!(too_many >= 10, "{too_many}");
    drop(hanging);
    assert_eq!(get(switch.address, "/shop/x").status, 200);
    until("it has failed", || (copies(&switch, "failed") == 1).then_some(()));
    await_copies(&switch);
}
