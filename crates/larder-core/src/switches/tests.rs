//! Tests of switches whose messages arrive at once, or not at all.

mod chains;
mod lost;

use super::*;
use crate::chain::ChainSettings;
use crate::dispatch::{Admission, Arrival, Request, Settings};
use crate::id::TargetId;
use crate::nodes::{ClusterView, GroupId, NodeSpec};
use crate::policy::PolicyKind;
use alloc::collections::VecDeque;

struct TestSwitch {
    name: Arc<str>,
    dispatcher: Dispatcher,
    chains: Arc<SharedChains>,
    machine: Switches,
    /// The time by which this switch started later than the others.
    begun: Duration,
}

/// Switches and the links between them.
struct TestNetwork {
    now: Time,
    switches: Vec<TestSwitch>,
    /// Pairs whose messages are lost.
    cut: Vec<(usize, usize)>,
}

const NODES: [&str; 4] = ["a", "b", "c", "d"];

fn settings(policy: PolicyKind) -> Settings {
    Settings { policy, admission: Admission::Unlimited, ..Settings::default() }
}

impl TestNetwork {
    fn new() -> Self {
        Self { now: Time::from_secs(100), switches: Vec::new(), cut: Vec::new() }
    }

    fn of(count: usize, settings: &Settings) -> Self {
        let mut network = Self::new();
        (0..count).for_each(|_| network.add(settings, SwitchesSettings::default()));
        network
    }

    /// Adds another switch, whose nodes have other slots and whose clock begins now.
    fn add(&mut self, settings: &Settings, how: SwitchesSettings) {
        let at = self.switches.len();
        self.switches.push(self.begun(at, 1, settings, how));
        for other in 0..at {
            self.meet(at, other);
        }
    }

    /// Creates a switch that starts now.
    fn begun(&self, at: usize, incarnation: u64, settings: &Settings, how: SwitchesSettings) -> TestSwitch {
        let mut nodes = NODES;
        nodes.rotate_left(at % NODES.len());
        let specs: Vec<NodeSpec> = nodes.iter().map(|name| NodeSpec::named(*name)).collect();
        let dispatcher = Dispatcher::new(settings.clone(), &specs).expect("in range");
        let routes = vec![(RouteId::DEFAULT, "default".to_owned())];
        let name: Arc<str> = Arc::from(format!("s{at}"));
        let machine = Switches::new(Time::ZERO, (name.clone(), incarnation), how, routes, &dispatcher);
        let mut machine = machine.expect("in range");
        let chains = SharedChains::new(&ChainSettings::default(), 400_000, GroupId::ALL).expect("in range");
        let chains = Arc::new(chains);
        machine.share_chains(RouteId::DEFAULT, chains.clone());
        let begun = self.now.since(Time::ZERO);
        TestSwitch { name, dispatcher, chains, machine, begun }
    }

    fn own(&self, at: usize) -> Time {
        Time::from_nanos(self.now.as_nanos() - self.switches[at].begun.as_nanos() as u64)
    }

    fn meet(&mut self, left: usize, right: usize) {
        self.cut.retain(|pair| *pair != (left.min(right), left.max(right)));
        let mut outs = Vec::new();
        for (here, there) in [(left, right), (right, left)] {
            let (now, name) = (self.own(here), self.switches[there].name.clone());
            let TestSwitch { dispatcher, machine, .. } = &mut self.switches[here];
            let mut out = SwitchesOutput::default();
            machine.add_switch(now, &name, dispatcher, &mut out);
            machine.interrupt_link(&name);
            machine.link_up(&name, now, dispatcher, &mut out);
            outs.push((here, out));
        }
        self.deliver(outs);
    }

    /// Separates two switches; with `told` the membership reports it too.
    fn part(&mut self, left: usize, right: usize, told: bool) {
        self.cut.push((left.min(right), left.max(right)));
        for (here, there) in [(left, right), (right, left)] {
            let (now, name) = (self.own(here), self.switches[there].name.clone());
            let TestSwitch { dispatcher, machine, .. } = &mut self.switches[here];
            machine.link_down(&name);
            if told {
                machine.remove_switch(now, &name, dispatcher, &mut SwitchesOutput::default());
            }
        }
    }

