//! The dispatcher: runs a policy, counts load, admits requests.
//!
//! It is a state machine. What happens comes in as a method call with the time `now` (or as an [`Input`], which is
//! the same written down); what to do comes out. The live switch, the peers and the simulator drive this one
//! implementation. All methods take `&self` and may be called from several threads; called from one thread, the
//! same inputs give the same outputs on every machine.
//!
//! A request's life: [`Dispatcher::arrive`] starts it at a node, makes it wait, or refuses it. A request that waits
//! is started or refused by some later call, which reports it in `started`. A request that has started ends with
//! [`Dispatcher::finish`]; between the two its node may be changed by [`Dispatcher::retry`].
//!
//! The load of a node is the number of requests started there and not finished, until the last byte is sent or the
//! reply is aborted. Kept-alive connections without a request count nothing.

mod admission;
mod input;
mod request;
pub(crate) mod settings;
mod signal;
mod witness;

pub use admission::{Cancel, Refusal};
pub use input::{Input, Output};
pub use request::{Exclude, Request};
pub use settings::{Admission, Settings, SettingsError};
pub use signal::CacheEvent;
pub use witness::{Cause, Change, Changed, Decided, RedoError, Witness};

use crate::id::{NodeId, TargetId, Ticket};
use crate::nodes::{JoinError, NodeSpec, NodeState, Nodes, Sight, Weight, lock};
use crate::policy::{Choice, Known, Policy, PolicyKind};
use crate::tape::Tape;
use crate::time::Time;
use admission::{Entered, Gate, Waiter};
use std::sync::Mutex;
use witness::Recorder;

/// A decision: the node and the reason.
pub type Decision = Choice;

/// What becomes of a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It starts now.
    Start(Decision),
    /// It waits; it will be reported in `started`, or by [`Dispatcher::expire`].
    Wait(Ticket),
    /// It is not served.
    Refused(Refusal),
}

impl Arrival {
    /// What becomes of a request that does not wait.
    fn settled(self) -> Result<Decision, Refusal> {
        match self {
            Self::Start(decision) => Ok(decision),
            Self::Refused(refusal) => Err(refusal),
            Self::Wait(_) => Err(Refusal::NoNode),
        }
    }
}

/// A request that waited, and what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// The ticket it was given.
    pub ticket: Ticket,
    /// The node it starts at, or why it is not served.
    pub outcome: Result<Decision, Refusal>,
}

/// Why a target goes where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The target.
    pub target: TargetId,
    /// The policy that decides.
    pub policy: PolicyKind,
    /// What the policy remembers of the target; `None` if nothing.
    pub known: Option<Known>,
    /// What would be decided now; `None` if no node can be used.
    pub decision: Option<Decision>,
}

/// The dispatcher.
#[derive(Debug)]
pub struct Dispatcher {
    settings: Settings,
    nodes: Nodes,
    policy: Box<dyn Policy>,
    gate: Gate,
    refitting: Mutex<()>,
    recorder: Option<Box<Recorder>>,
}

impl Dispatcher {
    /// A dispatcher over these nodes, which are up and share the targets from the start.
    ///
    /// # Errors
    /// A setting out of range, or two nodes of one name, or more nodes than `nodes_max`.
    pub fn new(settings: Settings, nodes: &[NodeSpec]) -> Result<Self, SettingsError> {
        settings.validate()?;
        let table = Nodes::new(settings.nodes_max, settings.join_pace());
        for spec in nodes {
            table.join(Time::ZERO, spec.clone(), true, None, |_| {})?;
        }
        let gate = Gate::new(settings.queue_max, settings.queue_timeout);
        let policy = settings.policy.build(&settings);
        let refitting = Mutex::new(());
        let dispatcher = Self { settings, nodes: table, policy, gate, refitting, recorder: None };
        dispatcher.nodes.outstanding().set_limit(dispatcher.limit());
        Ok(dispatcher)
    }

    /// A request arrives.
    pub fn arrive(&self, now: Time, request: Request) -> Arrival {
        match &self.recorder {
            None => self.enter(now, &request, Sight::live(&self.nodes)),
            Some(recorder) => recorder.decide(self, now, Cause::Arrive, request),
        }
    }

