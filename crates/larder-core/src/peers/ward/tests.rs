use super::*;
use crate::census::Census;
use alloc::collections::VecDeque;
use core::time::Duration;
use proptest::prelude::*;

const NAMES: [&str; 3] = ["a", "b", "c"];

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn settings() -> WardSettings {
    WardSettings { first_requests: 20, memory: Bytes(1_000), ..WardSettings::default() }
}

/// The census uses the middle bits of ids, and tables the highest bits. The ids differ in both.
fn id_of(number: u64) -> TargetId {
    TargetId(number << 32 | number)
}

/// Cluster of `a`, `b` and `c`, whose slots have this order at every node. A table made here has the targets below
/// 10 as its core, and gives the others to the owners in turn.
#[derive(Debug)]
struct Cluster {
    nodes: Vec<Option<(Ward, Census)>>,
    /// Messages in flight: receiver and sender.
    wires: VecDeque<(usize, usize, WardMessage)>,
    analysed: Vec<AnalysisInput>,
}

/// Asserts that the current placement matches the actual decisions, while every node answers.
fn knows_who_serves(ward: &Ward, now: Time, input: &AnalysisInput) {
    for target in input.counts.iter().map(|count| count.target).filter(|_| ward.trust.is_empty()) {
        let decision = ward.place_target(now, target);
        match (input.current.place(target), decision.reason) {
            (Some(Place::Core), WardReason::Core) => {}
            (None, _) => assert_eq!(ward.settings.unlisted, UnlistedTargets::Here),
            (Some(Place::Node(place)), reason) if reason != WardReason::Core => {
                assert_eq!(input.nodes[usize::from(place)], decision.node, "{reason:?}");
            }
            (place, reason) => panic!("{place:?}, and decided by {reason:?}"),
        }
    }
}

impl Cluster {
    fn new(settings: WardSettings) -> Self {
        let mut cluster = Self {
            nodes: (0..3).map(|at| Some(Self::node(at, 1, settings))).collect(),
            wires: VecDeque::new(),
            analysed: Vec::new(),
        };
        cluster.meet(Time::ZERO);
        cluster.run(Time::ZERO);
        cluster
    }

    fn node(at: usize, epoch: u64, settings: WardSettings) -> (Ward, Census) {
        (Ward::new(NodeId(at as u16), NAMES[at], epoch, settings), Census::new(100_000))
    }

    /// Makes all live nodes see each other, and no other node.
    fn meet(&mut self, now: Time) {
        for node in 0..3 {
            for (other, name) in NAMES.into_iter().enumerate() {
                let sees = |(ward, _): &(Ward, Census)| ward.nodes_by_name.contains_key(name);
                let id = NodeId(other as u16);
                match (self.nodes[node].as_ref().map(sees), self.nodes[other].is_some()) {
                    (Some(false), true) => {
                        self.at(now, node, |ward, out| ward.add_node(now, id, name, out));
                    }
                    (Some(true), false) => self.at(now, node, |ward, out| ward.remove_node(now, id, out)),
                    _ => {}
                }
            }
        }
    }

    fn at(&mut self, now: Time, node: usize, act: impl FnOnce(&mut Ward, &mut Vec<WardOutput>)) {
        let Some((ward, census)) = &mut self.nodes[node] else { return };
        let mut out = Vec::new();
        act(ward, &mut out);
        let mut todo = VecDeque::from(out);
        while let Some(output) = todo.pop_front() {
            let mut more = Vec::new();
            match output {
                WardOutput::Send { to, message } => {
                    let message = WardMessage::decode(&message.encode()).expect("it can be read");
                    self.wires.push_back((to.index(), node, message));
                }
                WardOutput::Broadcast(message) => {
                    let others = (0..3).filter(|other| *other != node);
                    self.wires.extend(others.map(|other| (other, node, message.clone())));
                }
                WardOutput::TakeCensus { keep } => {
                    ward.receive_census(now, census.take(if keep { 1_000 } else { 500 }), &mut more);
                }
                WardOutput::Analyse(input) => {
                    knows_who_serves(ward, now, &input);
                    let nodes = input.nodes.len() as u16;
                    let place = |target: TargetId| match target.0 & 0xFFFF_FFFF {
                        0..10 => Place::Core,
                        other => Place::Node((other % u64::from(nodes)) as u16),
                    };
                    let rows = input.counts.iter().map(|count| (count.target, place(count.target)));
                    let table = RouteTable::new(nodes, rows).expect("owners are in range");
                    ward.receive_table(now, input.round, table, &mut more);
                    self.analysed.push(input);
                }
            }
            todo.extend(more);
        }
    }

