//! Tests that every policy of chains must pass.

use super::*;
use crate::cache::{Block, TreeCache};
use crate::id::{NodeId, TargetId};
use crate::policy::{ExcludedNodes, Reason};
use alloc::vec::Vec;
use proptest::prelude::*;

/// Returns the chain of a path: each id stands for all numbers before it.
fn chain(path: &[u8]) -> Vec<Block> {
    let mut id = 1_u64;
    let block = |step: &u8| {
        id = id * 11 + u64::from(*step) + 1;
        Block { id: TargetId(id), tokens: 16 + u32::from(*step) }
    };
    path.iter().map(block).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { path: Vec<u8>, exclude: Option<u16> },
    FirstToken(usize),
    Finish(usize),
    Refuse(usize),
    Open(u16, bool),
    Restart(u16),
    Capacity(u16, u64),
}

const NODES: u16 = 5;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let path = prop::collection::vec(0..4_u8, 0..9);
    let node = || 0..NODES;
    let step = prop_oneof![
        8 => (path, prop::option::of(node())).prop_map(|(path, exclude)| Step::Arrive { path, exclude }),
        3 => any::<usize>().prop_map(Step::FirstToken),
        5 => any::<usize>().prop_map(Step::Finish),
        2 => any::<usize>().prop_map(Step::Refuse),
        2 => (node(), any::<bool>()).prop_map(|(node, open)| Step::Open(node, open)),
        1 => node().prop_map(Step::Restart),
        1 => (node(), 0..900_u64).prop_map(|(node, tokens)| Step::Capacity(node, tokens)),
    ];
    prop::collection::vec(step, 1..150)
}

/// A dispatcher with the requests that have not ended.
struct Run {
    dispatcher: ChainDispatcher,
    works: Vec<(Vec<Block>, Work)>,
    open: [bool; NODES as usize],
    capacities: [u64; NODES as usize],
}

impl Run {
    fn new(policy: ChainPolicyKind, credits_max: u32) -> Self {
        let settings = ChainSettings { policy, credits_max, ..ChainSettings::default() };
        let dispatcher = ChainDispatcher::new(&settings, &[400; NODES as usize]).expect("good settings");
        let capacities = [400; NODES as usize];
        Self { dispatcher, works: Vec::new(), open: [true; NODES as usize], capacities }
    }

    /// Returns the decision of a step, if it is an arrival.
    fn step(&mut self, step: &Step) -> Option<Option<(NodeId, Reason, u64)>> {
        let work = |choice: usize, works: &Vec<_>| choice % works.len().max(1);
        match step {
            Step::Arrive { path, exclude } => {
                let blocks = chain(path);
                let exclude =
                    exclude.map_or(ExcludedNodes::NONE, |node| ExcludedNodes::NONE.with(NodeId(node)));
                let request = ChainRequest { exclude, ..ChainRequest::new(&blocks) };
                let Some(decision) = self.dispatcher.arrive(&request) else { return Some(None) };
                let found = (decision.node, decision.reason, decision.credited);
                self.works.push((blocks, decision.work));
                return Some(Some(found));
            }
            Step::FirstToken(choice) if !self.works.is_empty() => {
                let at = work(*choice, &self.works);
                self.dispatcher.first_token(&mut self.works[at].1);
            }
            Step::Finish(choice) if !self.works.is_empty() => {
                let (blocks, work) = self.works.swap_remove(work(*choice, &self.works));
                self.dispatcher.finish(&blocks, work);
            }
            Step::Refuse(choice) if !self.works.is_empty() => {
                let (blocks, work) = self.works.swap_remove(work(*choice, &self.works));
                self.dispatcher.refuse(&blocks, work);
            }
            Step::Open(node, open) => {
                self.open[usize::from(*node)] = *open;
                self.dispatcher.set_open(NodeId(*node), *open);
            }
            Step::Restart(node) => self.dispatcher.forget_node(NodeId(*node)),
            Step::Capacity(node, tokens) => {
                self.capacities[usize::from(*node)] = *tokens;
                self.dispatcher.set_capacity(NodeId(*node), *tokens);
            }
            Step::FirstToken(_) | Step::Finish(_) | Step::Refuse(_) => {}
        }
        None
    }
}

