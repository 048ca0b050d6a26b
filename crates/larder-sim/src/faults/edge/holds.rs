//! The invariants. Two hosts never serve one connection; the other invariants hold some time after the last
//! fault.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::clients::{Client, Here};
use super::{Edge, Machine, SETTINGS, SWITCH, id_of, place_of};
use larder_core::NodeId;
use larder_core::handoff::To;
use std::collections::BTreeMap;

impl Ground<'_, Edge> {
    /// Returns an error if two hosts serve a connection. Called when a host begins to serve it.
    pub(super) fn one_host(&mut self, conn: Id) -> Result<(), Violation> {
        let key = self.own.conns[conn].key;
        let at = |host: &&super::nodes::Host| {
            host.sockets.get(&key).is_some_and(|socket| socket.conn == conn && !socket.frozen)
        };
        let nodes = self.own.hosts.iter().filter(at).count();
        let here = usize::from(self.own.conns[conn].here == Some(Here::Live));
        if nodes + here > 1 && self.own.conns[conn].client == Client::Open {
            return Err(self.violation(format!("connection {conn} is served twice")));
        }
        Ok(())
    }

    /// Returns the first invariant that does not hold yet; `None` if all hold.
    pub(super) fn unsettled(&self) -> Option<String> {
        let Machine::Switch(switch) = &self.nodes[SWITCH].machine else { return None };
        let machine = &switch.machine;
        if machine.held() + machine.moves() > 0 {
            return Some(format!("{} are held, {} on their way", machine.held(), machine.moves()));
        }
        let conns = 0..self.own.conns.len();
        conns.into_iter().find_map(|conn| self.unserved(conn)).or_else(|| self.miscounted())
    }

    /// Returns a connection that is not served at exactly one node, has not ended, and whose client was not
    /// reset.
    fn unserved(&self, conn: Id) -> Option<String> {
        let one = &self.own.conns[conn];
        if one.here == Some(Here::Frozen) {
            return Some(format!("connection {conn} is frozen"));
        }
        let socket =
            |node: &Id| self.own.hosts[*node].sockets.get(&one.key).filter(|socket| socket.conn == conn);
        let at = (1..self.nodes.len()).find(|node| socket(node).is_some());
        if one.client != Client::Open {
            return at.map(|node| format!("connection {conn} has ended and is still at {node}"));
        }
        let to = self
            .own
            .plane
            .entries
            .get(&one.key)
            .filter(|entry| entry.conn == conn)
            .map(|entry| entry.flow.to);
        let served = match at {
            Some(node) => {
                socket(&node).is_some_and(|socket| !socket.frozen) && to == Some(To::Node(id_of(node)))
            }
            None => one.here.is_some() && matches!(to, Some(To::Here) | None),
        };
        if served {
            None
        } else {
            Some(format!("connection {conn} is served nowhere, and its client was not told"))
        }
    }

    /// Returns a connection that counts as load and should not, or the reverse.
    fn miscounted(&self) -> Option<String> {
        let Machine::Switch(switch) = &self.nodes[SWITCH].machine else { return None };
        let machine = &switch.machine;
        let mut counted: BTreeMap<NodeId, i64> = BTreeMap::new();
        for key in machine.active() {
            let Some(node) = machine.connection(key).map(|one| one.decision.node) else { continue };
            *counted.entry(node).or_default() += 1;
            let flow = self.own.plane.entries.get(&key).map(|entry| entry.flow);
            let after = |flow: larder_core::handoff::Flow| {
                let answered = flow.last_ack != flow.asked_ack;
                let idle = if answered { SETTINGS.idle_after } else { SETTINGS.unanswered_for };
                idle + core::time::Duration::from_secs(1)
            };
            if flow.is_none_or(|flow| flow.silence(self.now) > after(flow)) {
                return Some(format!(
                    "the connection from port {key} at {} rests and counts",
                    place_of(node)
                ));
            }
        }
        let loads = switch.loads.borrow();
        for node in (1..self.nodes.len()).map(id_of) {
            let (held, known) =
                (loads.get(&node).copied().unwrap_or(0), counted.get(&node).copied().unwrap_or(0));
            if held != known {
                return Some(format!(
                    "the dispatcher counts {held} at {}, {known} are there",
                    place_of(node)
                ));
            }
        }
        // Requests in progress at a node count.
        self.uncounted()
    }

    /// Returns a connection whose request is in progress at a node and that does not count there.
    fn uncounted(&self) -> Option<String> {
        let Machine::Switch(switch) = &self.nodes[SWITCH].machine else { return None };
        let lag = core::time::Duration::from_secs(5);
        let active = switch.machine.active();
        self.own.conns.iter().enumerate().find_map(|(conn, one)| {
            let at =
                self.own.hosts.iter().any(|host| host.sockets.get(&one.key).is_some_and(|s| s.conn == conn));
            let waits = one.asked.is_some_and(|since| self.now - since > lag);
            let missing =
                one.client == Client::Open && at && waits && active.binary_search(&one.key).is_err();
            missing.then(|| format!("connection {conn} waits for a reply and does not count"))
        })
    }
}
