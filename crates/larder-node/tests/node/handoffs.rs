//! Connections that arrive as sockets, with bytes that a switch has read.

use super::client::Client;
use super::{HOUR, PATIENCE, TestNode, pattern, write_file};
use larder_handoff::agent::RestoredConnection;
use larder_node::{IncomingHandoffs, NodeConfig, StoreConfig};
use std::os::fd::OwnedFd;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const REQUEST: &[u8] = b"GET /file HTTP/1.1\r\nHost: n\r\n\r\n";

async fn start_node(connections_max: u32) -> TestNode {
    let fill = |root: &std::path::Path| write_file(&root.join("file"), pattern(3_000), HOUR);
    TestNode::with_directory(fill, |config| config.limits.connections_max = connections_max).await
}

/// Returns a client and the server's end of its connection, with the bytes that were read and the bytes that
/// were not sent.
pub(crate) async fn restored_connection(first: &[u8], unsent: &[u8]) -> (Client, RestoredConnection) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let (client_socket, server_socket) = tokio::join!(TcpStream::connect(server), listener.accept());
    let (server_socket, client) = server_socket.unwrap();
    let socket = OwnedFd::from(server_socket.into_std().unwrap());
    let (first, unsent) = (first.to_vec(), unsent.to_vec());
    let restored =
        RestoredConnection { client, server, socket, received: first, unsent, fin_packet: None, slot: None };
    (Client { stream: BufReader::new(client_socket.unwrap()) }, restored)
}

#[tokio::test]
async fn a_request_may_be_split_anywhere_between_front_end_and_node() {
    let running = start_node(10).await;
    for split in 0..=REQUEST.len() {
        let (mut client, restored) = restored_connection(&REQUEST[..split], b"").await;
        running.handoffs.send(restored).await.unwrap();
        client.send(&REQUEST[split..]).await;
        assert_eq!(client.read_reply(false).await.body, pattern(3_000), "split at {split}");
        // The connection is kept alive like any other.
        assert_eq!(client.get("/file").await.status, 200);
    }
}

#[tokio::test]
async fn more_than_one_request_may_have_been_read() {
    let running = start_node(10).await;
    let count = 2_000;
    let (mut client, restored) = restored_connection(&REQUEST.repeat(count), b"").await;
    running.handoffs.send(restored).await.unwrap();
    for _ in 0..count {
        assert_eq!(client.read_reply(false).await.body, pattern(3_000));
    }
}

#[tokio::test]
async fn unsent_bytes_are_sent_first_and_need_no_request() {
    let running = start_node(10).await;
    let rest = pattern(4 << 20);
    let (mut client, restored) = restored_connection(b"", &rest).await;
    running.handoffs.send(restored).await.unwrap();
    let mut seen = vec![0; rest.len()];
    timeout(PATIENCE, client.stream.read_exact(&mut seen)).await.expect("it comes").unwrap();
    assert!(seen == rest);

    let (mut client, restored) = restored_connection(REQUEST, &rest).await;
    running.handoffs.send(restored).await.unwrap();
    timeout(PATIENCE, client.stream.read_exact(&mut seen)).await.expect("it comes").unwrap();
    assert!(seen == rest);
    assert_eq!(client.read_reply(false).await.body, pattern(3_000));
}

#[tokio::test]
async fn limits_and_draining_apply_to_accepted_and_handed_off_connections() {
    let mut running = start_node(1).await;
    let (mut first, restored) = restored_connection(REQUEST, b"").await;
    running.handoffs.send(restored).await.unwrap();
    assert_eq!(first.read_reply(false).await.status, 200);
    let (mut second, restored) = restored_connection(REQUEST, b"").await;
    running.handoffs.send(restored).await.unwrap();
    assert_eq!(second.read_reply(false).await.status, 503);
    assert_eq!(running.client().await.get("/file").await.status, 503);
    running.shut_down();
    first.wait_for_close().await;
    assert_eq!(running.wait_for_end().await.aborted, 0);
}

/// Starts a node that treats all its connections as handed off.
async fn start_with_all_handed_off() -> TestNode {
    let files = tempfile::tempdir().unwrap();
    let root = files.path().join("root");
    write_file(&root.join("a"), "x", HOUR);
    write_file(&root.join("long"), pattern(500_000), HOUR);
    let mut config = NodeConfig::new("n", StoreConfig::Directory { root, bypass_page_cache: false });
    super::set_small_chunks(&mut config);
    let handoffs = |address| IncomingHandoffs { services: vec![address], ..IncomingHandoffs::none() };
    TestNode::start_with_handoffs(config, files, handoffs).await
}

/// A client may close its sending side and still read (RFC 9112 section 9.6).
#[tokio::test]
async fn half_closed_clients_get_all_their_replies() {
    let running = start_with_all_handed_off().await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: n\r\n\r\n");
    for requests in [vec!["/a"], vec!["/long"], vec!["/a", "/long", "/a", "/long"]] {
        let mut client = running.client().await;
        client.send(requests.iter().map(|path| get(path)).collect::<String>().as_bytes()).await;
        client.stream.shutdown().await.unwrap();
        for path in &requests {
            let reply = client.read_reply(false).await;
            let bytes = if *path == "/a" { 1 } else { 500_000 };
            assert_eq!(
                (reply.status, reply.body.len(), reply.truncated),
                (200, bytes, false),
                "{requests:?}"
            );
        }
        client.wait_for_close().await;
    }
    // Without a request, there is nothing to wait for.
    let mut silent = running.client().await;
    silent.stream.shutdown().await.unwrap();
    silent.wait_for_close().await;
    running.wait_until(|stats| stats.connections == 0 && stats.in_flight == 0).await;
}