    /// A request has failed at `failed` and may be tried elsewhere: its load moves to another node that
    /// `request.exclude` and `failed` leave.
    ///
    /// # Errors
    /// [`Refusal::NoNode`] if none is left. The request then has no load any more but still its place among the
    /// admitted: end it with [`Dispatcher::abandon`].
    pub fn retry(&self, now: Time, failed: NodeId, request: Request) -> Result<Decision, Refusal> {
        self.end(failed);
        let request = Request { exclude: request.exclude.with(failed), ..request };
        self.decide(now, Cause::Retry(failed), request).settled()
    }

    /// A request ends at its node: the last byte is sent, or the reply aborted. Requests that waited for it are
    /// appended to `started`.
    pub fn finish(&self, now: Time, node: NodeId, started: &mut Vec<Started>) {
        self.end(node);
        self.abandon(now, started);
    }

    /// An admitted request ends that is at no node, after a failed [`Dispatcher::retry`].
    pub fn abandon(&self, now: Time, started: &mut Vec<Started>) {
        if self.gate.leave(self.nodes.outstanding()) {
            self.admit(now, started);
        }
    }

    /// The client of a waiting request is gone.
    pub fn cancel(&self, ticket: Ticket) -> Cancel {
        self.gate.cancel(ticket)
    }

    /// Takes the requests out of the queue whose deadline is not after `now`.
    pub fn expire(&self, now: Time, expired: &mut Vec<Ticket>) {
        self.gate.expire(now, expired);
    }

    /// When [`Dispatcher::expire`] must be called next; `None` if nothing waits.
    pub fn next_deadline(&self) -> Option<Time> {
        self.gate.next_deadline()
    }

    /// A node joins the running cluster. Nothing is reassigned to it; the admission limit grows at once, and new
    /// targets come to it at the join pace until it is warm.
    ///
    /// # Errors
    /// The table is full, or the name is empty or taken.
    pub fn join(&self, now: Time, spec: NodeSpec, started: &mut Vec<Started>) -> Result<NodeId, JoinError> {
        self.join_as(now, spec, |_| {}, started)
    }

    /// Like [`Dispatcher::join`]; `claim` is told the node's slot before any request can be sent there. It must not
    /// call the dispatcher.
    ///
    /// # Errors
    /// As [`Dispatcher::join`]; `claim` is not called then.
    pub fn join_as(
        &self,
        now: Time,
        spec: NodeSpec,
        claim: impl FnOnce(NodeId),
        started: &mut Vec<Started>,
    ) -> Result<NodeId, JoinError> {
        let told = spec.clone();
        let act = |tape: Option<&Tape>| self.nodes.join(now, spec, false, tape, claim);
        let node = self.change(now, || Change::Join(told), act)?;
        self.refit(now, started);
        Ok(node)
    }

    /// A node changes its state: it fails (`Down`), drains, leaves (`Removed`) or recovers (`Up`). A node that stops
    /// taking requests loses its targets: they count as never assigned. Requests in flight there go on; when no node
    /// is left, waiting requests are refused. False if there is no such node, it was removed, or is in that state.
    pub fn set_state(&self, now: Time, node: NodeId, state: NodeState, started: &mut Vec<Started>) -> bool {
        let act = |_: Option<&Tape>| self.nodes.set_state(node, state).then_some(node).ok_or(());
        let changed = self.change(now, || Change::State(node, state), act).is_ok();
        if changed {
            self.refit(now, started);
        }
        changed
    }

