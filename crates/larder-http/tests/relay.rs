//! The relay between real sockets: a client and a server that follow scripts byte by byte.

use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{Answer, Ended, Failure, Next, Peer, Proxy, Stage, Timeouts, runtime, serve};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

/// For what must happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy whose requests all go to one server, and that notes what it is told.
struct One {
    server: SocketAddr,
    timeouts: Timeouts,
    draining: Cell<bool>,
    /// What requests for `/later` wait for.
    decides: Rc<Notify>,
    failures: RefCell<Vec<Failure>>,
    ended: RefCell<Vec<Ended>>,
}

impl Proxy for One {
    type Exchange = ();
    type Server = SocketAddr;
    type Stream = TcpStream;

    fn request(&self, _: Peer, head: &mut RequestHead) -> ((), Next<SocketAddr>) {
        if head.target() == b"/own" {
            return (
                (),
                Next::Answer(Answer {
                    status: 403,
                    fields: vec![("X", "1".to_owned())],
                    body: b"no\n".to_vec(),
                }),
            );
        }
        head.fields.append(b"Via", b"1.1 one").expect("room");
        if head.target() == b"/later" {
            let (server, decides) = (self.server, self.decides.clone());
            return (
                (),
                Next::Later(Box::pin(async move {
                    decides.notified().await;
                    Next::Server(server)
                })),
            );
        }
        ((), Next::Server(self.server))
    }

    async fn connect(&self, server: &SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn reply(&self, (): &mut (), head: &mut ReplyHead) {
        head.fields.append(b"Via", b"1.1 one").expect("room");
    }

    fn failed(&self, (): &mut (), failure: Failure) -> Next<SocketAddr> {
        self.failures.borrow_mut().push(failure);
        let status = if failure.timed_out { 504 } else { 502 };
        Next::Answer(Answer { status, fields: Vec::new(), body: Vec::new() })
    }

    fn ended(&self, (): (), ended: Ended) {
        self.ended.borrow_mut().push(ended);
    }

    fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    fn head_bytes_max(&self) -> usize {
        4096
    }

    fn is_draining(&self) -> bool {
        self.draining.get()
    }
}

/// A proxy in front of a server whose connections `script` follows, one call for each.
struct Bench {
    proxy: Rc<One>,
    address: SocketAddr,
}

impl Bench {
    async fn new<F: Future<Output = ()> + 'static>(script: impl Fn(usize, Talk) -> F + 'static) -> Self {
        let patient = Duration::from_secs(60);
        let timeouts = Timeouts {
            head: patient,
            keepalive: patient,
            client: patient,
            connect: patient,
            server: patient,
        };
        Self::with(timeouts, script).await
    }

    async fn with<F: Future<Output = ()> + 'static>(
        timeouts: Timeouts,
        script: impl Fn(usize, Talk) -> F + 'static,
    ) -> Self {
        let servers = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let server = servers.local_addr().expect("bound");
        spawn_local(async move {
            for number in 0.. {
                let (stream, _) = servers.accept().await.expect("accepts");
                spawn_local(script(number, Talk::new(stream)));
            }
        });
        let proxy = Rc::new(One {
            server,
            timeouts,
            draining: Cell::default(),
            decides: Rc::default(),
            failures: RefCell::default(),
            ended: RefCell::default(),
        });
        let clients = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = clients.local_addr().expect("bound");
        let serving = proxy.clone();
        spawn_local(async move {
            loop {
                let (stream, address) = clients.accept().await.expect("accepts");
                let proxy = serving.clone();
                spawn_local(async move { serve(stream, Peer { address, secure: false }, &*proxy).await });
            }
        });
        Self { proxy, address }
    }

    async fn client(&self) -> Talk {
        Talk::new(TcpStream::connect(self.address).await.expect("connects"))
    }

    /// Waits until so many requests have ended, and says how.
    async fn ended(&self, count: usize) -> Vec<Ended> {
        let wait = async {
            while self.proxy.ended.borrow().len() < count {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, wait).await.expect("requests end");
        self.proxy.ended.borrow().clone()
    }
}

/// One side of a connection.
struct Talk {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Talk {
    fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("writes");
    }

    async fn more(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        let read = timeout(PATIENCE, self.stream.read(&mut piece)).await.expect("bytes come in time");
        let read = read.unwrap_or(0);
        self.read.extend_from_slice(&piece[..read]);
        read > 0
    }