    /// Delivers messages, and the messages they cause, in order on each link.
    fn deliver(&mut self, messages: impl IntoIterator<Item = (usize, SwitchesOutput)>) {
        let in_order = |(from, out): (usize, SwitchesOutput)| {
            out.messages.into_iter().map(move |message| (from, message))
        };
        let mut waiting: VecDeque<(usize, OutgoingMessage)> =
            messages.into_iter().flat_map(in_order).collect();
        while let Some((from, OutgoingMessage { to, message })) = waiting.pop_front() {
            assert!(message.len() <= MESSAGE_BYTES_MAX);
            for at in 0..self.switches.len() {
                let wanted = to.as_ref().is_none_or(|to| *to == self.switches[at].name);
                if at == from || !wanted || self.cut.contains(&(at.min(from), at.max(from))) {
                    continue;
                }
                let (now, name) = (self.own(at), self.switches[from].name.clone());
                let TestSwitch { dispatcher, machine, .. } = &mut self.switches[at];
                let mut out = SwitchesOutput::default();
                machine.receive(now, &name, &message, dispatcher, &mut out).expect("it makes sense");
                waiting.extend(in_order((at, out)));
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now += SwitchesSettings::default().period;
            for at in 0..self.switches.len() {
                let (now, mut out) = (self.own(at), SwitchesOutput::default());
                let TestSwitch { dispatcher, machine, .. } = &mut self.switches[at];
                machine.tick(now, dispatcher, &mut out);
                self.deliver([(at, out)]);
            }
        }
    }

    /// Sends a request that stays, and returns its node.
    fn send(&self, at: usize, target: u64) -> String {
        let dispatcher = &self.switches[at].dispatcher;
        match dispatcher.arrive(self.own(at), Request::new(TargetId(crate::nodes::mix(target)))) {
            Arrival::Start(decision) => dispatcher.nodes().name(decision.node).to_string(),
            other => panic!("expected a start, got {other:?}"),
        }
    }

    /// Sends a request that ends at once, and returns its node.
    fn ask(&self, at: usize, target: u64) -> String {
        let name = self.send(at, target);
        let dispatcher = &self.switches[at].dispatcher;
        let node = dispatcher.nodes().id_of(&name).expect("it is there");
        dispatcher.finish(self.own(at), node, &mut Vec::new());
        name
    }

    /// Returns a node's load as a switch sees it.
    fn load(&self, at: usize, node: &str) -> u32 {
        let nodes = self.switches[at].dispatcher.nodes();
        ClusterView::live(nodes).load(nodes.id_of(node).expect("it is there"))
    }

    /// Returns a switch's sets, by names.
    fn sets(&self, at: usize) -> BTreeMap<TargetId, Vec<String>> {
        let dispatcher = &self.switches[at].dispatcher;
        let name = |node: &NodeId| dispatcher.nodes().name(*node).to_string();
        let memory = dispatcher.learned_state(RouteId::DEFAULT);
        memory.sets().map(|set| (set.target, set.servers.iter().map(name).collect())).collect()
    }
}

#[test]
fn loads_are_added_up_for_all_slots() {
    let mut network = TestNetwork::of(3, &settings(PolicyKind::Lard));
    network.run(Duration::from_millis(40));
    let node = network.send(0, 1);
    (0..9).for_each(|_| assert_eq!(network.send(0, 1), node));
    assert_eq!(network.load(1, &node), 0, "nothing was said yet");
    network.run(Duration::from_millis(40));
    assert_eq!(network.send(1, 1), node, "the set was told too");
    assert_eq!((network.load(0, &node), network.load(1, &node), network.load(2, &node)), (10, 11, 10));
    network.run(Duration::from_millis(1_040));
    assert_eq!(
        [0, 1, 2].map(|at| network.load(at, &node)),
        [11; 3],
        "less than a step is told within a second"
    );
}

#[test]
fn silent_switch_counts_like_the_others_and_a_gone_one_has_nothing() {
    let mut network = TestNetwork::of(3, &settings(PolicyKind::Lard));
    let node = network.send(0, 1);
    (0..11).for_each(|_| _ = network.send(0, 1));
    network.run(Duration::from_secs(2));
    (0..6).for_each(|_| assert_eq!(network.send(1, 1), node));
    network.run(Duration::from_secs(2));
    assert_eq!(network.load(1, &node), 18);
    network.part(0, 1, false);
    network.run(Duration::from_millis(1_900));
    assert_eq!(network.load(1, &node), 18, "it may be well");
    network.run(Duration::from_millis(1_200));
    assert_eq!(network.load(1, &node), 9, "6 here and 0 at the third: 3 in the mean");
    let others = network.switches[1].machine.statuses(network.own(1));
    assert_eq!(others.iter().map(|other| other.unknown).collect::<Vec<_>>(), [true, false]);
    network.part(0, 1, true);
    assert_eq!(network.load(1, &node), 6);
}

#[test]
fn t_and_s_are_shared_completely() {
    let derived = Settings { policy: PolicyKind::Lard, ..Settings::default() };
    let mut network = TestNetwork::of(2, &derived);
    // S = 3 * 65 + 25 - 1 = 219.
    let limit = |network: &TestNetwork, at: usize| network.switches[at].dispatcher.admission_limit();
    assert_eq!((limit(&network, 0), limit(&network, 1)), (219, 219), "neither wants anything");
    (0..40).for_each(|target| _ = network.send(0, target));
    network.run(Duration::from_millis(40));
    assert_eq!((limit(&network, 0), limit(&network, 1)), (219, 179));
    (0..139).for_each(|target| _ = network.send(0, target));
    network.run(Duration::from_millis(40));
    assert_eq!(limit(&network, 1), 109, "S / 2 whatever the other wants");
    network.part(0, 1, true);
    assert_eq!(limit(&network, 1), 219, "the other's connections ended with it");
}

#[test]
fn switches_without_messages_place_alike() {
    let mut network = TestNetwork::of(4, &settings(PolicyKind::LardR));
    let same = (0..200).filter(|target| {
        let places: Vec<String> = (0..4).map(|at| network.ask(at, *target)).collect();
        places.iter().all(|place| *place == places[0])
    });
    assert_eq!(same.count(), 200);
    let before = (0..4).map(|at| network.sets(at)).collect::<Vec<_>>();
    network.run(Duration::from_millis(100));
    assert!((0..4).all(|at| network.sets(at) == before[0]));
}

#[test]
fn switches_with_the_same_outdated_loads_do_not_all_choose_one_node() {
    let mut network = TestNetwork::of(4, &settings(PolicyKind::Lard));
    // All nodes are above T_low, and one of them is least loaded by one.
    for (target, node) in (0..4_000).map(|target| (target, network.ask(0, target))).collect::<Vec<_>>() {
        let most = if node == "a" { 29 } else { 30 };
        if network.load(0, &node) < most {
            network.send(0, target);
        }
    }
    network.run(Duration::from_millis(1_100));
    assert_eq!(NODES.map(|node| network.load(3, node)), [29, 30, 30, 30]);
    let mut counts = BTreeMap::<String, u32>::new();
    for at in 1..4 {
        for target in 0..8 {
            *counts.entry(network.send(at, 10_000 + 100 * at as u64 + target)).or_default() += 1;
        }
    }
    // Three switches that have received nothing from each other serve 24 requests. The least loaded node would get
    // at least the first of each, and six are its share.
    assert!(counts["a"] <= 12, "{counts:?}");
}

#[test]
fn joining_switch_receives_all_sets_in_parts_and_its_own_do_not_win() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    (0..3_000).for_each(|target| _ = network.ask((target % 2) as usize, target));
    network.run(Duration::from_millis(100));
    // A move that a joining switch could not derive.
    let node = network.switches[0].dispatcher.nodes().id_of("b").expect("it is there");
    network.switches[0].dispatcher.drain(network.own(0), node, &mut Vec::new());
    let moved: Vec<String> = (0..3_000).map(|target| network.ask(0, target)).collect();
    network.switches[0].dispatcher.recover(network.own(0), node, &mut Vec::new());
    network.run(Duration::from_millis(500));
    network.add(&settings(PolicyKind::LardR), SwitchesSettings::default());
    assert!(network.switches[2].machine.is_complete());
    assert!(network.switches[2].machine.counts().parts_asked >= 3);
    assert!(network.sets(2) == network.sets(0));
    assert!((0..3_000).all(|target| network.ask(2, target) == moved[target as usize]));
    assert!(network.switches[2].machine.statuses(network.own(2)).iter().all(|other| !other.requesting));
}

