//! States on their way to nodes.

use super::connections::{Connection, OnItsWay};
use super::moves::{Kind, Move, MoveResult, PendingState};
use super::nodes::ConnectionList;
use super::{
    AcceptReason, Answer, Context, Decision, EdgeMachine, End, Note, Output, Parts, Pointing, To, may_be_same,
};
use crate::id::NodeId;
use core::time::Duration;

/// Interval at which it is checked whether the client of a move still waits: TCP tries to connect again after a second.
const LOOK: Duration = Duration::from_millis(250);

impl<T: Parts> EdgeMachine<T> {
    // -- the state of a held connection

    /// A node gets the state of a held connection.
    pub(super) fn give_state(
        &mut self,
        (key, generation): (T::Key, u64),
        (decision, load): (Decision, T::Load),
        (state, first_seq, complete): (T::State, u32, bool),
        at: &mut Context<'_, T>,
    ) {
        // What is kept until nodes have answered has the limit of what is held.
        if self.moves.len() >= self.settings.held_max {
            return self.accept(key, generation, AcceptReason::MovesFull(decision, load), at);
        }
        let Some(held) = self.take_decided(key, generation, at) else { return };
        debug_assert!(!self.let_go, "nothing is held any more");
        let unsent = Some(PendingState { decision, load, state, first_seq, complete });
        let kind = Kind::Held { packets: held.packets, unsent };
        let id = self.moves.begin(decision.node, key, at.now + self.settings.doubt, kind);
        at.out.push(Output::Point { key, to: To::Node(decision.node), by: Pointing::Move(id) });
    }

    // -- an accepted socket

    /// An accepted socket is to move.
    pub(super) fn move_socket(
        &mut self,
        key: T::Key,
        decision: Decision,
        load: T::Load,
        waiter: T::Waiter,
        at: &mut Context<'_, T>,
    ) {
        if self.let_go {
            at.out.push(Output::NotMoved { load: Some((decision, load)) });
            return;
        }
        let kind = Kind::Socket { waiter, waits: Some((decision, load)) };
        let id = self.moves.begin(decision.node, key, at.now + self.settings.doubt, kind);
        if self.settings.forward_first {
            at.out.push(Output::Point { key, to: To::Node(decision.node), by: Pointing::Move(id) });
        } else {
            at.out.push(Output::Freeze { id });
        }
    }

    /// The plane forwards the packets of a connection that moves, or has no room for it.
    pub(super) fn pointed(&mut self, key: T::Key, by: Pointing, done: bool, at: &mut Context<'_, T>) {
        match by {
            Pointing::Move(id) => self.pointed_move(key, id, done, at),
            Pointing::Transfer => self.pointed_transfer(key, done, at),
            // The node may have accepted it, so this host must not; and the client's packets would not reach the node.
            Pointing::Handed { ack } if !done => self.lose(key, ack, at),
            Pointing::Handed { .. } | Pointing::Back => {}
        }
    }

    fn pointed_move(&mut self, key: T::Key, id: u64, done: bool, at: &mut Context<'_, T>) {
        let Some(one) = self.moves.by_id.get_mut(&id) else { return };
        let node = one.node;
        match &mut one.kind {
            Kind::Held { unsent, .. } if done => {
                let Some(PendingState { decision, load, state, first_seq, complete }) = unsent.take() else {
                    return;
                };
                (one.sent, one.first_seq) = (Some(self.nodes.asked(node)), first_seq);
                let connection =
                    Connection { first_seq: Some(first_seq), ..Connection::new(decision, load, at.now) };
                self.enter_moving(key, id, connection, at);
                let then = if complete { Vec::new() } else { self.moves.packets(id) };
                at.out.push(Output::Send { node, id, key, first_seq, state, then });
            }
            Kind::Held { .. } => {
                let Some(Move { kind: Kind::Held { packets, unsent: Some(unsent) }, .. }) =
                    self.moves.remove(id)
                else {
                    return;
                };
                let why = AcceptReason::Failed(unsent.decision, unsent.load);
                at.out.push(Output::Accept { key, why, packets });
            }
            // Forwarded after its node has said that it has it: only without the mend of that race.
            Kind::Socket { waits: None, .. } | Kind::Transfer => {}
            Kind::Socket { waits, .. } if done => {
                if let Some((decision, load)) = waits.take() {
                    self.enter_moving(key, id, Connection::new(decision, load, at.now), at);
                    at.out.push(Output::Freeze { id });
                }
            }
            Kind::Socket { waits, .. } => {
                let load = waits.take();
                self.moves.remove(id);
                at.out.push(Output::NotMoved { load });
            }
        }
    }

