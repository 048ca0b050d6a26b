//! Counts the allocations per request, once the buffers of its connection have grown.

use super::{Client, Requests};
use crate::clock::Clock;
use crate::config::SwitchConfig;
use crate::handoff::mechanism::{Delivery, DeliveryReason};
use crate::node_entry::NodeEntry;
use crate::shared::Shared;
use larder_core::NodeSpec;
use larder_http::relay::{PoolLimits, Start, Worker, runtime, serve};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

const REQUEST: &[u8] =
    b"GET /path?query HTTP/1.1\r\nHost: a.test\r\nUser-Agent: test/1.0\r\nAccept: */*\r\n\r\n";
const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: test\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nbody";

/// Replies to every message that ends with an empty line.
fn answer_all(mut stream: TcpStream) {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        read.extend_from_slice(&piece[..length]);
        while let Some(at) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            read.drain(..at + 4);
            stream.write_all(REPLY).expect("writes");
        }
    }
}

/// Sends this number of requests, one after the other.
fn ask(mut stream: TcpStream, requests: usize) {
    let (mut reply, mut piece) = (Vec::new(), [0; 4096]);
    for _ in 0..requests {
        stream.write_all(REQUEST).expect("writes");
        while !reply.ends_with(b"body") {
            let length = stream.read(&mut piece).expect("reads");
            assert!(length > 0, "the connection ended");
            reply.extend_from_slice(&piece[..length]);
        }
        reply.clear();
    }
}

/// Returns the allocations of the serving thread for a connection with this number of requests.
fn allocations(requests: usize) -> u64 {
    let nodes = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = nodes.local_addr().expect("bound").to_string();
    let node = thread::spawn(move || answer_all(nodes.accept().expect("accepts").0));
    let clients = TcpListener::bind("127.0.0.1:0").expect("binds");
    let switch = clients.local_addr().expect("bound");
    let client = thread::spawn(move || ask(TcpStream::connect(switch).expect("connects"), requests));
    let entry = NodeEntry::new(NodeSpec::named("a"), address);
    let config = SwitchConfig::new(vec![switch], vec![entry]);
    let shared = Shared::new(config, tokio::sync::mpsc::unbounded_channel().0, Clock::start());
    let shared = Arc::new(shared.expect("a valid config"));
    let counted = allocation_counter::measure(|| {
        let (stream, from) = clients.accept().expect("accepts");
        stream.set_nonblocking(true).expect("sets");
        runtime().expect("a runtime").block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
            let client = Client::new(from, Some(switch), Delivery::relay(DeliveryReason::Configured), None);
            let worker = Worker::new(Requests { shared: shared.clone() }, PoolLimits::default());
            serve(Start::new(stream), &client, &worker).await;
        });
    });
    client.join().expect("the client ends");
    node.join().expect("the node ends");
    counted.count_total
}

#[test]
fn a_request_costs_few_allocations() {
    let (few, many) = (allocations(100), allocations(1_100));
    let further = many.saturating_sub(few);
    assert!(further <= 5_000, "{further} for 1,000 requests, beside {few} for a connection");
}
