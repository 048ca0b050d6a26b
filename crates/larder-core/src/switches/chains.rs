//! Chains between switches: placements, outstanding work, and the credits of a switch that starts.
//!
//! *Placements.* A switch tells the others of each prompt that it has placed, with all of its blocks, so that they follow the
//! nodes' caches as if the prompt were theirs. A lost message costs reuse only until the next request with this prefix.
//!
//! *Work.* A switch sends its outstanding work at a node when it has changed, at most once per
//! [`SwitchesSettings::period`], and all of it periodically. Policies see the sum.
//!
//! *Credits.* A switch that starts asks one other switch for the credits of each node, in pages, those that were unused for the
//! longest time first. It serves meanwhile. The other one may have just started too; if a switch that has credits appears, the
//! credits are read again. A switch has credits once it has read them from one that has, or once it has run for
//! [`SwitchesSettings::unknown_after`] while no other had any.

use super::message::{Message, PageEnd, pack_runs};
use super::peer_switch::PeerSwitch;
use super::{ASK_AGAIN, SwitchesCounts, SwitchesSettings};
use crate::cache::BlockRun;
use crate::chain::{NodeWork, SharedChains};
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::time::Time;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// The blocks after which no more placements of a route are sent in this period.
const PLACED_BLOCKS: usize = 16_000;
/// The largest number of nodes in a message of work, at most 23 bytes each.
const WORK_MAX: usize = 2_000;
/// The blocks after which a page of credits ends with the current prompt.
const PAGE_BLOCKS: usize = 4_000;

/// A route whose requests name chains.
#[derive(Debug)]
struct ChainRoute {
    route: RouteId,
    chains: Arc<SharedChains>,
    /// The work that was sent last, by slot.
    sent: Vec<NodeWork>,
    /// The work of the other switches, as the dispatcher knows it.
    elsewhere: Vec<NodeWork>,
}

/// A question for a page of credits.
#[derive(Debug)]
struct CreditQuestion {
    number: u64,
    asked: Time,
}

/// The switch whose credits are read. Its stamps have no meaning for others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CreditSource {
    name: Arc<str>,
    incarnation: Option<u64>,
}

/// The credits that are read when the switch starts, and the position reached.
#[derive(Debug, Default)]
struct CreditSync {
    /// The index of the route.
    route: usize,
    node: u16,
    /// The stamp of the source after which the next page begins.
    after: Option<u32>,
    source: Option<CreditSource>,
    question: Option<CreditQuestion>,
    /// Whether a page came from a switch that has no credits.
    is_from_empty: bool,
    is_complete: bool,
}

/// The routes of a switch whose requests name chains.
#[derive(Debug, Default)]
pub(super) struct ChainRoutes {
    routes: Vec<ChainRoute>,
    sync: CreditSync,
    has_credits: bool,
    /// The time of the first tick.
    began: Option<Time>,
    /// The time at which all work was last sent.
    all: Option<Time>,
}

impl ChainRoutes {
    pub(super) fn add(&mut self, route: RouteId, chains: Arc<SharedChains>) {
        chains.keep_journal();
        self.routes.push(ChainRoute { route, chains, sent: Vec::new(), elsewhere: Vec::new() });
        self.sync = CreditSync::default();
    }

    /// Returns whether this switch has the credits of the others, or there were none.
    pub(super) const fn has_credits(&self) -> bool {
        self.has_credits
    }

    /// Causes all work to be sent again, and the current page to be asked for again: slots have other nodes.
    pub(super) fn invalidate(&mut self) {
        self.all = None;
        (self.sync.after, self.sync.question) = (None, None);
    }

    /// Returns messages with all work, for a switch that knows none.
    pub(super) fn all_work(&self) -> Vec<Message> {
        self.routes
            .iter()
            .flat_map(|route| work_messages(route.route, self.has_credits, true, &route.chains.work(), &[]))
            .collect()
    }

