use super::*;
use crate::policy::PolicyKind;
use crate::policy::table::{Place, RouteTable};
use proptest::prelude::*;
use std::sync::Arc;

const ME: NodeId = NodeId(0);

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// A cluster of `a`, `b`, `c`, whose slots are in this order at every node.
#[derive(Debug)]
struct Cluster {
    nodes: Vec<Option<Card>>,
    /// Messages under way: to, from.
    wires: VecDeque<(usize, usize, CardMessage)>,
    placed: Vec<(usize, Placed)>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Cluster {
    fn new() -> Self {
        Self::with(&CardSettings::default())
    }

    fn with(settings: &CardSettings) -> Self {
        let card = |at: usize| {
            let mut card =
                Card::new(NodeId(at as u16), NAMES[at], 1, settings.clone()).expect("good settings");
            for (other, name) in NAMES.iter().enumerate() {
                card.joined(Time::ZERO, NodeId(other as u16), name, &mut Vec::new());
            }
            Some(card)
        };
        let mut cluster =
            Self { nodes: (0..3).map(card).collect(), wires: VecDeque::new(), placed: Vec::new() };
        cluster.tick(Time::ZERO);
        cluster.deliver(Time::ZERO);
        cluster
    }

    fn at(&mut self, node: usize, act: impl FnOnce(&mut Card, &mut Vec<CardOutput>)) {
        let mut out = Vec::new();
        if let Some(card) = &mut self.nodes[node] {
            act(card, &mut out);
        }
        for output in out {
            match output {
                CardOutput::Send { to, message } => {
                    let message = CardMessage::decode(&message.encode()).expect("it can be read");
                    self.wires.push_back((to.index(), node, message));
                }
                CardOutput::Placed(placed) => self.placed.push((node, placed)),
            }
        }
    }

    fn deliver(&mut self, now: Time) {
        while let Some((to, from, message)) = self.wires.pop_front() {
            self.at(to, |card, out| card.hear(now, NodeId(from as u16), message, out));
        }
    }

    fn tick(&mut self, now: Time) {
        (0..3).for_each(|node| self.at(node, |card, out| card.tick(now, out)));
    }

    fn ask(&mut self, now: Time, node: usize, ticket: u64, target: u64) {
        self.at(node, |card, out| card.ask(now, ticket, TargetId(target), out));
    }

    fn desk_loads(&self, node: usize) -> Vec<u32> {
        let card = self.nodes[node].as_ref().expect("it is there");
        (0..3).map(|at| card.load_at_desk(NodeId(at))).collect()
    }
}

/// `ward` serves a core where it was asked for: the dispatcher knows who asks.
#[test]
fn the_core_of_a_table_is_served_where_it_is_asked_for() {
    let table = RouteTable::new(3, [(TargetId(1), Place::Core), (TargetId(2), Place::Node(2))]);
    let dispatcher = Settings {
        policy: PolicyKind::Ward,
        table: Some(Arc::new(table.expect("its nodes are below 3"))),
        ..Settings::default()
    };
    let mut cluster = Cluster::with(&CardSettings { dispatcher, ..CardSettings::default() });
    for (ticket, node, target) in [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 1, 2), (4, 1, 9)] {
        cluster.ask(ms(1), node, ticket, target);
        cluster.deliver(ms(1));
    }
    let places: Vec<u16> = cluster.placed.iter().map(|(_, placed)| placed.node.0).collect();
    assert_eq!(places, [0, 1, 2, 2, 1], "the core at home, the partition at its owner, the rest at home");
}

#[test]
fn one_decides_for_all() {
    let mut cluster = Cluster::new();
    for (ticket, node) in [(1, 0), (2, 1), (3, 2), (4, 1)] {
        cluster.ask(ms(1), node, ticket, 77);
        cluster.deliver(ms(1));
    }
    let nodes: Vec<NodeId> = cluster.placed.iter().map(|(_, placed)| placed.node).collect();
    assert_eq!(nodes.len(), 4);
    assert!(nodes.iter().all(|node| *node == nodes[0]), "one target, one node: {nodes:?}");
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 4);
    assert_eq!(cluster.desk_loads(1), [0, 0, 0]);
    for (node, placed) in cluster.placed.clone() {
        let claim = placed.claim.expect("a dispatcher counts it");
        cluster.at(node, |card, _| card.ended(ms(2), claim));
    }
    cluster.tick(ms(100));
    cluster.deliver(ms(100));
    assert_eq!(cluster.desk_loads(0), [0, 0, 0]);
}