    fn ask(&mut self, now: Time, node: usize, target: u64) -> Option<(u16, WardReason)> {
        let (ward, census) = self.nodes[node].as_mut()?;
        census.count(id_of(target), Bytes(100 + target));
        let decision = ward.decide(now, id_of(target));
        Some((decision.node.0, decision.reason))
    }

    fn note(&mut self, now: Time, node: usize, target: u64) {
        _ = self.ask(now, node, target);
    }

    fn tick(&mut self, now: Time) {
        for node in 0..3 {
            let is_due = self.nodes[node].as_ref().is_some_and(|(ward, _)| ward.due() <= now);
            if is_due {
                self.at(now, node, |ward, out| ward.tick(now, out));
            }
        }
    }

    /// Ticks and delivers messages until none is in flight.
    fn run(&mut self, now: Time) {
        self.tick(now);
        while let Some((to, from, message)) = self.wires.pop_front() {
            self.at(now, to, |ward, out| ward.receive(now, NodeId(from as u16), message, out));
        }
    }

    fn ids(&self) -> Vec<Option<(u64, String)>> {
        let id = |(ward, _): &(Ward, Census)| ward.status().id.map(|id| (id.number, id.maker.to_string()));
        self.nodes.iter().flatten().map(id).collect()
    }

    /// Requests 30 targets at each node.
    fn warm(&mut self, now: Time) {
        (0..3).for_each(|node| {
            (0..30).for_each(|target| {
                self.ask(now, node, target);
            });
        });
        self.run(now);
    }
}

#[test]
fn the_first_table_is_made_from_enough_counts_and_used_by_all() {
    let mut cluster = Cluster::new(settings());
    (0..19).for_each(|target| {
        assert_eq!(cluster.ask(ms(1), 2, target).map(|(_, reason)| reason), Some(WardReason::Early));
    });
    cluster.run(ms(1));
    assert_eq!(cluster.ids(), [None, None, None]);
    cluster.ask(ms(2), 1, 5);
    cluster.ask(ms(2), 2, 19);
    cluster.run(ms(2));
    assert!(cluster.ids().iter().all(|id| *id == Some((1, "a".to_owned()))), "{:?}", cluster.ids());
    let counts = &cluster.analysed[0].counts;
    assert_eq!(counts.len(), 20);
    assert!(counts.is_sorted_by_key(|count| count.target));
    let five = Count { target: id_of(5), requests: 2, size: Bytes(105) };
    assert_eq!(counts[5], five, "of two nodes together");
    for node in 0..3 {
        assert_eq!(cluster.ask(ms(3), node, 7), Some((node as u16, WardReason::Core)));
        let reason = if node == 0 { WardReason::Own } else { WardReason::Owner };
        assert_eq!(cluster.ask(ms(3), node, 12), Some((0, reason)));
    }
    let unlisted: Vec<_> = (0..3).map(|node| cluster.ask(ms(3), node, 1_000)).collect();
    assert!(unlisted.iter().all(|at| *at == unlisted[0]), "{unlisted:?}");
    assert!(unlisted[0].is_some_and(|(_, reason)| reason == WardReason::Rest));
}

