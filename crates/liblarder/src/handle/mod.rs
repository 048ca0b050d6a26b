//! A dispatcher behind a handle: what the calls do, without pointers.

mod facts;
mod signals;
mod state;

use crate::fault::{
    Fault, LARDER_ERROR_CONFIG, LARDER_ERROR_JOIN, LARDER_ERROR_NODE, LARDER_ERROR_REQUEST, LARDER_IGNORED,
    LARDER_OK, LARDER_REFUSED_LIMIT, LARDER_REFUSED_NO_NODE,
};
use crate::types::{Decision, Feedback, NodeHandle};
use facts::reason_code;
pub(crate) use facts::{Outcome, node_state, reason_name};
use larder_config::{EmbeddedConfig, NAME_BYTES_MAX};
use larder_core::dispatch::{Arrival, Dispatcher, Refusal, Request};
use larder_core::{NodeId, NodeSpec, NodeState, RouteId, Time, Weight};
pub(crate) use signals::cache_event;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// A dispatcher of a host.
#[derive(Debug)]
pub struct Handle {
    dispatcher: Dispatcher,
    slots: Box<[Slot]>,
}

/// The library's record of a slot of the node table, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// The number of nodes that have had this slot; the upper half of a node id.
    generation: AtomicU16,
    counts: state::Counts,
}

impl Handle {
    /// Creates a dispatcher from a config.
    pub(crate) fn new(config: &str) -> Result<Self, Fault> {
        let unusable =
            |error: String| Fault::new(LARDER_ERROR_CONFIG, format!("cannot use the config: {error}"));
        let EmbeddedConfig { mut settings, nodes } =
            config.parse().map_err(|error| unusable(format!("{error}")))?;
        // The standard library draws the keys of its hash maps at random.
        settings.spread_key = RandomState::new().build_hasher().finish();
        let slots: Box<[Slot]> = (0..settings.nodes_max).map(|_| Slot::default()).collect();
        slots.iter().take(nodes.len()).for_each(Slot::take);
        let dispatcher = Dispatcher::new(settings, &nodes).map_err(|error| unusable(error.to_string()))?;
        Ok(Self { dispatcher, slots })
    }

    /// Returns the id of the node in a slot.
    fn id(&self, node: NodeId) -> NodeHandle {
        let generation = self.slots[node.index()].generation.load(Ordering::Acquire);
        NodeHandle::from(generation) << 16 | NodeHandle::from(node.0)
    }

    /// Returns the slot of a node id; `None` if another node has the slot by now.
    ///
    /// # Errors
    /// No node has had this id.
    fn find_slot(&self, id: NodeHandle) -> Result<Option<NodeId>, Fault> {
        let (slot, generation) = ((id & 0xFFFF) as u16, (id >> 16) as u16);
        let now = self.slots.get(usize::from(slot)).map_or(0, |slot| slot.generation.load(Ordering::Acquire));
        if generation == 0 || generation > now {
            return Err(Fault::new(LARDER_ERROR_NODE, format!("no node has had the id {id:#x}")));
        }
        Ok((generation == now).then_some(NodeId(slot)))
    }

    /// Returns the slot of a node that may have been removed.
    fn slot_of(&self, id: NodeHandle) -> Result<NodeId, Fault> {
        self.find_slot(id)?.ok_or_else(|| removed(id))
    }

    /// Returns the slot of a node that is a member.
    fn member(&self, id: NodeHandle) -> Result<NodeId, Fault> {
        let node = self.slot_of(id)?;
        match self.dispatcher.nodes().state(node) {
            NodeState::Removed => Err(removed(id)),
            _ => Ok(node),
        }
    }

    /// Decides about a request.
    pub(crate) fn decide(
        &self,
        now: Time,
        facts: &crate::types::Request,
        keys: Keys<'_>,
    ) -> Result<Outcome, Fault> {
        let request = self.request(facts, keys)?;
        Ok(match self.dispatcher.arrive(now, request) {
            Arrival::Start(choice) => Outcome::Start(self.decision(&request, choice)),
            Arrival::Refused(Refusal::NoNode) => Outcome::Refused(LARDER_REFUSED_NO_NODE),
            Arrival::Refused(_) => Outcome::Refused(LARDER_REFUSED_LIMIT),
            // The queue has no room, so this does not happen.
            Arrival::Wait(ticket) => {
                self.dispatcher.cancel(ticket);
                Outcome::Refused(LARDER_REFUSED_LIMIT)
            }
        })
    }

    /// Moves a request that failed at a node to another node.
    pub(crate) fn retry(
        &self,
        now: Time,
        facts: &crate::types::Request,
        keys: Keys<'_>,
        failed: &Decision,
        waited: Duration,
    ) -> Result<Outcome, Fault> {
        let request = self.request(facts, keys)?;
        let node = self.in_flight(failed)?;
        if failed.long_lived != 0 {
            return Err(Fault::new(LARDER_ERROR_REQUEST, "a long-lived request cannot be retried"));
        }
        self.dispatcher.observe_failure(now, &request, node, waited);
        self.slots[node.index()].counts.fail();
        match self.dispatcher.retry(now, node, request) {
            Ok(choice) => Ok(Outcome::Start(self.decision(&request, choice))),
            Err(_) => {
                self.dispatcher.abandon(now, &mut Vec::new());
                Ok(Outcome::Refused(LARDER_REFUSED_NO_NODE))
            }
        }
    }

