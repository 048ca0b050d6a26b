use super::*;
use crate::config::{ControlConfig, GossipConfig, LinksConfig};
use crate::control_links::MESSAGE_BYTES_MAX;
use crate::events::{Event, LinkDirection};
use crate::member::LeaveReason;
use crate::secret::ClusterSecret;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use larder_testkit::eventually_async;

mod rotation;

pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// The defaults with shorter times for discovery and reconnection. Failure detection by gossip keeps its defaults, because
/// a busy machine would declare live members down. For the same reason, links wait long for a connection and a ping.
pub(crate) fn config(local: &str, seeds: &[SocketAddr], key: u8) -> PeersConfig {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let ms = Duration::from_millis;
    PeersConfig {
        seeds: seeds.iter().map(|seed| seed.to_string().parse().expect("a seed")).collect(),
        gossip: GossipConfig { seek_alone: ms(50), seek: ms(200), ..GossipConfig::default() },
        control: ControlConfig { retry_min: ms(10), retry_max: ms(100), ..ControlConfig::default() },
        links: LinksConfig { connect_timeout: LONG, ping_timeout: LONG, ..LinksConfig::default() },
        ..PeersConfig::new(name(local), listen, ClusterSecret::new([key; 32]))
    }
}

/// A service that replies with its name, the sender's name, and the request's method, target and body length.
pub(crate) fn echo(local: &'static str) -> impl Service {
    move |request: Request<Incoming>, from: Name| async move {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let text = format!("{local} {from} {} {} {}", parts.method, parts.uri, body.len());
        Response::new(Full::new(Bytes::from(text)))
    }
}

pub(crate) async fn start(local: &'static str, seeds: &[SocketAddr]) -> (Network, Events) {
    Network::start(config(local, seeds, 1), echo(local)).await.expect("started")
}

pub(crate) async fn next(events: &mut Events) -> Event {
    timeout(LONG, events.next()).await.expect("in time").expect("an event")
}

/// Takes events until both links with a member are up.
pub(crate) async fn until_up(events: &mut Events, with: &str) {
    let mut up = [false; 2];
    while up != [true; 2] {
        match next(events).await {
            Event::LinkUp(peer, direction) if peer.name.as_str() == with => {
                up[usize::from(direction == LinkDirection::Outbound)] = true;
            }
            Event::LinkDown(peer, direction) if peer.name.as_str() == with => {
                up[usize::from(direction == LinkDirection::Outbound)] = false;
            }
            _ => {}
        }
    }
}

pub(crate) async fn two() -> ((Network, Events), (Network, Events)) {
    let (a, mut from_a) = start("a", &[]).await;
    let (b, mut from_b) = start("b", &[a.local_addr()]).await;
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    ((a, from_a), (b, from_b))
}

