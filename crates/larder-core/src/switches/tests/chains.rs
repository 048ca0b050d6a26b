//! Tests of chains that several switches place.

use super::*;
use crate::cache::Block;
use crate::chain::{ChainDecision, ChainRequest, Work};
use crate::switches::chains::ChainRoutes;
use crate::switches::message::{MessageHeader, PageEnd};

/// Returns the prompt of a conversation after some turns: each turn adds four blocks.
fn prompt(conversation: u64, turns: u64) -> Vec<Block> {
    let block = |at| Block { id: TargetId(crate::nodes::mix(conversation << 20 | at)), tokens: 64 };
    (0..4 * turns).map(block).collect()
}

impl TestNetwork {
    fn place(&self, at: usize, blocks: &[Block]) -> ChainDecision {
        let TestSwitch { dispatcher, chains, .. } = &self.switches[at];
        let decision = chains.arrive(dispatcher.nodes(), &ChainRequest::new(blocks));
        decision.inspect(|decision| chains.announce(blocks, &decision.work)).expect("nodes are open")
    }

    /// Places a prompt whose reply begins at once. Returns the name of its node, its credited tokens and its work.
    fn begin(&self, at: usize, blocks: &[Block]) -> (String, u64, Work) {
        let ChainDecision { node, credited, mut work, .. } = self.place(at, blocks);
        let TestSwitch { dispatcher, chains, .. } = &self.switches[at];
        chains.first_token(&mut work);
        (dispatcher.nodes().name(node).to_string(), credited, work)
    }

    /// Places a prompt that is served at once.
    fn serve(&self, at: usize, blocks: &[Block]) -> (String, u64) {
        let (name, credited, work) = self.begin(at, blocks);
        self.switches[at].chains.finish(blocks, work);
        (name, credited)
    }

    /// Returns the number of blocks that a switch expects at each node.
    fn credits(&self, at: usize) -> BTreeMap<String, usize> {
        let TestSwitch { dispatcher, chains, .. } = &self.switches[at];
        let blocks = |row: &crate::nodes::NodeRow| {
            chains.runs(row.id).iter().map(|run| run.blocks.len()).sum::<usize>()
        };
        dispatcher.nodes().rows().iter().map(|row| (row.name.to_string(), blocks(row))).collect()
    }
}

#[test]
fn a_conversation_stays_at_its_node_whichever_switch_it_comes_to() {
    let mut network = TestNetwork::of(3, &settings(PolicyKind::LardR));
    let mut homes = BTreeMap::new();
    for turn in 1..6 {
        for conversation in 0..20_u64 {
            let at = (turn + conversation) as usize % 3;
            let (name, credited) = network.serve(at, &prompt(conversation, turn));
            assert_eq!(*homes.entry(conversation).or_insert_with(|| name.clone()), name);
            assert_eq!(credited, (turn - 1) * 4 * 64, "turn {turn} of conversation {conversation}");
        }
        network.run(SwitchesSettings::default().period);
    }
    assert!((1..3).all(|at| network.credits(at) == network.credits(0)));
    let counts = network.switches[0].machine.counts();
    assert_eq!(counts.prompts_sent + counts.prompts_taken, 100);
}

#[test]
fn work_of_other_switches_counts_until_it_ends_or_they_fail() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    let works: Vec<_> = (0..40).map(|conversation| network.begin(0, &prompt(conversation, 3))).collect();
    network.run(SwitchesSettings::default().period);
    let seen = |network: &TestNetwork| -> u32 {
        let TestSwitch { dispatcher, chains, .. } = &network.switches[1];
        let blocks = prompt(999, 1);
        let candidates = chains.candidates(dispatcher.nodes(), &ChainRequest::new(&blocks));
        candidates.iter().map(|candidate| candidate.work.requests).sum()
    };
    assert_eq!(seen(&network), 40);
    for (conversation, (_, _, work)) in (0..20).zip(works) {
        network.switches[0].chains.finish(&prompt(conversation, 3), work);
    }
    network.run(SwitchesSettings::default().period);
    assert_eq!(seen(&network), 20);
    network.part(0, 1, true);
    assert_eq!(seen(&network), 0, "a switch that is gone has no requests");
}

