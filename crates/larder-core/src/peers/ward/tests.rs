use super::*;
use crate::census::Census;
use core::time::Duration;
use proptest::prelude::*;
use std::collections::VecDeque;

const NAMES: [&str; 3] = ["a", "b", "c"];

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn settings() -> WardSettings {
    WardSettings { first_requests: 20, memory: Bytes(1_000), ..WardSettings::default() }
}

/// The census looks at the middle of ids, tables at their highest bits: both are told apart.
fn id_of(number: u64) -> TargetId {
    TargetId(number << 32 | number)
}

/// A cluster of `a`, `b`, `c`, whose slots are in this order at every node. A table made here has the targets below 10 as its
/// core, and the others' owners in turn.
#[derive(Debug)]
struct Cluster {
    nodes: Vec<Option<(Ward, Census)>>,
    /// Messages under way: to, from.
    wires: VecDeque<(usize, usize, WardMessage)>,
    analysed: Vec<Analyse>,
}

/// What is said of who serves targets is what requests for them come to, while every node answers.
fn knows_who_serves(ward: &Ward, now: Time, analyse: &Analyse) {
    for target in analyse.counts.iter().map(|count| count.target).filter(|_| ward.trust.is_empty()) {
        let verdict = ward.place(now, target);
        match (analyse.now.place(target), verdict.why) {
            (Some(Place::Core), WardWhy::Core) => {}
            (None, _) => assert_eq!(ward.settings.rest, Rest::Here),
            (Some(Place::Node(place)), why) if why != WardWhy::Core => {
                assert_eq!(analyse.nodes[usize::from(place)], verdict.node, "{why:?}");
            }
            (place, why) => panic!("{place:?}, and decided by {why:?}"),
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

    /// All that are there see all that are there, and nobody else.
    fn meet(&mut self, now: Time) {
        for node in 0..3 {
            for (other, name) in NAMES.into_iter().enumerate() {
                let sees = |(ward, _): &(Ward, Census)| ward.names.contains_key(name);
                let id = NodeId(other as u16);
                match (self.nodes[node].as_ref().map(sees), self.nodes[other].is_some()) {
                    (Some(false), true) => {
                        self.at(now, node, |ward, out| ward.joined(now, id, name, out));
                    }
                    (Some(true), false) => self.at(now, node, |ward, out| ward.left(now, id, out)),
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
                WardOutput::Tell(message) => {
                    let others = (0..3).filter(|other| *other != node);
                    self.wires.extend(others.map(|other| (other, node, message.clone())));
                }
                WardOutput::Count { whole } => {
                    ward.counted(now, census.take(if whole { 1_000 } else { 500 }), &mut more);
                }
                WardOutput::Analyse(analyse) => {
                    knows_who_serves(ward, now, &analyse);
                    let nodes = analyse.nodes.len() as u16;
                    let place = |target: TargetId| match target.0 & 0xFFFF_FFFF {
                        0..10 => Place::Core,
                        other => Place::Node((other % u64::from(nodes)) as u16),
                    };
                    let rows = analyse.counts.iter().map(|count| (count.target, place(count.target)));
                    let table = RouteTable::new(nodes, rows).expect("owners are in range");
                    ward.made(now, analyse.round, table, &mut more);
                    self.analysed.push(analyse);
                }
            }
            todo.extend(more);
        }
    }

    fn ask(&mut self, now: Time, node: usize, target: u64) -> Option<(u16, WardWhy)> {
        let (ward, census) = self.nodes[node].as_mut()?;
        census.count(id_of(target), Bytes(100 + target));
        let verdict = ward.decide(now, id_of(target));
        Some((verdict.node.0, verdict.why))
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

    /// Ticks and delivers until nothing is under way.
    fn run(&mut self, now: Time) {
        self.tick(now);
        while let Some((to, from, message)) = self.wires.pop_front() {
            self.at(now, to, |ward, out| ward.hear(now, NodeId(from as u16), message, out));
        }
    }

    fn ids(&self) -> Vec<Option<(u64, String)>> {
        let id = |(ward, _): &(Ward, Census)| ward.status().id.map(|id| (id.number, id.maker.to_string()));
        self.nodes.iter().flatten().map(id).collect()
    }

    /// Each node asks for 30 targets.
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
fn the_first_table_is_made_when_enough_is_counted_and_all_go_by_it() {
    let mut cluster = Cluster::new(settings());
    (0..19).for_each(|target| {
        assert_eq!(cluster.ask(ms(1), 2, target).map(|(_, why)| why), Some(WardWhy::Early));
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
        assert_eq!(cluster.ask(ms(3), node, 7), Some((node as u16, WardWhy::Core)));
        let why = if node == 0 { WardWhy::Own } else { WardWhy::Owner };
        assert_eq!(cluster.ask(ms(3), node, 12), Some((0, why)));
    }
    let rest: Vec<_> = (0..3).map(|node| cluster.ask(ms(3), node, 1_000)).collect();
    assert!(rest.iter().all(|at| *at == rest[0]), "{rest:?}");
    assert!(rest[0].is_some_and(|(_, why)| why == WardWhy::Rest));
}

#[test]
fn as_in_the_paper_what_no_table_has_is_served_where_it_is_asked_for() {
    let mut cluster = Cluster::new(WardSettings { rest: Rest::Here, ..settings() });
    cluster.warm(ms(1));
    for node in 0..3 {
        assert_eq!(cluster.ask(ms(3), node, 1_000), Some((node as u16, WardWhy::Rest)));
    }
}

#[test]
fn a_table_is_made_at_intervals_of_what_was_counted_since() {
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
fn what_is_not_asked_for_any_more_keeps_its_owner() {
    let mut cluster = Cluster::new(settings());
    cluster.warm(ms(1));
    (0..3).for_each(|node| (0..40).for_each(|target| cluster.note(ms(2), node, 500 + target)));
    cluster.run(ms(900_001));
    // Each node asked once for those below 30, and half of one is none: the second round has not counted them.
    let analyse = &cluster.analysed[1];
    assert!(analyse.counts.iter().all(|count| count.target.0 & 0xFFFF_FFFF >= 500));
    let rows = analyse.counts.iter().map(|count| (count.target, Place::Node(0)));
    let next = RouteTable::new(3, rows).expect("owners are in range");
    let whole = analyse.now.remembered(next.clone()).expect("owners are in range");
    let kept: Vec<u64> = (10..30).filter(|target| whole.get(id_of(*target)).is_some()).collect();
    assert!((12..20).contains(&kept.len()), "seven of eight: {kept:?}");
    let owner = |target: u64| Some(Place::Node((target % 3) as u16));
    assert!(kept.iter().all(|target| whole.get(id_of(*target)) == owner(*target)));
    assert_eq!(whole.get(id_of(510)), Some(Place::Node(0)));
    assert_eq!((whole.len(), whole.core_len()), (next.len() + kept.len(), 0), "the core was everybody's");

    // What an owner that is gone had is nobody's; and the table has a bound.
    let (ward, _) = cluster.nodes[0].as_ref().expect("it is there");
    let of = |names: &[&str], settings: &WardSettings| {
        let names: Vec<NameKey> = names.iter().map(|name| NameKey::of(name)).collect();
        Serving::new(analyse.now.held.clone(), &names, settings)
    };
    let left = of(&["b", "a"], &ward.settings).remembered(RouteTable::new(2, []).expect("two nodes"));
    let left = left.expect("owners are in range");
    let places: Vec<Option<Place>> = kept.iter().map(|target| left.get(id_of(*target))).collect();
    let swapped = |target: &u64| [Some(Place::Node(1)), Some(Place::Node(0)), None][(*target % 3) as usize];
    assert_eq!(places, kept.iter().map(swapped).collect::<Vec<_>>());
    let few = WardSettings { targets_max: next.len() + 5, ..settings() };
    let bounded = of(&NAMES, &few).remembered(next.clone()).expect("owners are in range");
    assert!((next.len() + 1..=next.len() + 5).contains(&bounded.len()), "{}", bounded.len());
    let full = WardSettings { targets_max: next.len(), ..settings() };
    assert_eq!(of(&NAMES, &full).remembered(next.clone()), Ok(next.clone()));
    let paper = of(&NAMES, &WardSettings { rest: Rest::Here, ..settings() });
    assert_eq!((paper.remembered(next.clone()), paper.place(id_of(510))), (Ok(next), None));
}

#[test]
fn a_dead_owner_has_heirs_until_there_is_another_table() {
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
        assert!(a.is_some_and(|(node, why)| node < 2 && why == WardWhy::Heir));
    }
    (0..30).for_each(|target| cluster.note(ms(7_002), 0, target));
    cluster.run(ms(12_001));
    assert_eq!(
        cluster.analysed.last().map(|analyse| analyse.nodes.clone()),
        Some(vec![NodeId(0), NodeId(1)])
    );
    let verdict = cluster.ask(ms(12_002), 0, 11);
    assert_eq!(verdict, Some((1, WardWhy::Owner)));
}

#[test]
fn an_owner_that_does_not_answer_has_heirs_until_it_does() {
    let mut cluster = Cluster::new(settings());
    cluster.warm(ms(1));
    assert_eq!(cluster.ask(ms(2), 0, 10), Some((1, WardWhy::Owner)));
    cluster.at(ms(3), 0, |ward, _| ward.unanswered(ms(3), NodeId(1)));
    assert!(matches!(cluster.ask(ms(4), 0, 10), Some((0 | 2, WardWhy::Heir))));
    assert_eq!(cluster.ask(ms(1_003), 0, 10), Some((1, WardWhy::Owner)), "one trial");
    assert!(matches!(cluster.ask(ms(1_004), 0, 10), Some((0 | 2, WardWhy::Heir))));
    cluster.at(ms(1_005), 0, |ward, _| ward.replied(NodeId(1)));
    assert_eq!(cluster.ask(ms(1_006), 0, 10), Some((1, WardWhy::Owner)));
}

#[test]
fn who_comes_is_given_the_table_and_made_an_owner() {
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
fn a_node_that_gives_no_counts_is_left_out() {
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
fn a_table_from_elsewhere_counts_as_the_newest() {
    let mut cluster = Cluster::new(WardSettings { refresh: None, ..settings() });
    cluster.warm(ms(1));
    assert_eq!(cluster.ids(), [None, None, None], "nobody makes one");
    let table = RouteTable::new(2, (0..10_000).map(|at| (id_of(at * 7), Place::Node((at % 2) as u16))));
    let table = table.expect("owners are in range");
    for number in 1..=2 {
        let mut loaded = false;
        let table = table.clone();
        cluster.at(ms(2), 1, |ward, out| loaded = ward.load(ms(2), &["z", "c"], table, out));
        assert!(loaded);
        cluster.run(ms(2));
        assert_eq!(cluster.ids(), vec![Some((number, "b".to_owned())); 3], "in parts");
    }
    assert_eq!(cluster.ask(ms(3), 0, 7), Some((2, WardWhy::Owner)));
    assert!(cluster.ask(ms(3), 0, 14).is_some_and(|(_, why)| why == WardWhy::Heir), "there is no z");
    let (ward, _) = cluster.nodes[2].as_mut().expect("it is there");
    let status = ward.status();
    assert_eq!((status.partition_targets, status.owners, status.fetched), (10_000, (2, 1), 2));
    let mut out = Vec::new();
    assert!(!ward.load(ms(3), &["a"], table, &mut out) && out.is_empty(), "it has two owners");
}

#[test]
fn a_table_with_more_targets_than_there_is_room_for_is_refused_once() {
    let mut cluster = Cluster::new(settings());
    let small = WardSettings { targets_max: 64, ..settings() };
    cluster.nodes[2] = Some(Cluster::node(2, 2, small));
    for other in 0..2 {
        cluster.at(ms(1), other, |ward, out| ward.joined(ms(1), NodeId(2), "c", out));
    }
    cluster.meet(ms(1));
    let rows = (0..100).map(|at| (id_of(at), Place::Core));
    let table = RouteTable::new(1, rows).expect("owners are in range");
    cluster.at(ms(2), 0, |ward, out| _ = ward.load(ms(2), &["a"], table, out));
    (0..10).for_each(|second| cluster.run(ms(3 + second * 1_000)));
    let statuses: Vec<WardStatus> = cluster.nodes.iter().flatten().map(|(ward, _)| ward.status()).collect();
    assert_eq!((statuses[1].fetched, statuses[1].refused), (1, 0));
    assert_eq!((statuses[2].fetched, statuses[2].refused), (0, 1));
}

#[test]
fn the_merged_counts_have_a_bound() {
    let mut cluster = Cluster::new(WardSettings { targets_max: 64, first_requests: 600, ..settings() });
    for node in 0..3_u64 {
        // Ten are popular at one node alone, each node has others, and many come once.
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
fn counts_do_not_fade_before_there_is_a_table() {
    let mut cluster = Cluster::new(WardSettings { first_requests: 100, ..settings() });
    // Decided about, but most of it was nothing that is counted, so that the first round has too little.
    let decide = |cluster: &mut Cluster, now: Time, count: u64| {
        (0..count).for_each(|target| cluster.at(now, 0, |ward, _| _ = ward.decide(now, id_of(target))));
    };
    decide(&mut cluster, ms(1), 100);
    for minute in 0..20_u64 {
        let now = ms(1 + minute * 60_000);
        // Ten a minute at each node: by halves it would never be more than 60.
        (0..3).for_each(|node| (0..10).for_each(|target| cluster.note(now, node, target)));
        decide(&mut cluster, now, 100);
        cluster.run(now);
        if cluster.nodes.iter().flatten().all(|(ward, _)| ward.status().id.is_some()) {
            let (ward, _) = cluster.nodes[0].as_ref().expect("it is there");
            assert!(ward.status().unmade > 1 && minute < 6, "{:?} in minute {minute}", ward.status());
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
    /// Behind those that come later.
    Late,
}

fn step() -> impl Strategy<Value = (u8, usize, u64, Fate)> {
    let fates = [Fate::Delivered, Fate::Delivered, Fate::Delivered, Fate::Lost, Fate::Twice, Fate::Late];
    (0..14_u8, 0..3_usize, 0..40_u64, prop::sample::select(fates.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever becomes of messages, whoever takes whom for gone, restarts, or loads a table: in the end all go by one table,
    /// the same rows and owners, and decide alike.
    #[test]
    fn all_end_with_one_table(steps in prop::collection::vec(step(), 1..200)) {
        let mut cluster = Cluster::new(settings());
        let mut now = ms(1);
        let mut epoch = 1;
        for (what, node, number, fate) in steps {
            now += Duration::from_millis(number * 20);
            match what {
                0..=4 => (0..10).for_each(|more| cluster.note(now, node, number * 3 + more)),
                5 => cluster.at(now, node, |ward, out| ward.left(now, NodeId((number % 3) as u16), out)),
                6 => cluster.meet(now),
                7 => {
                    epoch += 1;
                    cluster.nodes[node] = Some(Cluster::node(node, epoch, settings()));
                    for other in 0..3 {
                        cluster.at(now, other, |ward, out| ward.left(now, NodeId(node as u16), out));
                    }
                    cluster.meet(now);
                }
                8 => {
                    let rows = (0..number).map(|at| (id_of(at), Place::Node((at % 2) as u16)));
                    let table = RouteTable::new(2, rows).expect("owners are in range");
                    cluster.at(now, node, |ward, out| _ = ward.load(now, &["b", "c"], table, out));
                }
                _ => {}
            }
            cluster.tick(now);
            let Some((to, from, message)) = cluster.wires.pop_front() else { continue };
            let hear = |cluster: &mut Cluster, message: WardMessage| {
                cluster.at(now, to, |ward, out| ward.hear(now, NodeId(from as u16), message, out));
            };
            match fate {
                Fate::Delivered => hear(&mut cluster, message),
                Fate::Lost => {}
                Fate::Twice => {
                    hear(&mut cluster, message.clone());
                    hear(&mut cluster, message);
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
            ward.held.as_ref().map(|held| (held.id.clone(), held.owners.clone(), held.table.clone()))
        };
        let tables: Vec<_> = cluster.nodes.iter().flatten().map(table).collect();
        prop_assert!(tables.iter().all(|table| *table == tables[0]), "{:?}", cluster.ids());
        for target in 0..150 {
            let at: Vec<_> = (0..3).filter_map(|node| cluster.ask(now, node, target)).collect();
            let is_core = at.iter().all(|(_, why)| *why == WardWhy::Core);
            prop_assert!(is_core || at.iter().all(|(node, _)| *node == at[0].0), "{target}: {at:?}");
        }
        let idle = cluster.nodes.iter().flatten().all(|(ward, _)| ward.round.is_none() && ward.coming.is_none());
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
        (id(), any::<u32>()).prop_map(|(id, from)| WardMessage::AskTable { id, from }),
        (id(), any::<u32>(), any::<u32>(), owners, rows)
            .prop_map(|(id, from, total, owners, rows)| WardMessage::Table { id, from, total, owners, rows }),
        (any::<u64>(), any::<u64>(), any::<u32>())
            .prop_map(|(round, snapshot, from)| WardMessage::AskCounts { round, snapshot, from }),
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
        Just(WardMessage::Want),
    ]
}

proptest! {
    #[test]
    fn a_message_is_its_bytes(message in message()) {
        let bytes = message.encode();
        prop_assert!((0..bytes.len()).all(|end| WardMessage::decode(&bytes[..end]).is_err()));
        prop_assert_eq!(WardMessage::decode(&bytes), Ok(message));
    }

    #[test]
    fn foreign_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = WardMessage::decode(&bytes) {
            prop_assert_eq!(WardMessage::decode(&message.encode()), Ok(message));
        }
    }

    /// Nor do messages that make no sense.
    #[test]
    fn foreign_messages_do_no_harm(messages in prop::collection::vec(message(), 1..20)) {
        let mut ward = Ward::new(NodeId(0), "a", 1, settings());
        let mut out = Vec::new();
        ward.joined(ms(1), NodeId(1), "b", &mut out);
        for message in messages {
            ward.hear(ms(2), NodeId(1), message, &mut out);
            ward.tick(ms(2), &mut out);
        }
        prop_assert!(out.len() < 200);
    }
}

#[test]
fn the_longest_fit() {
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
