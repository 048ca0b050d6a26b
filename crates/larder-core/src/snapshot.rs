//! Snapshots: the learned state of a dispatcher as bytes, for the process that replaces this one.
//!
//! ```text
//! file     = "LRDH" version:u8 count(nodes) (slot name)* count(routes) route* count(routes) (name chains)*
//! chains   = count(nodes) (slot tokens)* runs
//! route    = name policy count(sets) set* count(numbers) number* count(nodes) (slot count(numbers) number*)*
//! set      = target:8 bytes  changed  used | servers << 1  slot*
//! ```
//!
//! *chains* are the capacities and the credits of a route with [chains](crate::chain). *runs* are those that were unused for the
//! longest time first.
//!
//! Numbers are varints. Nodes, routes and policies are identified by name, so that they may have other numbers in the reading
//! process. Times are relative to the same moment in both processes. A process that cannot read a snapshot starts without it,
//! which costs only locality.
//!
//! # Example
//! ```
//! use larder_core::{Arrival, Dispatcher, NodeSpec, Request, RouteId, Settings, Snapshot, TargetId, Time};
//!
//! let before = Dispatcher::new(Settings::default(), &["a", "b"].map(NodeSpec::named))?;
//! let request = Request::new(TargetId::of(b"/logo.png"));
//! let Arrival::Start(placed) = before.arrive(Time::ZERO, request) else { unreachable!() };
//! let bytes = Snapshot::capture(&before, [(RouteId::DEFAULT, "default")]).encode();
//!
//! // The other process lists its nodes in another order.
//! let after = Dispatcher::new(Settings::default(), &["b", "a"].map(NodeSpec::named))?;
//! let restored = Snapshot::decode(&bytes)?.restore(&after, RouteId::DEFAULT, "default");
//! let explained = after.explain(Time::ZERO, request.target).decision.expect("a node is up");
//! assert_eq!((restored, explained.reason.name()), (1, "local"));
//! assert_eq!(after.nodes().name(explained.node), before.nodes().name(placed.node));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::cache::BlockRun;
use crate::chain::SharedChains;
use crate::chain::wire::{put_runs, read_runs};
use crate::dispatch::Dispatcher;
use crate::id::{NodeId, RouteId};
use crate::policy::{LearnedState, PolicyKind};
use crate::time::Time;
use crate::wire::{Wire, WireError, put, put_bytes};
use crate::{TargetId, nodes::NodeState};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;

const MAGIC: &[u8; 4] = b"LRDH";

/// The version of the format, increased when the meaning of the bytes changes.
pub const VERSION: u8 = 2;

/// Limits of decoding, each far above the numbers of a real switch.
const TARGETS_MAX: usize = 1 << 28;
const NUMBERS_MAX: usize = 1 << 16;
const NAME_BYTES_MAX: usize = 1 << 10;

/// The reason why a snapshot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are not a snapshot.
    #[error("it is not a snapshot")]
    Magic,
    /// The snapshot has a version that this process cannot read.
    #[error("its version is {0}, and this larder reads version {VERSION}")]
    Version(u8),
    /// The snapshot is truncated or invalid.
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// The learned state of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RouteState {
    policy: String,
    state: LearnedState,
}

/// The learned state of a dispatcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    nodes: BTreeMap<NodeId, String>,
    routes: BTreeMap<String, RouteState>,
    /// The states of the routes with chains.
    chains: BTreeMap<String, ChainState>,
}

/// The state of a route with chains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ChainState {
    /// Capacities in tokens.
    capacities: Vec<(NodeId, u64)>,
    runs: Vec<(NodeId, BlockRun)>,
}

impl Snapshot {
    /// Returns the learned state of `dispatcher` on these routes, by name.
    pub fn capture<'a>(
        dispatcher: &Dispatcher,
        routes: impl IntoIterator<Item = (RouteId, &'a str)>,
    ) -> Self {
        let rows = dispatcher.nodes().rows().into_iter();
        let members = rows.filter(|row| row.state != NodeState::Removed);
        let learned = |route| {
            let policy = dispatcher.settings_of(route).policy.name().to_owned();
            RouteState { policy, state: dispatcher.learned_state(route) }
        };
        Self {
            nodes: members.map(|row| (row.id, row.name.to_string())).collect(),
            routes: routes.into_iter().map(|(id, name)| (name.to_owned(), learned(id))).collect(),
            chains: BTreeMap::new(),
        }
    }

    /// Adds the capacities and credits of a route of `dispatcher` with chains, by name.
    pub fn capture_chains(&mut self, dispatcher: &Dispatcher, name: &str, chains: &SharedChains) {
        let runs = |node: &NodeId| chains.runs(*node).into_iter().map(|run| (*node, run)).collect::<Vec<_>>();
        let runs = self.nodes.keys().flat_map(runs).collect();
        let capacities = chains.capacities(dispatcher.nodes());
        self.chains.insert(name.to_owned(), ChainState { capacities, runs });
    }

