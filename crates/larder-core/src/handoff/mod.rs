//! The switch's side of connection handoff, as a state machine.
//!
//! The forwarding plane in the switch's kernel holds the packets of new connections and forwards those of connections that nodes
//! answer. [`EdgeMachine`] keeps the switch's state of each connection and determines the actions. Its inputs come from the plane,
//! the control channels and the dispatcher ([`Input`]). Its outputs change the plane and are sent on the channels ([`Output`]).
//! It has no clock, socket or lock. The live switch and `larder sim faults` use it.
//!
//! # The states of a connection
//!
//! ```text
//!             Packet (first)
//!                  |
//!                  v         AcceptHere, HoldFull, header deadline
//!               [held] ------------------------------------------> accepted by this host (Output::Accept)
//!                  |
//!   HandOff (cookie) | SendState (repair)      Move (an accepted socket)
//!                  |        |                      |
//!                  |        v                      v
//!                  |     [at a node, on its way] --+--- Refused --> this host again
//!                  |        | Restored
//!                  v        v
//!               [at a node] <--> idle (load released) ------------> Output::Ended
//!                  ^   |
//!                  |   v
//!               [on its way to another node]
//! ```
//!
//! # Rules
//!
//! - *One owner.* Inputs are processed one after the other, and the outputs of an input are executed before the next input.
//!   [`Output::Route`] and [`Output::Send`] may fail. The machine's next step depends on the result, so the driver reports it
//!   ([`Input::Routed`], [`Input::NotSent`]).
//! - *Two hosts must never answer one client.* A connection whose state is on its way to a node is kept until the node has
//!   answered. If the node does not answer in time, the connection is reset.
//! - *Addresses are reused.* A connection is identified by its addresses, which the client may use again at any time. A
//!   held connection has a generation, and a move has a number. A connection at a node has the sequence number of its
//!   first byte, or the time since which the plane has known it. An answer about an earlier connection therefore changes
//!   nothing.
//! - *Load is exact.* The load of a connection at the dispatcher ([`ConnectionLoad`]) is released when the connection ends, when
//!   it is idle, and when its client has closed its side. It is taken again if the connection continues.
//!
//! # Limits
//!
//! | object | limit | above the limit |
//! |---|---|---|
//! | held connections | [`EdgeSettings::held_max`] | accepted by this host |
//! | moves of held connections, while this many moves are pending | [`EdgeSettings::held_max`] | accepted by this host |
//! | moves of accepted sockets | the open files of the process, in the driver | |
//! | bytes of held packets | [`EdgeSettings::held_bytes_max`] | accepted by this host |
//! | handoffs from one node to another | [`EdgeSettings::transfers_max`] | they stay at their nodes |
//! | connections that continue after their end | [`EdgeSettings::resumed_max`] | noticed with their next packet |
//! | connections at nodes | the plane's table, in the driver | the plane refuses: [`Input::Routed`] |
//!
//! The mechanisms are described in `docs/understand/handoff.md`.

mod connections;
mod context;
mod held;
mod held_rules;
mod input;
mod lifecycle;
mod listing;
mod move_rules;
mod moves;
mod nodes;
mod output;
mod parts;
mod settings;
#[cfg(test)]
mod tests;
mod transfer_rules;
mod transfers;

use crate::dispatch::Decision;
use crate::id::NodeId;
use crate::time::Time;
use alloc::vec::Vec;
use core::fmt::{self, Debug};

use connections::Connections;
use context::Context;
use held::HeldTable;
use moves::{MoveResult, Moves};
use nodes::NodeChannels;
use parts::may_be_same;
use transfers::{ResumedConnections, Transfers};

pub use connections::Connection;
pub use input::{ClientEnd, Input};
pub use output::{
    AcceptReason, ConnectionEnd, EndedConnection, LogEvent, Output, RoutePurpose, SocketOutcome,
    TransferMessage,
};
pub use parts::{ConnectionLoad, EdgeTypes, Flow, FlowAccount, FlowLookup, FlowTarget, Packet};
pub use settings::EdgeSettings;

/// The switch's side of handoff. `T` defines the driver's types.
pub struct EdgeMachine<T: EdgeTypes> {
    settings: EdgeSettings,
    holding: HeldTable<T::Key, T::Packet>,
    connections: Connections<T::Key, T::Load>,
    moves: Moves<T>,
    transfers: Transfers<T::Key, T::Load>,
    resumed: ResumedConnections<T::Key>,
    nodes: NodeChannels<T::Key>,
    /// Whether another process has the plane.
    plane_released: bool,
}

impl<T: EdgeTypes> Debug for EdgeMachine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeMachine")
            .field("held", &self.holding.len())
            .field("connections", &self.connections.len())
            .field("moves", &self.moves.len())
            .finish_non_exhaustive()
    }
}

impl<T: EdgeTypes> EdgeMachine<T> {
    /// Creates a machine without connections.
    pub fn new(settings: EdgeSettings) -> Self {
        Self {
            settings,
            holding: HeldTable::default(),
            connections: Connections::default(),
            moves: Moves::default(),
            transfers: Transfers::default(),
            resumed: ResumedConnections::default(),
            nodes: NodeChannels::default(),
            plane_released: false,
        }
    }