#[test]
fn unlisted_targets_can_be_served_where_they_are_requested() {
    let mut cluster = Cluster::new(WardSettings { unlisted: UnlistedTargets::Here, ..settings() });
    cluster.warm(ms(1));
    for node in 0..3 {
        assert_eq!(cluster.ask(ms(3), node, 1_000), Some((node as u16, WardReason::Rest)));
    }
}

#[test]
fn a_table_is_made_at_intervals_from_recent_counts() {
    let mut cluster = Cluster::new(settings());
    cluster.warm(ms(1));
    let period = 900_000;
    (0..3).for_each(|node| (0..40).for_each(|target| cluster.note(ms(2), node, 500 + target)));
    cluster.run(ms(period));
    assert_eq!(cluster.ids()[0], Some((1, "a".to_owned())));
    cluster.run(ms(period + 1));
    assert!(cluster.ids().iter().all(|id| *id == Some((2, "a".to_owned()))));
    let requests = |target: u64| {
        let counts = &cluster.analysed[1].counts;
        counts.iter().find(|count| count.target == id_of(target)).map(|count| count.requests)
    };
    assert_eq!((requests(510), requests(3)), (Some(3), None), "half of one request at each node is none");
}

#[test]
fn targets_without_requests_keep_their_owner() {
    let mut cluster = Cluster::new(settings());
    cluster.warm(ms(1));
    (0..3).for_each(|node| (0..40).for_each(|target| cluster.note(ms(2), node, 500 + target)));
    cluster.run(ms(900_001));
    // Each node requested the targets below 30 once, and half of one request is none. So the second round has not
    // counted them.
    let input = &cluster.analysed[1];
    assert!(input.counts.iter().all(|count| count.target.0 & 0xFFFF_FFFF >= 500));
    let rows = input.counts.iter().map(|count| (count.target, Place::Node(0)));
    let next = RouteTable::new(3, rows).expect("owners are in range");
    let keep = input.current.with_remembered(next.clone()).expect("owners are in range");
    let kept: Vec<u64> = (10..30).filter(|target| keep.get(id_of(*target)).is_some()).collect();
    assert!((12..20).contains(&kept.len()), "seven of eight: {kept:?}");
    let owner = |target: u64| Some(Place::Node((target % 3) as u16));
    assert!(kept.iter().all(|target| keep.get(id_of(*target)) == owner(*target)));
    assert_eq!(keep.get(id_of(510)), Some(Place::Node(0)));
    assert_eq!((keep.len(), keep.core_len()), (next.len() + kept.len(), 0), "the core was everybody's");

    // The targets of a node that is gone have no owner; and the table is bounded.
    let (ward, _) = cluster.nodes[0].as_ref().expect("it is there");
    let of = |names: &[&str], settings: &WardSettings| {
        let names: Vec<NameKey> = names.iter().map(|name| NameKey::of(name)).collect();
        CurrentPlacement::new(input.current.installed.clone(), &names, settings)
    };
    let left = of(&["b", "a"], &ward.settings).with_remembered(RouteTable::new(2, []).expect("two nodes"));
    let left = left.expect("owners are in range");
    let places: Vec<Option<Place>> = kept.iter().map(|target| left.get(id_of(*target))).collect();
    let swapped = |target: &u64| [Some(Place::Node(1)), Some(Place::Node(0)), None][(*target % 3) as usize];
    assert_eq!(places, kept.iter().map(swapped).collect::<Vec<_>>());
    let few = WardSettings { targets_max: next.len() + 5, ..settings() };
    let bounded = of(&NAMES, &few).with_remembered(next.clone()).expect("owners are in range");
    assert!((next.len() + 1..=next.len() + 5).contains(&bounded.len()), "{}", bounded.len());
    let full = WardSettings { targets_max: next.len(), ..settings() };
    assert_eq!(of(&NAMES, &full).with_remembered(next.clone()), Ok(next.clone()));
    let paper = of(&NAMES, &WardSettings { unlisted: UnlistedTargets::Here, ..settings() });
    assert_eq!((paper.with_remembered(next.clone()), paper.place(id_of(510))), (Ok(next), None));
}