#[test]
fn batches_grow_while_the_dispatcher_is_busy() {
    let mut cluster = Cluster::new();
    (0..10).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    let sizes = |cluster: &Cluster| {
        let size = |(_, _, message): &(usize, usize, CardMessage)| match message {
            CardMessage::Batch(batch) => batch.asks.len(),
            CardMessage::Answers { seats, .. } => seats.len(),
            CardMessage::Unknown { .. } => 0,
        };
        cluster.wires.iter().map(size).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&cluster), [1]);
    let (to, from, message) = cluster.wires.pop_front().expect("one");
    cluster.at(to, |card, out| card.hear(ms(2), NodeId(from as u16), message, out));
    let (to, from, message) = cluster.wires.pop_front().expect("its answer");
    cluster.at(to, |card, out| card.hear(ms(2), NodeId(from as u16), message, out));
    assert_eq!(sizes(&cluster), [9]);
    cluster.deliver(ms(3));
    assert_eq!(cluster.placed.len(), 10);
}

#[test]
fn a_silent_dispatcher_holds_nobody_up() {
    let mut cluster = Cluster::new();
    cluster.nodes[0] = None;
    (0..5).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    assert!(cluster.placed.is_empty());
    assert_eq!(cluster.nodes[1].as_ref().map(Card::due), Some(ms(51)));
    cluster.at(1, |card, out| card.tick(ms(51), out));
    assert!(
        cluster.placed.iter().all(|(_, placed)| placed.node == NodeId(1) && placed.why == CardWhy::Silent)
    );
    assert_eq!(cluster.placed.len(), 5);
    cluster.ask(ms(60), 1, 5, 5);
    assert_eq!(cluster.placed.len(), 6, "it is not waited for again");
    cluster.wires.clear();
    // The next in line decides once it is known to be gone.
    (1..3).for_each(|node| cluster.at(node, |card, out| card.left(ms(70), ME, out)));
    cluster.ask(ms(71), 2, 6, 5);
    cluster.ask(ms(71), 1, 7, 5);
    cluster.deliver(ms(71));
    let (a, b) = (cluster.placed[6].1, cluster.placed[7].1);
    assert_eq!(a.node, b.node);
    assert!(a.claim.is_some() && b.claim.is_some());
    assert_eq!(cluster.desk_loads(1).iter().sum::<u32>(), 2);
}

#[test]
fn who_waits_when_the_dispatcher_goes_is_placed_by_its_successor() {
    let mut cluster = Cluster::new();
    cluster.nodes[0] = None;
    (0..3).for_each(|ticket| cluster.ask(ms(1), 2, ticket, ticket));
    (0..3).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.wires.clear();
    (1..3).for_each(|node| cluster.at(node, |card, out| card.left(ms(5), ME, out)));
    cluster.deliver(ms(5));
    assert_eq!(cluster.placed.len(), 6);
    assert!(cluster.placed.iter().all(|(_, placed)| placed.claim.is_some()), "{:?}", cluster.placed);
}

#[test]
fn who_goes_takes_his_loads_along() {
    let mut cluster = Cluster::new();
    (0..6).for_each(|ticket| cluster.ask(ms(1), 2, ticket, ticket));
    cluster.deliver(ms(1));
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 6);
    cluster.at(0, |card, out| card.left(ms(2), NodeId(2), out));
    assert_eq!(cluster.desk_loads(0), [0, 0, 0]);
}

/// The longest are shorter than any that is refused.
#[test]
fn the_longest_messages_are_taken() {
    let most = u64::MAX;
    let ends = vec![Ends { life: most, count: u32::MAX }; BATCH_MAX];
    let asks = vec![TargetId(most); BATCH_MAX];
    let batch = Batch { epoch: most, account: most, number: most, heard: most, lot: most, ends, asks };
    let seats = vec![Seat { node: NameKey(most), life: most }; BATCH_MAX];
    for message in [CardMessage::Batch(batch), CardMessage::Answers { number: most, seats }] {
        let bytes = message.encode();
        assert!(bytes.len() < 32 << 10);
        assert_eq!(CardMessage::decode(&bytes), Ok(message));
    }
    assert!(CardMessage::decode(&[16, 0, 0, 0, 0, 0, 0, 0]).is_err(), "without lives");
    assert!(CardMessage::decode(&[17, 0, 0]).is_err(), "without lives");
}

