//! Equal nodes that learn how many requests connections bring, and hand over what is worth it.

use crate::client::{Manner, Plan};
use crate::content::{Content, Target};
use crate::handover_lab::Equals;

const LINES: &str = "handoff = \"required\"\nhandoff_min = \"10KB\"\n";
/// Requests on each connection.
const REQUESTS: usize = 16;

fn plan(manner: Manner, server: std::net::SocketAddr, targets: &[Target]) -> Plan {
    Plan { manner, server, same_port: false, targets: targets.to_vec() }
}

/// Connections of 16 requests to node 0. Node 1 has what is large, node 0 what is small.
struct Lab {
    cluster: Equals,
    small: Vec<Target>,
    large: Vec<Target>,
}

impl Lab {
    fn new() -> Option<Self> {
        let cluster = Equals::new(2, Content::new(&[1_000, 100_000, 200_000], REQUESTS), LINES)?;
        let targets = cluster.content.targets.clone();
        let (small, large): (Vec<_>, Vec<_>) = targets.into_iter().partition(|target| target.bytes == 1_000);
        for (node, targets) in [(0, &small), (1, &large)] {
            let [server, _] = cluster.service(node);
            let each: Vec<Plan> = targets.chunks(1).map(|one| plan(Manner::Plain, server, one)).collect();
            cluster.run(&each).assert_faultless();
        }
        cluster.await_known(0, large.len() as u64);
        // How large they are: each is relayed once, and the last of a connection.
        let [server, _] = cluster.service(0);
        let each: Vec<Plan> = large.chunks(1).map(|one| plan(Manner::Plain, server, one)).collect();
        cluster.run(&each).assert_faultless();
        Some(Self { cluster, small, large })
    }

    fn of(&self, bytes: u64) -> Vec<Target> {
        self.large.iter().filter(|target| target.bytes == bytes).cloned().collect()
    }

    fn expected(&self, node: usize) -> f64 {
        self.cluster.view(node)["handoff"]["requests_expected"].as_f64().unwrap()
    }

    /// These targets on one connection to node 0: how many of its requests stayed for what is still to come, and how many
    /// connections were handed over.
    fn run(&self, manner: Manner, targets: &[Target]) -> (u64, u64) {
        let [server, _] = self.cluster.service(0);
        let count = || ["kept", "moved"].map(|name| self.cluster.handoff(0, name));
        let before = count();
        self.cluster.run(&[plan(manner, server, targets)]).assert_faultless();
        self.cluster.until("nothing is on its way", |cluster| cluster.handoff(0, "connections") == 0);
        let after = count();
        (after[0] - before[0], after[1] - before[1])
    }
}

/// It has ended at node 1, with its last request, which it was handed over with.
#[test]
fn a_connection_that_goes_with_its_last_request_is_known_to_have_ended() {
    let Some(lab) = Lab::new() else { return };
    // One of 8 requests at node 1, from a client of its own.
    let [server, _] = lab.cluster.service(1);
    lab.cluster.run(&[plan(Manner::KeptAlive, server, &lab.large[..8])]).assert_faultless();
    lab.cluster.until("node 1 has learned", |_| lab.expected(1) == 7.0);
    let targets = [&lab.small[..3], &lab.of(100_000)[..1]].concat();
    assert_eq!(lab.run(Manner::KeptToTheEnd, &targets), (0, 1));
    // Of two that have brought 4 one brings 4 more.
    lab.cluster.until("node 1 has learned", |_| lab.expected(1) == 5.0);
    assert_eq!(lab.expected(0), 3.0, "what is handed over had brought so many");
}

/// A client's head that is as large as a node takes is none that its peer refuses.
#[test]
fn a_head_of_as_many_fields_as_may_be_is_handed_over() {
    let Some(lab) = Lab::new() else { return };
    // Nothing is learned from it, so the next one goes too.
    for (fields, target) in [(99, &lab.large[0]), (100, &lab.large[0])] {
        let before = lab.cluster.handoff(1, "taken");
        assert_eq!(
            lab.run(Manner::Fields { count: fields }, std::slice::from_ref(target)),
            (0, 1),
            "{fields}"
        );
        assert_eq!(lab.cluster.handoff(1, "taken"), before + 1);
    }
}

/// What pays at the beginning of a connection and what at its end, and that the peer which sees the end knows of the beginning.
#[test]
fn a_connection_goes_when_what_it_asks_for_is_worth_its_later_requests() {
    let Some(lab) = Lab::new() else { return };
    assert_eq!((lab.expected(0), lab.expected(1)), (0.0, 0.0), "one request on each, announced as the last");
    // Nobody knows yet: it is handed over at its first request, and node 1 sees all of it.
    let of = |bytes| lab.of(bytes);
    assert_eq!(lab.run(Manner::KeptAlive, &of(100_000)), (0, 1));
    lab.cluster.until("node 1 has learned", |_| lab.expected(1) == 15.0);
    assert_eq!(lab.expected(0), 0.0);
    lab.run(Manner::KeptAlive, &lab.small);
    lab.cluster.until("node 0 has learned", |_| lab.expected(0) == 15.0);

    // 15 requests to come make it 160 KB.
    assert_eq!(lab.run(Manner::KeptAlive, &of(200_000)), (0, 1));
    assert_eq!(lab.run(Manner::Plain, &of(100_000)[..1]), (0, 1), "the last one");
    // At its sixth request 10 are to come, which makes it 110 KB, at its seventh 9.
    let large = of(100_000);
    assert_eq!(lab.run(Manner::KeptAlive, &[&lab.small[..5], &large[..11]].concat()), (1, 1));
    // Node 1 got that one at its seventh, and takes it for no shorter one.
    assert_eq!((lab.expected(0), lab.expected(1)), (15.0, 15.0));
    assert_eq!(lab.run(Manner::KeptAlive, &[&large[..2], &lab.small[..14]].concat()), (2, 0));
    assert_eq!(lab.cluster.sum("failed"), 0, "{}", lab.cluster.logs());
    let text = crate::cluster::Cluster::admin_in(&lab.cluster.topology.nodes[0].namespace, "/metrics");
    for (name, value) in [("requests_expected{", " 15.0"), ("why=\"kept\"", " 3")] {
        assert!(text.lines().any(|line| line.contains(name) && line.ends_with(value)), "{name}\n{text}");
    }
}
