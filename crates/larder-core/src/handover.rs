//! What a dispatcher has learned, as bytes: for the process that takes over from this one.
//!
//! ```text
//! file     = "LRDH" version:u8 count(nodes) (slot name)* count(routes) route*
//! route    = name policy count(sets) set* count(numbers) number* count(nodes) (slot count(numbers) number*)*
//! set      = target:8 bytes  changed  used | servers << 1  slot*
//! ```
//! Numbers are varints. Nodes, routes and policies are known by name, so that the reader may have them in other places.
//! Times count from the same moment in both processes. Whoever cannot read it begins without: only locality suffers.

use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::policy::{LearnedState, PolicyKind};
use crate::time::Time;
use crate::wire::{Wire, WireError, put, put_bytes};
use crate::{TargetId, nodes::NodeState};
use std::collections::BTreeMap;

const MAGIC: &[u8; 4] = b"LRDH";

/// Raised when the bytes change their meaning.
pub const VERSION: u8 = 1;

/// Limits of what is read: each far above what a switch has.
const TARGETS_MAX: usize = 1 << 28;
const NUMBERS_MAX: usize = 1 << 16;
const NAME_BYTES_MAX: usize = 1 << 10;

/// Why what a predecessor has learned cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoverError {
    /// It is something else.
    #[error("it is no handover")]
    Magic,
    /// It is of a version that this one cannot read.
    #[error("it is of version {0}, and this one reads {VERSION}")]
    Version(u8),
    /// It breaks off or makes no sense.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// What was learned on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OfRoute {
    policy: String,
    memory: LearnedState,
}

/// What a dispatcher has learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    nodes: BTreeMap<NodeId, String>,
    routes: BTreeMap<String, OfRoute>,
}

impl Handover {
    /// What `dispatcher` has learned on these routes, by name.
    pub fn of<'a>(dispatcher: &Dispatcher, routes: impl IntoIterator<Item = (RouteId, &'a str)>) -> Self {
        let rows = dispatcher.nodes().rows().into_iter();
        let members = rows.filter(|row| row.state != NodeState::Removed);
        let learned = |route| {
            let policy = dispatcher.settings_of(route).policy.name().to_owned();
            OfRoute { policy, memory: dispatcher.learned_state(route) }
        };
        Self {
            nodes: members.map(|row| (row.id, row.name.to_string())).collect(),
            routes: routes.into_iter().map(|(id, name)| (name.to_owned(), learned(id))).collect(),
        }
    }

    /// Lays what was learned on the route of this name into a route of `dispatcher`, before its first decision. Nodes are
    /// found by name. What numbers a policy has kept is for its like alone; server sets are for any. Returns the number of
    /// targets taken over.
    pub fn lay(&self, dispatcher: &Dispatcher, route: RouteId, name: &str) -> usize {
        let Some(learned) = self.routes.get(name) else { return 0 };
        let place = |node: NodeId| self.nodes.get(&node).and_then(|name| dispatcher.nodes().id_of(name));
        let places: BTreeMap<NodeId, NodeId> =
            self.nodes.keys().filter_map(|node| Some((*node, place(*node)?))).collect();
        let mut memory = learned.memory.with_nodes(|node| places.get(&node).copied());
        let same: Result<PolicyKind, _> = learned.policy.parse();
        if same != Ok(dispatcher.settings_of(route).policy) {
            memory = memory.sets_only();
        }
        dispatcher.restore(route, &memory);
        memory.len()
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.push(VERSION);
        put(&mut out, self.nodes.len() as u64);
        for (node, name) in &self.nodes {
            put(&mut out, node.0.into());
            put_bytes(&mut out, name.as_bytes());
        }
        put(&mut out, self.routes.len() as u64);
        for (name, learned) in &self.routes {
            put_bytes(&mut out, name.as_bytes());
            put_bytes(&mut out, learned.policy.as_bytes());
            put_memory(&mut out, &learned.memory);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are something else, of another version, broken off, or beyond what a switch can have.
    pub fn decode(bytes: &[u8]) -> Result<Self, HandoverError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(HandoverError::Magic)?;
        let mut wire = Wire(rest);
        let version = wire.byte("version")?;
        if version != VERSION {
            return Err(HandoverError::Version(version));
        }
        let mut handover = Self::default();
        for _ in 0..wire.count("number of nodes", usize::from(u16::MAX))? {
            let node = wire.node()?;
            handover.nodes.insert(node, name(&mut wire, "node's name")?);
        }
        for _ in 0..wire.count("number of routes", Dispatcher::ROUTES_MAX)? {
            let route = name(&mut wire, "route's name")?;
            let policy = name(&mut wire, "policy's name")?;
            let memory = memory(&mut wire)?;
            handover.routes.insert(route, OfRoute { policy, memory });
        }
        wire.end()?;
        Ok(handover)
    }
}

fn name(wire: &mut Wire<'_>, what: &'static str) -> Result<String, WireError> {
    let text = wire.text(what)?;
    if text.len() > NAME_BYTES_MAX {
        return Err(WireError::TooLong(text.len() as u64));
    }
    Ok(text.to_owned())
}