#[test]
fn targets_of_a_dead_owner_are_placed_by_hash_until_the_next_table() {
    let mut cluster = Cluster::new(settings());
    cluster.warm(ms(1));
    cluster.run(ms(6_000));
    assert_eq!(cluster.analysed.len(), 1, "the nodes are those that it was made for");
    let of_c: Vec<u64> = (10..30).filter(|target| target % 3 == 2).collect();
    cluster.nodes[2] = None;
    cluster.meet(ms(7_000));
    for target in &of_c {
        let (a, b) = (cluster.ask(ms(7_001), 0, *target), cluster.ask(ms(7_001), 1, *target));
        assert_eq!(a, b);
        assert!(a.is_some_and(|(node, reason)| node < 2 && reason == WardReason::Heir));
    }
    (0..30).for_each(|target| cluster.note(ms(7_002), 0, target));
    cluster.run(ms(12_001));
    assert_eq!(cluster.analysed.last().map(|input| input.nodes.clone()), Some(vec![NodeId(0), NodeId(1)]));
    let decision = cluster.ask(ms(12_002), 0, 11);
    assert_eq!(decision, Some((1, WardReason::Owner)));
}

#[test]
fn targets_of_a_silent_owner_are_placed_by_hash_until_it_answers() {
    let mut cluster = Cluster::new(settings());
    cluster.warm(ms(1));
    assert_eq!(cluster.ask(ms(2), 0, 10), Some((1, WardReason::Owner)));
    cluster.at(ms(3), 0, |ward, _| ward.record_failure(ms(3), NodeId(1)));
    assert!(matches!(cluster.ask(ms(4), 0, 10), Some((0 | 2, WardReason::Heir))));
    assert_eq!(cluster.ask(ms(1_003), 0, 10), Some((1, WardReason::Owner)), "one trial");
    assert!(matches!(cluster.ask(ms(1_004), 0, 10), Some((0 | 2, WardReason::Heir))));
    cluster.at(ms(1_005), 0, |ward, _| ward.record_reply(NodeId(1)));
    assert_eq!(cluster.ask(ms(1_006), 0, 10), Some((1, WardReason::Owner)));
}

#[test]
fn a_new_node_gets_the_table_and_becomes_an_owner() {
    let mut cluster = Cluster::new(settings());
    cluster.nodes[0] = None;
    cluster.meet(ms(1));
    cluster.warm(ms(2));
    assert_eq!(cluster.ids(), vec![Some((1, "b".to_owned())); 2]);
    cluster.nodes[0] = Some(Cluster::node(0, 2, settings()));
    cluster.meet(ms(3));
    cluster.run(ms(5_001));
    assert_eq!(cluster.ids(), vec![Some((1, "b".to_owned())); 3], "the lowest name learns of it too");
    (0..30).for_each(|target| cluster.note(ms(5_002), 0, target));
    cluster.run(ms(10_003));
    assert_eq!(cluster.ids(), vec![Some((2, "a".to_owned())); 3]);
}

#[test]
fn a_node_that_sends_no_counts_is_left_out() {
    let mut cluster = Cluster::new(settings());
    (0..30).for_each(|target| cluster.note(ms(1), 0, target));
    cluster.tick(ms(1));
    cluster.wires.retain(|(to, ..)| *to != 2);
    for second in 0..11 {
        let now = ms(second * 1_000 + 2);
        cluster.tick(now);
        cluster.wires.retain(|(to, ..)| *to != 2);
        cluster.run(now);
    }
    assert_eq!(cluster.analysed.len(), 1);
    assert_eq!(cluster.ids()[0], Some((1, "a".to_owned())));
}