    /// A node fails; see [`Dispatcher::set_state`].
    pub fn fail(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Down, started)
    }

    /// A node takes requests again; see [`Dispatcher::set_state`].
    pub fn recover(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Up, started)
    }

    /// A node drains; see [`Dispatcher::set_state`].
    pub fn drain(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Draining, started)
    }

    /// A node leaves for good; see [`Dispatcher::set_state`].
    pub fn leave(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Removed, started)
    }

    /// A node gets another weight. False if there is no such node.
    pub fn reweigh(&self, now: Time, node: NodeId, weight: Weight, started: &mut Vec<Started>) -> bool {
        let act = |_: Option<&Tape>| self.nodes.set_weight(node, weight).then_some(node).ok_or(());
        let known = self.change(now, || Change::Reweigh(node, weight), act).is_ok();
        if known {
            self.refit(now, started);
        }
        known
    }

    /// The nodes.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Requests admitted and not ended.
    pub fn outstanding(&self) -> u32 {
        self.nodes.outstanding().count()
    }

    /// S: how many requests may be outstanding. `u32::MAX` if there is no limit.
    pub fn admission_limit(&self) -> u32 {
        self.nodes.outstanding().limit()
    }

    /// Requests waiting for admission.
    pub fn queued(&self) -> usize {
        self.gate.queued()
    }

    /// Targets whose servers are remembered.
    pub fn targets_known(&self) -> usize {
        self.policy.targets()
    }

    /// What is known of a target and what would be decided now. Changes nothing.
    pub fn explain(&self, now: Time, target: TargetId) -> Explanation {
        self.explain_request(now, &Request::new(target))
    }

    /// Like [`Dispatcher::explain`], for a request of some class, origin or history.
    pub fn explain_request(&self, now: Time, request: &Request) -> Explanation {
        Explanation {
            target: request.target,
            policy: self.settings.policy,
            known: self.policy.known(request.target, Sight::live(&self.nodes)),
            decision: self.policy.peek(now, request, Sight::live(&self.nodes)),
        }
    }

    /// Decides: all that a decision reads passes `sight`, so that it can be made anew from a tape.
    fn decision(&self, now: Time, cause: Cause, request: &Request, sight: Sight<'_>) -> Arrival {
        match cause {
            Cause::Arrive => self.enter(now, request, sight),
            Cause::Admit(_, deadline) if deadline <= now => Arrival::Refused(Refusal::Deadline),
            Cause::Admit(..) | Cause::Retry(_) => self.start(now, request, sight),
        }
    }

    #[inline(always)]
    fn enter(&self, now: Time, request: &Request, sight: Sight<'_>) -> Arrival {
        if sight.open_count() == 0 {
            return Arrival::Refused(Refusal::NoNode);
        }
        let inside = self.nodes.outstanding();
        match Entered::read(sight, || self.gate.enter(now, request, inside)) {
            Entered::Now => {
                let outcome = self.start(now, request, sight);
                if !matches!(outcome, Arrival::Start(_)) {
                    sight.leave();
                }
                outcome
            }
            // The last node may have gone, and the queue been emptied, just before this request joined it.
            Entered::Waits(ticket)
                if sight.open_count() == 0 && self.gate.cancel(ticket) == Cancel::Removed =>
            {
                Arrival::Refused(Refusal::NoNode)
            }
            Entered::Waits(ticket) => Arrival::Wait(ticket),
            Entered::Full => Arrival::Refused(Refusal::QueueFull),
        }
    }

    #[inline(always)]
    fn start(&self, now: Time, request: &Request, sight: Sight<'_>) -> Arrival {
        match self.policy.pick(now, request, sight) {
            Some(decision) => Arrival::Start(decision),
            None => Arrival::Refused(Refusal::NoNode),
        }
    }

    fn end(&self, node: NodeId) {
        let was_there = self.nodes.end(node);
        debug_assert!(was_there, "a request ended at {node} that had not started there");
    }

    /// Starts waiting requests while there is room.
    fn admit(&self, now: Time, started: &mut Vec<Started>) {
        while let Some(Waiter { ticket, request, deadline }) = self.gate.next(self.nodes.outstanding()) {
            let outcome = self.decide(now, Cause::Admit(ticket, deadline), request).settled();
            if outcome.is_err() {
                self.nodes.outstanding().leave();
            }
            started.push(Started { ticket, outcome });
        }
    }

    /// Follows a change of membership.
    fn refit(&self, now: Time, started: &mut Vec<Started>) {
        {
            // One at a time: of two changes at once, the later one's sums must be the ones that stay.
            let _one = lock(&self.refitting);
            self.nodes.outstanding().set_limit(self.limit());
        }
        if self.nodes.open_count() == 0 {
            let refused = |ticket| Started { ticket, outcome: Err(Refusal::NoNode) };
            started.extend(self.gate.clear().into_iter().map(refused));
        } else {
            self.admit(now, started);
        }
    }

    /// S = (n - 1) T_high + T_low - 1 (LARD section 2.4), each node's thresholds scaled by its weight; the node that
    /// counts with T_low is the heaviest, which keeps the sum on the safe side.
    fn limit(&self) -> u32 {
        match self.settings.admission {
            Admission::Unlimited => u32::MAX,
            Admission::Fixed(limit) => limit,
            Admission::Derived => {
                let (sum, max) = (self.nodes.weight_sum(), self.nodes.weight_max());
                let high = u64::from(self.settings.t_high) * (sum - max.min(sum));
                let low = u64::from(self.settings.t_low) * max;
                u32::try_from(((high + low) / 1000).saturating_sub(1)).unwrap_or(u32::MAX).max(1)
            }
        }
    }
}

#[cfg(test)]
mod tests;
