//! How connections end: by what the plane sees of the client, and by their node's word.

use super::edge::Edge;
use super::fabric::Fabric as _;
use super::lock::lock;
use super::mechanism::Mechanism;
use super::table::End;
use larder_core::{NodeId, Time};
use larder_handoff::FlowKey;
use larder_handoff::abi::flow_flag;
use larder_handoff::plane::Account;
use std::time::Duration;

/// A node's word that a connection has ended is not older than this: it tells them every 100 ms.
const WORDS_AGE: Duration = Duration::from_millis(500);

impl Edge {
    /// The client has ended its side, or all, or has begun anew on the same addresses.
    pub(super) fn client_ended(&self, key: FlowKey, flags: u8, account: Account, at: Time) {
        if flags & flow_flag::CLIENT_RST != 0 {
            // Whoever waits for its admission finds it gone.
            lock(&self.holding).take(key, None);
            return self.end_with(key, End::ClientReset, || Some(account));
        }
        if flags & flow_flag::CLIENT_FIN == 0 {
            return self.end_with(key, End::Replaced, || Some(account));
        }
        if !self.config.mends.entry_outlives {
            self.fabric.remove_flow(key);
        }
        // Most often this is the answer to the node's end. It may also have asked for all it wants, and the node go on
        // sending: then what it acknowledges is told. One that has had nothing yet waits for its reply.
        let rests = lock(&self.table).get_mut(key).is_some_and(|handed| handed.idle);
        if rests || flags & flow_flag::ACKED != 0 {
            let node = lock(&self.table).close(key, account, at, self.decider.clock.now());
            node.into_iter().for_each(|node| self.set_bases(node));
        }
    }

    /// A node says that a connection has ended there.
    /// The sequence number of the client's first byte tells which one of these addresses; 0 if it is not known.
    pub(super) fn node_ended(&self, key: FlowKey, first_seq: u32, node: NodeId) {
        let ours = {
            let mut table = lock(&self.table);
            table.get_mut(key).filter(|handed| handed.decision.node == node).map(|handed| handed.closing)
        };
        if let Some(Some((account, _))) = ours {
            return self.end_with(key, End::Closed, || Some(account));
        }
        // Of a moved connection the plane may not have seen the first byte.
        let moved = lock(&self.table).get_mut(key).and_then(|handed| handed.first_seq);
        let another = |own: u32| first_seq != 0 && own != 0 && own != first_seq;
        // A node that was not told the number of a connection that moved: its word may be about the predecessor, told with
        // others of its time.
        let young = first_seq == 0 && {
            let now = self.decider.clock.now();
            lock(&self.table).get_mut(key).is_some_and(|handed| {
                handed.delivery.mechanism == Mechanism::Repair && now.since(handed.opened) < WORDS_AGE
            })
        };
        if young {
            return self.peers.ask_again(node, Some(self.decider.clock.now() + WORDS_AGE));
        }
        let own = moved.or_else(|| self.fabric.flow(key).map(|flow| flow.first_seq));
        if ours.is_some() && !own.is_some_and(another) {
            // The client's FIN may have come before the plane knew the connection, or never, if the node has reset it.
            self.fabric.set_ended(key);
            self.end(key, End::Closed);
        }
    }

    /// A connection ends, if there is one.
    pub(super) fn end(&self, key: FlowKey, end: End) {
        self.end_with(key, end, || self.account(key));
    }

    /// The same, where it is known what the plane has seen of it.
    pub(super) fn end_with(&self, key: FlowKey, end: End, account: impl FnOnce() -> Option<Account>) {
        let handed = lock(&self.table).take(key);
        if let Some(handed) = handed {
            self.finish(key, handed, end, account());
        }
    }

    /// What the plane has seen of a connection.
    pub(super) fn account(&self, key: FlowKey) -> Option<Account> {
        self.fabric.flow(key).as_ref().and_then(Account::of)
    }
}