/// The dispatcher alone takes a node for gone and for there again: what ends of the first life is not taken from the second.
#[test]
fn what_ends_of_a_former_life_counts_no_more() {
    let mut cluster = Cluster::new();
    for asker in [0, 1] {
        (0..30).for_each(|ticket| cluster.ask(ms(1), asker, ticket, ticket));
        cluster.deliver(ms(1));
    }
    let before = cluster.placed.clone();
    cluster.at(0, |card, out| card.left(ms(2), NodeId(2), out));
    cluster.at(0, |card, out| card.joined(ms(2), NodeId(2), "c", out));
    cluster.deliver(ms(2));
    assert_eq!(cluster.desk_loads(0)[2], 0);
    for asker in [0, 1] {
        (100..130).for_each(|ticket| cluster.ask(ms(3), asker, ticket, ticket));
        cluster.deliver(ms(3));
    }
    let loads = cluster.desk_loads(0);
    assert!(loads[2] > 0);
    for (asker, placed) in before.into_iter().filter(|(_, placed)| placed.node == NodeId(2)) {
        placed.claim.into_iter().for_each(|claim| cluster.at(asker, |card, _| card.ended(ms(4), claim)));
    }
    for at in [ms(4), ms(5)] {
        cluster.tick(at);
        cluster.deliver(at);
    }
    assert_eq!(cluster.desk_loads(0), loads);
}

/// What worlds look into: a desk that counts less or more than is under way is seen, once both sides have said all.
#[test]
fn a_miscount_is_seen_where_nothing_is_to_be_told() {
    let mut cluster = Cluster::new();
    (0..9).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let claims: Vec<Claim> = cluster.placed.iter().filter_map(|(_, placed)| placed.claim).collect();
    let miscount = |cluster: &Cluster, claims: &[Claim]| {
        let [desk, asker] = [0, 1].map(|node| cluster.nodes[node].as_ref().expect("it is there"));
        desk.miscount(asker, claims.iter().copied())
    };
    assert_eq!(miscount(&cluster, &claims), None);
    assert!(miscount(&cluster, &claims[1..]).is_some_and(|seen| seen.counted == seen.under_way + 1));
    cluster.at(1, |card, _| card.ended(ms(2), claims[0]));
    assert_eq!(miscount(&cluster, &claims), None, "it is not told yet");
    cluster.tick(ms(2));
    cluster.deliver(ms(2));
    assert_eq!(miscount(&cluster, &claims[1..]), None);
    assert!(miscount(&cluster, &claims).is_some_and(|seen| seen.counted + 1 == seen.under_way));
}

/// A node that goes leaves its place at the dispatcher to the next one, whatever was under way there.
#[test]
fn who_goes_leaves_no_place_behind() {
    let dispatcher = Settings { nodes_max: 3, ..Settings::default() };
    let mut cluster = Cluster::with(&CardSettings { dispatcher, ..CardSettings::default() });
    let mut ticket = 0;
    for round in 1..2_000 {
        for asker in 0..3 {
            for _ in 0..3 {
                ticket += 1;
                cluster.ask(ms(round), asker, ticket, ticket);
            }
        }
        cluster.deliver(ms(round));
        let gone = 1 + ticket as usize % 2;
        cluster.at(0, |card, out| card.left(ms(round), NodeId(gone as u16), out));
        assert_eq!(cluster.desk_loads(0)[gone], 0);
        cluster.at(0, |card, out| card.joined(ms(round), NodeId(gone as u16), NAMES[gone], out));
        let card = cluster.nodes[0].as_ref().expect("it is there");
        card.desk.assert_exact();
        assert_eq!(card.unseated(), 0, "after {round} departures");
        cluster.deliver(ms(round));
    }
}

#[test]
fn beyond_the_most_nodes_one_waits_for_a_place() {
    let dispatcher = Settings { nodes_max: 2, ..Settings::default() };
    let mut cluster = Cluster::with(&CardSettings { dispatcher, ..CardSettings::default() });
    let places = |cluster: &mut Cluster, from: u64| {
        (from..from + 20).for_each(|ticket| cluster.ask(ms(1), 0, ticket, ticket));
        cluster.desk_loads(0).iter().map(|load| *load > 0).collect::<Vec<_>>()
    };
    assert_eq!(places(&mut cluster, 0), [true, true, false]);
    let unseated = |cluster: &Cluster| cluster.nodes[0].as_ref().map(Card::unseated);
    assert_eq!(unseated(&cluster), Some(1));
    cluster.at(0, |card, out| card.left(ms(2), NodeId(1), out));
    assert_eq!((unseated(&cluster), places(&mut cluster, 20)), (Some(0), vec![true, false, true]));
    cluster.at(0, |card, out| card.joined(ms(3), NodeId(1), "b", out));
    cluster.at(0, |card, out| card.left(ms(3), NodeId(1), out));
    assert_eq!(unseated(&cluster), Some(0), "it went before it had a place");
}

