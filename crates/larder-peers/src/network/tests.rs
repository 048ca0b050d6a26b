use super::*;
use crate::config::{ControlConfig, GossipConfig};
use crate::control::MESSAGE_BYTES_MAX;
use crate::events::{Event, Way};
use crate::member::Why;
use crate::secret::ClusterSecret;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use larder_testkit::eventually_async;

mod rotation;

pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

/// As the defaults, but sooner to find and to connect. Not to lose: a busy machine would lose the living.
pub(crate) fn config(own: &str, seeds: &[SocketAddr], key: u8) -> PeersConfig {
    let listen = "127.0.0.1:0".parse().expect("an address");
    let ms = Duration::from_millis;
    PeersConfig {
        seeds: seeds.iter().map(|seed| seed.to_string().parse().expect("a seed")).collect(),
        gossip: GossipConfig { seek_alone: ms(50), seek: ms(200), ..GossipConfig::default() },
        control: ControlConfig { retry_min: ms(10), retry_max: ms(100), ..ControlConfig::default() },
        ..PeersConfig::new(name(own), listen, ClusterSecret::new([key; 32]))
    }
}

/// Answers with its name, that of the asking member, and what it was asked.
pub(crate) fn echo(own: &'static str) -> impl Service {
    move |request: Request<Incoming>, from: Name| async move {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        let said = format!("{own} {from} {} {} {}", parts.method, parts.uri, body.len());
        Response::new(Full::new(Bytes::from(said)))
    }
}

pub(crate) async fn start(own: &'static str, seeds: &[SocketAddr]) -> (Network, Events) {
    Network::start(config(own, seeds, 1), echo(own)).await.expect("started")
}

pub(crate) async fn next(events: &mut Events) -> Event {
    timeout(LONG, events.next()).await.expect("in time").expect("an event")
}

/// Events until both links with a member are up.
pub(crate) async fn until_up(events: &mut Events, with: &str) {
    let mut up = [false; 2];
    while up != [true; 2] {
        match next(events).await {
            Event::Up(peer, way) if peer.name.as_str() == with => up[usize::from(way == Way::To)] = true,
            Event::Down(peer, way) if peer.name.as_str() == with => up[usize::from(way == Way::To)] = false,
            _ => {}
        }
    }
}

pub(crate) async fn two() -> ((Network, Events), (Network, Events)) {
    let (a, mut from_a) = start("a", &[]).await;
    let (b, mut from_b) = start("b", &[a.local()]).await;
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    ((a, from_a), (b, from_b))
}

