//! The dispatcher of a program: the life of a request, and membership.

mod facts;
mod signals;
mod state;

use crate::error::EmbedError;
use crate::types::{Decision, Feedback, NodeHandle, Outcome, Refusal, RequestFacts};
use larder_config::{ConfigError, EmbeddedConfig, NAME_BYTES_MAX};
use larder_core::dispatch::{self, Arrival, Dispatcher, Request};
use larder_core::policy::Choice;
use larder_core::record::{Header, RecordSink};
use larder_core::{NodeId, NodeSpec, NodeState, PolicyKind, Reason, RouteId, Time, Weight};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// A dispatcher with ids of nodes, for programs that embed it.
///
/// All methods may run in several threads at once. All times come from one monotonic clock of the program.
#[derive(Debug)]
pub struct Embedded {
    dispatcher: Dispatcher,
    slots: Box<[Slot]>,
}

/// The record of a slot of the node table, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// The number of nodes that have had this slot; the upper half of a node id.
    generation: AtomicU16,
    counts: state::Counts,
}

impl Embedded {
    /// Creates a dispatcher. The nodes of the config are up and warm.
    ///
    /// # Errors
    /// [`EmbedError::Config`]: a setting is out of range, two nodes have the same name, or there are more nodes than `nodes_max`. A
    /// parsed config has none of these faults unless it was changed.
    pub fn new(config: EmbeddedConfig) -> Result<Self, EmbedError> {
        Self::with_record_sink(config, |_| None)
    }

    /// As [`Embedded::new`]. `open` may return a sink that receives every decision and every change, beginning with an empty
    /// dispatcher. The header is the beginning of the record.
    ///
    /// # Errors
    /// As for [`Embedded::new`].
    pub fn with_record_sink(
        config: EmbeddedConfig,
        open: impl FnOnce(&Header) -> Option<Box<dyn RecordSink>>,
    ) -> Result<Self, EmbedError> {
        let EmbeddedConfig { mut settings, nodes } = config;
        // The standard library draws the keys of its hash maps at random.
        settings.spread_key = RandomState::new().build_hasher().finish();
        settings.queue_max = 0;
        let slots: Box<[Slot]> = (0..settings.nodes_max).map(|_| Slot::default()).collect();
        slots.iter().take(nodes.len()).for_each(Slot::take);
        let header = Header { settings, routes: Vec::new(), nodes };
        let sink = open(&header);
        let Header { settings, routes, nodes } = header;
        let dispatcher = match sink {
            Some(sink) => Dispatcher::with_record_sink(settings, routes, &nodes, sink),
            None => Dispatcher::with_routes(settings, routes, &nodes),
        };
        let dispatcher = dispatcher.map_err(|error| EmbedError::Config(ConfigError::Settings(error)))?;
        Ok(Self { dispatcher, slots })
    }

    /// Decides which node serves a request, and counts the request as load of that node. Requests do not queue. Allocates no memory
    /// for a known target.
    ///
    /// # Errors
    /// [`EmbedError::Range`]: `exclude` has more than [`crate::EXCLUDE_MAX`] nodes, or the request has a sticky node and an origin.
    /// [`EmbedError::UnknownNode`]: no node has had one of the ids.
    pub fn decide(&self, now: Time, facts: &RequestFacts<'_>) -> Result<Outcome, EmbedError> {
        let request = self.request(facts)?;
        Ok(match self.dispatcher.arrive(now, request) {
            Arrival::Start(choice) => Outcome::Start(self.decision(&request, choice)),
            Arrival::Refused(dispatch::Refusal::NoNode) => Outcome::Refused(Refusal::NoNode),
            Arrival::Refused(_) => Outcome::Refused(Refusal::Limit),
            // The queue has no room, so this does not happen.
            Arrival::Wait(ticket) => {
                self.dispatcher.cancel(ticket);
                Outcome::Refused(Refusal::Limit)
            }
        })
    }

