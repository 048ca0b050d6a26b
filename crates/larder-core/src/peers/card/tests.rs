use super::*;
use crate::policy::PolicyKind;
use crate::policy::table::{Place, RouteTable};
use alloc::sync::Arc;
use proptest::prelude::*;

const ME: NodeId = NodeId(0);

fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Cluster of `a`, `b` and `c`, whose slots have this order at every node.
#[derive(Debug)]
struct Cluster {
    nodes: Vec<Option<Card>>,
    /// Messages in flight: receiver and sender.
    wires: VecDeque<(usize, usize, CardMessage)>,
    placed: Vec<(usize, CardPlacement)>,
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
                card.add_node(Time::ZERO, NodeId(other as u16), name, &mut Vec::new());
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
                CardOutput::Placement(placed) => self.placed.push((node, placed)),
            }
        }
    }

    fn deliver(&mut self, now: Time) {
        while let Some((to, from, message)) = self.wires.pop_front() {
            self.at(to, |card, out| card.receive(now, NodeId(from as u16), message, out));
        }
    }

    fn tick(&mut self, now: Time) {
        (0..3).for_each(|node| self.at(node, |card, out| card.tick(now, out)));
    }

    fn ask(&mut self, now: Time, node: usize, ticket: u64, target: u64) {
        self.at(node, |card, out| card.ask(now, ticket, TargetId(target), out));
    }

    fn dispatcher_loads(&self, node: usize) -> Vec<u32> {
        let card = self.nodes[node].as_ref().expect("it is there");
        (0..3).map(|at| card.dispatcher_load(NodeId(at))).collect()
    }
}

/// `ward` serves the core where it is requested, so the dispatcher must know the origin.
#[test]
fn the_core_of_a_table_is_served_where_it_is_requested() {
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
fn one_node_decides_for_all() {
    let mut cluster = Cluster::new();
    for (ticket, node) in [(1, 0), (2, 1), (3, 2), (4, 1)] {
        cluster.ask(ms(1), node, ticket, 77);
        cluster.deliver(ms(1));
    }
    let nodes: Vec<NodeId> = cluster.placed.iter().map(|(_, placed)| placed.node).collect();
    assert_eq!(nodes.len(), 4);
    assert!(nodes.iter().all(|node| *node == nodes[0]), "one target, one node: {nodes:?}");
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 4);
    assert_eq!(cluster.dispatcher_loads(1), [0, 0, 0]);
    for (node, placed) in cluster.placed.clone() {
        let claim = placed.claim.expect("a dispatcher counts it");
        cluster.at(node, |card, _| card.end_request(ms(2), claim));
    }
    cluster.tick(ms(100));
    cluster.deliver(ms(100));
    assert_eq!(cluster.dispatcher_loads(0), [0, 0, 0]);
}

#[test]
fn batches_grow_while_the_dispatcher_is_busy() {
    let mut cluster = Cluster::new();
    (0..10).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    let sizes = |cluster: &Cluster| {
        let size = |(_, _, message): &(usize, usize, CardMessage)| match message {
            CardMessage::Batch(batch) => batch.targets.len(),
            CardMessage::Answers { instances, .. } => instances.len(),
            CardMessage::Unknown { .. } => 0,
        };
        cluster.wires.iter().map(size).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&cluster), [1]);
    let (to, from, message) = cluster.wires.pop_front().expect("one");
    cluster.at(to, |card, out| card.receive(ms(2), NodeId(from as u16), message, out));
    let (to, from, message) = cluster.wires.pop_front().expect("its answer");
    cluster.at(to, |card, out| card.receive(ms(2), NodeId(from as u16), message, out));
    assert_eq!(sizes(&cluster), [9]);
    cluster.deliver(ms(3));
    assert_eq!(cluster.placed.len(), 10);
}

