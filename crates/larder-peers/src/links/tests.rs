use super::*;
use crate::events::{Event, Events};
use crate::member::Why;
use crate::network::Network;
use crate::network::tests::{LONG, config, name, next, start, until_up};
use crate::secret::{ClusterSecret, Purpose};
use http_body_util::Empty;
use larder_testkit::eventually_async;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

pub(crate) type Chunks = UnsyncBoxBody<Bytes, BodyError>;

/// A body of so many chunks of 64 KiB.
fn chunks(count: usize) -> Chunks {
    body(move |at| async move { (at < count).then(|| Bytes::from(vec![7; 64 << 10])) })
}

pub(crate) fn body<F: Future<Output = Option<Bytes>> + Send + 'static>(
    chunk: impl Fn(usize) -> F + Send + 'static,
) -> Chunks {
    let (give, mut given) = mpsc::channel(1);
    tokio::spawn(async move {
        for at in 0.. {
            let Some(bytes) = chunk(at).await else { break };
            if give.send(bytes).await.is_err() {
                break;
            }
        }
    });
    let stream = Stream(std::future::poll_fn(move |cx| given.poll_recv(cx)));
    stream.boxed_unsync()
}

/// A body from a function that gives chunks.
struct Stream<F>(F);

impl<F> Body for Stream<std::future::PollFn<F>>
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

/// A node `a`, and a node `b` that answers with as many chunks as its path says, or never.
async fn with_chunks(streams_max: u32, connections_max: usize) -> ((Network, Events), (Network, Events)) {
    let mut near = config("a", &[], 1);
    (near.links.streams_max, near.links.connections_max) = (streams_max, connections_max);
    let (a, mut from_a) =
        Network::start(near, |_, _| async { Response::new(chunks(0)) }).await.expect("started");
    let mut far = config("b", &[a.local()], 1);
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
async fn slow_readers_hold_up_no_other() {
    let ((a, _from_a), _b) = with_chunks(256, 1).await;
    let to = name("b");
    let mut slow = Vec::new();
    // Each has far more than its window, and takes nothing.
    for _ in 0..200 {
        slow.push(a.forward(&to, get("/16")).await.expect("a reply"));
    }
    let fast = async {
        let reply = a.forward(&to, get("/64")).await.expect("a reply");
        reply.into_body().collect().await.expect("a body").to_bytes().len()
    };
    assert_eq!(timeout(LONG, fast).await.expect("not held up"), 64 * (64 << 10));
    assert_eq!((a.counters().read().streams, a.counters().read().data_links), (200, 1));
    let last = slow.pop().expect("one of them");
    let last = timeout(LONG, last.into_body().collect()).await.expect("in time").expect("a body");
    assert_eq!(last.to_bytes().len(), 16 * (64 << 10), "it was kept for it");
    drop(slow);
    assert_eq!(a.counters().read().streams, 0);
}

#[tokio::test]
async fn further_connections_are_made_up_to_their_limit() {
    let ((a, _from_a), (b, _from_b)) = with_chunks(2, 2).await;
    let to = name("b");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(a.forward(&to, get("/half")).await.expect("a reply"));
    }
    assert_eq!(a.counters().read().data_links, 2);
    let full = a.forward(&to, get("/1")).await.expect_err("full");
    assert!(matches!(full, ForwardError::Full(_)) && full.sent() == Sent::Unsent);
    held.pop();
    let reply = a.forward(&to, get("/1")).await.expect("a reply");
    assert_eq!(reply.into_body().collect().await.expect("a body").to_bytes().len(), 64 << 10);
    let counted = (a.counters().read(), b.counters().read());
    assert_eq!((counted.0.requests_out, counted.0.requests_unsent, counted.1.requests_in), (5, 1, 5));
}

#[tokio::test]
async fn a_member_that_dies_in_the_middle_breaks_its_replies() {
    let ((a, _from_a), b) = with_chunks(16, 1).await;
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
    assert_eq!(lost.sent(), Sent::Maybe, "{lost}");
    let broken = timeout(LONG, half.frame()).await.expect("in time");
    assert!(matches!(broken, Some(Err(_))), "cut, not ended: {broken:?}");
    // Its port is closed, though membership may not know yet.
    let after = a.forward(&to, get("/1")).await.expect_err("nobody there");
    assert_eq!(after.sent(), Sent::Unsent, "{after}");
    assert_eq!(a.counters().read().streams, 0);
}

#[tokio::test]
async fn requests_under_way_end_when_a_member_leaves() {
    let ((a, mut from_a), (b, _from_b)) = with_chunks(16, 1).await;
    let reply = a.forward(&name("b"), get("/64")).await.expect("a reply");
    let leaving = tokio::spawn(async move { (b.leave().await, b) });
    while !matches!(next(&mut from_a).await, Event::Left(_, Why::Said)) {}
    let whole = timeout(LONG, reply.into_body().collect()).await.expect("in time").expect("a whole body");
    assert_eq!(whole.to_bytes().len(), 64 * (64 << 10));
    let (nothing_cut, _b) = timeout(LONG, leaving).await.expect("in time").expect("left");
    assert!(nothing_cut);
}

