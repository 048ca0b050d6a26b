//! Handover decisions of equal nodes that learn the number of requests per connection.

use crate::client::{Behaviour, Plan};
use crate::content::{Content, Target};
use crate::handover_lab::HandoverCluster;

const LINES: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"\n";
/// Requests on each connection.
const REQUESTS: usize = 16;

fn plan(behaviour: Behaviour, server: std::net::SocketAddr, targets: &[Target]) -> Plan {
    Plan { behaviour, server, same_port: false, targets: targets.to_vec() }
}

/// Connections of 16 requests to node 0. Node 1 has the large targets, node 0 the small ones.
struct Lab {
    cluster: HandoverCluster,
    small: Vec<Target>,
    large: Vec<Target>,
}

impl Lab {
    fn new() -> Option<Self> {
        let cluster = HandoverCluster::new(2, Content::new(&[1_000, 100_000, 200_000], REQUESTS), LINES)?;
        let targets = cluster.content.targets.clone();
        let (small, large): (Vec<_>, Vec<_>) = targets.into_iter().partition(|target| target.bytes == 1_000);
        for (node, targets) in [(0, &small), (1, &large)] {
            let [server, _] = cluster.service(node);
            let each: Vec<Plan> = targets.chunks(1).map(|one| plan(Behaviour::Plain, server, one)).collect();
            cluster.run(&each).assert_faultless();
        }
        cluster.await_known(0, large.len() as u64);
        // Each size is learned from a relayed request that is the last of its connection.
        let [server, _] = cluster.service(0);
        let each: Vec<Plan> = large.chunks(1).map(|one| plan(Behaviour::Plain, server, one)).collect();
        cluster.run(&each).assert_faultless();
        Some(Self { cluster, small, large })
    }

    fn targets_of_size(&self, bytes: u64) -> Vec<Target> {
        self.large.iter().filter(|target| target.bytes == bytes).cloned().collect()
    }

    fn expected(&self, node: usize) -> f64 {
        self.cluster.view(node)["handoff"]["requests_expected"].as_f64().unwrap()
    }

    /// Requests these targets on one connection to node 0. Returns the number of requests that stayed because
    /// of later ones, and the number of handovers.
    fn run(&self, behaviour: Behaviour, targets: &[Target]) -> (u64, u64) {
        let [server, _] = self.cluster.service(0);
        let count = || ["kept", "moved"].map(|name| self.cluster.handoff(0, name));
        let before = count();
        self.cluster.run(&[plan(behaviour, server, targets)]).assert_faultless();
        self.cluster.until("nothing is on its way", |cluster| cluster.handoff(0, "connections") == 0);
        let after = count();
        (after[0] - before[0], after[1] - before[1])
    }
}

/// The connection was handed over with its last request, and ends at node 1.
#[test]
fn a_connection_handed_over_with_its_last_request_is_known_to_have_ended() {
    let Some(lab) = Lab::new() else { return };
    // A client of node 1 itself sends 8 requests on one connection.
    let [server, _] = lab.cluster.service(1);
    lab.cluster.run(&[plan(Behaviour::KeptAlive, server, &lab.large[..8])]).assert_faultless();
    lab.cluster.until("node 1 has learned", |_| lab.expected(1) == 7.0);
    let targets = [&lab.small[..3], &lab.targets_of_size(100_000)[..1]].concat();
    assert_eq!(lab.run(Behaviour::KeptToTheEnd, &targets), (0, 1));
    // Of two connections with 4 requests, one brought 4 more.
    lab.cluster.until("node 1 has learned", |_| lab.expected(1) == 5.0);
    assert_eq!(lab.expected(0), 3.0, "what is handed over had brought so many");
}

/// A head of the maximum size is accepted by the peer too.
#[test]
fn a_head_with_the_maximum_number_of_fields_is_handed_over() {
    let Some(lab) = Lab::new() else { return };
    // Nothing is learned from this connection, so the next one is handed over too.
    for (fields, target) in [(99, &lab.large[0]), (100, &lab.large[0])] {
        let before = lab.cluster.handoff(1, "taken");
        assert_eq!(
            lab.run(Behaviour::Fields { count: fields }, std::slice::from_ref(target)),
            (0, 1),
            "{fields}"
        );
        assert_eq!(lab.cluster.handoff(1, "taken"), before + 1);
    }
}

/// Tests whether a handover pays at the beginning and at the end of a connection. The peer that sees the end
/// also knows the beginning.
#[test]
fn a_connection_is_handed_over_when_its_target_outweighs_its_later_requests() {
    let Some(lab) = Lab::new() else { return };
    assert_eq!((lab.expected(0), lab.expected(1)), (0.0, 0.0), "one request on each, announced as the last");
    // Nothing is known yet, so the connection is handed over at its first request. Node 1 sees all of it.
    let of = |bytes| lab.targets_of_size(bytes);
    assert_eq!(lab.run(Behaviour::KeptAlive, &of(100_000)), (0, 1));
    lab.cluster.until("node 1 has learned", |_| lab.expected(1) == 15.0);
    assert_eq!(lab.expected(0), 0.0);
    lab.run(Behaviour::KeptAlive, &lab.small);
    lab.cluster.until("node 0 has learned", |_| lab.expected(0) == 15.0);

    // With 15 requests to come the sum is 160 KB.
    assert_eq!(lab.run(Behaviour::KeptAlive, &of(200_000)), (0, 1));
    assert_eq!(lab.run(Behaviour::Plain, &of(100_000)[..1]), (0, 1), "the last one");
    // At the sixth request 10 are to come, which gives 110 KB. At the seventh, 9 are to come.
    let large = of(100_000);
    assert_eq!(lab.run(Behaviour::KeptAlive, &[&lab.small[..5], &large[..11]].concat()), (1, 1));
    // Node 1 got the connection at its seventh request, and does not take it for a shorter one.
    assert_eq!((lab.expected(0), lab.expected(1)), (15.0, 15.0));
    assert_eq!(lab.run(Behaviour::KeptAlive, &[&large[..2], &lab.small[..14]].concat()), (2, 0));
    assert_eq!(lab.cluster.sum("failed"), 0, "{}", lab.cluster.logs());
    let text = crate::cluster::Cluster::admin_in(&lab.cluster.topology.nodes[0].namespace, "/metrics");
    for (name, value) in [("requests_expected{", " 15.0"), ("why=\"kept\"", " 3")] {
        assert!(text.lines().any(|line| line.contains(name) && line.ends_with(value)), "{name}\n{text}");
    }
}
