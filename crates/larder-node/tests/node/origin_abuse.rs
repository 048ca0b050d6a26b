//! A node before an origin: what one client must not be able to do to the others.

use super::stub::{Answer, Framing, Stub};

const KEPT: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";

#[tokio::test]
async fn a_host_that_is_none_is_refused_and_no_host_has_anothers_targets() {
    let stub =
        Stub::start(|asked| Answer::new(200, KEPT, format!("{} {}", asked.header("host"), asked.line))).await;
    let node = stub.node(|_, _| {}).await;
    for (target, hosts) in [
        ("/y", &["a.com/x"][..]),
        ("/y", &["a.com?x="]),
        ("/y", &["user@a.com"]),
        ("/y", &["a.com", "b.com"]),
        ("/y", &["a.com", "a.com"]),
        ("/y", &["a com"]),
        ("/y", &[""]),
        ("/y", &[]),
        ("http://user@a.com/y", &["a.com"]),
        ("http://a.com/y", &["b.com/x"]),
    ] {
        let mut client = node.client().await;
        let fields: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        client.send(format!("GET {target} HTTP/1.1\r\n{fields}\r\n").as_bytes()).await;
        assert_eq!(client.reply(false).await.status, 400, "{target} {hosts:?}");
    }
    assert!(stub.asked().is_empty());
    let mut client = node.client().await;
    for host in ["a.com", "a.com:80", "[::1]:80", "127.0.0.1"] {
        client.send(format!("GET /x/y HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await;
        let reply = client.reply(false).await;
        assert_eq!((reply.status, reply.body), (200, format!("{host} GET /x/y HTTP/1.1").into_bytes()));
    }
    assert_eq!(stub.asked().len(), 4);
}

#[tokio::test]
async fn only_what_may_be_repeated_is_sent_twice() {
    let stub = Stub::start(|_| Answer::new(200, "", "").framed(Framing::Silent)).await;
    let node = stub.node(|_, _| {}).await;
    let mut client = node.client().await;
    let mut before = 0;
    for (method, times) in [("POST", 1), ("DELETE", 1), ("GET", 2), ("HEAD", 2)] {
        let reply = client.request(method, "/", "").await;
        assert_eq!(reply.status, 502, "{method}");
        assert!(reply.cache_status().ends_with("; detail=origin-closed"), "{}", reply.cache_status());
        assert_eq!(stub.asked().len() - before, times, "{method}");
        before = stub.asked().len();
    }
}
