//! Recording: a witness is told of every decision and every change, in an order in which they can be made anew.
//!
//! While a witness listens, changes (membership, weights, reports, cache events) and decisions exclude each other: a
//! change begins a new *generation*, and all that a decision reads is either the same throughout its generation, or
//! behind a lock and ordered by the tape's visits, or on the tape itself. Decisions of one generation run side by
//! side as ever. What becomes of a request at the gate (it enters, waits or is refused) is on the tape too; a request
//! that leaves the queue without being decided on (cancelled, expired, cleared) is not told.
//!
//! [`Dispatcher::redecide`] and [`Dispatcher::rechange`] are the other half: they take a record and run the same code
//! on the same inputs with the tape played.
//!
//! Records of one generation are told from the threads that decided, in any order; [`Entry::Visit`] says in which
//! order they are to be made anew. A change is told after all decisions of the generations before it and before all
//! of its own.

use super::{Arrival, CacheEvent, Dispatcher, Request, RouteSpec, Settings, SettingsError};
use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::{Elsewhere, LoadReport, NodeSpec, NodeState, Weight};
use crate::policy::Memory;
use crate::policy::table::RouteTable;
use crate::tape::{Entry, Fault, Tape, Visit};
use crate::time::Time;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Who is told.
pub trait Witness: Send + Sync + core::fmt::Debug {
    /// A decision was made. False ends the recording; threads that are under way may still tell what they did, which
    /// is to be ignored. Must not block: a request waits for it.
    fn decided(&self, decided: Decided) -> bool;

    /// Something changed. As [`Witness::decided`].
    fn changed(&self, changed: Changed) -> bool;
}

impl<W: Witness + ?Sized> Witness for Arc<W> {
    fn decided(&self, decided: Decided) -> bool {
        (**self).decided(decided)
    }

    fn changed(&self, changed: Changed) -> bool {
        (**self).changed(changed)
    }
}

/// What led to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A request arrived.
    Arrive,
    /// A request failed at this node, which its `exclude` now names.
    Retry(NodeId),
    /// There is room for a request that has waited with this ticket, until this deadline at the longest.
    Admit(Ticket, Time),
    /// The forwarding plane has started a request at this node, by an earlier decision for its target.
    Reuse(NodeId),
}

/// A decision and all it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// Changes before it.
    pub generation: u64,
    /// The time it was given.
    pub at: Time,
    /// What led to it.
    pub cause: Cause,
    /// The request it is about.
    pub request: Request,
    /// What it read.
    pub tape: Vec<Entry>,
    /// The decision.
    pub outcome: Arrival,
}

/// What can change beside loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node joined.
    Join(NodeSpec),
    /// A node failed, drained, left or recovered.
    State(NodeId, NodeState),
    /// A node got another weight.
    Reweigh(NodeId, Weight),
    /// A node became a backup, or an ordinary node.
    Backup(NodeId, bool),
    /// So many requests at a node are long-lived now.
    LongLived(NodeId, u32),
    /// A node said how loaded it is.
    Report(NodeId, LoadReport),
    /// A node's cache changed.
    Cache(NodeId, TargetId, CacheEvent),
    /// A route got another routing table.
    Table(RouteId, Arc<RouteTable>),
    /// Other switches were heard: what they have at the nodes.
    Elsewhere(Arc<Elsewhere>),
    /// Another switch's server sets were taken over, as far as they are later.
    Sets(RouteId, Arc<Memory>),
}

/// A change that took effect, and what it read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Changes up to this one, it included.
    pub generation: u64,
    /// The time it was given.
    pub at: Time,
    /// What changed.
    pub change: Change,
    /// What it read.
    pub tape: Vec<Entry>,
    /// The node that changed; for one that joined, the slot it got; [`Changed::NO_NODE`] for what concerns no single one.
    pub node: NodeId,
}

impl Changed {
    /// Stands for no node.
    pub const NO_NODE: NodeId = NodeId(u16::MAX);
}

/// Why a recorded decision cannot be made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedoError {
    /// The tape does not fit.
    #[error(transparent)]
    Tape(#[from] Fault),
    /// A change names a node that is not there, or repeats what is so already, or a join is impossible.
    #[error("the change has no effect")]
    NoChange,
}

/// Tells the witness, and keeps decisions and changes apart while it does.
#[derive(Debug)]
pub(super) struct Recorder {
    witness: Box<dyn Witness>,
    generation: RwLock<u64>,
    on: AtomicBool,
}

impl Recorder {
    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn note(&self, goes_on: bool) {
        if !goes_on {
            self.on.store(false, Ordering::Relaxed);
        }
    }