    /// Starts a request at a node that the program has chosen, such as the only node that the request may use. The policy is not asked
    /// and learns nothing. The admission limit holds.
    ///
    /// [`Refusal::NoNode`]: the node was removed. A node in any other state takes the request.
    ///
    /// # Errors
    /// As [`Embedded::decide`], also for `node`.
    pub fn start_at(
        &self,
        now: Time,
        facts: &RequestFacts<'_>,
        node: NodeHandle,
    ) -> Result<Outcome, EmbedError> {
        let Some((request, slot)) = self.usable_slot(facts, node)? else {
            return Ok(Outcome::Refused(Refusal::NoNode));
        };
        if self.dispatcher.outstanding() >= self.dispatcher.admission_limit() {
            return Ok(Outcome::Refused(Refusal::Limit));
        }
        Ok(self.start_in(now, request, slot))
    }

    /// Starts an attempt at a node that the program has chosen, for a request that has another attempt. The request is in admission
    /// already, so the limit does not apply. Each attempt ends with [`Embedded::done`].
    ///
    /// [`Refusal::NoNode`]: as for [`Embedded::start_at`].
    ///
    /// # Errors
    /// As [`Embedded::start_at`].
    pub fn start_again_at(
        &self,
        now: Time,
        facts: &RequestFacts<'_>,
        node: NodeHandle,
    ) -> Result<Outcome, EmbedError> {
        let found = self.usable_slot(facts, node)?;
        Ok(found
            .map_or(Outcome::Refused(Refusal::NoNode), |(request, slot)| self.start_in(now, request, slot)))
    }

    /// Returns the request, and the slot of the node; `None` if the node was removed.
    fn usable_slot(
        &self,
        facts: &RequestFacts<'_>,
        node: NodeHandle,
    ) -> Result<Option<(Request, NodeId)>, EmbedError> {
        let (request, slot) = (self.request(facts)?, self.find_slot(node)?);
        let slot = slot.filter(|slot| self.dispatcher.nodes().state(*slot) != NodeState::Removed);
        Ok(slot.map(|slot| (request, slot)))
    }

    fn start_in(&self, now: Time, request: Request, slot: NodeId) -> Outcome {
        if !self.dispatcher.reuse(now, request, slot) {
            return Outcome::Refused(Refusal::NoNode);
        }
        // If another node has taken the slot meanwhile, that node has the load, and the decision names it.
        Outcome::Start(self.decision(&request, Choice { node: slot, reason: Reason::Reuse }))
    }

    /// Moves a request that failed at `failed.node` to another node. `waited` is the time from that decision to the failure.
    ///
    /// [`Outcome::Start`]: the request ends with the new decision. [`Refusal::NoNode`]: no node is left, and the request has ended.
    ///
    /// # Errors
    /// As [`Embedded::decide`]. [`EmbedError::NoRequest`], [`EmbedError::UnknownNode`] and [`EmbedError::RemovedNode`]: the node of
    /// `failed` has no such request. [`EmbedError::LongLived`]: the request is long-lived.
    pub fn retry(
        &self,
        now: Time,
        facts: &RequestFacts<'_>,
        failed: &Decision,
        waited: Duration,
    ) -> Result<Outcome, EmbedError> {
        let request = self.request(facts)?;
        let node = self.in_flight(failed)?;
        if failed.long_lived {
            return Err(EmbedError::LongLived);
        }
        self.dispatcher.observe_failure(now, &request, node, waited);
        self.slots[node.index()].counts.fail();
        match self.dispatcher.retry(now, node, request) {
            Ok(choice) => Ok(Outcome::Start(self.decision(&request, choice))),
            Err(_) => {
                self.dispatcher.abandon(now, &mut Vec::new());
                Ok(Outcome::Refused(Refusal::NoNode))
            }
        }
    }