    /// Ends a request.
    pub(crate) fn done(
        &self,
        now: Time,
        decision: &Decision,
        feedback: Option<&Feedback>,
    ) -> Result<i32, Fault> {
        let node = self.in_flight(decision)?;
        if let Some(feedback) = feedback {
            self.learn(now, node, decision, feedback)?;
        }
        let ended = if decision.long_lived == 0 {
            self.dispatcher.try_finish_on(now, RouteId::DEFAULT, node, &mut Vec::new())
        } else {
            self.dispatcher.end_long_lived(now, node);
            true
        };
        if ended { Ok(LARDER_OK) } else { Err(no_request(decision.node)) }
    }

    /// Takes a request out of the admission limit. Returns the decision with which it ends.
    pub(crate) fn become_long_lived(
        &self,
        now: Time,
        decision: &Decision,
    ) -> Result<Option<Decision>, Fault> {
        let node = self.in_flight(decision)?;
        if decision.long_lived != 0 {
            return Ok(None);
        }
        let became = self.dispatcher.become_long_lived(now, RouteId::DEFAULT, node, &mut Vec::new());
        Ok(became.then_some(Decision { long_lived: 1, ..*decision }))
    }

    /// Returns the node of a request in flight.
    fn in_flight(&self, decision: &Decision) -> Result<NodeId, Fault> {
        facts::check_decision(decision)?;
        let node = self.slot_of(decision.node)?;
        let nodes = self.dispatcher.nodes();
        let requests =
            if decision.long_lived == 0 { nodes.short_lived(node) } else { nodes.long_lived(node) };
        if requests == 0 { Err(no_request(decision.node)) } else { Ok(node) }
    }

    /// Adds a node and returns its id.
    pub(crate) fn add(
        &self,
        now: Time,
        name: &str,
        facts: &crate::types::NodeSpec,
    ) -> Result<NodeHandle, Fault> {
        if name.len() > NAME_BYTES_MAX {
            let what = format!("a node's name has {} bytes: at most {NAME_BYTES_MAX}", name.len());
            return Err(Fault::range(what));
        }
        let weight = match facts.weight_milli {
            0 => Weight::ONE,
            milli => self::weight(milli)?,
        };
        let backup = facts::flag("backup", facts.backup)?;
        let spec = NodeSpec {
            weight,
            cache: larder_core::Bytes(facts.cache_bytes),
            backup,
            ..NodeSpec::named(name)
        };
        let claim = |node: NodeId| self.slots[node.index()].take();
        let joined = self.dispatcher.join_as(now, spec, claim, &mut Vec::new());
        joined.map(|node| self.id(node)).map_err(|error| Fault::new(LARDER_ERROR_JOIN, error.to_string()))
    }

    /// Returns the id of the node with this name.
    pub(crate) fn find(&self, name: &str) -> Result<NodeHandle, Fault> {
        let found = self.dispatcher.nodes().id_of(name);
        found.map(|node| self.id(node)).ok_or_else(|| {
            let shown: String = name.chars().take(60).collect();
            Fault::new(LARDER_ERROR_NODE, format!("no node has the name '{}'", shown.escape_debug()))
        })
    }

    /// Changes the state of a node.
    pub(crate) fn set_state(&self, now: Time, id: NodeHandle, state: NodeState) -> Result<i32, Fault> {
        let node = self.member(id)?;
        Ok(changed(self.dispatcher.set_state(now, node, state, &mut Vec::new())))
    }

    /// Changes the weight of a node.
    pub(crate) fn set_weight(&self, now: Time, id: NodeHandle, milli: u32) -> Result<i32, Fault> {
        let node = self.member(id)?;
        Ok(changed(self.dispatcher.reweigh(now, node, weight(milli)?, &mut Vec::new())))
    }

    /// Makes a node a backup, or an ordinary node.
    pub(crate) fn set_backup(&self, now: Time, id: NodeHandle, backup: u8) -> Result<i32, Fault> {
        let node = self.member(id)?;
        let backup = facts::flag("backup", backup)?;
        Ok(changed(self.dispatcher.set_backup(now, node, backup, &mut Vec::new())))
    }

    fn decision(&self, request: &Request, choice: larder_core::Decision) -> Decision {
        Decision {
            target: request.target.0,
            node: self.id(choice.node),
            reason: reason_code(choice.reason),
            service_class: request.class.index() as u8,
            long_lived: 0,
            reserved: 0,
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

/// The parts of a request that a call reads through pointers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keys<'a> {
    /// The target key; `None` if the host gives the id.
    pub(crate) key: Option<&'a [u8]>,
    /// The nodes at which the request has failed.
    pub(crate) exclude: &'a [NodeHandle],
}

pub(crate) const fn changed(changed: bool) -> i32 {
    if changed { LARDER_OK } else { LARDER_IGNORED }
}

fn weight(milli: u32) -> Result<Weight, Fault> {
    Weight::from_milli(milli)
        .ok_or_else(|| Fault::range(format!("a weight of {milli} is out of range: 1 to 100000, in 1/1000")))
}

fn removed(id: NodeHandle) -> Fault {
    Fault::new(LARDER_ERROR_NODE, format!("the node with the id {id:#x} was removed"))
}

fn no_request(id: NodeHandle) -> Fault {
    let what =
        format!("no such request is in flight at the node with the id {id:#x}: larder_done is called once");
    Fault::new(LARDER_ERROR_REQUEST, what)
}