    /// Returns the messages that are due now. Without `others`, placements are dropped.
    pub(super) fn due_messages(
        &mut self,
        now: Time,
        settings: &SwitchesSettings,
        others: &BTreeMap<Arc<str>, PeerSwitch>,
        counts: &mut SwitchesCounts,
    ) -> Vec<Message> {
        let began = *self.began.get_or_insert(now);
        let others_have_credits = others.values().any(|other| other.up && other.has_credits());
        self.has_credits |= !others_have_credits && now.since(began) >= settings.unknown_after;
        let others = !others.is_empty();
        let mut messages = Vec::new();
        for ChainRoute { route, chains, .. } in &self.routes {
            let (placements, lost) = chains.take_journal(if others { PLACED_BLOCKS } else { usize::MAX });
            if others {
                counts.prompts_lost += lost;
                counts.prompts_sent += placements.len() as u64;
                let packs = pack_runs(placements);
                messages.extend(packs.into_iter().map(|runs| Message::Placements { route: route.0, runs }));
            }
        }
        if self.all.is_none_or(|all| now.since(all) >= settings.all_every) {
            self.all = Some(now);
            self.routes.iter_mut().for_each(|route| route.sent.clear());
        }
        let (is_all, has_credits) = (self.all == Some(now), self.has_credits);
        for ChainRoute { route, chains, sent, .. } in &mut self.routes {
            let current = chains.work();
            messages.extend(work_messages(*route, has_credits, is_all, &current, sent));
            *sent = current;
        }
        messages
    }

    /// Records placements of another switch.
    pub(super) fn receive_placements(
        &self,
        other: &PeerSwitch,
        route: u16,
        runs: Vec<(NodeId, BlockRun)>,
        dispatcher: &Dispatcher,
        counts: &mut SwitchesCounts,
    ) {
        let Some(own) = self.find(other.route(route)) else { return };
        counts.prompts_taken += runs.iter().filter(|(_, run)| run.parent.is_none()).count() as u64;
        let placement = |(theirs, run)| Some((other.node(theirs)?, run));
        own.chains.merge(dispatcher.nodes(), runs.into_iter().filter_map(placement));
    }

    /// Adds up the work of the other switches, and passes it to the dispatchers. Switches that were not heard have the
    /// mean of the others.
    pub(super) fn update(&mut self, known: &[&PeerSwitch], unknown: usize, dispatcher: &Dispatcher) {
        for ChainRoute { route, chains, elsewhere, .. } in &mut self.routes {
            let own = chains.work();
            let mut sum = vec![NodeWork::NONE; own.len().max(dispatcher.nodes().slots())];
            for (node, work) in known.iter().flat_map(|other| other.chain_work(*route)) {
                if let Some(at) = sum.get_mut(node.index()) {
                    *at = at.plus(work);
                }
            }
            if unknown > 0 {
                let own = own.into_iter().chain(core::iter::repeat(NodeWork::NONE));
                for (at, own) in sum.iter_mut().zip(own) {
                    *at = at.plus(mean_of(at.plus(own), 1 + known.len(), unknown));
                }
            }
            if sum != *elsewhere {
                chains.set_peer_work(dispatcher.nodes(), &sum);
                *elsewhere = sum;
            }
        }
    }

    /// Returns the next question for credits and its receiver. There is one question at a time. All pages of a node come from
    /// one switch, unless that is gone or does not answer.
    pub(super) fn next_question(
        &mut self,
        now: Time,
        others: &BTreeMap<Arc<str>, PeerSwitch>,
        dispatcher: &Dispatcher,
        counts: &mut SwitchesCounts,
    ) -> Option<(Arc<str>, Message)> {
        if self.sync.is_complete && !self.has_credits {
            let is_better = |other: &PeerSwitch| other.up && other.has_hello() && other.has_credits();
            if others.values().any(is_better) {
                self.sync = CreditSync::default();
            }
        }
        let route = self.routes.get(self.sync.route)?.route.0;
        if self.sync.is_complete || dispatcher.nodes().slots() == 0 {
            return None;
        }
        let current = |source: &CreditSource| {
            let other = others.get(&source.name)?;
            (other.up && other.has_hello() && other.incarnation() == source.incarnation).then_some(())
        };
        let is_late = self.sync.question.as_ref().map(|question| now.since(question.asked) >= ASK_AGAIN);
        let has_source = self.sync.source.as_ref().and_then(current).is_some();
        match is_late {
            Some(false) if has_source => return None,
            None if has_source => {}
            _ => {
                let late = self.sync.source.take().map(|source| source.name);
                // Switches that have the credits of the others are asked first, and one that did not answer last.
                let rank = |(name, other): &(&Arc<str>, &PeerSwitch)| {
                    (Some(*name) != late.as_ref(), other.has_credits(), other.is_complete)
                };
                let answers = others.iter().filter(|(_, other)| other.up && other.has_hello());
                let (name, other) = answers.max_by_key(rank)?;
                self.sync.source =
                    Some(CreditSource { name: name.clone(), incarnation: other.incarnation() });
                self.sync.after = None;
            }
        }
        let to = self.sync.source.as_ref()?.name.clone();
        counts.credit_pages_asked += 1;
        let number = counts.credit_pages_asked;
        self.sync.question = Some(CreditQuestion { number, asked: now });
        let CreditSync { node, after, .. } = self.sync;
        Some((to, Message::WantCredits { question: number, route, node: NodeId(node), after }))
    }