#[test]
fn a_loaded_table_becomes_the_newest() {
    let mut cluster = Cluster::new(WardSettings { refresh: None, ..settings() });
    cluster.warm(ms(1));
    assert_eq!(cluster.ids(), [None, None, None], "nobody makes one");
    let table = RouteTable::new(2, (0..10_000).map(|at| (id_of(at * 7), Place::Node((at % 2) as u16))));
    let table = table.expect("owners are in range");
    for number in 1..=2 {
        let mut loaded = false;
        let table = table.clone();
        cluster.at(ms(2), 1, |ward, out| loaded = ward.load_table(ms(2), &["z", "c"], table, out));
        assert!(loaded);
        cluster.run(ms(2));
        assert_eq!(cluster.ids(), vec![Some((number, "b".to_owned())); 3], "in parts");
    }
    assert_eq!(cluster.ask(ms(3), 0, 7), Some((2, WardReason::Owner)));
    assert!(cluster.ask(ms(3), 0, 14).is_some_and(|(_, reason)| reason == WardReason::Heir), "there is no z");
    let (ward, _) = cluster.nodes[2].as_mut().expect("it is there");
    let status = ward.status();
    assert_eq!((status.partition_targets, status.owners, status.fetched), (10_000, (2, 1), 2));
    let mut out = Vec::new();
    assert!(!ward.load_table(ms(3), &["a"], table, &mut out) && out.is_empty(), "it has two owners");
}

#[test]
fn a_table_with_too_many_targets_is_refused_once() {
    let mut cluster = Cluster::new(settings());
    let small = WardSettings { targets_max: 64, ..settings() };
    cluster.nodes[2] = Some(Cluster::node(2, 2, small));
    for other in 0..2 {
        cluster.at(ms(1), other, |ward, out| ward.add_node(ms(1), NodeId(2), "c", out));
    }
    cluster.meet(ms(1));
    let rows = (0..100).map(|at| (id_of(at), Place::Core));
    let table = RouteTable::new(1, rows).expect("owners are in range");
    cluster.at(ms(2), 0, |ward, out| _ = ward.load_table(ms(2), &["a"], table, out));
    (0..10).for_each(|second| cluster.run(ms(3 + second * 1_000)));
    let statuses: Vec<WardStatus> = cluster.nodes.iter().flatten().map(|(ward, _)| ward.status()).collect();
    assert_eq!((statuses[1].fetched, statuses[1].refused), (1, 0));
    assert_eq!((statuses[2].fetched, statuses[2].refused), (0, 1));
}

#[test]
fn the_merged_counts_are_bounded() {
    let mut cluster = Cluster::new(WardSettings { targets_max: 64, first_requests: 600, ..settings() });
    for node in 0..3_u64 {
        // Ten targets are popular at one node only. Each node also has its own targets, and many targets are
        // requested once.
        (0..20).for_each(|_| {
            (0..10).for_each(|target| cluster.note(ms(1), node as usize, (10 * node + target) * 2_047));
        });
        (0..900).for_each(|target| cluster.note(ms(1), node as usize, 100_000 * (node + 1) + 13 * target));
    }
    cluster.run(ms(1));
    let counts = &cluster.analysed[0].counts;
    assert_eq!(counts.len(), 64);
    let popular = counts.iter().filter(|count| count.requests == 20).count();
    assert_eq!(popular, 30, "whoever counted them, and whoever is heard first");
    let left_out = cluster.nodes[0].as_ref().map(|(ward, _)| ward.status().left_out);
    assert!(left_out > Some(0), "{left_out:?}");
}