#[test]
fn an_answer_that_is_too_late_is_not_used() {
    let mut cluster = Cluster::new();
    cluster.ask(ms(1), 1, 9, 9);
    cluster.at(1, |card, out| card.tick(ms(51), out));
    cluster.deliver(ms(60));
    assert_eq!(cluster.placed.len(), 1);
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 1);
    cluster.at(1, |card, out| card.tick(ms(100), out));
    cluster.deliver(ms(100));
    assert_eq!(cluster.desk_loads(0), [0, 0, 0]);
}

#[test]
fn ends_that_are_lost_are_told_again_and_count_once() {
    let mut cluster = Cluster::new();
    (0..4).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let claims: Vec<Claim> = cluster.placed.iter().filter_map(|(_, placed)| placed.claim).collect();
    cluster.at(1, |card, _| card.ended(ms(2), claims[0]));
    cluster.tick(ms(30));
    assert_eq!(cluster.wires.len(), 1);
    cluster.wires.clear();
    cluster.at(1, |card, _| card.ended(ms(40), claims[1]));
    cluster.tick(ms(530));
    let twice = cluster.wires[0].clone();
    cluster.wires.push_back(twice.clone());
    cluster.deliver(ms(530));
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 3, "the lot that was lost");
    cluster.tick(ms(560));
    cluster.deliver(ms(560));
    cluster.wires.push_back(twice);
    cluster.deliver(ms(560));
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 2);
}

#[test]
fn what_ends_while_another_end_is_told_is_told_next() {
    let mut cluster = Cluster::new();
    (0..4).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let claims: Vec<Claim> = cluster.placed.iter().filter_map(|(_, placed)| placed.claim).collect();
    cluster.at(1, |card, _| card.ended(ms(2), claims[0]));
    cluster.tick(ms(2));
    // Lost, and repeated with what it told: the second end waits for the answer.
    cluster.wires.clear();
    cluster.at(1, |card, _| card.ended(ms(3), claims[1]));
    cluster.tick(ms(600));
    cluster.deliver(ms(600));
    cluster.tick(ms(600));
    cluster.deliver(ms(600));
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 2);
}

#[test]
fn who_is_forgotten_opens_another_account() {
    let mut cluster = Cluster::new();
    (0..4).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    // The dispatcher alone takes it for gone, and for there again.
    cluster.at(0, |card, out| card.left(ms(2), NodeId(1), out));
    cluster.at(0, |card, out| card.joined(ms(2), NodeId(1), "b", out));
    assert_eq!(cluster.desk_loads(0), [0, 0, 0]);
    cluster.ask(ms(3), 1, 4, 4);
    cluster.deliver(ms(3));
    assert_eq!(cluster.placed.len(), 5);
    assert!(cluster.placed[4].1.claim.is_some());
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 1);
    // The ends of before count no more.
    for claim in cluster.placed.clone().into_iter().filter_map(|(_, placed)| placed.claim).take(4) {
        cluster.at(1, |card, _| card.ended(ms(4), claim));
    }
    cluster.tick(ms(30));
    cluster.deliver(ms(30));
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 1);
}

#[test]
fn a_node_that_does_not_answer_is_gone_round() {
    let mut cluster = Cluster::new();
    let target = (0..).find(|target| {
        cluster.ask(ms(1), 1, *target, *target);
        cluster.deliver(ms(1));
        cluster.placed.last().is_some_and(|(_, placed)| placed.node == NodeId(2))
    });
    let target = target.expect("each node has some");
    let loads = cluster.desk_loads(0);
    cluster.at(1, |card, _| card.unanswered(ms(2), NodeId(2)));
    cluster.ask(ms(3), 1, 1_000, target);
    cluster.deliver(ms(3));
    let (_, placed) = cluster.placed.last().copied().expect("one");
    assert_eq!((placed.node, placed.why, placed.claim), (NodeId(1), CardWhy::Gone, None));
    cluster.tick(ms(30));
    cluster.deliver(ms(30));
    assert_eq!(cluster.desk_loads(0), loads, "nobody counts it");
    cluster.at(1, |card, _| card.replied(NodeId(2)));
    cluster.ask(ms(31), 1, 1_001, target);
    cluster.deliver(ms(31));
    assert_eq!(cluster.placed.last().map(|(_, placed)| placed.node), Some(NodeId(2)));
}

