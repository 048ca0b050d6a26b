use super::*;
use crate::counters::Counters;
use crate::events::{Event, Events};
use crate::member::LeaveReason;
use crate::network::Network;
use crate::network::tests::{LONG, config, name, next, start, until_up};
use crate::secret::{ClusterSecret, KeyPurpose};
use http_body_util::Empty;
use larder_testkit::eventually_async;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub(crate) type Chunks = UnsyncBoxBody<Bytes, BodyError>;

/// A body of `count` chunks of 64 KiB.
fn chunks(count: usize) -> Chunks {
    body(move |at| async move { (at < count).then(|| Bytes::from(vec![7; 64 << 10])) })
}

/// A body whose chunks are the results of `chunk(0)`, `chunk(1)` and so on, up to the first `None`.
pub(crate) fn body<F: Future<Output = Option<Bytes>> + Send + 'static>(
    chunk: impl Fn(usize) -> F + Send + 'static,
) -> Chunks {
    let (sender, mut receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        for at in 0.. {
            let Some(bytes) = chunk(at).await else { break };
            if sender.send(bytes).await.is_err() {
                break;
            }
        }
    });
    let stream = ChunkBody(std::future::poll_fn(move |cx| receiver.poll_recv(cx)));
    stream.boxed_unsync()
}

/// A body from a function that returns chunks.
struct ChunkBody<F>(F);

impl<F> Body for ChunkBody<std::future::PollFn<F>>
where
    F: FnMut(&mut Context<'_>) -> Poll<Option<Bytes>> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Future::poll(Pin::new(&mut self.0), cx).map(|chunk| chunk.map(|bytes| Ok(Frame::data(bytes))))
    }
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(path).body(Empty::new()).expect("a request")
}

