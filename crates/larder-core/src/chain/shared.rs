//! The chain dispatcher of a route, which the threads of a switch and its peer switches share.

use super::{Candidate, ChainDecision, ChainDispatcher, ChainRequest, ChainSettings, NodeWork, Work};
use crate::cache::{Block, BlockRun, CachePage};
use crate::id::NodeId;
use crate::nodes::{GroupId, Nodes};
use crate::range::SettingsError;
use crate::sync::Mutex;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The largest number of blocks that wait to be sent to peer switches, 16 bytes each.
const JOURNAL_BLOCKS_MAX: usize = 1 << 18;

/// The placements that were not sent to peer switches yet.
#[derive(Debug, Default)]
struct Journal {
    /// The prompts, with the nodes that serve them.
    placements: VecDeque<(NodeId, BlockRun)>,
    blocks: usize,
    lost: u64,
}

impl Journal {
    fn push(&mut self, node: NodeId, blocks: &[Block]) {
        if self.blocks + blocks.len() > JOURNAL_BLOCKS_MAX {
            // The next request with this prefix is sent with all of its blocks.
            self.lost += 1;
            return;
        }
        self.blocks += blocks.len();
        let run = BlockRun { parent: None, blocks: blocks.to_vec() };
        self.placements.push_back((node, run));
    }
}

#[derive(Debug)]
struct State {
    dispatcher: ChainDispatcher,
    /// The epoch of the node table up to which lost caches were taken into account; see [`Nodes::lost_since`].
    epoch: u32,
    /// The epoch of the membership for which the credits are divided.
    members_epoch: Option<u64>,
    /// `None` if there are no peer switches.
    journal: Option<Journal>,
}

/// A [`ChainDispatcher`] that follows the nodes of a [`Dispatcher`](crate::Dispatcher), behind a lock.
#[derive(Debug)]
pub struct SharedChains {
    group: GroupId,
    node_tokens: u64,
    state: Mutex<State>,
}

