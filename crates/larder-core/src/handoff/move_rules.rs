//! The rules for states on their way to nodes.

use super::connections::{Connection, PendingMove};
use super::moves::{Move, MoveKind, MoveResult, PendingState};
use super::nodes::ConnectionList;
use super::{
    AcceptReason, ConnectionEnd, Context, Decision, EdgeMachine, EdgeTypes, FlowTarget, LogEvent, Output,
    RoutePurpose, SocketOutcome, may_be_same,
};
use crate::id::NodeId;
use alloc::borrow::ToOwned;
use alloc::vec::Vec;
use core::time::Duration;

/// The interval at which the client of a move is checked: TCP retries a connection after a second.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl<T: EdgeTypes> EdgeMachine<T> {
    // -- the state of a held connection

    /// Sends the state of a held connection to a node.
    pub(super) fn give_state(
        &mut self,
        (key, generation): (T::Key, u64),
        (decision, load): (Decision, T::Load),
        (state, first_seq, complete): (T::State, u32, bool),
        at: &mut Context<'_, T>,
    ) {
        // The connections kept until nodes have answered have the same limit as held connections.
        if self.moves.len() >= self.settings.held_max {
            return self.accept(key, generation, AcceptReason::MovesFull(decision, load), at);
        }
        let Some(held) = self.take_decided(key, generation, at) else { return };
        debug_assert!(!self.plane_released, "nothing is held any more");
        let unsent = Some(PendingState { decision, load, state, first_seq, complete });
        let kind = MoveKind::Held { packets: held.packets, unsent };
        let id = self.moves.begin(decision.node, key, at.now + self.settings.doubt, kind);
        at.out.push(Output::Route { key, to: FlowTarget::Node(decision.node), by: RoutePurpose::Move(id) });
    }

    // -- an accepted socket

    /// Begins to move an accepted socket.
    pub(super) fn move_socket(
        &mut self,
        key: T::Key,
        decision: Decision,
        load: T::Load,
        waiter: T::Waiter,
        at: &mut Context<'_, T>,
    ) {
        if self.plane_released {
            at.out.push(Output::NotMoved { load: Some((decision, load)) });
            return;
        }
        let kind = MoveKind::Socket { waiter, waits: Some((decision, load)) };
        let id = self.moves.begin(decision.node, key, at.now + self.settings.doubt, kind);
        if self.settings.forward_first {
            at.out.push(Output::Route {
                key,
                to: FlowTarget::Node(decision.node),
                by: RoutePurpose::Move(id),
            });
        } else {
            at.out.push(Output::Freeze { id });
        }
    }

    /// Processes the result of routing a connection's packets: the plane forwards them, or has no room.
    pub(super) fn routed(&mut self, key: T::Key, by: RoutePurpose, done: bool, at: &mut Context<'_, T>) {
        match by {
            RoutePurpose::Move(id) => self.routed_move(key, id, done, at),
            RoutePurpose::Transfer => self.routed_transfer(key, done, at),
            // The node may have accepted the connection, so this host must not; and the client's packets would not
            // reach the node.
            RoutePurpose::Cookie { ack } if !done => self.lose(key, ack, at),
            RoutePurpose::Cookie { .. } | RoutePurpose::Back => {}
        }
    }

    fn routed_move(&mut self, key: T::Key, id: u64, done: bool, at: &mut Context<'_, T>) {
        let Some(one) = self.moves.by_id.get_mut(&id) else { return };
        let node = one.node;
        match &mut one.kind {
            MoveKind::Held { unsent, .. } if done => {
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
            MoveKind::Held { .. } => {
                let Some(Move { kind: MoveKind::Held { packets, unsent: Some(unsent) }, .. }) =
                    self.moves.remove(id)
                else {
                    return;
                };
                let why = AcceptReason::Failed(unsent.decision, unsent.load);
                at.out.push(Output::Accept { key, why, packets });
            }
            // The plane forwards the packets after the node has confirmed the move. This happens only without
            // `forward_first`.
            MoveKind::Socket { waits: None, .. } | MoveKind::Transfer => {}
            MoveKind::Socket { waits, .. } if done => {
                if let Some((decision, load)) = waits.take() {
                    self.enter_moving(key, id, Connection::new(decision, load, at.now), at);
                    at.out.push(Output::Freeze { id });
                }
            }
            MoveKind::Socket { waits, .. } => {
                let load = waits.take();
                self.moves.remove(id);
                at.out.push(Output::NotMoved { load });
            }
        }
    }

    /// Records the connection at its node. It may end before the node has confirmed the move.
    fn enter_moving(
        &mut self,
        key: T::Key,
        id: u64,
        connection: Connection<T::Load>,
        at: &mut Context<'_, T>,
    ) {
        let pending_move = Some(PendingMove { id, entered: at.view.now() });
        self.enter(key, Connection { pending_move, ..connection }, at);
    }

    pub(super) fn socket_frozen(
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

    pub(super) fn socket_not_frozen(&mut self, key: T::Key, id: u64, at: &mut Context<'_, T>) {
        let Some(Move { kind: MoveKind::Socket { waits, .. }, .. }) = self.moves.remove(id) else { return };
        let load = self.turn_back(key, id, waits, at);
        at.out.push(Output::NotMoved { load });
    }

    /// Routes the connection's packets back to this host, and returns its load. `None` if the connection has ended
    /// meanwhile.
    fn turn_back(
        &mut self,
        key: T::Key,
        id: u64,
        waits: Option<(Decision, T::Load)>,
        at: &mut Context<'_, T>,
    ) -> Option<(Decision, T::Load)> {
        // Packets that were never forwarded need not be routed back.
        if waits.is_some() {
            return waits;
        }
        let Connection { decision, load, .. } = self.take_moving(key, id, at)?;
        at.out.push(Output::Route { key, to: FlowTarget::Here, by: RoutePurpose::Back });
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
        let id = self.moves.begin(node, key, at.now + self.settings.doubt, MoveKind::Transfer);
        if let Some(one) = self.moves.by_id.get_mut(&id) {
            (one.sent, one.first_seq) = (Some(self.nodes.asked(node)), first_seq);
        }
        at.out.push(Output::Send { node, id, key, first_seq, state, then: Vec::new() });
    }

    // -- answers

    /// Processes a state that could not be sent.
    pub(super) fn process_send_failure(&mut self, id: u64, at: &mut Context<'_, T>) {
        let Some(Move { key, kind, .. }) = self.moves.remove(id) else { return };
        match kind {
            MoveKind::Held { packets, .. } => self.accept_after_all(key, id, packets, at),
            MoveKind::Socket { waiter, waits } => self.thaw(key, id, waiter, waits, at),
            MoveKind::Transfer => self.revert_transfer(key, at),
        }
    }

    /// Processes a node's answer to a move. The answer is valid only from the node to which the move was sent.
    pub(super) fn process_answer(
        &mut self,
        node: NodeId,
        id: u64,
        result: MoveResult,
        at: &mut Context<'_, T>,
    ) {
        if self.moves.by_id.get(&id).is_some_and(|one| one.node == node) {
            self.conclude(id, result, at);
        }
    }

    /// Resolves moves by a node's complete list. A state that was sent before the node was asked, and is not listed,
    /// has never arrived.
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

    /// Gives up the pending moves to a node.
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

    /// Gives up moves whose answer is overdue, or whose client no longer waits. A SYN of the client's next
    /// connection makes the frozen socket send a challenge, and the client's host denies the connection (RFC 5961
    /// section 4). If the plane answers SYNs, the next connection has replaced this one here.
    pub(super) fn tick_moves(&mut self, at: &mut Context<'_, T>) {
        let now = at.now;
        for id in self.moves.ids(|one| one.until <= now) {
            self.conclude(id, MoveResult::Nothing, at);
        }
        if self.moves.check_at > now {
            return;
        }
        self.moves.check_at = now + CHECK_INTERVAL;
        let Self { moves, connections, .. } = self;
        let is_over = |(id, one): (&u64, &Move<T>)| {
            let MoveKind::Socket { waits, .. } = &one.kind else { return None };
            let replaced =
                waits.is_none() && connections.get(one.key).is_none_or(|other| !other.is_move(*id));
            let denied = at.view.flow(one.key).is_some_and(|flow| flow.denied);
            (replaced || denied).then_some(*id)
        };
        let over: Vec<u64> = moves.by_id.iter().filter_map(is_over).collect();
        over.into_iter().for_each(|id| self.conclude(id, MoveResult::Nothing, at));
    }

    fn conclude(&mut self, id: u64, result: MoveResult, at: &mut Context<'_, T>) {
        if result == MoveResult::Nothing && self.moves.by_id.get(&id).is_some_and(|one| one.sent.is_none()) {
            // No other host can have the connection.
            return self.process_send_failure(id, at);
        }
        let Some(Move { key, kind, .. }) = self.moves.remove(id) else { return };
        match kind {
            MoveKind::Held { packets, .. } => self.conclude_held(key, id, packets, result, at),
            MoveKind::Socket { waiter, waits } => self.conclude_socket(key, id, (waiter, waits), result, at),
            MoveKind::Transfer => match result {
                MoveResult::Restored => self.complete_transfer(key, at),
                MoveResult::Refused(why) => {
                    at.note(LogEvent::NotTaken(key, why));
                    self.revert_transfer(key, at);
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
        result: MoveResult,
        at: &mut Context<'_, T>,
    ) {
        match result {
            MoveResult::Restored => at.note(LogEvent::Moved(key)),
            // The node had the connection, and it has ended since.
            MoveResult::Refused(_) if self.is_answered(key, id, at) => {
                self.reset_moving(key, id, ConnectionEnd::Closed, at);
            }
            MoveResult::Refused(why) => {
                at.note(LogEvent::NotTaken(key, why));
                self.accept_after_all(key, id, packets, at);
            }
            MoveResult::Nothing if self.plane_released => self.leave_to_successor(key, id, at),
            // It is unknown whether the node has the connection, and two hosts must not answer.
            MoveResult::Nothing => {
                at.note(LogEvent::Unheard(key));
                self.reset_moving(key, id, ConnectionEnd::NodeLost, at);
            }
        }
    }

    fn conclude_socket(
        &mut self,
        key: T::Key,
        id: u64,
        (waiter, waits): (T::Waiter, Option<(Decision, T::Load)>),
        result: MoveResult,
        at: &mut Context<'_, T>,
    ) {
        let close = |waiter| Output::Answer { waiter, answer: SocketOutcome::Close };
        match result {
            MoveResult::Restored => {
                if let Some((decision, load)) = waits {
                    at.out.push(Output::Route {
                        key,
                        to: FlowTarget::Node(decision.node),
                        by: RoutePurpose::Back,
                    });
                    self.enter_moving(key, id, Connection::new(decision, load, at.now), at);
                }
                at.note(LogEvent::Moved(key));
                at.out.push(close(waiter));
            }
            // The node had the connection, and it has ended since.
            MoveResult::Refused(_) if self.is_answered(key, id, at) => {
                self.reset_moving(key, id, ConnectionEnd::Closed, at);
                at.out.push(close(waiter));
            }
            MoveResult::Refused(why) => {
                at.note(LogEvent::NotTaken(key, why));
                self.thaw(key, id, waiter, waits, at);
            }
            MoveResult::Nothing if self.plane_released => {
                self.leave_to_successor(key, id, at);
                at.out.push(close(waiter));
            }
            // It is unknown whether the node has the connection, and two hosts must not answer.
            MoveResult::Nothing => {
                let denied = at.view.flow(key).is_some_and(|flow| flow.denied);
                match self.take_moving(key, id, at) {
                    Some(connection) => {
                        at.note(LogEvent::Unheard(key));
                        let account = at.view.flow(key).and_then(|flow| flow.account());
                        let end = if denied { ConnectionEnd::ClientReset } else { ConnectionEnd::NodeLost };
                        self.finish(key, connection, end, account, at);
                        // This comes first, so that the socket's reset may leave, and cannot reach a new connection
                        // with these addresses.
                        at.out.push(Output::Reset { key, ack: None });
                        at.out.push(Output::Answer { waiter, answer: SocketOutcome::Abort });
                    }
                    None => at.out.push(close(waiter)),
                }
            }
        }
    }

    /// Continues the frozen socket here, if its connection still exists.
    fn thaw(
        &mut self,
        key: T::Key,
        id: u64,
        waiter: T::Waiter,
        waits: Option<(Decision, T::Load)>,
        at: &mut Context<'_, T>,
    ) {
        // The plane comes first, so that no packet of the thawed socket is dropped on its way out.
        let answer = match self.turn_back(key, id, waits, at) {
            Some((decision, load)) => SocketOutcome::Thaw(decision, load),
            None => SocketOutcome::Close,
        };
        at.out.push(Output::Answer { waiter, answer });
    }

    /// Lets this host's own TCP accept a held connection after all, unless it has ended meanwhile.
    fn accept_after_all(&mut self, key: T::Key, id: u64, packets: Vec<T::Packet>, at: &mut Context<'_, T>) {
        if let Some(Connection { decision, load, .. }) = self.take_moving(key, id, at) {
            at.out.push(Output::Accept { key, why: AcceptReason::Failed(decision, load), packets });
        }
    }

    /// Removes a connection whose move has failed, unless it has ended meanwhile. Its addresses may then belong to
    /// another connection, which the plane knows before the table does.
    fn take_moving(&mut self, key: T::Key, id: u64, at: &Context<'_, T>) -> Option<Connection<T::Load>> {
        let still = |way: PendingMove| at.view.flow(key).is_none_or(|flow| flow.opened <= way.entered);
        self.connections.take_if(key, |one| one.is_move(id) && one.pending_move.is_some_and(still))
    }

    /// Returns whether the client of a moving connection has acknowledged part of a reply.
    fn is_answered(&self, key: T::Key, id: u64, at: &Context<'_, T>) -> bool {
        let Some(flow) = at.view.flow(key) else { return false };
        let Some(one) = self.connections.get(key).filter(|one| one.is_move(id)) else { return false };
        // If the plane did not see the handshake, only the socket knows where the reply began.
        let beyond = |first_ack| flow.packets > 0 && flow.last_ack != first_ack;
        one.first_ack.map_or(flow.answered, beyond)
    }

    /// Leaves a moving connection to the process that has the plane now, which receives the node's answer.
    fn leave_to_successor(&mut self, key: T::Key, id: u64, at: &mut Context<'_, T>) {
        at.note(LogEvent::LeftToSuccessor(key));
        if let Some(connection) = self.take_moving(key, id, at) {
            self.finish(key, connection, ConnectionEnd::Silent, None, at);
        }
    }

    /// Resets a connection, unless it has ended meanwhile.
    fn reset_moving(&mut self, key: T::Key, id: u64, end: ConnectionEnd, at: &mut Context<'_, T>) {
        if let Some(connection) = self.take_moving(key, id, at) {
            at.out.push(Output::Reset { key, ack: None });
            let account = at.view.flow(key).and_then(|flow| flow.account());
            self.finish(key, connection, end, account, at);
        }
    }
}