    /// It is one of the node's connections from here on: it may end before the node has said that it has it.
    fn enter_moving(
        &mut self,
        key: T::Key,
        id: u64,
        connection: Connection<T::Load>,
        at: &mut Context<'_, T>,
    ) {
        let on_its_way = Some(OnItsWay { id, entered: at.view.now() });
        self.enter(key, Connection { on_its_way, ..connection }, at);
    }

    pub(super) fn frozen(
        &mut self,
        (key, id): (T::Key, u64),
        (first_seq, first_ack): (u32, u32),
        state: T::State,
        at: &mut Context<'_, T>,
    ) {
        let Some(one) = self.moves.by_id.get_mut(&id) else { return };
        let node = one.node;
        (one.sent, one.first_seq) = (Some(self.nodes.asked(node)), first_seq);
        if let Some(connection) = self.connections.get_mut(key).filter(|one| one.is_move(id)) {
            (connection.first_ack, connection.first_seq) = (Some(first_ack), Some(first_seq));
        }
        at.out.push(Output::Send { node, id, key, first_seq, state, then: Vec::new() });
    }

    pub(super) fn not_frozen(&mut self, key: T::Key, id: u64, at: &mut Context<'_, T>) {
        let Some(Move { kind: Kind::Socket { waits, .. }, .. }) = self.moves.remove(id) else { return };
        let load = self.turn_back(key, id, waits, at);
        at.out.push(Output::NotMoved { load });
    }

    /// The connection's packets come here again: gives what it holds. `None` if it has ended meanwhile.
    fn turn_back(
        &mut self,
        key: T::Key,
        id: u64,
        waits: Option<(Decision, T::Load)>,
        at: &mut Context<'_, T>,
    ) -> Option<(Decision, T::Load)> {
        // Packets that have never gone elsewhere need not come back.
        if waits.is_some() {
            return waits;
        }
        let Connection { decision, load, .. } = self.take_moving(key, id, at)?;
        at.out.push(Output::Point { key, to: To::Here, by: Pointing::Back });
        Some((decision, load))
    }

    // -- a connection that another node gives up

    pub(super) fn send_transferred(
        &mut self,
        node: NodeId,
        key: T::Key,
        (state, first_seq): (T::State, u32),
        at: &mut Context<'_, T>,
    ) {
        let id = self.moves.begin(node, key, at.now + self.settings.doubt, Kind::Transfer);
        if let Some(one) = self.moves.by_id.get_mut(&id) {
            (one.sent, one.first_seq) = (Some(self.nodes.asked(node)), first_seq);
        }
        at.out.push(Output::Send { node, id, key, first_seq, state, then: Vec::new() });
    }

    // -- answers

    /// A state could not be sent.
    pub(super) fn not_sent(&mut self, id: u64, at: &mut Context<'_, T>) {
        let Some(Move { key, kind, .. }) = self.moves.remove(id) else { return };
        match kind {
            Kind::Held { packets, .. } => self.stays(key, id, packets, at),
            Kind::Socket { waiter, waits } => self.thaw(key, id, waiter, waits, at),
            Kind::Transfer => self.put_back(key, at),
        }
    }

    /// A node has said what became of a move. A number is only good from the node that it was given to.
    pub(super) fn answered(&mut self, node: NodeId, id: u64, heard: MoveResult, at: &mut Context<'_, T>) {
        if self.moves.by_id.get(&id).is_some_and(|one| one.node == node) {
            self.conclude(id, heard, at);
        }
    }

    /// A node has named all that it has. What had been sent before it was asked, and is not named, has never arrived.
    pub(super) fn resolve(
        &mut self,
        node: NodeId,
        asked: u64,
        named: &ConnectionList<T::Key>,
        at: &mut Context<'_, T>,
    ) {
        let decided = |one: &Move<T>| one.node == node && one.sent.is_some_and(|sent| sent < asked);
        for id in self.moves.ids(decided) {
            let Some((key, own)) = self.moves.by_id.get(&id).map(|one| (one.key, one.first_seq)) else {
                continue;
            };
            // The node may have an earlier connection with these addresses.
            let restored = named.get(&key).is_some_and(|number| may_be_same(*number, own));
            let unknown = || MoveResult::Refused("the node does not have the connection".to_owned());
            self.conclude(id, if restored { MoveResult::Restored } else { unknown() }, at);
        }
    }