#[test]
fn more_than_a_batch_waits_for_the_next() {
    let mut cluster = Cluster::new();
    (0..3_000).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let tickets: Vec<u64> = cluster.placed.iter().map(|(_, placed)| placed.ticket).collect();
    assert_eq!(tickets, (0..3_000).collect::<Vec<_>>());
    assert_eq!(cluster.desk_loads(0).iter().sum::<u32>(), 3_000);
}

#[test]
fn beyond_what_may_wait_a_request_is_served_where_it_arrived() {
    let mut cluster = Cluster::new();
    (0..4_100).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    // One is under way.
    assert_eq!(cluster.placed.len(), 4_100 - 4_096 - 1);
    assert!(cluster.placed.iter().all(|(_, placed)| placed.why == CardWhy::Full));
}

/// What befalls a message.
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
    (0..10_u8, 0..3_usize, 0..40_u64, prop::sample::select(fates.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever becomes of messages, and whoever takes whom for gone: every request has one place, and when all have ended,
    /// no load is left at the dispatcher.
    #[test]
    fn no_load_is_left_over(steps in prop::collection::vec(step(), 1..150)) {
        let mut cluster = Cluster::new();
        let (mut now, mut asked) = (ms(1), 0);
        let mut ended = 0;
        for (what, node, number, fate) in steps {
            now += Duration::from_millis(number);
            match what {
                0..=4 => {
                    cluster.ask(now, node, asked, number);
                    asked += 1;
                }
                5 => {
                    if let Some((node, placed)) = cluster.placed.get(ended).copied() {
                        ended += 1;
                        placed.claim.into_iter().for_each(|claim| cluster.at(node, |card, _| card.ended(now, claim)));
                    }
                }
                6 => {
                    let other = NodeId((number % 3) as u16);
                    cluster.at(node, |card, out| card.left(now, other, out));
                }
                7 => {
                    let other = number as usize % 3;
                    cluster.at(node, |card, out| card.joined(now, NodeId(other as u16), NAMES[other], out));
                }
                _ => {}
            }
            cluster.tick(now);
            cluster.nodes.iter().flatten().for_each(|card| card.desk.assert_exact());
            let Some((to, from, message)) = cluster.wires.pop_front() else { continue };
            let hear = |cluster: &mut Cluster, message: CardMessage| {
                cluster.at(to, |card, out| card.hear(now, NodeId(from as u16), message, out));
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
        // All is well again: everybody sees everybody, and what is still under way arrives.
        for node in 0..3 {
            for (other, name) in NAMES.iter().enumerate() {
                let other = NodeId(other as u16);
                cluster.at(node, |card, out| {
                    let is_there = card.names.values().any(|id| *id == other);
                    if !is_there {
                        card.joined(now, other, name, out);
                    }
                });
            }
        }
        for _ in 0..300 {
            now += Duration::from_millis(100);
            cluster.tick(now);
            cluster.deliver(now);
            for (node, placed) in cluster.placed.split_off(ended.min(cluster.placed.len())) {
                placed.claim.into_iter().for_each(|claim| cluster.at(node, |card, _| card.ended(now, claim)));
                cluster.placed.push((node, placed));
            }
            ended = cluster.placed.len();
        }
        let mut tickets: Vec<u64> = cluster.placed.iter().map(|(_, placed)| placed.ticket).collect();
        tickets.sort_unstable();
        prop_assert_eq!(tickets, (0..asked).collect::<Vec<_>>());
        prop_assert_eq!(cluster.desk_loads(0), [0, 0, 0]);
        prop_assert!(cluster.nodes.iter().flatten().all(|card| card.waiting() == 0 && card.due() > now));
    }
}

proptest! {
    #[test]
    fn a_message_is_its_bytes(
        number: u64, epoch: u64, words in prop::collection::vec(any::<u64>(), 0..40), count: u32, batch: bool,
    ) {
        let message = if batch {
            let ends = words.iter().map(|word| Ends { life: *word, count }).collect();
            let asks = words.iter().copied().map(TargetId).collect();
            CardMessage::Batch(Batch { epoch, account: number, number, heard: epoch, lot: number, ends, asks })
        } else {
            let seat = |word: &u64| Seat { node: NameKey(*word), life: word.rotate_left(7) };
            CardMessage::Answers { number, seats: words.iter().map(seat).collect() }
        };
        let bytes = message.encode();
        prop_assert!((0..bytes.len()).all(|end| CardMessage::decode(&bytes[..end]).is_err()));
        prop_assert_eq!(CardMessage::decode(&bytes), Ok(message));
    }

    #[test]
    fn foreign_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = CardMessage::decode(&bytes) {
            prop_assert_eq!(CardMessage::decode(&message.encode()), Ok(message));
        }
    }
}