    /// The bytes up to the end of the next `text`.
    async fn until(&mut self, text: &str) -> String {
        loop {
            let found = self.read.windows(text.len()).position(|bytes| bytes == text.as_bytes());
            if let Some(at) = found {
                let bytes: Vec<u8> = self.read.drain(..at + text.len()).collect();
                return String::from_utf8(bytes).expect("text");
            }
            assert!(self.more().await, "ended before {text:?}: {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    /// All up to the end.
    async fn rest(&mut self) -> String {
        while self.more().await {}
        String::from_utf8(std::mem::take(&mut self.read)).expect("text")
    }
}

fn on_one_thread(test: impl Future<Output = ()>) {
    LocalSet::new().block_on(&runtime().expect("a runtime"), test);
}

/// Answers every request that has no body with its own head.
async fn echo(mut talk: Talk) {
    loop {
        while !talk.read.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            if !talk.more().await {
                return;
            }
        }
        let head = talk.head().await;
        talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len())).await;
    }
}

#[test]
fn requests_follow_each_other_on_both_connections() {
    on_one_thread(async {
        let connections = Rc::new(Cell::new(0));
        let opened = connections.clone();
        let bench = Bench::new(move |number, talk| {
            opened.set(number + 1);
            echo(talk)
        })
        .await;
        let mut client = bench.client().await;
        for path in ["/a", "/b"] {
            client
                .say(format!(
                    "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: x-hop\r\nX-Hop: 1\r\nTE: trailers\r\n\r\n"
                ))
                .await;
            let head = client.head().await;
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Via: 1.1 one\r\n"), "{head}");
            let seen = client.head().await;
            assert_eq!(seen, format!("GET {path} HTTP/1.1\r\nHost: h\r\nVia: 1.1 one\r\n\r\n"));
        }
        // Two at once, the second of them in parts.
        client.say("\r\nGET /c HTTP/1.1\r\nHost: h\r\n\r\nGET /d HTTP/1.1\r\nHo").await;
        assert!(client.head().await.contains(" 200 ") && client.head().await.contains("/c"));
        client.say("st: h\r\nConnection: close\r\n\r\n").await;
        let last = client.rest().await;
        assert!(last.contains("Connection: close\r\n") && last.contains("GET /d "), "{last}");
        assert_eq!(connections.get(), 1);
        let ended = bench.ended(4).await;
        assert!(ended.iter().all(|ended| ended.complete && ended.status == Some(200)), "{ended:?}");
    });
}

#[test]
fn bodies_go_both_ways_as_they_come() {
    on_one_thread(async {
        for body in [
            "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: 1\r\n\r\n",
            "Content-Length: 3\r\n\r\nxyz",
        ] {
            let bench = Bench::new(|_, mut talk| async move {
                if talk.head().await.contains("Transfer-Encoding") {
                    assert_eq!(talk.until("0\r\nT: 1\r\n\r\n").await, "3\r\nabc\r\n0\r\nT: 1\r\n\r\n");
                } else {
                    assert_eq!(talk.until("xyz").await, "xyz");
                }
                talk.say(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;e\r\nok\r\n0\r\nU: 2\r\n\r\n",
                )
                .await;
                echo(talk).await;
            })
            .await;
            let mut client = bench.client().await;
            let request = format!("POST / HTTP/1.1\r\nHost: h\r\n{body}GET /n HTTP/1.1\r\nHost: h\r\n\r\n");
            for byte in request.bytes() {
                client.say([byte]).await;
            }
            assert!(client.head().await.contains("Transfer-Encoding: chunked\r\n"));
            assert_eq!(client.head().await, "2;e\r\nok\r\n0\r\nU: 2\r\n\r\n");
            assert!(client.head().await.contains(" 200 ") && client.head().await.contains("GET /n "));
        }
    });
}

#[test]
fn large_bodies_wait_for_who_reads_slowly() {
    on_one_thread(async {
        const SIZE: usize = 8 << 20;
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            let mut left = SIZE;
            while left > 0 {
                left -= talk.read.len();
                talk.read.clear();
                if left > 0 {
                    assert!(talk.more().await);
                }
            }
            talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n")).await;
            talk.say(vec![b'y'; SIZE]).await;
        })
        .await;
        let mut client = bench.client().await;
        client.say(format!("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {SIZE}\r\n\r\n")).await;
        client.say(vec![b'x'; SIZE]).await;
        client.head().await;
        while client.read.len() < SIZE {
            assert!(client.more().await);
        }
        assert!(client.read.iter().all(|byte| *byte == b'y') && client.read.len() == SIZE);
        assert_eq!(bench.ended(1).await[0].body_bytes, SIZE as u64);
    });
}

