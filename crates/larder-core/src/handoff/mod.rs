//! The switch's side of connection handoff, as a state machine.
//!
//! The forwarding plane in the switch's kernel holds the packets of new connections and forwards those of connections that
//! nodes answer. [`EdgeMachine`] keeps what the switch knows of each of them, and decides what is done: its inputs
//! come from the plane, the control channels and the dispatcher ([`Input`]), and its outputs change the plane and go out on the
//! channels ([`Output`]). It has no clock, socket, or lock. The live switch drives it, and so does `larder sim faults`.
//!
//! # A connection's states
//!
//! ```text
//!             Packet (first)
//!                  |
//!                  v         Here, HoldFull, header deadline
//!               [held] ------------------------------------------> accepted by this host (Output::Accept)
//!                  |
//!        At (cookie) | State (repair)          Move (an accepted socket)
//!                  |        |                      |
//!                  |        v                      v
//!                  |     [at a node, on its way] --+--- Refused --> this host again
//!                  |        | Restored
//!                  v        v
//!               [at a node] <--> idle (load given back) ----------> Output::Ended
//!                  ^   |
//!                  |   v
//!               [on its way to another node]
//! ```
//!
//! # Rules
//!
//! - *One owner.* Inputs are given one after the other, and the outputs of an input are carried out before the next input.
//!   [`Output::Point`] and [`Output::Send`] may fail; what the machine does next depends on it, so the driver reports the
//!   result ([`Input::Pointed`], [`Input::NotSent`]).
//! - *Two hosts must never answer one client.* A connection whose state is on its way to a node is kept until the node has
//!   answered. If the node does not answer in time, the connection is reset.
//! - *Addresses come again.* A connection is known by its addresses, which the client may use again at any time. A held
//!   connection has a generation, a move has a number, and a connection at a node has the sequence number of its first byte or the
//!   time at which the plane has known it: an answer that is about an earlier connection changes nothing.
//! - *Load is exact.* What a connection holds at the dispatcher ([`Load`]) is given back when it ends, when nothing moves on it,
//!   and when its client has ended its side. It is taken again if the connection goes on.
//!
//! # Limits
//!
//! | what | limit | beyond it |
//! |---|---|---|
//! | held connections | [`EdgeSettings::held_max`] | accepted by this host |
//! | moves of held connections, while so many moves are under way | [`EdgeSettings::held_max`] | accepted by this host |
//! | moves of accepted sockets | the open files of the process, in the driver | |
//! | bytes of held packets | [`EdgeSettings::held_bytes_max`] | accepted by this host |
//! | handoffs from one node to another | [`EdgeSettings::transfers_max`] | they stay where they are |
//! | connections that go on after their end | [`EdgeSettings::resumed_max`] | noticed with their next packet |
//! | connections at nodes | the plane's table, in the driver | the plane refuses: [`Input::Pointed`] |
//!
//! The mechanisms are in `docs/understand/handoff.md`.

mod connections;
mod context;
mod held;
mod holding;
mod input;
mod lifecycle;
mod listing;
mod moves;
mod moving;
mod nodes;
mod output;
mod parts;
mod settings;
#[cfg(test)]
mod tests;
mod transferring;
mod transfers;

use crate::dispatch::Decision;
use crate::id::NodeId;
use crate::time::Time;
use core::fmt::{self, Debug};

use connections::Connections;
use context::Context;
use held::HeldTable;
use moves::{MoveResult, Moves};
use nodes::Nodes;
use parts::may_be_same;
use transfers::{Resumptions, Transfers};

pub use connections::Connection;
pub use input::{ClientEnd, Input};
pub use output::{AcceptReason, Answer, End, EndedConnection, Note, Output, Pointing, Say};
pub use parts::{Account, Flow, Load, Packet, Parts, To, View};
pub use settings::EdgeSettings;

/// The switch's side of handoff. `T` has the driver's types.
pub struct EdgeMachine<T: Parts> {
    settings: EdgeSettings,
    holding: HeldTable<T::Key, T::Packet>,
    connections: Connections<T::Key, T::Load>,
    moves: Moves<T>,
    transfers: Transfers<T::Key, T::Load>,
    resumed: Resumptions<T::Key>,
    nodes: Nodes<T::Key>,
    /// Another process has the plane.
    let_go: bool,
}

impl<T: Parts> Debug for EdgeMachine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EdgeMachine")
            .field("held", &self.holding.len())
            .field("connections", &self.connections.len())
            .field("moves", &self.moves.len())
            .finish_non_exhaustive()
    }
}

impl<T: Parts> EdgeMachine<T> {
    /// Nothing is known yet.
    pub fn new(settings: EdgeSettings) -> Self {
        Self {
            settings,
            holding: HeldTable::default(),
            connections: Connections::default(),
            moves: Moves::default(),
            transfers: Transfers::default(),
            resumed: Resumptions::default(),
            nodes: Nodes::default(),
            let_go: false,
        }
    }

