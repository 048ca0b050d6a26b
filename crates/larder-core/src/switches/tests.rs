//! Switches that hear each other at once, or not at all.

mod lost;

use super::*;
use crate::dispatch::{Admission, Arrival, Request, Settings};
use crate::id::TargetId;
use crate::nodes::{ClusterView, NodeSpec};
use crate::policy::PolicyKind;
use std::collections::VecDeque;

struct Switch {
    name: Arc<str>,
    dispatcher: Dispatcher,
    machine: Switches,
    /// How much later than the others it began.
    begun: Duration,
}

/// Switches and the links between them.
struct World {
    now: Time,
    switches: Vec<Switch>,
    /// Pairs that do not hear each other.
    cut: Vec<(usize, usize)>,
}

const NODES: [&str; 4] = ["a", "b", "c", "d"];

fn settings(policy: PolicyKind) -> Settings {
    Settings { policy, admission: Admission::Unlimited, ..Settings::default() }
}

impl World {
    fn new() -> Self {
        Self { now: Time::from_secs(100), switches: Vec::new(), cut: Vec::new() }
    }

    fn of(count: usize, settings: &Settings) -> Self {
        let mut world = Self::new();
        (0..count).for_each(|_| world.add(settings, SwitchesSettings::default()));
        world
    }

    /// Another switch, whose nodes are in other slots, and whose clock begins now.
    fn add(&mut self, settings: &Settings, how: SwitchesSettings) {
        let at = self.switches.len();
        self.switches.push(self.begun(at, 1, settings, how));
        for other in 0..at {
            self.meet(at, other);
        }
    }

    /// A switch that begins now.
    fn begun(&self, at: usize, life: u64, settings: &Settings, how: SwitchesSettings) -> Switch {
        let mut nodes = NODES;
        nodes.rotate_left(at % NODES.len());
        let specs: Vec<NodeSpec> = nodes.iter().map(|name| NodeSpec::named(*name)).collect();
        let dispatcher = Dispatcher::new(settings.clone(), &specs).expect("in range");
        let routes = vec![(RouteId::DEFAULT, "default".to_owned())];
        let machine = Switches::new(Time::ZERO, life, how, routes, &dispatcher).expect("in range");
        let begun = self.now.since(Time::ZERO);
        Switch { name: Arc::from(format!("s{at}")), dispatcher, machine, begun }
    }

    fn own(&self, at: usize) -> Time {
        Time::from_nanos(self.now.as_nanos() - self.switches[at].begun.as_nanos() as u64)
    }

    fn meet(&mut self, left: usize, right: usize) {
        self.cut.retain(|pair| *pair != (left.min(right), left.max(right)));
        let mut outs = Vec::new();
        for (here, there) in [(left, right), (right, left)] {
            let (now, name) = (self.own(here), self.switches[there].name.clone());
            let Switch { dispatcher, machine, .. } = &mut self.switches[here];
            let mut out = Out::default();
            machine.joined(now, &name, dispatcher, &mut out);
            machine.afresh(&name);
            machine.up(&name, now, dispatcher, &mut out);
            outs.push((here, out));
        }
        self.deliver(outs);
    }

    /// Two lose each other; `told` says that membership says so too.
    fn part(&mut self, left: usize, right: usize, told: bool) {
        self.cut.push((left.min(right), left.max(right)));
        for (here, there) in [(left, right), (right, left)] {
            let (now, name) = (self.own(here), self.switches[there].name.clone());
            let Switch { dispatcher, machine, .. } = &mut self.switches[here];
            machine.down(&name);
            if told {
                machine.left(now, &name, dispatcher, &mut Out::default());
            }
        }
    }