#[tokio::test]
async fn members_join_send_messages_forward_requests_and_leave() {
    let ((a, mut from_a), (b, mut from_b)) = two().await;
    for length in [1, 2, 60_000, MESSAGE_BYTES_MAX] {
        a.send(&name("b"), vec![7; length].into()).expect("sent");
        let Event::Message(peer, message) = next(&mut from_b).await else { panic!("no message") };
        assert_eq!((peer.name.as_str(), peer.incarnation, message.len()), ("a", a.incarnation(), length));
    }
    assert_eq!(b.broadcast(&Bytes::from_static(b"to all")), Ok(1));
    assert!(matches!(next(&mut from_a).await, Event::Message(_, message) if message == "to all"));
    assert_eq!(a.send(&name("b"), Bytes::new()), Err(SendError::Length(0)));
    let long = Bytes::from(vec![0; MESSAGE_BYTES_MAX + 1]);
    assert_eq!(a.broadcast(&long), Err(SendError::Length(MESSAGE_BYTES_MAX + 1)));
    assert_eq!(a.send(&name("c"), Bytes::from_static(b"x")), Err(SendError::Down));

    let request = Request::put("/path?query").header("host", "site.example").body(Full::new("asked".into()));
    let reply = a.forward(&name("b"), request.expect("a request")).await.expect("a reply");
    let said = reply.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(said, "b a PUT http://site.example/path?query 5");
    let counted = (a.counters().read(), b.counters().read());
    assert_eq!((counted.0.requests_out, counted.1.requests_in, counted.0.streams), (1, 1, 0));
    assert_eq!((counted.0.messages_out, counted.1.messages_in, counted.0.members), (4, 4, 1));

    assert!(b.leave().await, "nothing was in flight");
    let mut left = Vec::new();
    loop {
        match next(&mut from_a).await {
            Event::Left(member, reason) => break left.push((member.name, reason)),
            Event::LinkDown(..) => assert!(left.is_empty()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(left, [(name("b"), LeaveReason::Announced)]);
    let gone = a.forward(&name("b"), Request::new(Full::new(Bytes::new()))).await.expect_err("gone");
    assert!(matches!(gone, ForwardError::NotMember(_)));
}

#[tokio::test]
async fn a_process_with_another_secret_does_not_join() {
    let (a, _from_a) = start("a", &[]).await;
    let (x, _from_x) = Network::start(config("x", &[a.local_addr()], 2), echo("x")).await.expect("started");
    eventually_async("counted", || (a.counters().read().datagrams_forged >= 3).then_some(())).await;
    assert!(a.members().is_empty() && x.members().is_empty());
}

/// A receiver that takes no events makes the queue overflow. After that, messages arrive on a new link.
#[tokio::test]
async fn a_full_queue_reconnects_the_link() {
    let (a, mut from_a) = start("a", &[]).await;
    let mut slow = config("b", &[a.local_addr()], 1);
    slow.control.events_max = 16;
    let (_b, mut from_b) = Network::start(slow, echo("b")).await.expect("started");
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    let message = |at: u32| {
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        message[..4].copy_from_slice(&at.to_be_bytes());
        Bytes::from(message)
    };
    let mut sent = 0;
    let full = async {
        loop {
            match a.send(&name("b"), message(sent)) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(timeout(LONG, full).await.expect("a limit"), SendError::Overflow);
    assert_eq!(a.send(&name("b"), message(0)), Err(SendError::Down), "until the caller has taken the event");
    assert_eq!(a.counters().read().control_overflows, 1);
    let (b_peer, a_peer) = (a.members()[0].id(), _b.members()[0].id());
    assert_eq!(next(&mut from_a).await, Event::LinkDown(b_peer.clone(), LinkDirection::Outbound));
    // The first link has delivered its first messages without a gap.
    let mut came = 0;
    let ended = loop {
        match next(&mut from_b).await {
            Event::Message(_, message) => {
                assert_eq!(message[..4], u32::to_be_bytes(came));
                came += 1;
            }
            other => break other,
        }
    };
    assert_eq!(ended, Event::LinkDown(a_peer, LinkDirection::Inbound));
    assert!(came < sent);
    assert_eq!(next(&mut from_a).await, Event::LinkUp(b_peer, LinkDirection::Outbound));
    a.send(&name("b"), Bytes::from_static(b"anew")).expect("sent");
    assert!(matches!(next(&mut from_b).await, Event::LinkUp(_, LinkDirection::Inbound)));
    assert!(matches!(next(&mut from_b).await, Event::Message(_, message) if message == "anew"));
}

#[tokio::test]
async fn a_restarted_member_is_another_process() {
    let ((a, mut from_a), (b, from_b)) = two().await;
    let before = b.incarnation();
    drop((b, from_b));
    let (again, mut from_again) = start("b", &[a.local_addr()]).await;
    tokio::join!(until_up(&mut from_again, "a"), async {
        let mut incarnations = Vec::new();
        while incarnations.len() < 2 {
            match next(&mut from_a).await {
                Event::Left(member, LeaveReason::Lost | LeaveReason::Replaced) => {
                    incarnations.push(member.incarnation);
                }
                Event::Joined(member) => incarnations.push(member.incarnation),
                Event::LinkDown(peer, _) => assert_eq!((peer.incarnation, incarnations.len()), (before, 0)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(incarnations, [before, again.incarnation()]);
        until_up(&mut from_a, "b").await;
    });
    a.send(&name("b"), Bytes::from_static(b"welcome")).expect("sent");
    while !matches!(next(&mut from_again).await, Event::Message(_, message) if message == "welcome") {}
}

#[tokio::test]
async fn start_reports_config_errors() {
    let mut wrong = config("a", &[], 1);
    wrong.listen = "0.0.0.0:0".parse().expect("an address");
    let error = Network::start(wrong.clone(), echo("a")).await.expect_err("no address");
    assert!(error.to_string().starts_with("advertise"), "{error}");
    let (a, _events) = start("a", &[]).await;
    wrong.listen = a.local_addr();
    let error = Network::start(wrong, echo("a")).await.expect_err("taken");
    assert!(matches!(error, NetworkError::Listen { address, .. } if address == a.local_addr()));
}

/// Datagrams are lost while TCP works: the member is declared down and rejoins with new links.
#[tokio::test]
async fn a_lost_member_rejoins_with_new_links() {
    let ((a, mut from_a), (b, mut from_b)) = two().await;
    let incarnation = b.incarnation();
    a.blocked.lock().expect("no panic").insert(b.local_addr());
    for events in [&mut from_a, &mut from_b] {
        let mut down = 0;
        loop {
            match next(events).await {
                Event::LinkDown(..) => down += 1,
                Event::Left(_, reason) => break assert_eq!((reason, down), (LeaveReason::Lost, 2)),
                // The other side may declare this one down later, and reconnect its link until then.
                Event::LinkUp(_, LinkDirection::Inbound | LinkDirection::Outbound) => down -= 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(a.send(&name("b"), Bytes::from_static(b"x")), Err(SendError::Down));
    a.blocked.lock().expect("no panic").clear();
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    a.send(&name("b"), Bytes::from_static(b"again")).expect("sent");
    while !matches!(next(&mut from_b).await, Event::Message(_, message) if message == "again") {}
    assert_eq!(a.members()[0].incarnation, incarnation, "the same process");
}

#[tokio::test]
async fn connections_have_a_limit_and_a_deadline() {
    let mut few = config("a", &[], 1);
    (few.links.accepted_max, few.links.connect_timeout) = (2, Duration::from_millis(200));
    let (a, _events) = Network::start(few, echo("a")).await.expect("started");
    let closed = async |stream: &mut tokio::net::TcpStream| {
        use tokio::io::AsyncReadExt as _;
        timeout(LONG, stream.read(&mut [0; 8])).await.expect("in time").map_or(0, |read| read) == 0
    };
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(tokio::net::TcpStream::connect(a.local_addr()).await.expect("connected"));
        // Accepted in turn.
        tokio::task::yield_now().await;
    }
    for stream in &mut silent {
        assert!(closed(stream).await, "one because of the limit, two because of the timeout");
    }
    eventually_async("counted", || (a.counters().read().links_refused >= 3).then_some(())).await;
}

/// A process that has the secret can connect, but its messages are accepted only after it has joined.
#[tokio::test]
async fn messages_of_processes_that_have_not_joined_are_not_accepted() {
    use crate::hello::LinkKind;
    let ((a, mut from_a), (b, _from_b)) = two().await;
    let handshaker = Handshaker {
        local: Arc::new(LocalMember::new(name("x"), 1)),
        keyring: Keyring::new(ClusterSecret::new([1; 32]).into(), Arc::default()),
        timeout: LONG,
        counters: Arc::default(),
    };
    let member_a = b.members()[0].clone();
    let mut stream = handshaker.connect(&member_a, LinkKind::Control).await.expect("connected");
    tokio::io::AsyncWriteExt::write_all(&mut stream, &[0, 0, 0, 1, 7]).await.expect("written");
    tokio::io::AsyncWriteExt::flush(&mut stream).await.expect("sent");
    b.send(&name("a"), Bytes::from_static(b"known")).expect("sent");
    assert!(matches!(next(&mut from_a).await, Event::Message(peer, _) if peer.name == name("b")));
    eventually_async("the link is refused", || (a.counters().read().links_refused > 0).then_some(())).await;
    let another = Member { name: name("c"), ..member_a };
    let error = handshaker.connect(&another, LinkKind::Data).await.expect_err("another name");
    assert!(matches!(error, crate::LinkError::WrongMember), "{error}");
}
