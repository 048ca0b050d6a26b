//! The invariants. Two hosts never serve one connection; the other invariants hold some time after the last
//! fault.

use super::super::simulation::{Id, Simulation};
use super::clients::{ClientState, LocalSocket};
use super::{EdgeWorld, SETTINGS, SWITCH, id_of, index_of};
use larder_core::NodeId;
use larder_core::handoff::FlowTarget;
use std::collections::BTreeMap;

impl Simulation<'_, EdgeWorld> {
    /// Returns the first invariant that does not hold yet; `None` if all hold.
    pub(super) fn find_violation(&self) -> Option<String> {
        let switch = self.nodes[SWITCH].machine.as_ref()?;
        let machine = &switch.machine;
        if machine.held() + machine.moves() > 0 {
            return Some(format!(
                "{} connections are held, {} are in transit",
                machine.held(),
                machine.moves()
            ));
        }
        let conns = 0..self.world.conns.len();
        conns.into_iter().find_map(|conn| self.find_unserved(conn)).or_else(|| self.find_miscount())
    }

    /// Returns a connection that is not served at exactly one node, has not ended, and whose client was not
    /// reset.
    fn find_unserved(&self, conn: Id) -> Option<String> {
        let one = &self.world.conns[conn];
        if one.here == Some(LocalSocket::Frozen) {
            return Some(format!("connection {conn} is frozen"));
        }
        let at = (1..self.nodes.len()).find(|node| self.socket(*node, conn).is_some());
        if one.client != ClientState::Open {
            return at.map(|node| format!("connection {conn} has ended but is still at {node}"));
        }
        let to = self
            .world
            .plane
            .entries
            .get(&one.key)
            .filter(|entry| entry.conn == conn)
            .map(|entry| entry.flow.to);
        let served = match at {
            Some(node) => {
                self.socket(node, conn).is_some_and(|socket| !socket.frozen)
                    && to == Some(FlowTarget::Node(id_of(node)))
            }
            None => one.here.is_some() && matches!(to, Some(FlowTarget::Here) | None),
        };
        if served {
            None
        } else {
            Some(format!("connection {conn} is served nowhere, and its client was not reset"))
        }
    }

    /// Returns a connection that counts as load and should not, or the reverse.
    fn find_miscount(&self) -> Option<String> {
        let switch = self.nodes[SWITCH].machine.as_ref()?;
        let machine = &switch.machine;
        let mut counted: BTreeMap<NodeId, i64> = BTreeMap::new();
        for key in machine.active() {
            let Some(node) = machine.connection(key).map(|one| one.decision.node) else { continue };
            *counted.entry(node).or_default() += 1;
            let flow = self.world.plane.entries.get(&key).map(|entry| entry.flow);
            let after = |flow: larder_core::handoff::Flow| {
                let answered = flow.last_ack != flow.asked_ack;
                let idle = if answered { SETTINGS.idle_after } else { SETTINGS.unanswered_for };
                idle + core::time::Duration::from_secs(1)
            };
            if flow.is_none_or(|flow| flow.silence(self.now) > after(flow)) {
                return Some(format!(
                    "the connection from port {key} at {} is idle but counts",
                    index_of(node)
                ));
            }
        }
        let loads = switch.loads.borrow();
        for node in (1..self.nodes.len()).map(id_of) {
            let (held, known) =
                (loads.get(&node).copied().unwrap_or(0), counted.get(&node).copied().unwrap_or(0));
            if held != known {
                return Some(format!(
                    "the dispatcher counts {held} at {}, but {known} are there",
                    index_of(node)
                ));
            }
        }
        // Requests in progress at a node count.
        self.find_uncounted()
    }

    /// Returns a connection whose request is in progress at a node and that does not count there.
    fn find_uncounted(&self) -> Option<String> {
        let switch = self.nodes[SWITCH].machine.as_ref()?;
        let lag = core::time::Duration::from_secs(5);
        let active = switch.machine.active();
        self.world.conns.iter().enumerate().find_map(|(conn, one)| {
            let at = (1..self.nodes.len()).any(|node| self.socket(node, conn).is_some());
            let waits = one.asked.is_some_and(|since| self.now - since > lag);
            let missing =
                one.client == ClientState::Open && at && waits && active.binary_search(&one.key).is_err();
            missing.then(|| format!("connection {conn} waits for a reply but does not count"))
        })
    }
}