    /// Nothing more is awaited of what is on its way to a node.
    pub(super) fn give_up(&mut self, node: NodeId, at: &mut Context<'_, T>) {
        for id in self.moves.ids(|one| one.node == node) {
            self.conclude(id, MoveResult::Nothing, at);
        }
    }

    /// Gives up every move.
    pub(super) fn give_up_all(&mut self, at: &mut Context<'_, T>) {
        for id in self.moves.ids(|_| true) {
            self.conclude(id, MoveResult::Nothing, at);
        }
    }

    /// Nothing is awaited for longer than the doubt may last. Nor for longer than a socket's client waits: a SYN of its next
    /// connection has the frozen socket ask, and the client's host denies the connection (RFC 5961 section 4); where the plane
    /// answers SYNs, the next connection has taken its place here.
    pub(super) fn tick_moves(&mut self, at: &mut Context<'_, T>) {
        let now = at.now;
        for id in self.moves.ids(|one| one.until <= now) {
            self.conclude(id, MoveResult::Nothing, at);
        }
        if self.moves.look_at > now {
            return;
        }
        self.moves.look_at = now + LOOK;
        let Self { moves, connections, .. } = self;
        let is_over = |(id, one): (&u64, &Move<T>)| {
            let Kind::Socket { waits, .. } = &one.kind else { return None };
            let replaced =
                waits.is_none() && connections.get(one.key).is_none_or(|other| !other.is_move(*id));
            let denied = at.view.flow(one.key).is_some_and(|flow| flow.denied);
            (replaced || denied).then_some(*id)
        };
        let over: Vec<u64> = moves.by_id.iter().filter_map(is_over).collect();
        over.into_iter().for_each(|id| self.conclude(id, MoveResult::Nothing, at));
    }

    fn conclude(&mut self, id: u64, heard: MoveResult, at: &mut Context<'_, T>) {
        if heard == MoveResult::Nothing && self.moves.by_id.get(&id).is_some_and(|one| one.sent.is_none()) {
            // Nobody else can have it.
            return self.not_sent(id, at);
        }
        let Some(Move { key, kind, .. }) = self.moves.remove(id) else { return };
        match kind {
            Kind::Held { packets, .. } => self.conclude_held(key, id, packets, heard, at),
            Kind::Socket { waiter, waits } => self.conclude_socket(key, id, (waiter, waits), heard, at),
            Kind::Transfer => match heard {
                MoveResult::Restored => self.transferred(key, at),
                MoveResult::Refused(why) => {
                    at.say(Note::NotTaken(key, why));
                    self.put_back(key, at);
                }
                MoveResult::Nothing => self.transfer_lost(key, at),
            },
        }
    }

    fn conclude_held(
        &mut self,
        key: T::Key,
        id: u64,
        packets: Vec<T::Packet>,
        heard: MoveResult,
        at: &mut Context<'_, T>,
    ) {
        match heard {
            MoveResult::Restored => at.say(Note::Moved(key)),
            // It was there, and has ended since.
            MoveResult::Refused(_) if self.is_answered(key, id, at) => self.gone(key, id, End::Closed, at),
            MoveResult::Refused(why) => {
                at.say(Note::NotTaken(key, why));
                self.stays(key, id, packets, at);
            }
            MoveResult::Nothing if self.let_go => self.leave_to_successor(key, id, at),
            // Whether the node has it is not known, and two hosts must not answer.
            MoveResult::Nothing => {
                at.say(Note::Unheard(key));
                self.gone(key, id, End::NodeLost, at);
            }
        }
    }

