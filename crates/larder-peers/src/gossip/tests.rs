use super::super::datagram::DATAGRAM_BYTES_MAX;
use super::*;
use crate::member::LeaveReason;
use crate::secret::ClusterSecret;
use larder_testkit::{eventually_async, holds_for_async};
use std::time::Duration;
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(20);

/// A tenth of the default times, so that a crashed member is declared down within half a second on an idle machine.
fn quick() -> GossipConfig {
    GossipConfig {
        probe_period: Duration::from_millis(60),
        probe_timeout: Duration::from_millis(25),
        suspicion: Duration::from_millis(240),
        gossip_period: Duration::from_millis(20),
        seek_alone: Duration::from_millis(50),
        seek: Duration::from_millis(200),
        ..GossipConfig::default()
    }
}

struct Node {
    membership: Membership,
    changes: mpsc::Receiver<Change>,
    address: SocketAddr,
    counters: Arc<Counters>,
    local: Arc<LocalMember>,
    blocked: BlockedAddresses,
}

async fn start(name: &str, incarnation: u64, at: &str, seeds: &[SocketAddr], key: u8) -> Node {
    let socket = UdpSocket::bind(at).await.expect("a port");
    let address = socket.local_addr().expect("its address");
    let local = Arc::new(LocalMember::new(name.parse().expect("a name"), incarnation));
    let (counters, blocked) = (Arc::<Counters>::default(), BlockedAddresses::default());
    let start = Start {
        local: Arc::clone(&local),
        address,
        keyring: Keyring::new(ClusterSecret::new([key; 32]).into(), Arc::clone(&counters)),
        seeds: seeds.iter().map(|seed| seed.to_string().parse().expect("a seed")).collect(),
        config: quick(),
        counters: Arc::clone(&counters),
        blocked: Arc::clone(&blocked),
    };
    let (membership, changes) = Membership::start(start, socket).expect("started");
    Node { membership, changes, address, counters, local, blocked }
}

impl Node {
    fn sees(&self) -> Vec<String> {
        self.membership.members().iter().map(|member| member.name.to_string()).collect()
    }

    async fn until_it_sees(&self, names: &[&str]) {
        let event =
            std::fmt::from_fn(|f| write!(f, "{} sees {:?}, not {names:?}", self.local.name, self.sees()));
        eventually_async(event, || (self.sees() == names).then_some(())).await;
    }

    async fn next(&mut self) -> Change {
        timeout(LONG, self.changes.recv()).await.expect("in time").expect("a change")
    }
}

async fn three() -> [Node; 3] {
    let a = start("a", 1, "127.0.0.1:0", &[], 1).await;
    let b = start("b", 1, "127.0.0.1:0", &[a.address], 1).await;
    let c = start("c", 1, "127.0.0.1:0", &[a.address, a.address], 1).await;
    a.until_it_sees(&["b", "c"]).await;
    b.until_it_sees(&["a", "c"]).await;
    c.until_it_sees(&["a", "b"]).await;
    [a, b, c]
}

#[tokio::test]
async fn members_join_through_one_seed_and_one_leaves() {
    let [mut a, b, mut c] = three().await;
    let joined = [a.next().await, a.next().await];
    let names = joined.map(|change| match change {
        Change::Joined(member) => member.name.to_string(),
        Change::Left(..) => panic!("no member left"),
    });
    assert!(names == ["b", "c"] || names == ["c", "b"]);
    b.membership.leave().await;
    a.until_it_sees(&["c"]).await;
    c.until_it_sees(&["a"]).await;
    let left = a.next().await;
    assert!(
        matches!(&left, Change::Left(member, LeaveReason::Announced) if member.address == b.address),
        "{left:?}"
    );
    while let Change::Joined(_) = c.next().await {}
    assert_eq!(a.counters.read().members, 1);
}

#[tokio::test]
async fn a_crashed_member_is_declared_down_in_time() {
    let [mut a, b, c] = three().await;
    let _ = (a.next().await, a.next().await);
    let died = Instant::now();
    let dead = b.address;
    drop(b);
    let left = a.next().await;
    assert!(matches!(&left, Change::Left(member, LeaveReason::Lost) if member.address == dead), "{left:?}");
    let (took, config) = (died.elapsed(), quick());
    assert!(took >= config.suspicion, "it had time to refute the suspicion");
    // Each of two members probes one of two others in turn. A machine that is busy with other tests takes longer.
    assert!(took < 4 * config.probe_period + config.suspicion + Duration::from_secs(3), "{took:?}");
    c.until_it_sees(&["a"]).await;
}

#[tokio::test]
async fn a_newer_process_replaces_an_older_one() {
    let [mut a, b, c] = three().await;
    let _ = (a.next().await, a.next().await);
    drop(b);
    let again = start("b", 2, "127.0.0.1:0", &[c.address], 1).await;
    again.until_it_sees(&["a", "c"]).await;
    let left = a.next().await;
    assert!(
        matches!(&left, Change::Left(member, LeaveReason::Replaced | LeaveReason::Lost) if member.incarnation == 1),
        "{left:?}"
    );
    let joined = a.next().await;
    assert!(
        matches!(&joined, Change::Joined(member) if (member.incarnation, member.address) == (2, again.address)),
        "{joined:?}"
    );
}