#[test]
fn sets_converge_after_a_split() {
    for told in [false, true] {
        let mut network = TestNetwork::of(4, &settings(PolicyKind::LardR));
        (0..100).for_each(|target| _ = network.ask(0, target));
        network.run(Duration::from_millis(100));
        let halves = [(0, 2), (0, 3), (1, 2), (1, 3)];
        halves.iter().for_each(|(left, right)| network.part(*left, *right, told));
        // Each half loses a different node for a while, and moves the targets of that node.
        for (half, node) in [([0, 1], "a"), ([2, 3], "c")] {
            for at in half {
                let lost = network.switches[at].dispatcher.nodes().id_of(node).expect("it is there");
                network.switches[at].dispatcher.drain(network.own(at), lost, &mut Vec::new());
            }
            network.run(Duration::from_secs(3));
            (0..150).for_each(|target| _ = network.ask(half[(target % 2) as usize], target));
            for at in half {
                let lost = network.switches[at].dispatcher.nodes().id_of(node).expect("it is there");
                network.switches[at].dispatcher.recover(network.own(at), lost, &mut Vec::new());
            }
        }
        network.run(Duration::from_secs(5));
        assert!(network.sets(0) != network.sets(2), "they have parted");
        halves.iter().for_each(|(left, right)| network.meet(*left, *right));
        network.run(Duration::from_millis(100));
        let sets = network.sets(0);
        assert!((1..4).all(|at| network.sets(at) == sets), "membership said so: {told}");
        assert!(network.switches.iter().all(|switch| switch.machine.counts().invalid == 0));
    }
}