    /// Ends a request: its last byte was sent, or it was aborted. Every request that [`Embedded::decide`] has started must be ended
    /// exactly once. `feedback` is what the policy may learn. Allocates no memory for a known target.
    ///
    /// # Errors
    /// [`EmbedError::NoRequest`], [`EmbedError::UnknownNode`] and [`EmbedError::RemovedNode`]: the node has no such request. A second
    /// call for a request ends another request of that node, if there is one. [`EmbedError::Range`]: the status exceeds
    /// [`crate::STATUS_MAX`]; the request has not ended.
    pub fn done(
        &self,
        now: Time,
        decision: &Decision,
        feedback: Option<&Feedback>,
    ) -> Result<(), EmbedError> {
        let node = self.in_flight(decision)?;
        if let Some(feedback) = feedback {
            self.learn(now, node, decision, feedback)?;
        }
        let ended = if decision.long_lived {
            self.dispatcher.end_long_lived(now, node);
            true
        } else {
            self.dispatcher.try_finish_on(now, RouteId::DEFAULT, node, &mut Vec::new())
        };
        if ended { Ok(()) } else { Err(EmbedError::NoRequest(decision.node)) }
    }

    /// Marks a request as long-lived, such as a WebSocket or a stream: it leaves the admission limit and remains load of its node.
    ///
    /// Returns the decision with which the request ends. `None`: nothing has changed, because the request is long-lived already, or
    /// its node has `admission.long_lived.max_per_node` such requests.
    ///
    /// # Errors
    /// [`EmbedError::NoRequest`], [`EmbedError::UnknownNode`] and [`EmbedError::RemovedNode`]: the node has no such request.
    pub fn become_long_lived(&self, now: Time, decision: &Decision) -> Result<Option<Decision>, EmbedError> {
        let node = self.in_flight(decision)?;
        if decision.long_lived {
            return Ok(None);
        }
        let became = self.dispatcher.become_long_lived(now, RouteId::DEFAULT, node, &mut Vec::new());
        Ok(became.then_some(Decision { long_lived: true, ..*decision }))
    }

    /// Adds a node, which is up, and returns its id. The node receives new targets at the pace of `join`, unless `join.warm_targets`
    /// is 0. Nodes that are there from the start belong in the config instead.
    ///
    /// # Errors
    /// [`EmbedError::Range`]: the name has more than [`NAME_BYTES_MAX`] bytes. [`EmbedError::Join`]: the name is empty or taken, or
    /// the table is full.
    pub fn add(&self, now: Time, spec: NodeSpec) -> Result<NodeHandle, EmbedError> {
        if spec.name.len() > NAME_BYTES_MAX {
            let size = spec.name.len();
            return Err(EmbedError::Range(format!(
                "a node's name has {size} bytes: at most {NAME_BYTES_MAX}"
            )));
        }
        let claim = |node: NodeId| self.slots[node.index()].take();
        Ok(self.id(self.dispatcher.join_as(now, spec, claim, &mut Vec::new())?))
    }

    /// Returns the id of the node with this name.
    ///
    /// # Errors
    /// [`EmbedError::UnknownName`]: no node has the name.
    pub fn find(&self, name: &str) -> Result<NodeHandle, EmbedError> {
        let found = self.dispatcher.nodes().id_of(name);
        found.map(|node| self.id(node)).ok_or_else(|| {
            let shown: String = name.chars().take(60).collect();
            EmbedError::UnknownName(shown.escape_debug().to_string())
        })
    }

    /// Returns the state of a node, which is never [`NodeState::Removed`].
    ///
    /// # Errors
    /// [`EmbedError::UnknownNode`]: no node has had the id. [`EmbedError::RemovedNode`]: the node was removed.
    pub fn state(&self, id: NodeHandle) -> Result<NodeState, EmbedError> {
        let node = self.slot_of(id)?;
        match self.dispatcher.nodes().state(node) {
            NodeState::Removed => Err(EmbedError::RemovedNode(id)),
            state => Ok(state),
        }
    }