#[test]
fn a_silent_dispatcher_does_not_block_requests() {
    let mut cluster = Cluster::new();
    cluster.nodes[0] = None;
    (0..5).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    assert!(cluster.placed.is_empty());
    assert_eq!(cluster.nodes[1].as_ref().map(Card::due), Some(ms(51)));
    cluster.at(1, |card, out| card.tick(ms(51), out));
    assert!(
        cluster
            .placed
            .iter()
            .all(|(_, placed)| placed.node == NodeId(1) && placed.reason == CardReason::Silent)
    );
    assert_eq!(cluster.placed.len(), 5);
    cluster.ask(ms(60), 1, 5, 5);
    assert_eq!(cluster.placed.len(), 6, "it is not waited for again");
    cluster.wires.clear();
    // The next node decides once the dispatcher is known to be gone.
    (1..3).for_each(|node| cluster.at(node, |card, out| card.remove_node(ms(70), ME, out)));
    cluster.ask(ms(71), 2, 6, 5);
    cluster.ask(ms(71), 1, 7, 5);
    cluster.deliver(ms(71));
    let (a, b) = (cluster.placed[6].1, cluster.placed[7].1);
    assert_eq!(a.node, b.node);
    assert!(a.claim.is_some() && b.claim.is_some());
    assert_eq!(cluster.dispatcher_loads(1).iter().sum::<u32>(), 2);
}

#[test]
fn requests_waiting_for_a_lost_dispatcher_go_to_the_next_one() {
    let mut cluster = Cluster::new();
    cluster.nodes[0] = None;
    (0..3).for_each(|ticket| cluster.ask(ms(1), 2, ticket, ticket));
    (0..3).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.wires.clear();
    (1..3).for_each(|node| cluster.at(node, |card, out| card.remove_node(ms(5), ME, out)));
    cluster.deliver(ms(5));
    assert_eq!(cluster.placed.len(), 6);
    assert!(cluster.placed.iter().all(|(_, placed)| placed.claim.is_some()), "{:?}", cluster.placed);
}

#[test]
fn a_departed_distributor_leaves_no_load() {
    let mut cluster = Cluster::new();
    (0..6).for_each(|ticket| cluster.ask(ms(1), 2, ticket, ticket));
    cluster.deliver(ms(1));
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 6);
    cluster.at(0, |card, out| card.remove_node(ms(2), NodeId(2), out));
    assert_eq!(cluster.dispatcher_loads(0), [0, 0, 0]);
}

/// The longest valid messages are shorter than the size limit.
#[test]
fn the_longest_messages_are_decoded() {
    let most = u64::MAX;
    let ended = vec![EndedRequests { incarnation: most, count: u32::MAX }; BATCH_MAX];
    let targets = vec![TargetId(most); BATCH_MAX];
    let batch =
        Batch { epoch: most, account: most, number: most, acknowledged: most, group: most, ended, targets };
    let instances = vec![NodeInstance { node: NameKey(most), incarnation: most }; BATCH_MAX];
    for message in [CardMessage::Batch(batch), CardMessage::Answers { number: most, instances }] {
        let bytes = message.encode();
        assert!(bytes.len() < 32 << 10);
        assert_eq!(CardMessage::decode(&bytes), Ok(message));
    }
    assert!(CardMessage::decode(&[16, 0, 0, 0, 0, 0, 0, 0]).is_err(), "without lives");
    assert!(CardMessage::decode(&[17, 0, 0]).is_err(), "without lives");
}

/// The dispatcher alone sees a node leave and join again. Ends of the first incarnation do not count for the second.
#[test]
fn ends_of_an_earlier_incarnation_do_not_count() {
    let mut cluster = Cluster::new();
    for distributor in [0, 1] {
        (0..30).for_each(|ticket| cluster.ask(ms(1), distributor, ticket, ticket));
        cluster.deliver(ms(1));
    }
    let before = cluster.placed.clone();
    cluster.at(0, |card, out| card.remove_node(ms(2), NodeId(2), out));
    cluster.at(0, |card, out| card.add_node(ms(2), NodeId(2), "c", out));
    cluster.deliver(ms(2));
    assert_eq!(cluster.dispatcher_loads(0)[2], 0);
    for distributor in [0, 1] {
        (100..130).for_each(|ticket| cluster.ask(ms(3), distributor, ticket, ticket));
        cluster.deliver(ms(3));
    }
    let loads = cluster.dispatcher_loads(0);
    assert!(loads[2] > 0);
    for (distributor, placed) in before.into_iter().filter(|(_, placed)| placed.node == NodeId(2)) {
        placed
            .claim
            .into_iter()
            .for_each(|claim| cluster.at(distributor, |card, _| card.end_request(ms(4), claim)));
    }
    for at in [ms(4), ms(5)] {
        cluster.tick(at);
        cluster.deliver(at);
    }
    assert_eq!(cluster.dispatcher_loads(0), loads);
}