impl SharedChains {
    /// Creates the dispatcher of a route that uses the nodes of this group, whose caches have `node_tokens` each.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(settings: &ChainSettings, node_tokens: u64, group: GroupId) -> Result<Self, SettingsError> {
        // More nodes are added when they are first seen.
        let dispatcher = ChainDispatcher::new(settings, &[node_tokens])?;
        let state = State { dispatcher, epoch: 0, members_epoch: None, journal: None };
        Ok(Self { group, node_tokens, state: Mutex::new(state) })
    }

    /// Chooses the node of a prompt and counts its work there; `None` if no node takes requests, or the prompt has no blocks
    /// or is longer than their caches, which it would only empty.
    pub fn arrive(&self, nodes: &Nodes, request: &ChainRequest<'_>) -> Option<ChainDecision> {
        let mut state = self.state.lock();
        state.follow(nodes, self.group, self.node_tokens);
        state.dispatcher.arrive(request)
    }

    /// Counts the work of a prompt at a node that was chosen otherwise; `None` if there is no such node, or as for
    /// [`Self::arrive`].
    pub fn arrive_at(
        &self,
        nodes: &Nodes,
        node: NodeId,
        request: &ChainRequest<'_>,
    ) -> Option<ChainDecision> {
        let mut state = self.state.lock();
        state.follow(nodes, self.group, self.node_tokens);
        state.dispatcher.arrive_at(node, request)
    }

    /// Returns the open nodes as the policy would see them for this request; see [`ChainDispatcher::candidates`].
    pub fn candidates(&self, nodes: &Nodes, request: &ChainRequest<'_>) -> Vec<Candidate> {
        let mut state = self.state.lock();
        state.follow(nodes, self.group, self.node_tokens);
        state.dispatcher.candidates(request)
    }

    /// Records that the reply to a request has begun; see [`ChainDispatcher::first_token`].
    pub fn first_token(&self, work: &mut Work) {
        self.state.lock().dispatcher.first_token(work);
    }

    /// Tells peer switches that a prompt is sent to its node. Called once it is admitted, because a refused prompt reaches no
    /// cache.
    pub fn announce(&self, blocks: &[Block], work: &Work) {
        let mut state = self.state.lock();
        if state.dispatcher.follows_caches()
            && let Some(journal) = &mut state.journal
        {
            journal.push(work.node(), blocks);
        }
    }

    /// Records the end of a request; see [`ChainDispatcher::finish`].
    pub fn finish(&self, blocks: &[Block], work: Work) {
        self.state.lock().dispatcher.finish(blocks, work);
    }

    /// Records that the node has refused the request, or never got it; see [`ChainDispatcher::refuse`]. Peer switches that
    /// were told of it keep their credits.
    pub fn refuse(&self, blocks: &[Block], work: Work) {
        self.state.lock().dispatcher.refuse(blocks, work);
    }

    /// Ends all credits of a node, because it has restarted with an empty cache.
    pub fn forget_node(&self, node: NodeId) {
        self.state.lock().dispatcher.forget_node(node);
    }

    /// Changes the capacity of a node's cache, in tokens. Credits that no longer fit end.
    pub fn set_capacity(&self, nodes: &Nodes, node: NodeId, tokens: u64) {
        let mut state = self.state.lock();
        state.follow(nodes, self.group, self.node_tokens);
        state.dispatcher.set_capacity(node, tokens);
    }

    /// Returns the nodes that prompts may go to, each with the capacity of its cache in tokens.
    pub fn capacities(&self, nodes: &Nodes) -> Vec<(NodeId, u64)> {
        let mut state = self.state.lock();
        state.follow(nodes, self.group, self.node_tokens);
        let all = (0_u16..).map(NodeId).take(nodes.slots()).filter(|node| self.may_use(nodes, *node));
        all.filter_map(|node| Some((node, state.dispatcher.capacity(node)?))).collect()
    }

    /// Returns whether prompts may go to a node, in any state.
    pub fn may_use(&self, nodes: &Nodes, node: NodeId) -> bool {
        nodes.is_in(node, self.group)
    }

    /// Returns the number of credits.
    pub fn credits(&self) -> usize {
        self.state.lock().dispatcher.credits()
    }

    /// Returns the credits of a node as runs of blocks, those that were unused for the longest time first.
    pub fn runs(&self, node: NodeId) -> Vec<BlockRun> {
        self.page(node, None, usize::MAX).runs
    }

    /// Adds what another dispatcher has placed at nodes, or its credits, in the order of their use.
    pub fn merge(&self, nodes: &Nodes, runs: impl IntoIterator<Item = (NodeId, BlockRun)>) {
        let mut state = self.state.lock();
        state.follow(nodes, self.group, self.node_tokens);
        runs.into_iter().for_each(|(node, run)| state.dispatcher.peer_placed(node, &run));
    }

    /// Starts to record placements for peer switches.
    pub(crate) fn keep_journal(&self) {
        self.state.lock().journal.get_or_insert_default();
    }

    /// Removes placements from the journal, up to the one with which they have `blocks_max` blocks. Returns them, and the
    /// number of placements that were lost since the last call because the journal was full.
    pub(crate) fn take_journal(&self, blocks_max: usize) -> (Vec<(NodeId, BlockRun)>, u64) {
        let mut state = self.state.lock();
        let Some(journal) = &mut state.journal else { return (Vec::new(), 0) };
        let (mut taken, mut blocks) = (Vec::new(), 0);
        while blocks < blocks_max
            && let Some(placement) = journal.placements.pop_front()
        {
            blocks += placement.1.blocks.len();
            taken.push(placement);
        }
        journal.blocks -= blocks;
        (taken, core::mem::take(&mut journal.lost))
    }

    /// Returns the work of this dispatcher's requests at each node, by slot.
    pub fn work(&self) -> Vec<NodeWork> {
        let state = self.state.lock();
        let nodes = (0_u16..).map(NodeId).take(state.dispatcher.node_count());
        nodes.map(|node| state.dispatcher.work(node).unwrap_or_default()).collect()
    }

    /// Returns the work of all switches' requests at each node that prompts may go to.
    pub fn total_work(&self, nodes: &Nodes) -> Vec<(NodeId, NodeWork)> {
        let state = self.state.lock();
        let all = (0_u16..).map(NodeId).take(state.dispatcher.node_count());
        let all = all.filter(|node| self.may_use(nodes, *node));
        all.filter_map(|node| Some((node, state.dispatcher.total_work(node)?))).collect()
    }

    /// Sets the work of other switches at each node.
    pub(crate) fn set_peer_work(&self, nodes: &Nodes, work: &[NodeWork]) {
        let mut state = self.state.lock();
        state.follow(nodes, self.group, self.node_tokens);
        for (node, work) in (0_u16..).map(NodeId).zip(work) {
            state.dispatcher.set_peer_work(node, *work);
        }
    }

    /// Returns a page of a node's credits; see [`TreeCache::page`](crate::cache::TreeCache::page).
    pub(crate) fn page(&self, node: NodeId, after: Option<u32>, blocks_max: usize) -> CachePage {
        self.state.lock().dispatcher.page(node, after, blocks_max)
    }
}

impl State {
    /// Takes over which nodes are open, and which have lost their caches.
    fn follow(&mut self, nodes: &Nodes, group: GroupId, node_tokens: u64) {
        // The epoch is read first, so that a loss in the meantime is seen by the next request.
        let (epoch, slots) = (nodes.epoch(), nodes.slots());
        let dispatcher = &mut self.dispatcher;
        let before = dispatcher.node_count();
        while dispatcher.node_count() < slots && dispatcher.add_node(node_tokens).is_some() {}
        for node in (0_u16..).map(NodeId).take(dispatcher.node_count()) {
            dispatcher.set_open(node, node.index() < slots && nodes.takes(node, group));
            if epoch != self.epoch && node.index() < slots && nodes.lost_since(node, self.epoch) {
                // Another node may have taken the slot.
                dispatcher.forget_node(node);
                dispatcher.set_capacity(node, node_tokens);
            }
        }
        self.epoch = epoch;
        let members_epoch = nodes.members_epoch();
        if self.members_epoch != Some(members_epoch) || dispatcher.node_count() != before {
            self.members_epoch = Some(members_epoch);
            let slots = (0_u16..).map(NodeId).take(slots);
            dispatcher.share_credits(slots.filter(|node| nodes.is_in(*node, group)).count());
        }
    }
}