    /// Returns the answer to a question for credits; it is empty if the route or the node does not exist here.
    pub(super) fn answer(
        &self,
        other: &PeerSwitch,
        question: u64,
        (route, node): (u16, NodeId),
        after: Option<u32>,
    ) -> Vec<Message> {
        let page = self.find(other.route(route)).zip(other.node(node));
        let page = page.map(|(own, node)| own.chains.page(node, after, PAGE_BLOCKS)).unwrap_or_default();
        let end = page.next.map_or(PageEnd::Last, PageEnd::Next);
        let mut packs = pack_runs(page.runs.into_iter().map(|run| (node, run)));
        let last = packs.pop().unwrap_or_default();
        let messages = packs.into_iter().map(|runs| (runs, PageEnd::More)).chain([(last, end)]);
        messages.map(|(runs, end)| Message::Credits { question, runs, end }).collect()
    }

    /// Processes a part of an answer, from a switch that has credits or not. An answer to an earlier question is ignored.
    pub(super) fn receive_credits(
        &mut self,
        question: u64,
        runs: Vec<(NodeId, BlockRun)>,
        (end, has_credits): (PageEnd, bool),
        dispatcher: &Dispatcher,
    ) {
        let is_expected = self.sync.question.as_ref().is_some_and(|asked| asked.number == question);
        let Some(own) = self.routes.get(self.sync.route).filter(|_| is_expected) else { return };
        self.sync.is_from_empty |= !has_credits;
        let node = NodeId(self.sync.node);
        own.chains.merge(dispatcher.nodes(), runs.into_iter().map(|(_, run)| (node, run)));
        match end {
            PageEnd::More => return,
            PageEnd::Next(stamp) => self.sync.after = Some(stamp),
            PageEnd::Last => {
                (self.sync.node, self.sync.after) = (self.sync.node + 1, None);
                if usize::from(self.sync.node) >= dispatcher.nodes().slots() {
                    (self.sync.route, self.sync.node) = (self.sync.route + 1, 0);
                    self.sync.is_complete = self.sync.route >= self.routes.len();
                    self.has_credits |= self.sync.is_complete && !self.sync.is_from_empty;
                }
            }
        }
        self.sync.question = None;
    }

    /// Returns the route of this dispatcher.
    fn find(&self, route: Option<RouteId>) -> Option<&ChainRoute> {
        self.routes.iter().find(|own| Some(own.route) == route)
    }
}

/// Returns messages with all work, or with what differs from `sent`.
fn work_messages(
    route: RouteId,
    has_credits: bool,
    all: bool,
    work: &[NodeWork],
    sent: &[NodeWork],
) -> Vec<Message> {
    let before = sent.iter().copied().chain(core::iter::repeat(NodeWork::NONE));
    let both = (0..).map(NodeId).zip(work.iter().copied().zip(before));
    let news: Vec<_> =
        both.filter(|(_, (now, before))| now != before).map(|(node, (now, _))| (node, now)).collect();
    let message = |all, work: &[(NodeId, NodeWork)]| Message::ChainWork {
        route: route.0,
        has_credits,
        all,
        work: work.to_vec(),
    };
    let (first, rest) = news.split_at(news.len().min(WORK_MAX));
    let first = (all || !first.is_empty()).then(|| message(all, first));
    first.into_iter().chain(rest.chunks(WORK_MAX).map(|work| message(false, work))).collect()
}

/// Returns the work of `more` switches that have the mean of `switches` switches with this sum.
fn mean_of(sum: NodeWork, switches: usize, more: usize) -> NodeWork {
    let part = |value: u64| value.saturating_mul(more as u64) / (switches as u64).max(1);
    let small = |value: u32| u32::try_from(part(value.into())).unwrap_or(u32::MAX);
    NodeWork { requests: small(sum.requests), waiting: small(sum.waiting), prefill: part(sum.prefill) }
}