/// Nodes `a` and `b`. `b` replies with the number of chunks that the path gives, with half a body, or never.
async fn chunk_cluster(streams_max: u32, connections_max: usize) -> ((Network, Events), (Network, Events)) {
    let mut near = config("a", &[], 1);
    (near.links.streams_max, near.links.connections_max) = (streams_max, connections_max);
    let (a, mut from_a) =
        Network::start(near, |_, _| async { Response::new(chunks(0)) }).await.expect("started");
    let mut far = config("b", &[a.local_addr()], 1);
    far.links.streams_max = streams_max;
    let answer = |request: Request<Incoming>, _: Name| async move {
        match request.uri().path() {
            "/never" => std::future::pending().await,
            "/half" => Response::new(body(|at| async move {
                if at == 0 { Some(Bytes::from_static(b"half")) } else { std::future::pending().await }
            })),
            path => Response::new(chunks(path[1..].parse().expect("a number"))),
        }
    };
    let (b, mut from_b) = Network::start(far, answer).await.expect("started");
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    ((a, from_a), (b, from_b))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_block_only_their_own_streams() {
    let ((a, _from_a), _b) = chunk_cluster(256, 1).await;
    let to = name("b");
    let mut slow = Vec::new();
    // Each reply is larger than its window and is not read.
    for _ in 0..200 {
        slow.push(a.forward(&to, get("/16")).await.expect("a reply"));
    }
    let fast = async {
        let reply = a.forward(&to, get("/64")).await.expect("a reply");
        reply.into_body().collect().await.expect("a body").to_bytes().len()
    };
    assert_eq!(timeout(LONG, fast).await.expect("not blocked"), 64 * (64 << 10));
    assert_eq!((a.counters().read().streams, a.counters().read().data_links), (200, 1));
    let last = slow.pop().expect("one of them");
    let last = timeout(LONG, last.into_body().collect()).await.expect("in time").expect("a body");
    assert_eq!(last.to_bytes().len(), 16 * (64 << 10), "the whole reply");
    drop(slow);
    assert_eq!(a.counters().read().streams, 0);
}

#[tokio::test]
async fn connections_are_opened_up_to_the_limit() {
    let ((a, _from_a), (b, _from_b)) = chunk_cluster(2, 2).await;
    let to = name("b");
    let mut replies = Vec::new();
    for _ in 0..4 {
        replies.push(a.forward(&to, get("/half")).await.expect("a reply"));
    }
    assert_eq!(a.counters().read().data_links, 2);
    let full = a.forward(&to, get("/1")).await.expect_err("full");
    assert!(matches!(full, ForwardError::Full(_)) && !full.may_be_processed());
    replies.pop();
    let reply = a.forward(&to, get("/1")).await.expect("a reply");
    assert_eq!(reply.into_body().collect().await.expect("a body").to_bytes().len(), 64 << 10);
    let counted = (a.counters().read(), b.counters().read());
    assert_eq!((counted.0.requests_out, counted.0.requests_unsent, counted.1.requests_in), (5, 1, 5));
}

#[tokio::test]
async fn replies_of_a_member_that_crashes_are_errors() {
    let ((a, _from_a), b) = chunk_cluster(16, 1).await;
    let to = name("b");
    let mut half = a.forward(&to, get("/half")).await.expect("a reply").into_body();
    let first = half.frame().await.expect("a frame").expect("data").into_data().expect("data");
    assert_eq!(first, "half");
    let waiting = a.forward(&to, get("/never"));
    let killed = async {
        eventually_async("the second request arrives", || {
            (b.0.counters().read().requests_in == 2).then_some(())
        })
        .await;
        drop(b);
    };
    let (waited, ()) = tokio::join!(timeout(LONG, waiting), killed);
    let lost = waited.expect("in time").expect_err("lost");
    assert!(lost.may_be_processed(), "{lost}");
    let broken = timeout(LONG, half.frame()).await.expect("in time");
    assert!(matches!(broken, Some(Err(_))), "an error, not an end: {broken:?}");
    // Its port is closed, although membership may not have noticed yet.
    let after = a.forward(&to, get("/1")).await.expect_err("nobody there");
    assert!(!after.may_be_processed(), "{after}");
    assert_eq!(a.counters().read().streams, 0);
}

#[tokio::test]
async fn requests_in_flight_finish_when_a_member_leaves() {
    let ((a, mut from_a), (b, _from_b)) = chunk_cluster(16, 1).await;
    let reply = a.forward(&name("b"), get("/64")).await.expect("a reply");
    let leaving = tokio::spawn(async move { (b.leave().await, b) });
    while !matches!(next(&mut from_a).await, Event::Left(_, LeaveReason::Announced)) {}
    let whole = timeout(LONG, reply.into_body().collect()).await.expect("in time").expect("a whole body");
    assert_eq!(whole.to_bytes().len(), 64 * (64 << 10));
    let (nothing_aborted, _b) = timeout(LONG, leaving).await.expect("in time").expect("left");
    assert!(nothing_aborted);
}

/// Lost datagrams can make a live member look dead. Its replies continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_of_a_live_member_that_was_declared_down_continue() {
    let ((a, _from_a), _b) = chunk_cluster(16, 1).await;
    let reply = a.forward(&name("b"), get("/64")).await.expect("a reply");
    let member = a.members()[0].clone();
    a.links().remove(&member);
    assert!(matches!(a.forward(&name("b"), get("/1")).await, Err(ForwardError::NotMember(_))));
    let whole = timeout(LONG, reply.into_body().collect()).await.expect("in time").expect("a whole body");
    assert_eq!(whole.to_bytes().len(), 64 * (64 << 10));
    assert_eq!(a.counters().read().streams, 0);
}

/// The process of a member hangs and is declared down. Its kernel still accepts bytes, but pings fail, so replies end.
#[tokio::test]
async fn replies_of_a_hung_member_end_by_ping_timeout() {
    let mut near = config("a", &[], 1);
    (near.links.ping, near.links.ping_timeout) = (Duration::from_millis(50), Duration::from_millis(500));
    let (a, mut from_a) =
        Network::start(near, |_, _| async { Response::new(chunks(0)) }).await.expect("started");
    let seed = a.local_addr();
    let (freeze, frozen) = oneshot::channel::<()>();
    let (thaw, thawed) = std::sync::mpsc::channel::<()>();
    let host = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let answer = |_: Request<Incoming>, _: Name| async {
                Response::new(body(|at| async move {
                    if at == 0 { Some(Bytes::from_static(b"half")) } else { std::future::pending().await }
                }))
            };
            let _b = Network::start(config("b", &[seed], 1), answer).await.expect("started");
            // Blocks the runtime's only thread until the test ends.
            let _ = frozen.await;
            let _ = thawed.recv();
        });
    });
    until_up(&mut from_a, "b").await;
    let mut half = a.forward(&name("b"), get("/half")).await.expect("a reply").into_body();
    assert!(matches!(half.frame().await, Some(Ok(_))));
    let member = a.members()[0].clone();
    freeze.send(()).expect("it waits");
    a.links().remove(&member);
    let broken = timeout(LONG, half.frame()).await.expect("in time");
    assert!(matches!(broken, Some(Err(_))), "an error, not an end: {broken:?}");
    drop(thaw);
    host.join().expect("it ends");
}