    /// Restores the capacities and credits of the route of this name in `chains`, whose nodes are those of `dispatcher`. Returns the number of
    /// credits that it has then.
    pub fn restore_chains(&self, dispatcher: &Dispatcher, name: &str, chains: &SharedChains) -> usize {
        let nodes = dispatcher.nodes();
        let own = |node: &NodeId| self.nodes.get(node).and_then(|name| nodes.id_of(name));
        if let Some(ChainState { capacities, runs }) = self.chains.get(name) {
            // The credits need the capacity.
            for (node, tokens) in capacities {
                own(node).iter().for_each(|node| chains.set_capacity(nodes, *node, *tokens));
            }
            let run = |(node, run): &(NodeId, BlockRun)| Some((own(node)?, run.clone()));
            chains.merge(nodes, runs.iter().filter_map(run));
        }
        chains.credits()
    }

    /// Restores the state of the route of this name into a route of `dispatcher`, before its first decision. Nodes
    /// are found by name. A policy's numbers are restored only for the same policy; server sets are restored for any
    /// policy. Returns the number of restored targets.
    pub fn restore(&self, dispatcher: &Dispatcher, route: RouteId, name: &str) -> usize {
        let Some(state) = self.state_for(dispatcher, route, name) else { return 0 };
        dispatcher.restore(route, &state);
        state.len()
    }

    /// Returns the state that [`Snapshot::restore`] passes to [`Dispatcher::restore`]; `None` if there is no route of
    /// this name. For callers that restore at another time or with another allocator.
    pub fn state_for(&self, dispatcher: &Dispatcher, route: RouteId, name: &str) -> Option<LearnedState> {
        let learned = self.routes.get(name)?;
        let place = |node: NodeId| self.nodes.get(&node).and_then(|name| dispatcher.nodes().id_of(name));
        let places: BTreeMap<NodeId, NodeId> =
            self.nodes.keys().filter_map(|node| Some((*node, place(*node)?))).collect();
        let state = learned.state.with_nodes(|node| places.get(&node).copied());
        let same: Result<PolicyKind, _> = learned.policy.parse();
        if same == Ok(dispatcher.settings_of(route).policy) { Some(state) } else { Some(state.sets_only()) }
    }

    /// Encodes the snapshot.
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
            put_learned_state(&mut out, &learned.state);
        }
        put(&mut out, self.chains.len() as u64);
        for (name, ChainState { capacities, runs }) in &self.chains {
            put_bytes(&mut out, name.as_bytes());
            put(&mut out, capacities.len() as u64);
            for (node, tokens) in capacities {
                put(&mut out, node.0.into());
                put(&mut out, *tokens);
            }
            put_runs(&mut out, runs);
        }
        out
    }

    /// Decodes a snapshot.
    ///
    /// # Errors
    /// The bytes are not a snapshot, have another version, are truncated, or exceed the limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(SnapshotError::Magic)?;
        let mut wire = Wire(rest);
        let version = wire.byte("version")?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let mut snapshot = Self::default();
        for _ in 0..wire.count("number of nodes", usize::from(u16::MAX))? {
            let node = wire.node()?;
            snapshot.nodes.insert(node, read_name(&mut wire, "node's name")?);
        }
        for _ in 0..wire.count("number of routes", Dispatcher::ROUTES_MAX)? {
            let route = read_name(&mut wire, "route's name")?;
            let policy = read_name(&mut wire, "policy's name")?;
            let state = read_learned_state(&mut wire)?;
            snapshot.routes.insert(route, RouteState { policy, state });
        }
        for _ in 0..wire.count("number of routes", Dispatcher::ROUTES_MAX)? {
            let route = read_name(&mut wire, "route's name")?;
            let count = wire.count("number of nodes", usize::from(u16::MAX))?;
            let capacity = |_| Ok((wire.node()?, wire.number("number of tokens")?));
            let capacities = (0..count).map(capacity).collect::<Result<_, WireError>>()?;
            let runs = read_runs(&mut wire, TARGETS_MAX)?;
            snapshot.chains.insert(route, ChainState { capacities, runs });
        }
        wire.end()?;
        Ok(snapshot)
    }
}

fn read_name(wire: &mut Wire<'_>, what: &'static str) -> Result<String, WireError> {
    let text = wire.text(what)?;
    if text.len() > NAME_BYTES_MAX {
        return Err(WireError::TooLong(text.len() as u64));
    }
    Ok(text.to_owned())
}

pub(crate) fn put_learned_state(out: &mut Vec<u8>, state: &LearnedState) {
    put(out, state.len() as u64);
    for set in state.sets() {
        out.extend_from_slice(&set.target.0.to_le_bytes());
        put(out, set.changed.as_nanos());
        put(out, u64::from(set.used) | (set.servers.len() as u64) << 1);
        set.servers.iter().for_each(|node| put(out, node.0.into()));
    }
    put_numbers(out, &state.numbers);
    put(out, state.per_node.len() as u64);
    for (node, numbers) in &state.per_node {
        put(out, node.0.into());
        put_numbers(out, numbers);
    }
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    put(out, numbers.len() as u64);
    numbers.iter().for_each(|number| put(out, *number));
}