#[test]
fn a_switch_that_starts_reads_the_credits_of_another() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    // More blocks than a page has, and a prompt that needs several messages.
    let homes: Vec<String> =
        (0..1_000).map(|conversation| network.serve(0, &prompt(conversation, 5)).0).collect();
    network.run(SwitchesSettings::default().period * 5);
    let (long, _) = network.serve(1, &prompt(5_000, 1_500));
    network.run(SwitchesSettings::default().unknown_after);
    network.add(&settings(PolicyKind::LardR), SwitchesSettings::default());
    network.run(SwitchesSettings::default().period);
    assert!(network.switches[2].machine.has_credits());
    assert!(network.switches[2].machine.counts().credit_pages_asked > 5);
    assert_eq!(network.credits(2), network.credits(0));
    assert_eq!(network.serve(2, &prompt(5_000, 1_500)), (long.clone(), 1_500 * 4 * 64 - 1));
    // The long prompt has replaced most conversations of its node, the oldest first.
    let elsewhere = homes.iter().enumerate().filter(|(_, home)| **home != long);
    for (conversation, home) in elsewhere {
        let (name, credited) = network.serve(2, &prompt(conversation as u64, 6));
        assert_eq!((&name, credited), (home, 5 * 4 * 64));
    }
}

/// Two switches that start at the same time may hear of each other first.
#[test]
fn a_switch_that_has_read_from_one_without_credits_reads_again() {
    let how = SwitchesSettings::default();
    let mut network = TestNetwork::of(1, &settings(PolicyKind::LardR));
    (0..100).for_each(|conversation| _ = network.serve(0, &prompt(conversation, 5)));
    network.run(how.unknown_after + how.period);
    assert!(network.switches[0].machine.has_credits(), "there was no other switch");
    for at in [1, 2] {
        network.switches.push(network.begun(at, 1, &settings(PolicyKind::LardR), how));
    }
    network.meet(1, 2);
    network.run(how.period);
    assert!(network.switches[1].machine.counts().credit_pages_asked > 0);
    assert!((1..3).all(|at| !network.switches[at].machine.has_credits()));
    network.meet(0, 1);
    network.meet(0, 2);
    network.run(how.period * 2);
    for at in [1, 2] {
        assert!(network.switches[at].machine.has_credits());
        assert_eq!(network.credits(at), network.credits(0));
    }
    let asked = network.switches[1].machine.counts().credit_pages_asked;
    network.run(how.unknown_after);
    assert_eq!(network.switches[1].machine.counts().credit_pages_asked, asked, "once is enough");
}

#[test]
fn a_node_that_restarts_loses_the_credits_of_every_switch_that_notices() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    let (home, _) = network.serve(0, &prompt(1, 5));
    network.run(SwitchesSettings::default().period);
    let TestSwitch { dispatcher, chains, .. } = &network.switches[1];
    chains.forget_node(dispatcher.nodes().id_of(&home).expect("it is there"));
    assert_eq!((network.credits(1)[&home], network.credits(0)[&home]), (0, 20));
    // What is placed there afterwards is known again.
    network.serve(0, &prompt(1, 6));
    network.run(SwitchesSettings::default().period);
    assert_eq!(network.credits(1)[&home], 24);
}

#[test]
fn a_switch_without_peers_keeps_no_placements() {
    let mut network = TestNetwork::of(1, &settings(PolicyKind::LardR));
    (0..50).for_each(|conversation| _ = network.serve(0, &prompt(conversation, 2)));
    network.run(SwitchesSettings::default().period);
    let (placements, lost) = network.switches[0].chains.take_journal(usize::MAX);
    assert!(placements.is_empty() && lost == 0);
    assert_eq!(network.switches[0].machine.counts().prompts_sent, 0);
}

