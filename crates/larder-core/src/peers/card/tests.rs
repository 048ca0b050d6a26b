use super::*;
use proptest::prelude::*;

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
        let card = |at: usize| {
            let mut card =
                Card::new(NodeId(at as u16), NAMES[at], 1, CardSettings::default()).expect("defaults");
            for (other, name) in NAMES.iter().enumerate() {
                card.joined(Time::ZERO, NodeId(other as u16), name, &mut Vec::new());
            }
            Some(card)
        };
        Self { nodes: (0..3).map(card).collect(), wires: VecDeque::new(), placed: Vec::new() }
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

    fn ask(&mut self, now: Time, node: usize, ticket: u64, target: u64) {
        self.at(node, |card, out| card.ask(now, ticket, TargetId(target), out));
    }

    fn desk_loads(&self, node: usize) -> Vec<u32> {
        let card = self.nodes[node].as_ref().expect("it is there");
        (0..3).map(|at| card.load_at_desk(NodeId(at))).collect()
    }
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
    for (node, Placed { node: at, term, .. }) in cluster.placed.clone() {
        cluster.at(node, |card, _| card.ended(ms(2), at, term));
    }
    (0..3).for_each(|node| cluster.at(node, |card, out| card.tick(ms(100), out)));
    cluster.deliver(ms(100));
    assert_eq!(cluster.desk_loads(0), [0, 0, 0]);
}

#[test]
fn batches_grow_while_the_dispatcher_is_busy() {
    let mut cluster = Cluster::new();
    (0..10).for_each(|ticket| cluster.ask(ms(1), 1, ticket, ticket));
    let sizes = |cluster: &Cluster| {
        let size = |(_, _, message): &(usize, usize, CardMessage)| match message {
            CardMessage::Batch { asks, .. } => asks.len(),
            CardMessage::Answers { nodes, .. } => nodes.len(),
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
    assert!(cluster.placed.iter().all(|(_, placed)| placed.node == NodeId(1) && placed.term.is_none()));
    assert_eq!(cluster.placed.len(), 5);
    cluster.ask(ms(60), 1, 5, 5);
    assert_eq!(cluster.placed.len(), 6, "it is not waited for again");
    // The next in line decides once it is known to be gone.
    (1..3).for_each(|node| cluster.at(node, |card, out| card.left(ms(70), ME, out)));
    cluster.ask(ms(71), 2, 6, 5);
    cluster.ask(ms(71), 1, 7, 5);
    cluster.deliver(ms(71));
    let (a, b) = (cluster.placed[6].1, cluster.placed[7].1);
    assert_eq!(a.node, b.node);
    assert!(a.term.is_some() && a.term == b.term);
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
    assert!(cluster.placed.iter().all(|(_, placed)| placed.term.is_some()), "{:?}", cluster.placed);
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

#[test]
fn an_answer_that_is_too_late_is_counted_back() {
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

proptest! {
    #[test]
    fn a_message_is_its_bytes(
        number: u64, term: u64, words in prop::collection::vec(any::<u64>(), 0..40), count: u32, batch: bool,
    ) {
        let name = |word: &u64| NameKey(*word);
        let message = if batch {
            let ends = words.iter().map(|word| Ends { term, node: NameKey(*word), count }).collect();
            CardMessage::Batch { number, asks: words.iter().copied().map(TargetId).collect(), ends }
        } else {
            CardMessage::Answers { number, term, nodes: words.iter().map(name).collect() }
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