/// The audit finds a dispatcher that counts too little or too much, once both sides have reported everything.
#[test]
fn the_audit_finds_a_miscount_when_all_is_reported() {
    let mut cluster = Cluster::new();
    (0..9).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let claims: Vec<Claim> = cluster.placed.iter().filter_map(|(_, placed)| placed.claim).collect();
    let miscount = |cluster: &Cluster, claims: &[Claim]| {
        let [own_dispatcher, distributor] =
            [0, 1].map(|node| cluster.nodes[node].as_ref().expect("it is there"));
        own_dispatcher.miscount(distributor, claims.iter().copied())
    };
    assert_eq!(miscount(&cluster, &claims), None);
    assert!(miscount(&cluster, &claims[1..]).is_some_and(|seen| seen.counted == seen.in_progress + 1));
    cluster.at(1, |card, _| card.end_request(ms(2), claims[0]));
    assert_eq!(miscount(&cluster, &claims), None, "it is not told yet");
    cluster.tick(ms(2));
    cluster.deliver(ms(2));
    assert_eq!(miscount(&cluster, &claims[1..]), None);
    assert!(miscount(&cluster, &claims).is_some_and(|seen| seen.counted + 1 == seen.in_progress));
}

/// A node that leaves makes room at the dispatcher for the next node, whatever was in flight.
#[test]
fn a_departed_node_frees_its_slot() {
    let dispatcher = Settings { nodes_max: 3, ..Settings::default() };
    let mut cluster = Cluster::with(&CardSettings { dispatcher, ..CardSettings::default() });
    let mut ticket = 0;
    for round in 1..2_000 {
        for distributor in 0..3 {
            for _ in 0..3 {
                ticket += 1;
                cluster.ask(ms(round), distributor, ticket, ticket);
            }
        }
        cluster.deliver(ms(round));
        let gone = 1 + ticket as usize % 2;
        cluster.at(0, |card, out| card.remove_node(ms(round), NodeId(gone as u16), out));
        assert_eq!(cluster.dispatcher_loads(0)[gone], 0);
        cluster.at(0, |card, out| card.add_node(ms(round), NodeId(gone as u16), NAMES[gone], out));
        let card = cluster.nodes[0].as_ref().expect("it is there");
        card.own_dispatcher.assert_loads_match();
        assert_eq!(card.nodes_over_limit(), 0, "after {round} departures");
        cluster.deliver(ms(round));
    }
}

#[test]
fn a_node_beyond_the_limit_waits_for_a_slot() {
    let dispatcher = Settings { nodes_max: 2, ..Settings::default() };
    let mut cluster = Cluster::with(&CardSettings { dispatcher, ..CardSettings::default() });
    let places = |cluster: &mut Cluster, from: u64| {
        (from..from + 20).for_each(|ticket| cluster.ask(ms(1), 0, ticket, ticket));
        cluster.dispatcher_loads(0).iter().map(|load| *load > 0).collect::<Vec<_>>()
    };
    assert_eq!(places(&mut cluster, 0), [true, true, false]);
    let nodes_over_limit = |cluster: &Cluster| cluster.nodes[0].as_ref().map(Card::nodes_over_limit);
    assert_eq!(nodes_over_limit(&cluster), Some(1));
    cluster.at(0, |card, out| card.remove_node(ms(2), NodeId(1), out));
    assert_eq!((nodes_over_limit(&cluster), places(&mut cluster, 20)), (Some(0), vec![true, false, true]));
    cluster.at(0, |card, out| card.add_node(ms(3), NodeId(1), "b", out));
    cluster.at(0, |card, out| card.remove_node(ms(3), NodeId(1), out));
    assert_eq!(nodes_over_limit(&cluster), Some(0), "it went before it had a place");
}

#[test]
fn a_late_answer_is_not_used() {
    let mut cluster = Cluster::new();
    cluster.ask(ms(1), 1, 9, 9);
    cluster.at(1, |card, out| card.tick(ms(51), out));
    cluster.deliver(ms(60));
    assert_eq!(cluster.placed.len(), 1);
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 1);
    cluster.at(1, |card, out| card.tick(ms(100), out));
    cluster.deliver(ms(100));
    assert_eq!(cluster.dispatcher_loads(0), [0, 0, 0]);
}