proptest! {
    #[test]
    fn closed_and_excluded_nodes_get_nothing_and_limits_hold(steps in steps(), credits_max in 1..60_u32) {
        for kind in ChainPolicyKind::ALL {
            let mut run = Run::new(kind, credits_max);
            for step in &steps {
                let excluded = match step {
                    Step::Arrive { exclude, .. } => *exclude,
                    _ => None,
                };
                let empty = matches!(step, Step::Arrive { path, .. } if path.is_empty());
                match run.step(step) {
                    Some(Some((node, reason, _))) => {
                        prop_assert!(run.open[node.index()], "{kind}: {node} is closed");
                        prop_assert!(excluded != Some(node.0), "{kind}: {node} is excluded");
                        prop_assert_eq!(reason == Reason::Retry, excluded.is_some());
                    }
                    Some(None) => {
                        let tokens = match step {
                            Step::Arrive { path, .. } => ChainRequest::new(&chain(path)).tokens(),
                            _ => 0,
                        };
                        // A policy that follows caches chooses none that is too small for the prompt.
                        let fits = |node: usize| !kind.follows_caches() || run.capacities[node] >= tokens;
                        let usable = (0..NODES).any(|node| {
                            let at = usize::from(node);
                            run.open[at] && Some(node) != excluded && fits(at)
                        });
                        prop_assert!(empty || !usable, "{kind}: a node is open, and none is chosen");
                    }
                    None => {}
                }
                prop_assert!(run.dispatcher.credits() <= credits_max as usize);
            }
            for (blocks, work) in run.works.drain(..) {
                run.dispatcher.finish(&blocks, work);
            }
            for node in (0..NODES).map(NodeId) {
                prop_assert_eq!(run.dispatcher.work(node), Some(NodeWork::default()), "{}: work of {}", kind, node);
            }
        }
    }

    #[test]
    fn equal_input_gives_equal_decisions(steps in steps()) {
        for kind in ChainPolicyKind::ALL {
            let (mut one, mut two) = (Run::new(kind, 1_000), Run::new(kind, 1_000));
            for step in &steps {
                prop_assert_eq!(one.step(step), two.step(step), "{}", kind);
            }
        }
    }
}

#[test]
fn names_are_unique_and_parse() {
    for kind in ChainPolicyKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "lard-prefx".parse::<ChainPolicyKind>().expect_err("no policy has this name");
    assert!(error.to_string().contains("'lard-prefx': use one of rr, "), "{error}");
}

#[test]
fn settings_out_of_range_are_named() {
    let settings = ChainSettings::default();
    assert!(ChainDispatcher::new(&settings, &[]).is_err_and(|error| error.to_string().contains("nodes = 0")));
    let none = ChainSettings { credits_max: 0, ..settings };
    assert!(
        ChainDispatcher::new(&none, &[1]).is_err_and(|error| error.to_string().contains("credits_max = 0"))
    );
    let none = ChainSettings { objective_tokens: 0, ..settings };
    assert!(
        ChainDispatcher::new(&none, &[1])
            .is_err_and(|error| error.to_string().contains("objective_tokens = 0"))
    );
}

#[test]
fn a_restart_ends_all_credits_at_once() {
    let mut run = Run::new(ChainPolicyKind::LardPrefix, 1_000);
    let blocks = chain(&[1, 2, 3]);
    let request = ChainRequest::new(&blocks);
    let first = run.dispatcher.arrive(&request).expect("nodes are open");
    let credited = |run: &Run| -> Vec<u64> {
        run.dispatcher.candidates(&request).iter().map(|candidate| candidate.credited).collect()
    };
    assert_eq!(
        credited(&run)[first.node.index()],
        request.tokens() - 1,
        "an engine computes the last token again"
    );
    run.dispatcher.forget_node(first.node);
    assert_eq!(credited(&run), [0; NODES as usize]);
    run.dispatcher.finish(&blocks, first.work);
    assert_eq!(run.dispatcher.credits(), 0, "the request failed before its reply began");
}