/// The peer has vanished without closing the connection.
#[tokio::test]
async fn a_silent_connection_is_closed_by_ping_timeout() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let member =
        Member { name: name("b"), incarnation: 1, address: listener.local_addr().expect("an address") };
    let counters = Arc::<Counters>::default();
    let handshaker = Arc::new(Handshaker {
        local: Arc::new(crate::member::LocalMember::new(name("a"), 1)),
        keyring: crate::keyring::Keyring::new(ClusterSecret::new([1; 32]).into(), Arc::default()),
        timeout: LONG,
        counters: Arc::clone(&counters),
    });
    let config = LinksConfig {
        ping: Duration::from_millis(50),
        ping_timeout: Duration::from_millis(100),
        ..LinksConfig::default()
    };
    let links = DataLinks::new(config, Arc::clone(&handshaker));
    links.add(member.clone());
    let silent = async {
        let (io, _) = listener.accept().await.expect("accepted");
        let psk = ClusterSecret::new([1; 32]).key(KeyPurpose::DataLinks);
        let (mut stream, _) = crate::noise::respond(io, &[psk], LONG).await.expect("a member");
        crate::hello::Hello::receive(&mut stream).await.expect("said");
        crate::hello::HelloReply::Welcome.send(&mut stream, 1).await.expect("answered");
        std::future::pending::<()>().await;
    };
    let lost = tokio::select! {
        lost = timeout(LONG, links.forward(&member.name, get("/"))) => lost.expect("noticed"),
        () = silent => unreachable!("it never ends"),
    };
    assert!(lost.expect_err("silent").may_be_processed());
    assert_eq!((counters.read().requests_lost, counters.read().streams), (1, 0));
}

#[tokio::test]
async fn another_member_at_the_address_is_an_error() {
    let ((a, _from_a), (b, _from_b)) = (start("a", &[]).await, start("b", &[]).await);
    let (name, address) = (name("b"), b.local_addr());
    let links = DataLinks::new(LinksConfig::default(), Arc::clone(a.links().handshaker()));
    for (incarnation, known) in
        [(b.incarnation() - 1, name.clone()), (b.incarnation(), "c".parse().expect("c"))]
    {
        let member = Member { name: known.clone(), incarnation, address };
        links.add(member.clone());
        let error = links.forward(&known, get("/")).await.expect_err("another");
        assert!(
            matches!(&error, ForwardError::Connect { source, .. } if matches!(**source, LinkError::WrongMember)),
            "{error}"
        );
        links.remove(&member);
        assert!(matches!(links.forward(&known, get("/")).await, Err(ForwardError::NotMember(_))));
    }
}

/// A head at the limit is sent. A larger one fails alone; the connection and its other requests continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_large_is_not_sent() {
    let ((a, _from_a), (_b, _from_b)) = chunk_cluster(256, 1).await;
    let to: Name = "b".parse().expect("a name");
    let mut under_way =
        timeout(LONG, a.forward(&to, get("/half"))).await.expect("in time").expect("a reply").into_body();
    let max = LinksConfig::default().head_bytes_max as usize;
    let with = |bytes: usize| {
        let mut request = get("/1");
        let value = http::HeaderValue::from_bytes(&vec![b'a'; bytes]).expect("a value");
        request.headers_mut().insert("x-large", value);
        request
    };
    let rest = head_bytes(&to_http2(with(0), &to).expect("a request"));
    let reply = timeout(LONG, a.forward(&to, with(max - rest))).await.expect("in time");
    assert_eq!(
        reply.expect("it is taken").into_body().collect().await.expect("whole").to_bytes().len(),
        64 << 10
    );
    let error = timeout(LONG, a.forward(&to, with(max - rest + 1))).await.expect("in time").err();
    assert!(matches!(error, Some(ForwardError::Head { bytes, .. }) if bytes == max + 1), "{error:?}");
    let half =
        timeout(LONG, under_way.frame()).await.expect("in time").expect("a frame").expect("it goes on");
    assert_eq!(half.into_data().expect("data").as_ref(), b"half");
}