#[tokio::test]
async fn members_meet_talk_forward_and_part() {
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

    assert!(b.leave().await, "nothing was under way");
    let mut ended = Vec::new();
    loop {
        match next(&mut from_a).await {
            Event::Left(member, why) => break ended.push((member.name, why)),
            Event::Down(..) => assert!(ended.is_empty()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, [(name("b"), Why::Said)]);
    let gone = a.forward(&name("b"), Request::new(Full::new(Bytes::new()))).await.expect_err("gone");
    assert!(matches!(gone, ForwardError::NotMember(_)));
}

#[tokio::test]
async fn those_with_another_secret_stay_outside() {
    let (a, _from_a) = start("a", &[]).await;
    let (x, _from_x) = Network::start(config("x", &[a.local()], 2), echo("x")).await.expect("started");
    eventually_async("counted", || (a.counters().read().datagrams_forged >= 3).then_some(())).await;
    assert!(a.members().is_empty() && x.members().is_empty());
}

/// A user that takes nothing makes queues run full; what it is told afterwards begins anew.
#[tokio::test]
async fn a_full_queue_makes_the_link_anew() {
    let (a, mut from_a) = start("a", &[]).await;
    let mut slow = config("b", &[a.local()], 1);
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
    assert_eq!(a.send(&name("b"), message(0)), Err(SendError::Down), "until its user knows");
    assert_eq!(a.counters().read().control_overflows, 1);
    let (b_peer, a_peer) = (a.members()[0].peer(), _b.members()[0].peer());
    assert_eq!(next(&mut from_a).await, Event::Down(b_peer.clone(), Way::To));
    // What came before the end of the first link is an unbroken beginning.
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
    assert_eq!(ended, Event::Down(a_peer, Way::From));
    assert!(came < sent);
    assert_eq!(next(&mut from_a).await, Event::Up(b_peer, Way::To));
    a.send(&name("b"), Bytes::from_static(b"anew")).expect("sent");
    assert!(matches!(next(&mut from_b).await, Event::Up(_, Way::From)));
    assert!(matches!(next(&mut from_b).await, Event::Message(_, message) if message == "anew"));
}

#[tokio::test]
async fn a_dead_member_is_lost_and_its_next_life_is_another() {
    let ((a, mut from_a), (b, from_b)) = two().await;
    let before = b.incarnation();
    drop((b, from_b));
    let (again, mut from_again) = start("b", &[a.local()]).await;
    tokio::join!(until_up(&mut from_again, "a"), async {
        let mut seen = Vec::new();
        while seen.len() < 2 {
            match next(&mut from_a).await {
                Event::Left(member, Why::Lost | Why::Replaced) => seen.push(member.incarnation),
                Event::Joined(member) => seen.push(member.incarnation),
                Event::Down(peer, _) => assert_eq!((peer.incarnation, seen.len()), (before, 0)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(seen, [before, again.incarnation()]);
        until_up(&mut from_a, "b").await;
    });
    a.send(&name("b"), Bytes::from_static(b"welcome")).expect("sent");
    while !matches!(next(&mut from_again).await, Event::Message(_, message) if message == "welcome") {}
}

#[tokio::test]
async fn mistakes_are_named_at_the_start() {
    let mut wrong = config("a", &[], 1);
    wrong.listen = "0.0.0.0:0".parse().expect("an address");
    let error = Network::start(wrong.clone(), echo("a")).await.expect_err("no address");
    assert!(error.to_string().starts_with("advertise"), "{error}");
    let (a, _events) = start("a", &[]).await;
    wrong.listen = a.local();
    let error = Network::start(wrong, echo("a")).await.expect_err("taken");
    assert!(matches!(error, NetworkError::Listen { address, .. } if address == a.local()));
}

/// Datagrams are lost and connections stay: a member that is lost is cut off, and comes back with new links.
#[tokio::test]
async fn a_member_that_was_lost_comes_back_with_new_links() {
    let ((a, mut from_a), (b, mut from_b)) = two().await;
    let incarnation = b.incarnation();
    a.gate.lock().expect("no panic").insert(b.local());
    for events in [&mut from_a, &mut from_b] {
        let mut down = 0;
        loop {
            match next(events).await {
                Event::Down(..) => down += 1,
                Event::Left(_, why) => break assert_eq!((why, down), (Why::Lost, 2)),
                // One side is sooner: the other's link may be made anew before it is lost there.
                Event::Up(_, Way::From | Way::To) => down -= 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(a.send(&name("b"), Bytes::from_static(b"x")), Err(SendError::Down));
    a.gate.lock().expect("no panic").clear();
    tokio::join!(until_up(&mut from_a, "b"), until_up(&mut from_b, "a"));
    a.send(&name("b"), Bytes::from_static(b"again")).expect("sent");
    while !matches!(next(&mut from_b).await, Event::Message(_, message) if message == "again") {}
    assert_eq!(a.members()[0].incarnation, incarnation, "the same life");
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
        silent.push(tokio::net::TcpStream::connect(a.local()).await.expect("connected"));
        // Accepted in turn.
        tokio::task::yield_now().await;
    }
    for stream in &mut silent {
        assert!(closed(stream).await, "one for want of a place, two because they say nothing");
    }
    eventually_async("counted", || (a.counters().read().links_refused >= 3).then_some(())).await;
}

/// Whoever has the secret may connect, but is heard only as a member.
#[tokio::test]
async fn a_link_waits_for_membership() {
    use crate::hello::Kind;
    let ((a, mut from_a), (b, _from_b)) = two().await;
    let ends = Ends {
        own: Arc::new(Own::new(name("x"), 1)),
        keyring: Keyring::new(ClusterSecret::new([1; 32]).into(), Arc::default()),
        deadline: LONG,
        counters: Arc::default(),
    };
    let of_a = b.members()[0].clone();
    let mut stream = ends.connect(&of_a, Kind::Control).await.expect("connected");
    tokio::io::AsyncWriteExt::write_all(&mut stream, &[0, 0, 0, 1, 7]).await.expect("written");
    tokio::io::AsyncWriteExt::flush(&mut stream).await.expect("sent");
    b.send(&name("a"), Bytes::from_static(b"known")).expect("sent");
    assert!(matches!(next(&mut from_a).await, Event::Message(peer, _) if peer.name == name("b")));
    eventually_async("given up", || (a.counters().read().links_refused > 0).then_some(())).await;
    let another = Member { name: name("c"), ..of_a };
    let error = ends.connect(&another, Kind::Data).await.expect_err("not its name");
    assert!(matches!(error, crate::LinkError::Another), "{error}");
}