#[test]
fn a_refused_request_leaves_only_the_credits_of_others() {
    let mut run = Run::new(ChainPolicyKind::LardPrefix, 1_000);
    let (short, long) = (chain(&[1, 2]), chain(&[1, 2, 3, 0]));
    let first = run.dispatcher.arrive(&ChainRequest::new(&short)).expect("nodes are open");
    let refused = run.dispatcher.arrive_at(first.node, &ChainRequest::new(&long)).expect("it is open");
    run.dispatcher.refuse(&long, refused.work);
    assert_eq!(run.dispatcher.credits(), 2, "the first request has its blocks");
    // Two requests for the same blocks: the refusal of one says nothing of the other.
    let one = run.dispatcher.arrive_at(first.node, &ChainRequest::new(&long)).expect("it is open");
    let two = run.dispatcher.arrive_at(first.node, &ChainRequest::new(&long)).expect("it is open");
    run.dispatcher.refuse(&long, one.work);
    assert_eq!(run.dispatcher.credits(), 4);
    run.dispatcher.finish(&long, two.work);
    run.dispatcher.finish(&short, first.work);
    assert_eq!(run.dispatcher.credits(), 4);
}

#[test]
fn a_burst_of_refused_requests_leaves_no_credits() {
    let mut run = Run::new(ChainPolicyKind::LardPrefix, 1_000);
    let blocks = chain(&[1, 2, 3]);
    let works: Vec<Work> = (0..3)
        .map(|_| run.dispatcher.arrive_at(NodeId(0), &ChainRequest::new(&blocks)).expect("it is open").work)
        .collect();
    for work in works {
        run.dispatcher.refuse(&blocks, work);
    }
    assert_eq!(run.dispatcher.credits(), 0);
}

#[test]
fn credits_of_all_nodes_share_the_limit() {
    let settings = ChainSettings { credits_max: 1_000_000, ..ChainSettings::default() };
    let mut dispatcher = ChainDispatcher::new(&settings, &[u64::MAX; 4]).expect("good settings");
    for id in 0..1_200_000_u64 {
        let block = [Block { id: TargetId(crate::nodes::mix(id)), tokens: 1 }];
        let decision = dispatcher.arrive(&ChainRequest::new(&block)).expect("nodes are open");
        dispatcher.finish(&block, decision.work);
    }
    assert!(dispatcher.credits() <= 1_000_000);
    let bytes = dispatcher.memory_bytes();
    assert!(bytes <= 1_000_000 * TreeCache::BLOCK_BYTES_MAX, "{bytes} bytes");
}

#[test]
fn nodes_can_be_added_and_chosen_by_another_rule() {
    let settings = ChainSettings { credits_max: 6, ..ChainSettings::default() };
    let mut dispatcher = ChainDispatcher::new(&settings, &[400]).expect("good settings");
    let (one, two) = (chain(&[1, 2, 3]), chain(&[3, 2, 1]));
    for blocks in [&one, &two] {
        let decision = dispatcher.arrive(&ChainRequest::new(blocks)).expect("a node is open");
        dispatcher.finish(blocks, decision.work);
    }
    assert_eq!(dispatcher.credits(), 6);
    let added = dispatcher.add_node(400).expect("there is room");
    dispatcher.share_credits(2);
    assert_eq!((added, dispatcher.node_count()), (NodeId(1), 2));
    assert_eq!(dispatcher.credits(), 3, "each node has half of the credits");
    let decision = dispatcher.arrive_at(added, &ChainRequest::new(&one)).expect("the node exists");
    assert_eq!((decision.node, decision.reason, decision.credited), (added, Reason::Placed, 0));
    assert_eq!(dispatcher.work(added).map(|work| work.requests), Some(1));
    dispatcher.finish(&one, decision.work);
    let again = dispatcher.arrive_at(added, &ChainRequest::new(&one)).expect("the node exists");
    assert!(again.credited > 0);
    dispatcher.finish(&one, again.work);
    assert_eq!(dispatcher.arrive_at(NodeId(2), &ChainRequest::new(&one)), None);
    assert_eq!(dispatcher.arrive_at(added, &ChainRequest::new(&[])), None);
}