#[test]
fn counts_do_not_decay_before_the_first_table() {
    let mut cluster = Cluster::new(WardSettings { first_requests: 100, ..settings() });
    // Enough requests were decided, but most of them are not counted, so the first round has too few.
    let decide = |cluster: &mut Cluster, now: Time, count: u64| {
        (0..count).for_each(|target| cluster.at(now, 0, |ward, _| _ = ward.decide(now, id_of(target))));
    };
    decide(&mut cluster, ms(1), 100);
    for minute in 0..20_u64 {
        let now = ms(1 + minute * 60_000);
        // Each node counts ten requests a minute. With decay the sum would never exceed 60.
        (0..3).for_each(|node| (0..10).for_each(|target| cluster.note(now, node, target)));
        decide(&mut cluster, now, 100);
        cluster.run(now);
        if cluster.nodes.iter().flatten().all(|(ward, _)| ward.status().id.is_some()) {
            let (ward, _) = cluster.nodes[0].as_ref().expect("it is there");
            assert!(ward.status().failed_rounds > 1 && minute < 6, "{:?} in minute {minute}", ward.status());
            return;
        }
    }
    panic!("there is no table: {:?}", cluster.nodes[0].as_ref().map(|(ward, _)| ward.status()));
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Delivered,
    Lost,
    Twice,
    /// The message arrives after later ones.
    Late,
}

