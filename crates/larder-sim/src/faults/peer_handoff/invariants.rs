//! The invariants, which must hold some time after the last fault.

use super::super::agents::number_of;
use super::super::simulation::{Id, Simulation};
use super::PeerHandoffWorld;
use super::clients::{ClientState, LocalSocket};
use super::hosts::FlowTarget;

impl Simulation<'_, PeerHandoffWorld> {
    /// Returns the first invariant that does not hold; `None` if all hold.
    pub(super) fn find_violation(&self) -> Option<String> {
        let conns = 0..self.world.conns.len();
        conns.into_iter().find_map(|conn| self.find_unserved(conn)).or_else(|| {
            let mut nodes = 0..self.nodes.len();
            nodes.find_map(|node| self.find_leftover(node).or_else(|| self.find_mismatch(node)))
        })
    }

    /// Returns a connection that is not served at exactly one node, has not ended, and whose client was not
    /// reset.
    fn find_unserved(&self, conn: Id) -> Option<String> {
        let one = &self.world.conns[conn];
        let of = one.key.initial;
        if one.here == Some(LocalSocket::Frozen) {
            return Some(format!("connection {conn} of {of} is frozen"));
        }
        let mut nodes = 0..self.nodes.len();
        let at = nodes.find(|node| self.socket(*node, conn).is_some());
        let here = one.here == Some(LocalSocket::Live);
        if one.client != ClientState::Open {
            let place = if here { Some(of) } else { at };
            return place.map(|node| format!("connection {conn} of {of} has ended but is still at {node}"));
        }
        let served = match at {
            Some(node) => self.is_routed_to(one.key, node),
            None => here && !self.world.hosts[of].plane.contains_key(&one.key),
        };
        if !served {
            return Some(format!(
                "connection {conn} of {of} is served nowhere, and its client was not reset"
            ));
        }
        (served && !one.stays).then(|| format!("connection {conn} of {of} has not ended"))
    }

    /// Returns state that a node's process should no longer have.
    fn find_leftover(&self, node: Id) -> Option<String> {
        let machine = &self.nodes[node].machine;
        if let Some(conn) = machine.moves.keys().next() {
            return Some(format!("the move of connection {conn} has not ended at {node}"));
        }
        let counted = machine.handoff.counted_connections();
        counted.first().map(|key| format!("a dispatcher counts {key:?}, which is idle or has ended"))
    }

    /// Returns a difference between a node's table, its plane, and the connections of its peers.
    fn find_mismatch(&self, node: Id) -> Option<String> {
        let (host, handoff) = (&self.world.hosts[node], &self.nodes[node].machine.handoff);
        for (key, handed) in handoff.connections() {
            let at = host.owners.get(&handed.slot).copied();
            let there = at.and_then(|at| self.world.taking.hosts[at].sockets.get(&key));
            if there.is_none_or(|there| handed.first_seq.is_some_and(|ours| ours != number_of(there.conn))) {
                return Some(format!("{node} has {key:?} in its table, but {at:?} has {there:?}"));
            }
        }
        let away: std::collections::BTreeSet<_> = handoff.connections().map(|(key, _)| key).collect();
        let unknown = host.plane.iter().find(|(key, flow)| flow.is_moved() && !away.contains(*key));
        if let Some((key, _)) = unknown {
            return Some(format!("{node} forwards {key:?}, which is not in its table"));
        }
        for (at, other) in self.world.taking.hosts.iter().enumerate() {
            for (key, socket) in other.sockets.iter().filter(|(key, _)| key.initial == node) {
                let conn = socket.conn;
                let forwarded = matches!(host.plane.get(key).map(|flow| flow.to), Some(FlowTarget::Node(_)));
                let known = away.contains(key) || (forwarded && self.world.conns[conn].told);
                if !known {
                    return Some(format!(
                        "{at} has {key:?}, connection {conn}, which is not in the table of {node}"
                    ));
                }
            }
        }
        None
    }
}