    /// Handles an input; what is to be done is appended to `out`, in order.
    pub fn handle(&mut self, now: Time, input: Input<T>, view: &dyn View<T::Key>, out: &mut Vec<Output<T>>) {
        let at = &mut Context { now, view, out };
        match input {
            Input::Packet { key, first, packet, late } => self.packet(key, first, packet, late, at),
            Input::Opened { key, decision, load, at: opened } => {
                // An earlier connection with these addresses is gone, if it was still held.
                self.holding.drop_any(key);
                self.enter(key, Connection::new(decision, load, opened), at);
            }
            Input::Woke { key, node } => self.woke(key, node, at),
            Input::ClientEnded { key, end, account, at: when } => {
                self.client_ended(key, end, account, when, at);
            }
            Input::Incomplete { key, generation } => self.await_rest(key, generation, at),
            Input::Waits { key, generation } => self.holding.waits(key, generation),
            Input::Here { key, generation, verdict } => {
                self.accept(key, generation, AcceptReason::Decided(verdict), at);
            }
            Input::At { key, generation, decision, load } => self.hand(key, generation, decision, load, at),
            Input::State { key, generation, decision, load, state, first_seq, complete } => {
                self.give_state((key, generation), (decision, load), (state, first_seq, complete), at);
            }
            Input::Move { key, decision, load, waiter } => self.move_socket(key, decision, load, waiter, at),
            Input::Frozen { key, id, first_seq, first_ack, state } => {
                self.frozen((key, id), (first_seq, first_ack), state, at);
            }
            Input::NotFrozen { key, id } => self.not_frozen(key, id, at),
            Input::Pointed { key, by, done } => self.pointed(key, by, done, at),
            Input::NotSent { id } => self.not_sent(id, at),
            Input::Chosen { key, from, next } => self.chosen(key, from, next, at),
            Input::Up { node } => self.nodes.up(node, at.now, at.out),
            Input::Down { node } => self.nodes.down(node, at.now),
            Input::Named { node, connections, last } => self.named(node, connections, last, at),
            Input::Closed { node, key, first_seq } => self.closed(node, key, first_seq, at),
            Input::Restored { node, id } => self.answered(node, id, MoveResult::Restored, at),
            Input::Refused { node, id, why } => self.answered(node, id, MoveResult::Refused(why), at),
            Input::Leave { node, key } => self.leave(node, key, at),
            Input::GivenUp { node, key, first_seq, state } => {
                self.given_up(node, key, (state, first_seq), at);
            }
            Input::Stay { node, key } => self.stay(node, key, at),
            Input::Tick => self.tick(at),
            Input::Review { key } => self.review(key, at),
            Input::SweepBegins => self.connections.begin_sweep(at.view.now()),
            Input::Seen { key, flow } => self.seen(key, &flow, at),
            Input::SweepEnds => self.end_sweep(at),
            Input::Judge => self.judge(at),
            Input::Adopt { key, decision, load } => {
                let connection = Connection { rested: true, ..Connection::new(decision, load, at.now) };
                self.enter(key, connection, at);
                // Whether its node has it at all.
                self.nodes.ask_at(decision.node, at.now + self.settings.gather + self.settings.unproven_for);
                at.out.push(Output::LoadChanged(decision.node));
            }
            Input::Dead { node } => self.dead(node, at),
            Input::GiveUp { node } => self.give_up(node, at),
            Input::Lost { key } => self.lose(key, None, at),
            Input::GiveBack { key } => self.give_back(key, at),
            Input::LetGo => self.let_go(at),
        }
    }

    /// Connections that are held.
    pub fn held(&self) -> usize {
        self.holding.len()
    }

    /// Connections at nodes.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether no connection is at a node.
    pub fn is_empty(&self) -> bool {
        self.connections.len() == 0
    }

    /// States that are on their way to nodes.
    pub fn moves(&self) -> usize {
        self.moves.len()
    }

    /// The next connection for which a decision is due, with its generation. Its packets: [`Self::packets`].
    pub fn next_undecided(&mut self) -> Option<(T::Key, u64)> {
        self.holding.next_undecided()
    }

    /// The packets of a held connection in the order in which they came, if it is still the one of this generation.
    pub fn packets(&self, key: T::Key, generation: u64) -> Option<&[T::Packet]> {
        self.holding.get(key, generation).map(|held| &*held.packets)
    }

    /// When a header's time is over next: [`Input::Tick`] is to be given by then.
    pub fn due(&self) -> Option<Time> {
        self.holding.due()
    }

    /// Whether a connection's packets are held.
    pub fn holds(&self, key: T::Key) -> bool {
        self.holding.contains(key)
    }

    /// A connection at a node.
    pub fn connection(&self, key: T::Key) -> Option<&Connection<T::Load>> {
        self.connections.get(key)
    }

    /// Connections that count at their nodes.
    pub fn active(&self) -> Vec<T::Key> {
        self.connections.active()
    }

    /// The connections of a node.
    pub fn of_node(&self, node: NodeId) -> Vec<T::Key> {
        self.connections.of_node(node)
    }

    /// Whether a node has connections.
    pub fn has_any(&self, node: NodeId) -> bool {
        self.connections.has_any(node)
    }

    /// Notes that the plane knows a connection, during a sweep. If there is something to do about it, [`Input::Seen`] is to be given.
    pub fn note_seen(&mut self, key: T::Key, flow: &Flow, now: Time) -> bool {
        self.connections.note_seen(key, flow, now, self.settings.idle_after)
    }

    /// Whether a list that a node has named is still to be compared ([`Input::Judge`]).
    pub fn has_lists(&self) -> bool {
        self.nodes.has_lists()
    }
}