#[test]
fn lost_ends_are_repeated_and_count_once() {
    let mut cluster = Cluster::new();
    (0..4).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let claims: Vec<Claim> = cluster.placed.iter().filter_map(|(_, placed)| placed.claim).collect();
    cluster.at(1, |card, _| card.end_request(ms(2), claims[0]));
    cluster.tick(ms(30));
    assert_eq!(cluster.wires.len(), 1);
    cluster.wires.clear();
    cluster.at(1, |card, _| card.end_request(ms(40), claims[1]));
    cluster.tick(ms(530));
    let twice = cluster.wires[0].clone();
    cluster.wires.push_back(twice.clone());
    cluster.deliver(ms(530));
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 3, "the lot that was lost");
    cluster.tick(ms(560));
    cluster.deliver(ms(560));
    cluster.wires.push_back(twice);
    cluster.deliver(ms(560));
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 2);
}

#[test]
fn an_end_during_a_report_goes_with_the_next_one() {
    let mut cluster = Cluster::new();
    (0..4).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let claims: Vec<Claim> = cluster.placed.iter().filter_map(|(_, placed)| placed.claim).collect();
    cluster.at(1, |card, _| card.end_request(ms(2), claims[0]));
    cluster.tick(ms(2));
    // The message is lost, and then repeated with its ended requests. The second end waits for the answer.
    cluster.wires.clear();
    cluster.at(1, |card, _| card.end_request(ms(3), claims[1]));
    cluster.tick(ms(600));
    cluster.deliver(ms(600));
    cluster.tick(ms(600));
    cluster.deliver(ms(600));
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 2);
}

#[test]
fn a_distributor_unknown_to_the_dispatcher_opens_a_new_account() {
    let mut cluster = Cluster::new();
    (0..4).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    // The dispatcher alone sees the node leave and join again.
    cluster.at(0, |card, out| card.remove_node(ms(2), NodeId(1), out));
    cluster.at(0, |card, out| card.add_node(ms(2), NodeId(1), "b", out));
    assert_eq!(cluster.dispatcher_loads(0), [0, 0, 0]);
    cluster.ask(ms(3), 1, 4, 4);
    cluster.deliver(ms(3));
    assert_eq!(cluster.placed.len(), 5);
    assert!(cluster.placed[4].1.claim.is_some());
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 1);
    // The earlier ends do not count any more.
    for claim in cluster.placed.clone().into_iter().filter_map(|(_, placed)| placed.claim).take(4) {
        cluster.at(1, |card, _| card.end_request(ms(4), claim));
    }
    cluster.tick(ms(30));
    cluster.deliver(ms(30));
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 1);
}

#[test]
fn a_node_that_does_not_answer_is_avoided() {
    let mut cluster = Cluster::new();
    let target = (0..).find(|target| {
        cluster.ask(ms(1), 1, *target, *target);
        cluster.deliver(ms(1));
        cluster.placed.last().is_some_and(|(_, placed)| placed.node == NodeId(2))
    });
    let target = target.expect("each node has some");
    let loads = cluster.dispatcher_loads(0);
    cluster.at(1, |card, _| card.record_failure(ms(2), NodeId(2)));
    cluster.ask(ms(3), 1, 1_000, target);
    cluster.deliver(ms(3));
    let (_, placed) = cluster.placed.last().copied().expect("one");
    assert_eq!((placed.node, placed.reason, placed.claim), (NodeId(1), CardReason::Gone, None));
    cluster.tick(ms(30));
    cluster.deliver(ms(30));
    assert_eq!(cluster.dispatcher_loads(0), loads, "nobody counts it");
    cluster.at(1, |card, _| card.record_reply(NodeId(2)));
    cluster.ask(ms(31), 1, 1_001, target);
    cluster.deliver(ms(31));
    assert_eq!(cluster.placed.last().map(|(_, placed)| placed.node), Some(NodeId(2)));
}