/// Datagrams that are lost make a member that is well look dead: its replies go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_with_a_member_taken_for_gone_goes_on() {
    let ((a, _from_a), _b) = with_chunks(16, 1).await;
    let reply = a.forward(&name("b"), get("/64")).await.expect("a reply");
    let member = a.members()[0].clone();
    a.links().left(&member);
    assert!(matches!(a.forward(&name("b"), get("/1")).await, Err(ForwardError::NotMember(_))));
    let whole = timeout(LONG, reply.into_body().collect()).await.expect("in time").expect("a whole body");
    assert_eq!(whole.to_bytes().len(), 64 * (64 << 10));
    assert_eq!(a.counters().read().streams, 0);
}

/// Taken for gone while it stands still: what is under way with it ends with its pings, though its kernel takes what comes.
#[tokio::test]
async fn what_is_under_way_with_a_member_that_is_dead_ends() {
    let mut near = config("a", &[], 1);
    (near.links.ping, near.links.ping_timeout) = (Duration::from_millis(50), Duration::from_millis(500));
    let (a, mut from_a) =
        Network::start(near, |_, _| async { Response::new(chunks(0)) }).await.expect("started");
    let seed = a.local();
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
            // Until the test says, or ends.
            let _ = frozen.await;
            let _ = thawed.recv();
        });
    });
    until_up(&mut from_a, "b").await;
    let mut half = a.forward(&name("b"), get("/half")).await.expect("a reply").into_body();
    assert!(matches!(half.frame().await, Some(Ok(_))));
    let member = a.members()[0].clone();
    freeze.send(()).expect("it waits");
    a.links().left(&member);
    let broken = timeout(LONG, half.frame()).await.expect("in time");
    assert!(matches!(broken, Some(Err(_))), "cut, not ended: {broken:?}");
    drop(thaw);
    host.join().expect("it ends");
}

/// The other side has vanished without a word: only pings tell.
#[tokio::test]
async fn a_silent_connection_is_noticed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let member =
        Member { name: name("b"), incarnation: 1, address: listener.local_addr().expect("an address") };
    let counters = Arc::<Counters>::default();
    let ends = Arc::new(Ends {
        own: Arc::new(crate::member::Own::new(name("a"), 1)),
        keyring: crate::keyring::Keyring::new(ClusterSecret::new([1; 32]).into(), Arc::default()),
        deadline: LONG,
        counters: Arc::clone(&counters),
    });
    let config = LinksConfig {
        ping: Duration::from_millis(50),
        ping_timeout: Duration::from_millis(100),
        ..LinksConfig::default()
    };
    let links = Links::new(config, Arc::clone(&ends));
    links.joined(member.clone());
    let silent = async {
        let (io, _) = listener.accept().await.expect("accepted");
        let psk = ClusterSecret::new([1; 32]).key(Purpose::Links);
        let (mut stream, _) = crate::noise::respond(io, &[psk], LONG).await.expect("a member");
        crate::hello::Hello::receive(&mut stream).await.expect("said");
        crate::hello::Answer::Welcome.send(&mut stream, 1).await.expect("answered");
        std::future::pending::<()>().await;
    };
    let lost = tokio::select! {
        lost = timeout(LONG, links.forward(&member.name, get("/"))) => lost.expect("noticed"),
        () = silent => unreachable!("it never ends"),
    };
    assert_eq!(lost.expect_err("silent").sent(), Sent::Maybe);
    assert_eq!((counters.read().requests_lost, counters.read().streams), (1, 0));
}

#[tokio::test]
async fn another_life_at_the_address_is_told() {
    let ((a, _from_a), (b, _from_b)) = (start("a", &[]).await, start("b", &[]).await);
    let (name, address) = (name("b"), b.local());
    let links = Links::new(LinksConfig::default(), Arc::clone(a.links().ends()));
    for (incarnation, known) in
        [(b.incarnation() - 1, name.clone()), (b.incarnation(), "c".parse().expect("c"))]
    {
        let member = Member { name: known.clone(), incarnation, address };
        links.joined(member.clone());
        let error = links.forward(&known, get("/")).await.expect_err("another");
        assert!(
            matches!(&error, ForwardError::Connect { source, .. } if matches!(**source, LinkError::Another)),
            "{error}"
        );
        links.left(&member);
        assert!(matches!(links.forward(&known, get("/")).await, Err(ForwardError::NotMember(_))));
    }
}

/// A head at the limit is taken; a larger one costs neither its request's fellows nor their connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_is_too_large_is_not_sent() {
    let ((a, _from_a), (_b, _from_b)) = with_chunks(256, 1).await;
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
    let rest = head_bytes(&outgoing(with(0), &to).expect("a request"));
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