#[tokio::test]
async fn a_process_whose_clock_went_back_joins() {
    let [a, b, c] = three().await;
    let address = b.address;
    b.local.set_incarnation(1);
    drop(b);
    // The aborted task drops its socket a moment later.
    eventually_async("the port is free", || std::net::UdpSocket::bind(address).ok()).await;
    let again = start("b", 0, &address.to_string(), &[a.address], 1).await;
    again.until_it_sees(&["a", "c"]).await;
    a.until_it_sees(&["b", "c"]).await;
    c.until_it_sees(&["a", "b"]).await;
    assert!(again.local.incarnation() > 1);
}

#[tokio::test]
async fn a_partition_heals() {
    let a = start("a", 1, "127.0.0.1:0", &[], 1).await;
    let mut nodes = vec![a];
    for name in ["b", "c", "d"] {
        let seed = nodes[0].address;
        nodes.push(start(name, 1, "127.0.0.1:0", &[seed], 1).await);
    }
    let decode_all = [&["b", "c", "d"][..], &["a", "c", "d"], &["a", "b", "d"], &["a", "b", "c"]];
    let halves = [&["b"][..], &["a"], &["d"], &["c"]];
    for (node, names) in nodes.iter().zip(decode_all) {
        node.until_it_sees(names).await;
    }
    for (at, node) in nodes.iter().enumerate() {
        let others = nodes.iter().enumerate().filter(|(other, _)| other / 2 != at / 2);
        let others = others.map(|(_, other)| other.address);
        node.blocked.lock().expect("no panic").extend(others);
    }
    for (node, names) in nodes.iter().zip(halves) {
        node.until_it_sees(names).await;
    }
    for node in &nodes {
        node.blocked.lock().expect("no panic").clear();
    }
    for (node, names) in nodes.iter().zip(decode_all) {
        node.until_it_sees(names).await;
    }
    assert!(nodes.iter().all(|node| node.local.incarnation() == 1), "the same processes, renewed");
}

/// Two members that lose each other have no third member that still knows both.
#[tokio::test]
async fn a_partition_of_two_members_heals() {
    let a = start("a", 1, "127.0.0.1:0", &[], 1).await;
    let b = start("b", 1, "127.0.0.1:0", &[a.address], 1).await;
    a.until_it_sees(&["b"]).await;
    b.until_it_sees(&["a"]).await;
    a.blocked.lock().expect("no panic").insert(b.address);
    a.until_it_sees(&[]).await;
    b.until_it_sees(&[]).await;
    a.blocked.lock().expect("no panic").clear();
    a.until_it_sees(&["b"]).await;
    b.until_it_sees(&["a"]).await;
}

#[tokio::test]
async fn of_two_processes_with_one_name_the_newer_is_the_member() {
    let [a, b, c] = three().await;
    let newer = start("b", 5, "127.0.0.1:0", &[a.address], 1).await;
    newer.until_it_sees(&["a", "c"]).await;
    let is_newer = || a.membership.members().iter().any(|member| member.address == newer.address);
    eventually_async("the newer one is the member", || is_newer().then_some(())).await;
    // The older one learns about the newer one at its next attempts and stays outside.
    holds_for_async(Duration::from_millis(600), "the newer one stays, and neither renews often", || {
        is_newer() && b.counters.read().renewals <= 2 && newer.counters.read().renewals <= 2
    })
    .await;
    drop(newer);
    eventually_async("the older one is back", || {
        a.membership.members().iter().any(|member| member.address == b.address).then_some(())
    })
    .await;
    c.until_it_sees(&["a", "b"]).await;
}

#[tokio::test]
async fn unauthenticated_datagrams_are_counted_and_dropped() {
    let [a, b, _c] = three().await;
    let stranger = start("x", 1, "127.0.0.1:0", &[a.address, b.address], 2).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    for length in [0, 1, 40, 41, 500, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MAX + 1, 9_000] {
        let sent = socket.send_to(&vec![length.to_le_bytes()[0]; length], a.address).await.expect("sent");
        assert_eq!(sent, length);
    }
    eventually_async("counted", || (a.counters.read().datagrams_forged >= 8 + 3).then_some(())).await;
    assert_eq!(stranger.sees(), [""; 0]);
    assert_eq!(a.sees(), ["b", "c"]);
    assert_eq!(a.counters.read().datagrams_malformed, 0);
}

#[tokio::test]
async fn known_max_limits_the_members() {
    let a = start("a", 1, "127.0.0.1:0", &[], 1).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let small = Start {
        local: Arc::new(LocalMember::new("z".parse().expect("a name"), 1)),
        address: socket.local_addr().expect("its address"),
        keyring: Keyring::new(ClusterSecret::new([1; 32]).into(), Arc::default()),
        seeds: vec![a.address.to_string().parse().expect("a seed")],
        config: GossipConfig { known_max: 2, ..quick() },
        counters: Arc::default(),
        blocked: BlockedAddresses::default(),
    };
    let counters = Arc::clone(&small.counters);
    let (small, _changes) = Membership::start(small, socket).expect("started");
    let _others = [
        start("b", 1, "127.0.0.1:0", &[a.address], 1).await,
        start("c", 1, "127.0.0.1:0", &[a.address], 1).await,
    ];
    a.until_it_sees(&["b", "c", "z"]).await;
    eventually_async("refused", || (counters.read().datagrams_full > 0).then_some(())).await;
    assert!(small.members().len() <= 2);
}