pub(crate) fn read_learned_state(wire: &mut Wire<'_>) -> Result<LearnedState, WireError> {
    let mut state = LearnedState::default();
    for _ in 0..wire.count("number of targets", TARGETS_MAX)? {
        let target = TargetId(wire.word("target")?);
        let changed = Time::from_nanos(wire.number("time")?);
        let head = wire.number("number of servers")?;
        let count = usize::try_from(head >> 1).ok().filter(|count| *count <= usize::from(u16::MAX));
        let count = count.ok_or(WireError::Value { what: "number of servers", value: head >> 1 })?;
        let servers = (0..count).map(|_| wire.node()).collect::<Result<Vec<NodeId>, _>>()?;
        state.push((target, changed, head & 1 == 1), servers.into_iter());
    }
    state.numbers = read_numbers(wire)?;
    for _ in 0..wire.count("number of nodes", usize::from(u16::MAX))? {
        let node = wire.node()?;
        let of = read_numbers(wire)?;
        state.per_node.push((node, of));
    }
    Ok(state)
}

fn read_numbers(wire: &mut Wire<'_>) -> Result<Vec<u64>, WireError> {
    (0..wire.count("number of numbers", NUMBERS_MAX)?).map(|_| wire.number("number")).collect()
}

#[doc(hidden)]
pub mod fuzzing {
    use super::Snapshot;

    /// Decodes bytes from another process, and checks that the encoding of the result decodes to the same.
    pub fn fuzz_snapshot(bytes: &[u8]) {
        if let Ok(snapshot) = Snapshot::decode(bytes) {
            assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Block;
    use crate::chain::{ChainRequest, ChainSettings};
    use crate::dispatch::{Admission, Arrival, Request, Settings};
    use crate::nodes::{GroupId, NodeSpec};
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

    fn capture(dispatcher: &Dispatcher) -> Snapshot {
        Snapshot::capture(dispatcher, [(RouteId::DEFAULT, "default")])
    }

    #[test]
    fn targets_stay_with_their_nodes_in_other_slots_and_policies() {
        let before = dispatcher(PolicyKind::Lard, &["a", "b", "c"]);
        let placed: Vec<(u64, String)> = (0..300).map(|i| i << 30).map(|i| (i, send(&before, i))).collect();
        let snapshot = Snapshot::decode(&capture(&before).encode()).expect("it is whole");
        let after = dispatcher(PolicyKind::LardR, &["d", "c", "a"]);
        let kept = snapshot.restore(&after, RouteId::DEFAULT, "default");
        assert_eq!(kept, placed.iter().filter(|(_, name)| name != "b").count());
        assert_eq!(snapshot.restore(&after, RouteId::DEFAULT, "other"), 0);
        for (target, name) in placed {
            assert!(name == "b" || send(&after, target) == name, "{target} was at {name}");
        }
    }

    #[test]
    fn other_version_is_refused() {
        let mut bytes = capture(&dispatcher(PolicyKind::Lard, &["a"])).encode();
        bytes[4] = VERSION + 1;
        assert_eq!(Snapshot::decode(&bytes), Err(SnapshotError::Version(VERSION + 1)));
        assert_eq!(Snapshot::decode(b"LRDR"), Err(SnapshotError::Magic));
        assert!(matches!(Snapshot::decode(b"LRDH\x02\x01"), Err(SnapshotError::Wire(_))));
    }

    #[test]
    fn credits_stay_with_their_nodes_in_other_slots() {
        let chains = || {
            SharedChains::new(&ChainSettings::default(), 1_000, GroupId::ALL).expect("the settings are valid")
        };
        let block = |id| Block { id: TargetId(id), tokens: 10 };
        let prompts = [[block(1), block(2)], [block(1), block(3)], [block(7), block(8)]];
        let (before, old) = (dispatcher(PolicyKind::Lard, &["a", "b", "c"]), chains());
        let at = |node, prompt: &[Block]| {
            let work =
                old.arrive_at(before.nodes(), NodeId(node), &ChainRequest::new(prompt)).expect("it exists");
            old.finish(prompt, work.work);
        };
        (0..3).for_each(|at_node| at(at_node, &prompts[usize::from(at_node)]));
        let mut snapshot = capture(&before);
        snapshot.capture_chains(&before, "chat", &old);
        let snapshot = Snapshot::decode(&snapshot.encode()).expect("it is whole");
        let (after, new) = (dispatcher(PolicyKind::Lard, &["d", "c", "a"]), chains());
        assert_eq!(snapshot.restore_chains(&after, "other", &new), 0);
        assert_eq!(snapshot.restore_chains(&after, "chat", &new), 4, "node b is gone");
        assert_eq!((new.runs(NodeId(1)), new.runs(NodeId(2))), (old.runs(NodeId(2)), old.runs(NodeId(0))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzzing::fuzz_snapshot(&bytes);
            fuzzing::fuzz_snapshot(&[&b"LRDH\x02"[..], &bytes].concat());
        }
    }
}