    /// Processes an input, and appends the actions to `out`, in order.
    pub fn handle(
        &mut self,
        now: Time,
        input: Input<T>,
        view: &dyn FlowLookup<T::Key>,
        out: &mut Vec<Output<T>>,
    ) {
        let at = &mut Context { now, view, out };
        match input {
            Input::Packet { key, first, packet, late } => self.packet(key, first, packet, late, at),
            Input::Opened { key, decision, load, at: opened } => {
                // An earlier connection with these addresses is gone, even if it was still held.
                self.holding.drop_any(key);
                self.enter(key, Connection::new(decision, load, opened), at);
            }
            Input::Active { key, node } => self.resume(key, node, at),
            Input::ClientEnded { key, end, account, at: when } => {
                self.process_client_end(key, end, account, when, at);
            }
            Input::Incomplete { key, generation } => self.await_rest(key, generation, at),
            Input::AwaitAdmission { key, generation } => self.holding.await_admission(key, generation),
            Input::AcceptHere { key, generation, verdict } => {
                self.accept(key, generation, AcceptReason::Decided(verdict), at);
            }
            Input::HandOff { key, generation, decision, load } => {
                self.accept_by_cookie(key, generation, decision, load, at);
            }
            Input::SendState { key, generation, decision, load, state, first_seq, complete } => {
                self.give_state((key, generation), (decision, load), (state, first_seq, complete), at);
            }
            Input::Move { key, decision, load, waiter } => self.move_socket(key, decision, load, waiter, at),
            Input::Frozen { key, id, first_seq, first_ack, state } => {
                self.socket_frozen((key, id), (first_seq, first_ack), state, at);
            }
            Input::NotFrozen { key, id } => self.socket_not_frozen(key, id, at),
            Input::Routed { key, by, done } => self.routed(key, by, done, at),
            Input::NotSent { id } => self.process_send_failure(id, at),
            Input::Chosen { key, from, next } => self.process_choice(key, from, next, at),
            Input::Up { node } => self.nodes.up(node, at.now, at.out),
            Input::Down { node } => self.nodes.down(node, at.now),
            Input::Listed { node, connections, last } => self.process_list(node, connections, last, at),
            Input::Closed { node, key, first_seq } => self.process_close(node, key, first_seq, at),
            Input::Restored { node, id } => self.process_answer(node, id, MoveResult::Restored, at),
            Input::Refused { node, id, why } => self.process_answer(node, id, MoveResult::Refused(why), at),
            Input::RequestTransfer { node, key } => self.request_transfer(node, key, at),
            Input::TransferState { node, key, first_seq, state } => {
                self.transfer_state(node, key, (state, first_seq), at);
            }
            Input::TransferFailed { node, key } => self.transfer_failed(node, key, at),
            Input::Tick => self.tick(at),
            Input::Review { key } => self.review(key, at),
            Input::SweepBegins => self.connections.begin_sweep(at.view.now()),
            Input::Seen { key, flow } => self.process_unsettled(key, &flow, at),
            Input::SweepEnds => self.end_sweep(at),
            Input::CompareList => self.compare_list(at),
            Input::Adopt { key, decision, load } => {
                let connection = Connection { rested: true, ..Connection::new(decision, load, at.now) };
                self.enter(key, connection, at);
                // The node may not have the connection.
                self.nodes.ask_at(decision.node, at.now + self.settings.gather + self.settings.unproven_for);
                at.out.push(Output::LoadChanged(decision.node));
            }
            Input::Dead { node } => self.fail_node(node, at),
            Input::GiveUp { node } => self.give_up(node, at),
            Input::Lost { key } => self.lose(key, None, at),
            Input::GiveBack { key } => self.give_back(key, at),
            Input::ReleasePlane => self.release_plane(at),
        }
    }

    /// Returns the number of held connections.
    pub fn held(&self) -> usize {
        self.holding.len()
    }

    /// Returns the number of connections at nodes.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns whether no connection is at a node.
    pub fn is_empty(&self) -> bool {
        self.connections.len() == 0
    }

    /// Returns the number of states that are on their way to nodes.
    pub fn moves(&self) -> usize {
        self.moves.len()
    }

    /// Returns the next connection that needs a decision, with its generation. Its packets: [`Self::packets`].
    pub fn next_undecided(&mut self) -> Option<(T::Key, u64)> {
        self.holding.next_undecided()
    }

    /// Returns the packets of a held connection in order of arrival, if it still has this generation.
    pub fn packets(&self, key: T::Key, generation: u64) -> Option<&[T::Packet]> {
        self.holding.get(key, generation).map(|held| &*held.packets)
    }

    /// Returns the next deadline of a header. [`Input::Tick`] must be given by then.
    pub fn due(&self) -> Option<Time> {
        self.holding.due()
    }

    /// Returns whether a connection's packets are held.
    pub fn holds(&self, key: T::Key) -> bool {
        self.holding.contains(key)
    }

    /// Returns a connection at a node.
    pub fn connection(&self, key: T::Key) -> Option<&Connection<T::Load>> {
        self.connections.get(key)
    }

    /// Returns the connections that count at their nodes.
    pub fn active(&self) -> Vec<T::Key> {
        self.connections.active()
    }

    /// Returns the connections of a node.
    pub fn of_node(&self, node: NodeId) -> Vec<T::Key> {
        self.connections.of_node(node)
    }

    /// Returns whether a node has connections.
    pub fn has_any(&self, node: NodeId) -> bool {
        self.connections.has_any(node)
    }

    /// Records, during a sweep, that the plane knows a connection. If it returns true, [`Input::Seen`] must be
    /// given.
    pub fn record_seen(&mut self, key: T::Key, flow: &Flow, now: Time) -> bool {
        self.connections.record_seen(key, flow, now, self.settings.idle_after)
    }

    /// Returns whether a node's list must still be compared ([`Input::CompareList`]).
    pub fn has_lists(&self) -> bool {
        self.nodes.has_lists()
    }
}