#[test]
fn changes_missed_by_a_journal_are_requested() {
    let many = Settings { shards: 1, ..settings(PolicyKind::Lard) };
    let mut network = TestNetwork::of(2, &many);
    (0..5_000).for_each(|target| _ = network.ask(0, target));
    network.run(Duration::from_millis(500));
    assert_eq!(network.switches[0].machine.counts().missed, 1);
    assert!(network.sets(1) == network.sets(0));
}

#[test]
fn policy_without_sets_sends_only_loads() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LeastConn));
    (0..8).for_each(|target| _ = network.send(0, target));
    network.run(Duration::from_millis(40));
    assert_eq!(NODES.map(|node| network.load(1, node)), [2; 4]);
    assert_eq!(network.switches[0].machine.counts().sets_sent, 0);
}

#[test]
fn invalid_messages_are_counted_and_change_nothing() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::Lard));
    let (now, name) = (network.own(0), network.switches[1].name.clone());
    let TestSwitch { dispatcher, machine, .. } = &mut network.switches[0];
    let before = machine.peer_state().clone();
    for bytes in [&[9, 0, 1, 1, 1, 1][..], &[0, 0, 1, 1, 1, 1, 99], &[1], &[]] {
        let result = machine.receive(now, &name, bytes, dispatcher, &mut SwitchesOutput::default());
        assert!(result.is_err(), "{bytes:?}");
    }
    assert_eq!((machine.counts().invalid, machine.peer_state()), (4, &before));
}

#[test]
fn error_names_the_setting_out_of_range() {
    let messages = |change: fn(&mut SwitchesSettings)| {
        let mut settings = SwitchesSettings::default();
        change(&mut settings);
        settings.validate().expect_err("out of range").to_string()
    };
    assert!(messages(|settings| settings.period = Duration::ZERO).starts_with("period"));
    assert!(messages(|settings| settings.step = 0).starts_with("step"));
    assert!(messages(|settings| settings.all_every = Duration::from_secs(4)).starts_with("all_every"));
    assert!(messages(|settings| settings.sets_max = 0).starts_with("sets_max"));
    assert_eq!(SwitchesSettings::default().validate(), Ok(()));
}