#[test]
fn requests_beyond_a_batch_wait_for_the_next() {
    let mut cluster = Cluster::new();
    (0..3_000).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    cluster.deliver(ms(1));
    let tickets: Vec<u64> = cluster.placed.iter().map(|(_, placed)| placed.ticket).collect();
    assert_eq!(tickets, (0..3_000).collect::<Vec<_>>());
    assert_eq!(cluster.dispatcher_loads(0).iter().sum::<u32>(), 3_000);
}

#[test]
fn requests_beyond_the_queue_limit_are_served_locally() {
    let mut cluster = Cluster::new();
    (0..4_100).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    // One batch is in flight.
    assert_eq!(cluster.placed.len(), 4_100 - 4_096 - 1);
    assert!(cluster.placed.iter().all(|(_, placed)| placed.reason == CardReason::Full));
}

/// Fate of a message.
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
    (0..10_u8, 0..3_usize, 0..40_u64, prop::sample::select(fates.to_vec()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// For any loss of messages and any membership view: every request has one place, and when all requests have
    /// ended, no load remains.
    #[test]
    fn no_load_remains_after_all_requests_end(steps in prop::collection::vec(step(), 1..150)) {
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
                        placed.claim.into_iter().for_each(|claim| cluster.at(node, |card, _| card.end_request(now, claim)));
                    }
                }
                6 => {
                    let other = NodeId((number % 3) as u16);
                    cluster.at(node, |card, out| card.remove_node(now, other, out));
                }
                7 => {
                    let other = number as usize % 3;
                    cluster.at(node, |card, out| card.add_node(now, NodeId(other as u16), NAMES[other], out));
                }
                _ => {}
            }
            cluster.tick(now);
            cluster.nodes.iter().flatten().for_each(|card| card.own_dispatcher.assert_loads_match());
            let Some((to, from, message)) = cluster.wires.pop_front() else { continue };
            let receive = |cluster: &mut Cluster, message: CardMessage| {
                cluster.at(to, |card, out| card.receive(now, NodeId(from as u16), message, out));
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
        // All faults end: every node sees every node, and the messages in flight arrive.
        for node in 0..3 {
            for (other, name) in NAMES.iter().enumerate() {
                let other = NodeId(other as u16);
                cluster.at(node, |card, out| {
                    let is_there = card.nodes_by_name.values().any(|id| *id == other);
                    if !is_there {
                        card.add_node(now, other, name, out);
                    }
                });
            }
        }
        for _ in 0..300 {
            now += Duration::from_millis(100);
            cluster.tick(now);
            cluster.deliver(now);
            for (node, placed) in cluster.placed.split_off(ended.min(cluster.placed.len())) {
                placed.claim.into_iter().for_each(|claim| cluster.at(node, |card, _| card.end_request(now, claim)));
                cluster.placed.push((node, placed));
            }
            ended = cluster.placed.len();
        }
        let mut tickets: Vec<u64> = cluster.placed.iter().map(|(_, placed)| placed.ticket).collect();
        tickets.sort_unstable();
        prop_assert_eq!(tickets, (0..asked).collect::<Vec<_>>());
        prop_assert_eq!(cluster.dispatcher_loads(0), [0, 0, 0]);
        prop_assert!(cluster.nodes.iter().flatten().all(|card| card.waiting_requests() == 0 && card.due() > now));
    }
}

proptest! {
    #[test]
    fn a_decoded_message_equals_the_encoded_one(
        number: u64, epoch: u64, words in prop::collection::vec(any::<u64>(), 0..40), count: u32, batch: bool,
    ) {
        let message = if batch {
            let ended = words.iter().map(|word| EndedRequests { incarnation: *word, count }).collect();
            let targets = words.iter().copied().map(TargetId).collect();
            CardMessage::Batch(Batch { epoch, account: number, number, acknowledged: epoch, group: number, ended, targets })
        } else {
            let instance = |word: &u64| NodeInstance { node: NameKey(*word), incarnation: word.rotate_left(7) };
            CardMessage::Answers { number, instances: words.iter().map(instance).collect() }
        };
        let bytes = message.encode();
        prop_assert!((0..bytes.len()).all(|end| CardMessage::decode(&bytes[..end]).is_err()));
        prop_assert_eq!(CardMessage::decode(&bytes), Ok(message));
    }

    #[test]
    fn random_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = CardMessage::decode(&bytes) {
            prop_assert_eq!(CardMessage::decode(&message.encode()), Ok(message));
        }
    }
}