#[test]
fn interim_replies_reach_clients_that_know_them() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            loop {
                let head = talk.head().await;
                if head.contains("Expect: 100-continue") {
                    talk.say("HTTP/1.1 100 Continue\r\n\r\n").await;
                    talk.until("abc").await;
                }
                talk.say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        })
        .await;
        let mut client = bench.client().await;
        client.say("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n").await;
        assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
        client.say("abc").await;
        assert_eq!(client.head().await, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        assert!(client.until("ok").await.starts_with("HTTP/1.1 200 OK\r\n"));
        let mut old = bench.client().await;
        old.say("GET / HTTP/1.0\r\n\r\n").await;
        assert!(old.rest().await.starts_with("HTTP/1.1 200 OK\r\n"));
    });
}

#[test]
fn a_reply_that_ends_with_its_connection_gets_chunks() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.0 200 OK\r\n\r\nabc").await;
        })
        .await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.head().await.contains("Transfer-Encoding: chunked\r\n"));
        assert_eq!(client.head().await, "3\r\nabc\r\n0\r\n\r\n");
        let mut old = bench.client().await;
        old.say("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let reply = old.rest().await;
        assert!(reply.ends_with("\r\n\r\nabc") && reply.contains("Connection: close\r\n"), "{reply}");
    });
}

#[test]
fn a_client_of_http10_gets_no_chunks() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\nT: 1\r\n\r\n").await;
            talk.rest().await;
        })
        .await;
        let mut old = bench.client().await;
        old.say("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
        let reply = old.rest().await;
        assert!(reply.ends_with("\r\n\r\nabcd") && !reply.contains("Transfer-Encoding"), "{reply}");
    });
}

#[test]
fn an_early_reply_reaches_a_client_that_is_still_sending() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            talk.head().await;
            talk.say("HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
                .await;
        })
        .await;
        let mut client = bench.client().await;
        client.say("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nabc").await;
        let reply = client.until("much").await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains("Connection: close\r\n"), "{reply}");
        client.say("more").await;
        assert_eq!(client.rest().await, "");
    });
}

#[test]
fn another_protocol_is_carried_both_ways() {
    on_one_thread(async {
        let bench = Bench::new(|_, mut talk| async move {
            let head = talk.head().await;
            assert!(head.contains("Connection: upgrade\r\nUpgrade: echo\r\n"), "{head}");
            talk.say("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello")
                .await;
            assert_eq!(talk.until("ping").await, "earlyping");
            talk.say("pong").await;
            assert_eq!(talk.rest().await, "", "the client's end is passed on");
            talk.say("last").await;
        })
        .await;
        let mut client = bench.client().await;
        client
            .say("GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\nearly")
            .await;
        assert!(client.head().await.contains("Upgrade: echo\r\n"));
        client.until("hello").await;
        client.say("ping").await;
        client.until("pong").await;
        client.stream.shutdown().await.expect("ends");
        assert_eq!(client.rest().await, "last");
        assert_eq!(bench.ended(1).await[0], Ended { status: Some(101), body_bytes: 13, complete: true });
    });
}