    #[cold]
    pub(super) fn decide(
        &self,
        dispatcher: &Dispatcher,
        now: Time,
        cause: Cause,
        request: Request,
    ) -> Arrival {
        let generation = self.generation.read().unwrap_or_else(PoisonError::into_inner);
        if !self.is_on() {
            return dispatcher.decision(now, cause, &request, dispatcher.sight_for(&request, None));
        }
        let tape = Tape::blank();
        let sight = dispatcher.sight_for(&request, Some(&tape));
        let outcome = dispatcher.decision(now, cause, &request, sight);
        let tape = tape.into_entries();
        let decided = Decided { generation: *generation, at: now, cause, request, tape, outcome };
        self.note(self.witness.decided(decided));
        outcome
    }
}

impl Dispatcher {
    /// A dispatcher whose decisions a witness is told. Costs a shared lock and an allocation per decision.
    ///
    /// # Errors
    /// As [`Dispatcher::with_routes`].
    pub fn witnessed(
        settings: Settings,
        routes: Vec<RouteSpec>,
        nodes: &[NodeSpec],
        witness: Box<dyn Witness>,
    ) -> Result<Self, SettingsError> {
        let recorder = Recorder { witness, generation: RwLock::new(0), on: AtomicBool::new(true) };
        Ok(Self { recorder: Some(Box::new(recorder)), ..Self::with_routes(settings, routes, nodes)? })
    }

    /// Makes a recorded decision anew. Gives what comes of it, and the lanes it visited in their order. The visits
    /// must be this dispatcher's next: see [`Visit`]. The request is counted nowhere, so that none is to be ended.
    ///
    /// # Errors
    /// The tape does not fit the decision; what the dispatcher remembers is void then.
    pub fn redecide(
        &self,
        at: Time,
        cause: Cause,
        request: &Request,
        tape: Vec<Entry>,
    ) -> Result<(Arrival, Vec<Visit>), RedoError> {
        let tape = Tape::recorded(tape);
        let outcome = self.decision(at, cause, request, self.sight_for(request, Some(&tape)));
        Ok((outcome, tape.played()?))
    }

    /// Makes a recorded change anew; gives the node that changed, and the lanes visited in their order.
    ///
    /// # Errors
    /// The tape does not fit, or nothing changes; what the dispatcher remembers is void then.
    pub fn rechange(
        &self,
        at: Time,
        change: &Change,
        tape: Vec<Entry>,
    ) -> Result<(NodeId, Vec<Visit>), RedoError> {
        let tape = Tape::recorded(tape);
        let node = match change {
            Change::Join(spec) => self.nodes.join(at, spec.clone(), false, Some(&tape), |_| {}).ok(),
            Change::State(node, state) => self.nodes.set_state(*node, *state).then_some(*node),
            Change::Reweigh(node, weight) => self.nodes.set_weight(*node, *weight).then_some(*node),
            Change::Backup(node, backup) => self.nodes.set_backup(*node, *backup).then_some(*node),
            Change::LongLived(node, requests) => self.nodes.set_long_lived(*node, *requests).then_some(*node),
            Change::Report(node, report) => self.take_report(at, *node, *report).then_some(*node),
            Change::Cache(node, target, event) => {
                self.mirror(at, *node, *target, *event, Some(&tape)).then_some(*node)
            }
            Change::Table(route, table) => self.place_table(*route, table).then_some(Changed::NO_NODE),
            Change::Elsewhere(elsewhere) => {
                self.hear_elsewhere(elsewhere);
                Some(Changed::NO_NODE)
            }
            Change::Sets(route, sets) => (self.adopt(at, *route, sets).taken > 0).then_some(Changed::NO_NODE),
        };
        let visits = tape.played()?;
        Ok((node.ok_or(RedoError::NoChange)?, visits))
    }

    /// Makes a decision, and tells the witness if there is one.
    pub(super) fn decide(&self, now: Time, cause: Cause, request: Request) -> Arrival {
        match &self.recorder {
            None => self.decision(now, cause, &request, self.sight_for(&request, None)),
            Some(recorder) => recorder.decide(self, now, cause, request),
        }
    }

    /// Makes a change, and tells the witness if there is one and the change took effect. Decisions wait until then.
    #[inline]
    pub(super) fn change<E>(
        &self,
        now: Time,
        change: impl FnOnce() -> Change,
        act: impl FnOnce(Option<&Tape>) -> Result<NodeId, E>,
    ) -> Result<NodeId, E> {
        let Some(recorder) = &self.recorder else { return act(None) };
        let mut generation = recorder.generation.write().unwrap_or_else(PoisonError::into_inner);
        if !recorder.is_on() {
            return act(None);
        }
        let tape = Tape::blank();
        let node = act(Some(&tape))?;
        *generation += 1;
        let changed =
            Changed { generation: *generation, at: now, change: change(), tape: tape.into_entries(), node };
        recorder.note(recorder.witness.changed(changed));
        Ok(node)
    }
}