#[test]
fn placements_above_the_limit_are_counted() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    (0..100).for_each(|conversation| _ = network.serve(0, &prompt(conversation, 1_000)));
    network.run(SwitchesSettings::default().period * 20);
    let counts = network.switches[0].machine.counts();
    assert_eq!((counts.prompts_sent, counts.prompts_lost), (65, 35));
    // The next turn is sent with all blocks.
    let (home, _) = network.serve(0, &prompt(99, 1_001));
    network.run(SwitchesSettings::default().period);
    assert_eq!(network.serve(1, &prompt(99, 1_001)), (home, 1_001 * 4 * 64 - 1));
}

/// The stamps of two switches differ, so that a page of one cannot be continued at the other.
#[test]
fn credits_are_read_from_another_switch_if_the_first_one_ends() {
    let mut network = TestNetwork::of(2, &settings(PolicyKind::LardR));
    // The first switch has far higher stamps than the second one.
    (0..20_000).for_each(|_| _ = network.serve(0, &prompt(9_999, 1)));
    network.run(SwitchesSettings::default().period);
    (0..1_000).for_each(|conversation| _ = network.serve(0, &prompt(conversation, 5)));
    network.run(SwitchesSettings::default().period * 10);
    assert_eq!(network.credits(1), network.credits(0));
    let mut chains = ChainRoutes::default();
    let TestSwitch { dispatcher, chains: own, .. } =
        network.begun(2, 1, &settings(PolicyKind::LardR), SwitchesSettings::default());
    chains.add(RouteId::DEFAULT, own.clone());
    let mut others: BTreeMap<Arc<str>, PeerSwitch> = BTreeMap::new();
    let mut counts = SwitchesCounts::default();
    let mut answered = Vec::new();
    while let Some((to, question)) =
        chains.next_question(network.now, others_of(&network, &mut others), &dispatcher, &mut counts)
    {
        let at = network.switches.iter().position(|switch| switch.name == to).expect("it exists");
        answered.push(at);
        if answered.len() == 2 {
            // The answer is lost with its switch.
            others.get_mut(&to).expect("it was asked").up = false;
            continue;
        }
        let Message::WantCredits { question, node, after, .. } = question else { panic!("{question:?}") };
        let TestSwitch { dispatcher: theirs, chains: asked, .. } = &network.switches[at];
        let name = dispatcher.nodes().name(node);
        let page = asked.page(theirs.nodes().id_of(&name).expect("it exists"), after, 4_000);
        let end = page.next.map_or(PageEnd::Last, PageEnd::Next);
        let runs = page.runs.into_iter().map(|run| (node, run)).collect();
        chains.receive_credits(question, runs, (end, true), &dispatcher);
    }
    assert!(chains.has_credits());
    assert_eq!(answered.iter().filter(|at| **at == answered[0]).count(), 2, "{answered:?}");
    for row in dispatcher.nodes().rows() {
        let blocks = own.runs(row.id).iter().map(|run| run.blocks.len()).sum::<usize>();
        assert_eq!(blocks, network.credits(0)[&*row.name], "{}", row.name);
    }
}

/// Returns the switches as a switch knows them that has their hellos; those that are there already stay as they are.
fn others_of<'a>(
    network: &TestNetwork,
    others: &'a mut BTreeMap<Arc<str>, PeerSwitch>,
) -> &'a BTreeMap<Arc<str>, PeerSwitch> {
    for switch in &network.switches {
        others.entry(switch.name.clone()).or_insert_with(|| {
            let mut other = PeerSwitch::new((network.now, network.now), None);
            other.up = true;
            let head = MessageHeader { incarnation: 1, roster: 1, ..MessageHeader::default() };
            other.check_incarnation((network.now, network.now), &head);
            other.receive_hello(&head, (0, 1), Vec::new(), Vec::new(), (0, Vec::new()));
            other
        });
    }
    others
}
