//! Sticky sessions through a real switch.

use std::fs;
use std::path::Path;

use crate::http::{Reply, ask, get, metrics};
use crate::http2;
use crate::origin::{Origin, echoed_request, values};
use crate::process::{Process, until};

const NODES: [&str; 3] = ["a", "b", "c"];

/// Starts a switch before three origins of the group "app". Health depends on traffic alone.
fn start(folder: &Path, origins: &[Origin], rest: &str) -> Process {
    let (config, log) = (folder.join("larder.toml"), folder.join("access.log"));
    let nodes: Vec<String> = origins.iter().map(|origin| origin.entry(", groups = [\"app\"]")).collect();
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nh2c = true\npolicy = \"rr\"\naccess_log.file = {log:?}\nnodes = [{}]\n{rest}\n",
        nodes.join(", ")
    );
    fs::write(&config, text).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"])
}

fn origins() -> Vec<Origin> {
    NODES.map(|name| Origin::start(name, "Cache-Control: max-age=60\r\n")).into()
}

/// Returns the cookie that a reply sets, as a client sends it back.
fn cookie(reply: &Reply) -> Option<String> {
    let set = *values(&reply.head, "set-cookie").first()?;
    Some(set.split(';').next().unwrap().to_owned())
}

fn node(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.head);
    reply.header("x-origin").unwrap().to_owned()
}

fn admin(switch: &Process, path: &str) {
    assert_eq!(ask(switch.admin.unwrap(), "POST", path, "").status, 200, "{path}");
}

const ROUTES: &str = r#"
[[switch.routes]]
name = "app"
path = "/app/*"
group = "app"
sticky = { cookie = "srv", drain = "24h" }

[[switch.routes]]
name = "short"
path = "/short/*"
group = "app"
sticky = { cookie = "srv", drain = "0s", max_age = "1h", path = "/short", same_site = "strict" }

[[switch.routes]]
name = "users"
path = "/users/*"
group = "app"
sticky = { by = "{header:x-user}" }
"#;

#[test]
fn a_client_comes_back_to_its_node() {
    let folder = tempfile::tempdir().unwrap();
    let origins = origins();
    let switch = start(folder.path(), &origins, ROUTES);
    let mut clients = Vec::new();
    for _ in 0..6 {
        let reply = get(switch.address, "/app/x");
        let set = values(&reply.head, "set-cookie")[0];
        assert!(set.starts_with("srv=") && set.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set}");
        assert_eq!(values(&reply.head, "cache-control"), ["max-age=60", "no-cache=\"set-cookie\""]);
        clients.push((cookie(&reply).unwrap(), node(&reply)));
    }
    let mut nodes: Vec<_> = clients.iter().map(|(_, node)| &**node).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["a", "a", "b", "b", "c", "c"], "those who have none go by turns");
    for (cookie, home) in clients.iter().chain(&clients) {
        let fields = format!("Cookie: x=1; {cookie}; y=2\r\n");
        for reply in [
            ask(switch.address, "GET", "/app/y", &fields),
            http2::ask(switch.address, "GET", "http://test/app/y", &fields),
            http2::ask(
                switch.address,
                "GET",
                "http://test/app/y",
                &format!("cookie: x=1\ncookie: {cookie}\ncookie: y=2\n"),
            ),
        ] {
            assert_eq!(&node(&reply), home);
            assert_eq!(values(&reply.head, "set-cookie"), [""; 0], "it knows");
            assert_eq!(values(&echoed_request(&reply), "cookie"), ["x=1; y=2"], "the node need not");
        }
    }
    // `/explain` agrees.
    let explained =
        |question: &str| get(switch.admin.unwrap(), &format!("/explain?target=test/{question}")).json();
    for (cookie, home) in &clients {
        let with = explained(&format!("app/y&header=cookie:x=1%3B%20{}", cookie.replace('=', "%3D")));
        assert_eq!(
            (with["session_of"].as_str(), with["node"].as_str()),
            (Some(&**home), Some(&**home)),
            "{with}"
        );
        assert_eq!(with["reason"], "sticky");
    }
    assert!(explained("app/y").get("session_of").is_none());
    let of_user = explained("users/y&header=x-user:u7");
    assert!(of_user["session_of"].is_string() && of_user["session_of"] == of_user["node"], "{of_user}");
    // The assignment stays after a restart with the nodes in another order, and at another switch.
    drop(switch);
    let turned: Vec<Origin> = origins.into_iter().rev().collect();
    let switch = start(folder.path(), &turned, ROUTES);
    for (cookie, home) in &clients {
        assert_eq!(&node(&ask(switch.address, "GET", "/app/y", &format!("Cookie: {cookie}\r\n"))), home);
    }
    // A cookie with an unknown value is replaced. A cookie of a sticky route is forwarded on another route.
    let reply = ask(switch.address, "GET", "/app/y", "Cookie: srv=AAAAAAAAAAAAAAAA\r\n");
    assert!(clients.iter().any(|(known, _)| cookie(&reply).as_ref() == Some(known)));
    let reply = ask(switch.address, "GET", "/plain", &format!("Cookie: {}\r\n", clients[0].0));
    assert_eq!(values(&echoed_request(&reply), "cookie"), [&*clients[0].0]);
    assert_eq!(values(&reply.head, "set-cookie"), [""; 0]);
}