#[test]
fn a_connection_that_the_server_has_closed_is_replaced() {
    on_one_thread(async {
        let bench = Bench::new(|number, mut talk| async move {
            talk.head().await;
            talk.say(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}")).await;
            // Closed when the next request comes, which the proxy cannot have noticed before.
            if number == 0 {
                talk.head().await;
            } else {
                talk.rest().await;
            }
        })
        .await;
        let mut client = bench.client().await;
        for number in 0..2 {
            client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            client.head().await;
            client.until(&number.to_string()).await;
        }
        assert!(bench.proxy.failures.borrow().is_empty());
        // A body that was taken is not sent again.
        let mut client = bench.client().await;
        drop(bench.client().await);
        client.say("GET /own HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let own = client.until("no\n").await;
        assert!(own.starts_with("HTTP/1.1 403 Forbidden\r\nX: 1\r\nContent-Length: 3\r\n\r\n"), "{own}");
    });
}

#[test]
fn what_a_server_does_wrong_is_told_by_its_stage() {
    on_one_thread(async {
        for (reply, stage, seen) in [
            ("", Stage::Request { reused: false }, "HTTP/1.1 502 "),
            ("nonsense\r\n\r\n", Stage::Reply { begun: false }, "HTTP/1.1 502 "),
            ("HTTP/1.1 101 x\r\n\r\n", Stage::Reply { begun: false }, "HTTP/1.1 502 "),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
                Stage::Reply { begun: true },
                "HTTP/1.1 200 ",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd",
                Stage::Reply { begun: false },
                "HTTP/1.1 502 ",
            ),
        ] {
            let bench = Bench::new(move |_, mut talk| async move {
                talk.head().await;
                talk.say(reply).await;
            })
            .await;
            let mut client = bench.client().await;
            client.say("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
            let got = client.rest().await;
            assert!(got.starts_with(seen) && !got.contains("\r\n0\r\n"), "{reply:?}: {got:?}");
            let failure = bench.proxy.failures.borrow()[0];
            assert_eq!(
                (failure.stage, failure.timed_out, failure.replayable),
                (stage, false, true),
                "{reply:?}"
            );
        }
    });
}

#[test]
fn a_server_that_is_not_there_or_takes_too_long_is_told() {
    on_one_thread(async {
        let long = Duration::from_secs(60);
        let short = Duration::from_millis(50);
        let timeouts = Timeouts { head: long, keepalive: long, client: long, connect: long, server: short };
        let bench = Bench::with(timeouts, |_, mut talk| async move {
            talk.rest().await;
        })
        .await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        assert!(client.rest().await.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
        let failure = bench.proxy.failures.borrow()[0];
        assert_eq!((failure.stage, failure.timed_out), (Stage::Request { reused: false }, true));
    });
}

#[test]
fn clients_that_send_nonsense_or_nothing_are_told_to_go() {
    on_one_thread(async {
        let long = Duration::from_secs(60);
        let short = Duration::from_millis(50);
        let timeouts = Timeouts { head: short, keepalive: long, client: long, connect: long, server: long };
        let bench = Bench::with(timeouts, |_, talk| echo(talk)).await;
        let large = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(5_000));
        let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: 1\r\n".repeat(300));
        for (sent, seen) in [
            ("nonsense\r\n\r\n", "HTTP/1.1 400 "),
            (&large, "HTTP/1.1 431 "),
            (&many, "HTTP/1.1 431 "),
            ("GET / HTTP/1.1\r\nHo", "HTTP/1.1 408 "),
            ("", ""),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", ""),
        ] {
            let mut client = bench.client().await;
            client.say(sent).await;
            let got = client.rest().await;
            assert!(got.starts_with(seen) && got.is_empty() == seen.is_empty(), "{sent:?}: {got:?}");
        }
    });
}

#[test]
fn a_client_that_leaves_frees_the_server() {
    on_one_thread(async {
        let left = Rc::new(Cell::new(false));
        let leaving = left.clone();
        let bench = Bench::new(move |_, mut talk| {
            let leaving = leaving.clone();
            async move {
                talk.head().await;
                assert_eq!(talk.rest().await, "");
                leaving.set(true);
            }
        })
        .await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        while bench.proxy.ended.borrow().is_empty() {
            // The request must be at the server, or there is nothing to free.
            tokio::task::yield_now().await;
            if !left.get() {
                client.stream.shutdown().await.expect("ends");
            }
        }
        let wait = async {
            while !left.get() {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, wait).await.expect("the server's connection ends");
        assert_eq!(bench.ended(1).await[0], Ended { status: None, body_bytes: 0, complete: false });
    });
}

#[test]
fn connections_end_after_their_request_while_the_proxy_drains() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.head().await;
        client.head().await;
        bench.proxy.draining.set(true);
        client.say("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.rest().await.contains("Connection: close\r\n"));
    });
}

#[test]
fn a_decision_may_take_its_time_and_ends_with_its_client() {
    on_one_thread(async {
        let bench = Bench::new(|_, talk| echo(talk)).await;
        let mut client = bench.client().await;
        client.say("GET /later HTTP/1.1\r\nHost: h\r\n\r\nGET /own HTTP/1.1\r\nHost: h\r\n\r\n").await;
        bench.proxy.decides.notify_one();
        assert!(client.head().await.contains(" 200 ") && client.head().await.contains("GET /later "));
        client.until("no\n").await;
        client.say("GET /later HTTP/1.1\r\nHost: h\r\n\r\n").await;
        client.stream.shutdown().await.expect("ends");
        assert_eq!(bench.ended(3).await[2], Ended { status: None, body_bytes: 0, complete: false });
    });
}