pub(crate) fn put_memory(out: &mut Vec<u8>, memory: &LearnedState) {
    put(out, memory.len() as u64);
    for set in memory.sets() {
        out.extend_from_slice(&set.target.0.to_le_bytes());
        put(out, set.changed.as_nanos());
        put(out, u64::from(set.used) | (set.servers.len() as u64) << 1);
        set.servers.iter().for_each(|node| put(out, node.0.into()));
    }
    put_numbers(out, &memory.numbers);
    put(out, memory.per_node.len() as u64);
    for (node, numbers) in &memory.per_node {
        put(out, node.0.into());
        put_numbers(out, numbers);
    }
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    put(out, numbers.len() as u64);
    numbers.iter().for_each(|number| put(out, *number));
}

pub(crate) fn memory(wire: &mut Wire<'_>) -> Result<LearnedState, WireError> {
    let mut memory = LearnedState::default();
    for _ in 0..wire.count("number of targets", TARGETS_MAX)? {
        let target = TargetId(wire.word("target")?);
        let changed = Time::from_nanos(wire.number("time")?);
        let head = wire.number("number of servers")?;
        let count = usize::try_from(head >> 1).ok().filter(|count| *count <= usize::from(u16::MAX));
        let count = count.ok_or(WireError::Value { what: "number of servers", value: head >> 1 })?;
        let servers = (0..count).map(|_| wire.node()).collect::<Result<Vec<NodeId>, _>>()?;
        memory.push((target, changed, head & 1 == 1), servers.into_iter());
    }
    memory.numbers = numbers(wire)?;
    for _ in 0..wire.count("number of nodes", usize::from(u16::MAX))? {
        let node = wire.node()?;
        let of = numbers(wire)?;
        memory.per_node.push((node, of));
    }
    Ok(memory)
}

fn numbers(wire: &mut Wire<'_>) -> Result<Vec<u64>, WireError> {
    (0..wire.count("number of numbers", NUMBERS_MAX)?).map(|_| wire.number("number")).collect()
}

#[doc(hidden)]
pub mod fuzzing {
    use super::Handover;

    /// Reads bytes from another process: what is read is written the same way.
    pub fn fuzz_handover(bytes: &[u8]) {
        if let Ok(handover) = Handover::decode(bytes) {
            assert_eq!(Handover::decode(&handover.encode()), Ok(handover));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Arrival, Request, Settings};
    use crate::nodes::NodeSpec;
    use proptest::prelude::*;

    fn dispatcher(policy: PolicyKind, names: &[&str]) -> Dispatcher {
        let settings = Settings { policy, admission: Admission::Unlimited, ..Settings::default() };
        Dispatcher::new(settings, &names.iter().map(|name| NodeSpec::named(*name)).collect::<Vec<_>>())
            .expect("valid")
    }

    fn send(dispatcher: &Dispatcher, target: u64) -> String {
        match dispatcher.arrive(Time::ZERO, Request::new(TargetId(target))) {
            Arrival::Start(decision) => {
                dispatcher.finish(Time::ZERO, decision.node, &mut Vec::new());
                dispatcher.nodes().name(decision.node).to_string()
            }
            other => panic!("expected a start, got {other:?}"),
        }
    }

    fn of(dispatcher: &Dispatcher) -> Handover {
        Handover::of(dispatcher, [(RouteId::DEFAULT, "default")])
    }

    #[test]
    fn targets_stay_with_their_nodes_wherever_these_stand_and_by_another_policy() {
        let before = dispatcher(PolicyKind::Lard, &["a", "b", "c"]);
        let placed: Vec<(u64, String)> = (0..300).map(|i| i << 30).map(|i| (i, send(&before, i))).collect();
        let handover = Handover::decode(&of(&before).encode()).expect("it is whole");
        let after = dispatcher(PolicyKind::LardR, &["d", "c", "a"]);
        let kept = handover.lay(&after, RouteId::DEFAULT, "default");
        assert_eq!(kept, placed.iter().filter(|(_, name)| name != "b").count());
        assert_eq!(handover.lay(&after, RouteId::DEFAULT, "other"), 0);
        for (target, name) in placed {
            assert!(name == "b" || send(&after, target) == name, "{target} was at {name}");
        }
    }

    #[test]
    fn another_version_is_told() {
        let mut bytes = of(&dispatcher(PolicyKind::Lard, &["a"])).encode();
        bytes[4] = VERSION + 1;
        assert_eq!(Handover::decode(&bytes), Err(HandoverError::Version(VERSION + 1)));
        assert_eq!(Handover::decode(b"LRDR"), Err(HandoverError::Magic));
        assert!(matches!(Handover::decode(b"LRDH\x01\x01"), Err(HandoverError::Wire(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzzing::fuzz_handover(&bytes);
            fuzzing::fuzz_handover(&[&b"LRDH\x01"[..], &bytes].concat());
        }
    }
}
