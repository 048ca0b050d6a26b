//! Test that relaying a request allocates once: memory for its progress, which an idle connection does not
//! hold.

use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{
    Answer, Failure, MessageRejection, Next, PoolLimits, Proxy, ReplyForwarding, Report, Start, Worker,
    runtime, serve,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

const REQUEST: &[u8] =
    b"GET /path?query HTTP/1.1\r\nHost: a.test\r\nUser-Agent: test/1.0\r\nAccept: */*\r\n\r\n";
const REPLY: &[u8] =
    b"HTTP/1.1 200 OK\r\nServer: test\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nbody";

struct OneServerProxy(SocketAddr);

impl Proxy for OneServerProxy {
    type Client = ();
    type Exchange = ();
    type Server = SocketAddr;
    type Stream = tokio::net::TcpStream;

    fn request(&self, (): &(), head: &mut RequestHead) -> ((), Next<SocketAddr>) {
        head.fields.append(b"X-Forwarded-For", b"192.0.2.1").expect("room");
        ((), Next::Server(self.0))
    }

    async fn connect(&self, (): &(), server: &SocketAddr) -> std::io::Result<Self::Stream> {
        tokio::net::TcpStream::connect(server).await
    }

    fn reply(
        &self,
        (): &(),
        (): &mut (),
        _: &RequestHead,
        head: &mut ReplyHead,
    ) -> Result<ReplyForwarding, MessageRejection> {
        head.fields.append(b"Via", b"1.1 one").expect("room");
        Ok(ReplyForwarding::AsIs)
    }

    fn on_failure(
        &self,
        (): &(),
        (): &mut (),
        _: (&RequestHead, &ReplyHead),
        _: &Failure,
    ) -> Next<SocketAddr> {
        Next::Answer(Answer::new(502))
    }

    fn on_end(&self, (): &(), (): (), _: &mut RequestHead, _: &ReplyHead, report: Report) {
        assert!(report.complete);
    }
}

/// Reads messages up to the `end` of each, and sends `answer` to each.
fn answer_all(mut stream: TcpStream, end: &[u8], answer: &[u8]) {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        read.extend_from_slice(&piece[..length]);
        while let Some(at) = read.windows(end.len()).position(|bytes| bytes == end) {
            read.drain(..at + end.len());
            stream.write_all(answer).expect("writes");
        }
    }
}

/// Returns the number of allocations of the relaying thread for a connection with `requests` requests.
fn allocations(requests: usize) -> u64 {
    let servers = TcpListener::bind("127.0.0.1:0").expect("binds");
    let proxy = OneServerProxy(servers.local_addr().expect("bound"));
    let server = thread::spawn(move || answer_all(servers.accept().expect("accepts").0, b"\r\n\r\n", REPLY));
    let clients = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = clients.local_addr().expect("bound");
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).expect("connects");
        let mut reply = Vec::new();
        for _ in 0..requests {
            stream.write_all(REQUEST).expect("writes");
            while !reply.ends_with(b"body") {
                let mut piece = [0; 4096];
                let length = stream.read(&mut piece).expect("reads");
                assert!(length > 0, "the connection ended");
                reply.extend_from_slice(&piece[..length]);
            }
            reply.clear();
        }
    });
    let counted = allocation_counter::measure(|| {
        let (stream, _) = clients.accept().expect("accepts");
        stream.set_nonblocking(true).expect("sets");
        runtime().expect("a runtime").block_on(async {
            let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
            serve(Start::new(stream), &(), &Worker::new(proxy, PoolLimits::default())).await;
        });
    });
    client.join().expect("the client ends");
    drop(server);
    counted.count_total
}

#[test]
fn a_request_costs_one_allocation() {
    let (few, many) = (allocations(100), allocations(1_100));
    let further = many.saturating_sub(few);
    assert!(further <= 1_000, "{further} for 1,000 requests, beside {few} for a connection");
}