fn step() -> impl Strategy<Value = (u8, usize, u64, Fate)> {
    let fates = [Fate::Delivered, Fate::Delivered, Fate::Delivered, Fate::Lost, Fate::Twice, Fate::Late];
    (0..14_u8, 0..3_usize, 0..40_u64, prop::sample::select(fates.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For any loss of messages, any membership view, restarts and loaded tables: all nodes end with one table,
    /// equal rows and owners, and equal decisions.
    #[test]
    fn all_nodes_end_with_one_table(steps in prop::collection::vec(step(), 1..200)) {
        let mut cluster = Cluster::new(settings());
        let mut now = ms(1);
        let mut epoch = 1;
        for (what, node, number, fate) in steps {
            now += Duration::from_millis(number * 20);
            match what {
                0..=4 => (0..10).for_each(|more| cluster.note(now, node, number * 3 + more)),
                5 => cluster.at(now, node, |ward, out| ward.remove_node(now, NodeId((number % 3) as u16), out)),
                6 => cluster.meet(now),
                7 => {
                    epoch += 1;
                    cluster.nodes[node] = Some(Cluster::node(node, epoch, settings()));
                    for other in 0..3 {
                        cluster.at(now, other, |ward, out| ward.remove_node(now, NodeId(node as u16), out));
                    }
                    cluster.meet(now);
                }
                8 => {
                    let rows = (0..number).map(|at| (id_of(at), Place::Node((at % 2) as u16)));
                    let table = RouteTable::new(2, rows).expect("owners are in range");
                    cluster.at(now, node, |ward, out| _ = ward.load_table(now, &["b", "c"], table, out));
                }
                _ => {}
            }
            cluster.tick(now);
            let Some((to, from, message)) = cluster.wires.pop_front() else { continue };
            let receive = |cluster: &mut Cluster, message: WardMessage| {
                cluster.at(now, to, |ward, out| ward.receive(now, NodeId(from as u16), message, out));
            };
            match fate {
                Fate::Delivered => receive(&mut cluster, message),
                Fate::Lost => {}
                Fate::Twice => {
                    receive(&mut cluster, message.clone());
                    receive(&mut cluster, message);
                }
                Fate::Late => cluster.wires.push_back((to, from, message)),
            }
        }
        cluster.meet(now);
        for _ in 0..60 {
            now += Duration::from_millis(500);
            cluster.run(now);
        }
        let table = |(ward, _): &(Ward, Census)| {
            ward.installed.as_ref().map(|installed| (installed.id.clone(), installed.owners.clone(), installed.table.clone()))
        };
        let tables: Vec<_> = cluster.nodes.iter().flatten().map(table).collect();
        prop_assert!(tables.iter().all(|table| *table == tables[0]), "{:?}", cluster.ids());
        for target in 0..150 {
            let at: Vec<_> = (0..3).filter_map(|node| cluster.ask(now, node, target)).collect();
            let is_core = at.iter().all(|(_, reason)| *reason == WardReason::Core);
            prop_assert!(is_core || at.iter().all(|(node, _)| *node == at[0].0), "{target}: {at:?}");
        }
        let idle = cluster.nodes.iter().flatten().all(|(ward, _)| ward.round.is_none() && ward.partial.is_none());
        prop_assert!(idle);
    }
}

fn name() -> impl Strategy<Value = Arc<str>> {
    "[ -~]{0,100}".prop_map(Arc::from)
}

fn id() -> impl Strategy<Value = TableId> {
    (any::<u64>(), name(), any::<u64>()).prop_map(|(number, maker, epoch)| TableId { number, maker, epoch })
}

fn message() -> impl Strategy<Value = WardMessage> {
    let place = prop_oneof![Just(Place::Core), (0..2_000_u16).prop_map(Place::Node)];
    let rows = prop::collection::vec((any::<u64>().prop_map(TargetId), place), 0..40);
    let owners = prop::collection::vec(any::<u64>().prop_map(NameKey), 0..40);
    let count = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(target, requests, size)| Count {
        target: TargetId(target),
        requests,
        size: Bytes(size),
    });
    prop_oneof![
        prop::option::of(id()).prop_map(|id| WardMessage::Newest { id }),
        (id(), any::<u32>()).prop_map(|(id, from)| WardMessage::TableRequest { id, from }),
        (id(), any::<u32>(), any::<u32>(), owners, rows)
            .prop_map(|(id, from, total, owners, rows)| WardMessage::Table { id, from, total, owners, rows }),
        (any::<u64>(), any::<u64>(), any::<u32>())
            .prop_map(|(round, snapshot, from)| WardMessage::CountsRequest { round, snapshot, from }),
        (any::<[u64; 3]>(), any::<[u32; 2]>(), prop::collection::vec(count, 0..40)).prop_map(
            |([round, snapshot, memory], [from, total], rows)| WardMessage::Counts {
                round,
                snapshot,
                from,
                total,
                memory: Bytes(memory),
                rows
            }
        ),
        Just(WardMessage::FirstTableRequest),
    ]
}

proptest! {
    #[test]
    fn a_decoded_message_equals_the_encoded_one(message in message()) {
        let bytes = message.encode();
        prop_assert!((0..bytes.len()).all(|end| WardMessage::decode(&bytes[..end]).is_err()));
        prop_assert_eq!(WardMessage::decode(&bytes), Ok(message));
    }

    #[test]
    fn random_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = WardMessage::decode(&bytes) {
            prop_assert_eq!(WardMessage::decode(&message.encode()), Ok(message));
        }
    }

    /// Senseless messages do no harm either.
    #[test]
    fn random_messages_do_no_harm(messages in prop::collection::vec(message(), 1..20)) {
        let mut ward = Ward::new(NodeId(0), "a", 1, settings());
        let mut out = Vec::new();
        ward.add_node(ms(1), NodeId(1), "b", &mut out);
        for message in messages {
            ward.receive(ms(2), NodeId(1), message, &mut out);
            ward.tick(ms(2), &mut out);
        }
        prop_assert!(out.len() < 200);
    }
}

#[test]
fn the_longest_messages_fit() {
    let id = TableId { number: u64::MAX, maker: "n".repeat(100).into(), epoch: u64::MAX };
    let owners = vec![NameKey(u64::MAX); OWNERS_MAX];
    let rows = vec![(TargetId(u64::MAX), Place::Node(1_023)); PART_MAX];
    let table = WardMessage::Table { id, from: u32::MAX, total: u32::MAX, owners, rows };
    let row = Count { target: TargetId(1), requests: u64::MAX, size: Bytes(u64::MAX) };
    let counts = WardMessage::Counts {
        round: u64::MAX,
        snapshot: u64::MAX,
        from: u32::MAX,
        total: u32::MAX,
        memory: Bytes(u64::MAX),
        rows: vec![row; COUNTS_MAX],
    };
    for message in [table, counts] {
        let bytes = message.encode();
        assert!(bytes.len() < 60_000, "{}", bytes.len());
        assert_eq!(WardMessage::decode(&bytes), Ok(message));
    }
}