    /// Delivers what one says, what is said to that, and so on, each link's messages in order.
    fn deliver(&mut self, said: impl IntoIterator<Item = (usize, Out)>) {
        let in_order =
            |(from, out): (usize, Out)| out.messages.into_iter().map(move |message| (from, message));
        let mut waiting: VecDeque<(usize, Outgoing)> = said.into_iter().flat_map(in_order).collect();
        while let Some((from, Outgoing { to, message })) = waiting.pop_front() {
            assert!(message.len() <= MESSAGE_BYTES_MAX);
            for at in 0..self.switches.len() {
                let wanted = to.as_ref().is_none_or(|to| *to == self.switches[at].name);
                if at == from || !wanted || self.cut.contains(&(at.min(from), at.max(from))) {
                    continue;
                }
                let (now, name) = (self.own(at), self.switches[from].name.clone());
                let Switch { dispatcher, machine, .. } = &mut self.switches[at];
                let mut out = Out::default();
                machine.message(now, &name, &message, dispatcher, &mut out).expect("it makes sense");
                waiting.extend(in_order((at, out)));
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now += SwitchesSettings::default().period;
            for at in 0..self.switches.len() {
                let (now, mut out) = (self.own(at), Out::default());
                let Switch { dispatcher, machine, .. } = &mut self.switches[at];
                machine.tick(now, dispatcher, &mut out);
                self.deliver([(at, out)]);
            }
        }
    }

    /// Sends a request that stays; where it goes.
    fn send(&self, at: usize, target: u64) -> String {
        let dispatcher = &self.switches[at].dispatcher;
        match dispatcher.arrive(self.own(at), Request::new(TargetId(crate::nodes::mix(target)))) {
            Arrival::Start(decision) => dispatcher.nodes().name(decision.node).to_string(),
            other => panic!("expected a start, got {other:?}"),
        }
    }

    /// Sends a request that ends at once.
    fn ask(&self, at: usize, target: u64) -> String {
        let name = self.send(at, target);
        let dispatcher = &self.switches[at].dispatcher;
        let node = dispatcher.nodes().id_of(&name).expect("it is there");
        dispatcher.finish(self.own(at), node, &mut Vec::new());
        name
    }

    /// What a switch takes for a node's load.
    fn load(&self, at: usize, node: &str) -> u32 {
        let nodes = self.switches[at].dispatcher.nodes();
        ClusterView::live(nodes).load(nodes.id_of(node).expect("it is there"))
    }

    /// A switch's sets, by names.
    fn sets(&self, at: usize) -> BTreeMap<TargetId, Vec<String>> {
        let dispatcher = &self.switches[at].dispatcher;
        let name = |node: &NodeId| dispatcher.nodes().name(*node).to_string();
        let memory = dispatcher.learned_state(RouteId::DEFAULT);
        memory.sets().map(|set| (set.target, set.servers.iter().map(name).collect())).collect()
    }
}

#[test]
fn loads_are_summed_up_under_whatever_slots() {
    let mut world = World::of(3, &settings(PolicyKind::Lard));
    world.run(Duration::from_millis(40));
    let node = world.send(0, 1);
    (0..9).for_each(|_| assert_eq!(world.send(0, 1), node));
    assert_eq!(world.load(1, &node), 0, "nothing was said yet");
    world.run(Duration::from_millis(40));
    assert_eq!(world.send(1, 1), node, "the set was told too");
    assert_eq!((world.load(0, &node), world.load(1, &node), world.load(2, &node)), (10, 11, 10));
    world.run(Duration::from_millis(1_040));
    assert_eq!(
        [0, 1, 2].map(|at| world.load(at, &node)),
        [11; 3],
        "less than a step is told within a second"
    );
}

#[test]
fn a_silent_one_is_taken_for_like_the_others_and_one_that_is_gone_has_nothing() {
    let mut world = World::of(3, &settings(PolicyKind::Lard));
    let node = world.send(0, 1);
    (0..11).for_each(|_| _ = world.send(0, 1));
    world.run(Duration::from_secs(2));
    (0..6).for_each(|_| assert_eq!(world.send(1, 1), node));
    world.run(Duration::from_secs(2));
    assert_eq!(world.load(1, &node), 18);
    world.part(0, 1, false);
    world.run(Duration::from_millis(1_900));
    assert_eq!(world.load(1, &node), 18, "it may be well");
    world.run(Duration::from_millis(1_200));
    assert_eq!(world.load(1, &node), 9, "6 here and 0 at the third: 3 in the mean");
    let others = world.switches[1].machine.others(world.own(1));
    assert_eq!(others.iter().map(|other| other.unknown).collect::<Vec<_>>(), [true, false]);
    world.part(0, 1, true);
    assert_eq!(world.load(1, &node), 6);
}

#[test]
fn the_whole_of_t_and_s_is_shared() {
    let derived = Settings { policy: PolicyKind::Lard, ..Settings::default() };
    let mut world = World::of(2, &derived);
    // S = 3 * 65 + 25 - 1 = 219.
    let limit = |world: &World, at: usize| world.switches[at].dispatcher.admission_limit();
    assert_eq!((limit(&world, 0), limit(&world, 1)), (219, 219), "neither wants anything");
    (0..40).for_each(|target| _ = world.send(0, target));
    world.run(Duration::from_millis(40));
    assert_eq!((limit(&world, 0), limit(&world, 1)), (219, 179));
    (0..139).for_each(|target| _ = world.send(0, target));
    world.run(Duration::from_millis(40));
    assert_eq!(limit(&world, 1), 109, "S / 2 whatever the other wants");
    world.part(0, 1, true);
    assert_eq!(limit(&world, 1), 219, "the other's connections ended with it");
}

#[test]
fn who_has_not_spoken_places_alike() {
    let mut world = World::of(4, &settings(PolicyKind::LardR));
    let same = (0..200).filter(|target| {
        let places: Vec<String> = (0..4).map(|at| world.ask(at, *target)).collect();
        places.iter().all(|place| *place == places[0])
    });
    assert_eq!(same.count(), 200);
    let before = (0..4).map(|at| world.sets(at)).collect::<Vec<_>>();
    world.run(Duration::from_millis(100));
    assert!((0..4).all(|at| world.sets(at) == before[0]));
}

#[test]
fn switches_with_the_same_old_picture_do_not_run_to_one_node() {
    let mut world = World::of(4, &settings(PolicyKind::Lard));
    // All nodes above T_low, one of them least loaded by one.
    for (target, node) in (0..4_000).map(|target| (target, world.ask(0, target))).collect::<Vec<_>>() {
        let most = if node == "a" { 29 } else { 30 };
        if world.load(0, &node) < most {
            world.send(0, target);
        }
    }
    world.run(Duration::from_millis(1_100));
    assert_eq!(NODES.map(|node| world.load(3, node)), [29, 30, 30, 30]);
    let mut counts = BTreeMap::<String, u32>::new();
    for at in 1..4 {
        for target in 0..8 {
            *counts.entry(world.send(at, 10_000 + 100 * at as u64 + target)).or_default() += 1;
        }
    }
    // 24 requests of three switches that have heard nothing of each other: the least loaded node alone would get the
    // first of each at least, and six are its due.
    assert!(counts["a"] <= 12, "{counts:?}");
}

#[test]
fn a_joiner_takes_over_all_sets_in_parts_and_its_own_do_not_win() {
    let mut world = World::of(2, &settings(PolicyKind::LardR));
    (0..3_000).for_each(|target| _ = world.ask((target % 2) as usize, target));
    world.run(Duration::from_millis(100));
    // A move that a newcomer could not guess.
    let node = world.switches[0].dispatcher.nodes().id_of("b").expect("it is there");
    world.switches[0].dispatcher.drain(world.own(0), node, &mut Vec::new());
    let moved: Vec<String> = (0..3_000).map(|target| world.ask(0, target)).collect();
    world.switches[0].dispatcher.recover(world.own(0), node, &mut Vec::new());
    world.run(Duration::from_millis(500));
    world.add(&settings(PolicyKind::LardR), SwitchesSettings::default());
    assert!(world.switches[2].machine.is_whole());
    assert!(world.switches[2].machine.counts().parts_asked >= 3);
    assert!(world.sets(2) == world.sets(0));
    assert!((0..3_000).all(|target| world.ask(2, target) == moved[target as usize]));
    assert!(world.switches[2].machine.others(world.own(2)).iter().all(|other| !other.asking));
}

#[test]
fn sets_converge_after_a_split() {
    for told in [false, true] {
        let mut world = World::of(4, &settings(PolicyKind::LardR));
        (0..100).for_each(|target| _ = world.ask(0, target));
        world.run(Duration::from_millis(100));
        let halves = [(0, 2), (0, 3), (1, 2), (1, 3)];
        halves.iter().for_each(|(left, right)| world.part(*left, *right, told));
        // Each half loses another node for a while, and moves what was there.
        for (half, node) in [([0, 1], "a"), ([2, 3], "c")] {
            for at in half {
                let lost = world.switches[at].dispatcher.nodes().id_of(node).expect("it is there");
                world.switches[at].dispatcher.drain(world.own(at), lost, &mut Vec::new());
            }
            world.run(Duration::from_secs(3));
            (0..150).for_each(|target| _ = world.ask(half[(target % 2) as usize], target));
            for at in half {
                let lost = world.switches[at].dispatcher.nodes().id_of(node).expect("it is there");
                world.switches[at].dispatcher.recover(world.own(at), lost, &mut Vec::new());
            }
        }
        world.run(Duration::from_secs(5));
        assert!(world.sets(0) != world.sets(2), "they have parted");
        halves.iter().for_each(|(left, right)| world.meet(*left, *right));
        world.run(Duration::from_millis(100));
        let sets = world.sets(0);
        assert!((1..4).all(|at| world.sets(at) == sets), "membership said so: {told}");
        assert!(world.switches.iter().all(|switch| switch.machine.counts().strange == 0));
    }
}

#[test]
fn what_a_journal_missed_is_asked_for() {
    let many = Settings { shards: 1, ..settings(PolicyKind::Lard) };
    let mut world = World::of(2, &many);
    (0..5_000).for_each(|target| _ = world.ask(0, target));
    world.run(Duration::from_millis(500));
    assert_eq!(world.switches[0].machine.counts().missed, 1);
    assert!(world.sets(1) == world.sets(0));
}

#[test]
fn a_policy_without_sets_tells_loads_alone() {
    let mut world = World::of(2, &settings(PolicyKind::LeastConn));
    (0..8).for_each(|target| _ = world.send(0, target));
    world.run(Duration::from_millis(40));
    assert_eq!(NODES.map(|node| world.load(1, node)), [2; 4]);
    assert_eq!(world.switches[0].machine.counts().sets_told, 0);
}

#[test]
fn strangers_are_counted_and_change_nothing() {
    let mut world = World::of(2, &settings(PolicyKind::Lard));
    let (now, name) = (world.own(0), world.switches[1].name.clone());
    let Switch { dispatcher, machine, .. } = &mut world.switches[0];
    let before = machine.elsewhere().clone();
    for bytes in [&[9, 0, 1, 1, 1, 1][..], &[0, 0, 1, 1, 1, 1, 99], &[1], &[]] {
        let said = machine.message(now, &name, bytes, dispatcher, &mut Out::default());
        assert!(said.is_err(), "{bytes:?}");
    }
    assert_eq!((machine.counts().strange, machine.elsewhere()), (4, &before));
}

#[test]
fn error_names_the_setting_out_of_range() {
    let said = |change: fn(&mut SwitchesSettings)| {
        let mut settings = SwitchesSettings::default();
        change(&mut settings);
        settings.validate().expect_err("out of range").to_string()
    };
    assert!(said(|settings| settings.period = Duration::ZERO).starts_with("period"));
    assert!(said(|settings| settings.step = 0).starts_with("step"));
    assert!(said(|settings| settings.all_every = Duration::from_secs(4)).starts_with("all_every"));
    assert!(said(|settings| settings.sets_max = 0).starts_with("sets_max"));
    assert_eq!(SwitchesSettings::default().validate(), Ok(()));
}