#[test]
fn a_draining_node_keeps_its_clients_for_the_configured_time() {
    let folder = tempfile::tempdir().unwrap();
    let origins = origins();
    let switch = start(folder.path(), &origins, ROUTES);
    let (first, home) = {
        let reply = get(switch.address, "/app/x");
        (cookie(&reply).unwrap(), node(&reply))
    };
    let back = |target: &str| ask(switch.address, "GET", target, &format!("Cookie: {first}\r\n"));
    admin(&switch, &format!("/nodes/{home}/drain"));
    for _ in 0..4 {
        assert_eq!(node(&back("/app/x")), home, "its own");
        assert_ne!(node(&get(switch.address, "/app/x")), home, "no new ones");
    }
    // On this route a drain ends sessions at once.
    let reply = back("/short/x");
    assert_ne!(node(&reply), home);
    let set = values(&reply.head, "set-cookie")[0];
    assert!(set.ends_with("; Path=/short; HttpOnly; Max-Age=3600; SameSite=Strict"), "{set}");
    // A cookie with a lifetime is renewed with each reply.
    let moved = cookie(&reply).unwrap();
    let again = ask(switch.address, "GET", "/short/x", &format!("Cookie: {moved}\r\n"));
    assert_eq!((cookie(&again), node(&again)), (Some(moved), node(&reply)));
    // A node that leaves for good.
    let guest = Origin::start("guest", "");
    admin(&switch, &format!("/nodes/guest/join?address={}&group=app", guest.address));
    let named = until("the guest serves somebody", || {
        let reply = get(switch.address, "/app/x");
        (node(&reply) == "guest").then(|| cookie(&reply).unwrap())
    });
    let asks = |cookie: &str| ask(switch.address, "GET", "/app/x", &format!("Cookie: {cookie}\r\n"));
    assert_eq!(node(&asks(&named)), "guest");
    admin(&switch, "/nodes/guest/leave");
    let reply = asks(&named);
    assert_ne!(node(&reply), "guest");
    assert!(cookie(&reply).is_some_and(|cookie| cookie != named));
    let lines = until("all is logged", || {
        let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
        text.contains(" reason=sticky_down ").then_some(text)
    });
    let count = |reason: &str| lines.matches(&format!(" reason={reason} ")).count();
    assert_eq!((count("sticky"), count("sticky_drained"), count("sticky_down")), (6, 1, 1), "{lines}");
    let metrics = metrics(switch.admin.unwrap());
    assert!(metrics.contains("larder_switch_decisions_total{reason=\"sticky_drained\"} 1\n"), "{metrics}");
}

#[test]
fn a_failed_or_full_node_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let mut origins = origins();
    // No server listens at this address once the socket is closed.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = gone.local_addr().unwrap();
    drop(gone);
    origins.push(Origin { name: "dead".to_owned(), address: dead, requests: Default::default() });
    let rest = format!(
        "policies.lard = {{ t_low = 1, t_high = 2 }}\nadmission.limit = \"unlimited\"\nhealth = {{ check = \"off\", passive_fall = 0 }}\n{ROUTES}"
    );
    let switch = start(folder.path(), &origins, &rest);
    // The first client gets the cookie of the node that served it in the end.
    let replies: Vec<Reply> = (0..8).map(|_| get(switch.address, "/app/x")).collect();
    let known: std::collections::BTreeMap<String, String> =
        replies.iter().map(|reply| (node(reply), cookie(reply).unwrap())).collect();
    assert_eq!(known.keys().collect::<Vec<_>>(), NODES.iter().collect::<Vec<_>>());
    let lines = until("all is logged", || {
        let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
        (text.lines().count() == 8).then_some(text)
    });
    assert!(lines.contains(" reason=retry error=- tries=2 "), "{lines}");
}

#[test]
fn a_user_has_a_node_without_a_cookie() {
    let folder = tempfile::tempdir().unwrap();
    let origins = origins();
    let switch = start(folder.path(), &origins, ROUTES);
    let of = |user: usize| node(&ask(switch.address, "GET", "/users/x", &format!("X-User: u{user}\r\n")));
    let homes: Vec<String> = (0..24).map(of).collect();
    assert!(NODES.iter().all(|node| homes.iter().any(|home| home == node)), "{homes:?}");
    assert_eq!((0..24).map(of).collect::<Vec<_>>(), homes);
    let reply = ask(switch.address, "GET", "/users/x", "X-User: u1\r\n");
    assert_eq!(values(&reply.head, "set-cookie"), [""; 0]);
    // Requests without a user are distributed in turn.
    let turns: Vec<String> = (0..3).map(|_| node(&get(switch.address, "/users/x"))).collect();
    assert!(turns[0] != turns[1] && turns[1] != turns[2], "{turns:?}");
    admin(&switch, "/nodes/b/drain");
    for (user, home) in homes.iter().enumerate() {
        assert!(home == "b" || of(user) == *home, "others stay");
        assert_ne!(of(user), "b");
    }
}