    fn conclude_socket(
        &mut self,
        key: T::Key,
        id: u64,
        (waiter, waits): (T::Waiter, Option<(Decision, T::Load)>),
        heard: MoveResult,
        at: &mut Context<'_, T>,
    ) {
        let close = |waiter| Output::Answer { waiter, answer: Answer::Close };
        match heard {
            MoveResult::Restored => {
                if let Some((decision, load)) = waits {
                    at.out.push(Output::Point { key, to: To::Node(decision.node), by: Pointing::Back });
                    self.enter_moving(key, id, Connection::new(decision, load, at.now), at);
                }
                at.say(Note::Moved(key));
                at.out.push(close(waiter));
            }
            // It was there, and has ended since.
            MoveResult::Refused(_) if self.is_answered(key, id, at) => {
                self.gone(key, id, End::Closed, at);
                at.out.push(close(waiter));
            }
            MoveResult::Refused(why) => {
                at.say(Note::NotTaken(key, why));
                self.thaw(key, id, waiter, waits, at);
            }
            MoveResult::Nothing if self.let_go => {
                self.leave_to_successor(key, id, at);
                at.out.push(close(waiter));
            }
            // Whether the node has it is not known, and two hosts must not answer.
            MoveResult::Nothing => {
                let denied = at.view.flow(key).is_some_and(|flow| flow.denied);
                match self.take_moving(key, id, at) {
                    Some(connection) => {
                        at.say(Note::Unheard(key));
                        let account = at.view.flow(key).and_then(|flow| flow.account());
                        let end = if denied { End::ClientReset } else { End::NodeLost };
                        self.finish(key, connection, end, account, at);
                        // First, so that the socket's reset may leave, and cannot meet a new connection with these addresses.
                        at.out.push(Output::Reset { key, ack: None });
                        at.out.push(Output::Answer { waiter, answer: Answer::Abort });
                    }
                    None => at.out.push(close(waiter)),
                }
            }
        }
    }

    /// The frozen socket goes on here, if its connection does.
    fn thaw(
        &mut self,
        key: T::Key,
        id: u64,
        waiter: T::Waiter,
        waits: Option<(Decision, T::Load)>,
        at: &mut Context<'_, T>,
    ) {
        // First the plane, so that nothing that the thawed socket sends is dropped on its way out.
        let answer = match self.turn_back(key, id, waits, at) {
            Some((decision, load)) => Answer::Thaw(decision, load),
            None => Answer::Close,
        };
        at.out.push(Output::Answer { waiter, answer });
    }

    /// This host's own TCP gets a held connection after all, unless it has ended meanwhile.
    fn stays(&mut self, key: T::Key, id: u64, packets: Vec<T::Packet>, at: &mut Context<'_, T>) {
        if let Some(Connection { decision, load, .. }) = self.take_moving(key, id, at) {
            at.out.push(Output::Accept { key, why: AcceptReason::Failed(decision, load), packets });
        }
    }

    /// Takes a connection out of the table that goes no further on its way, unless it has ended meanwhile: then its addresses may
    /// be another connection's, which the plane knows before the table does.
    fn take_moving(&mut self, key: T::Key, id: u64, at: &Context<'_, T>) -> Option<Connection<T::Load>> {
        let still = |way: OnItsWay| at.view.flow(key).is_none_or(|flow| flow.opened <= way.entered);
        self.connections.take_if(key, |one| one.is_move(id) && one.on_its_way.is_some_and(still))
    }

    /// Whether the client of a connection on its way has acknowledged anything of a reply.
    fn is_answered(&self, key: T::Key, id: u64, at: &Context<'_, T>) -> bool {
        let Some(flow) = at.view.flow(key) else { return false };
        let Some(one) = self.connections.get(key).filter(|one| one.is_move(id)) else { return false };
        // Where the plane did not see the handshake, only the socket knows where the reply began.
        let beyond = |first_ack| flow.packets > 0 && flow.last_ack != first_ack;
        one.first_ack.map_or(flow.answered, beyond)
    }

    /// The process that has the plane now hears from the node what became of a connection on its way.
    fn leave_to_successor(&mut self, key: T::Key, id: u64, at: &mut Context<'_, T>) {
        at.say(Note::LeftToSuccessor(key));
        if let Some(connection) = self.take_moving(key, id, at) {
            self.finish(key, connection, End::Silent, None, at);
        }
    }

    /// Resets a connection, unless it has ended meanwhile.
    fn gone(&mut self, key: T::Key, id: u64, end: End, at: &mut Context<'_, T>) {
        if let Some(connection) = self.take_moving(key, id, at) {
            at.out.push(Output::Reset { key, ack: None });
            let account = at.view.flow(key).and_then(|flow| flow.account());
            self.finish(key, connection, end, account, at);
        }
    }
}