    /// Changes the state of a node. A node that stops taking requests loses its targets. Its requests in flight continue, and end with
    /// [`Embedded::done`]. The id of a removed node remains valid only for these requests.
    ///
    /// Returns false if the node has this state already.
    ///
    /// # Errors
    /// As [`Embedded::state`].
    pub fn set_state(&self, now: Time, id: NodeHandle, state: NodeState) -> Result<bool, EmbedError> {
        let node = self.member(id)?;
        Ok(self.dispatcher.set_state(now, node, state, &mut Vec::new()))
    }

    /// Changes the weight of a node. Returns false if the node was removed at the same time.
    ///
    /// # Errors
    /// As [`Embedded::state`].
    pub fn set_weight(&self, now: Time, id: NodeHandle, weight: Weight) -> Result<bool, EmbedError> {
        let node = self.member(id)?;
        Ok(self.dispatcher.reweigh(now, node, weight, &mut Vec::new()))
    }

    /// Makes a node a backup, or an ordinary node. Returns false if the node was removed at the same time.
    ///
    /// # Errors
    /// As [`Embedded::state`].
    pub fn set_backup(&self, now: Time, id: NodeHandle, backup: bool) -> Result<bool, EmbedError> {
        let node = self.member(id)?;
        Ok(self.dispatcher.set_backup(now, node, backup, &mut Vec::new()))
    }

    /// Returns the policy.
    pub fn policy(&self) -> PolicyKind {
        self.dispatcher.settings().policy
    }

    /// Returns the number of started requests within the admission limit that have not ended.
    pub fn outstanding(&self) -> u32 {
        self.dispatcher.outstanding()
    }

    /// Returns the number of targets whose servers are stored.
    pub fn targets_known(&self) -> usize {
        self.dispatcher.targets_known()
    }

    /// Returns the dispatcher, for reading. Do not add nodes or start requests through it, because they would have no ids.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Returns the id of the node in a slot.
    fn id(&self, node: NodeId) -> NodeHandle {
        let generation = self.slots[node.index()].generation.load(Ordering::Acquire);
        NodeHandle::new(generation, node.0)
    }

    /// Returns the slot of a node id; `None` if another node has the slot by now.
    ///
    /// # Errors
    /// No node has had this id.
    fn find_slot(&self, id: NodeHandle) -> Result<Option<NodeId>, EmbedError> {
        let slot = self.slots.get(usize::from(id.slot()));
        let now = slot.map_or(0, |slot| slot.generation.load(Ordering::Acquire));
        if id.generation() == 0 || id.generation() > now {
            return Err(EmbedError::UnknownNode(id));
        }
        Ok((id.generation() == now).then_some(NodeId(id.slot())))
    }

    /// Returns the slot of a node that may have been removed.
    fn slot_of(&self, id: NodeHandle) -> Result<NodeId, EmbedError> {
        self.find_slot(id)?.ok_or(EmbedError::RemovedNode(id))
    }

    /// Returns the slot of a node that is a member.
    fn member(&self, id: NodeHandle) -> Result<NodeId, EmbedError> {
        self.state(id).map(|_| NodeId(id.slot()))
    }

    /// Returns the node of a request in flight.
    fn in_flight(&self, decision: &Decision) -> Result<NodeId, EmbedError> {
        let node = self.slot_of(decision.node)?;
        let nodes = self.dispatcher.nodes();
        let requests = if decision.long_lived { nodes.long_lived(node) } else { nodes.short_lived(node) };
        if requests == 0 { Err(EmbedError::NoRequest(decision.node)) } else { Ok(node) }
    }

    fn decision(&self, request: &Request, choice: larder_core::Decision) -> Decision {
        Decision {
            target: request.target,
            node: self.id(choice.node),
            reason: choice.reason,
            class: request.class,
            long_lived: false,
        }
    }
}

impl Slot {
    /// Gives the slot to a new node. Generation 0 means that no node has had it.
    fn take(&self) {
        let next = self.generation.load(Ordering::Acquire).checked_add(1).unwrap_or(1);
        self.counts.clear();
        self.generation.store(next, Ordering::Release);
    }
}
