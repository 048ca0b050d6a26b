//! Connections whose packets are held until a node is decided.
//!
//! Nothing of what is held has been acknowledged, so that whatever is lost here the client sends again.

use super::connections::Connection;
use super::{AcceptReason, Context, Decision, EdgeMachine, End, Output, Packet, Parts, Pointing, To};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// The room that a held packet takes beside its bytes, about.
const PACKET_OVERHEAD: usize = 48;

/// Why a held connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Its decision is being made.
    Decision,
    /// The rest of its header may come.
    Rest,
    /// The dispatcher has no room yet: further packets decide nothing.
    Admission,
}

/// A held connection.
#[derive(Debug)]
pub(super) struct HeldConnection<P> {
    pub(super) packets: Vec<P>,
    wait: Wait,
    /// It stands among those that are to be decided.
    due: bool,
    /// Its decision is being made.
    deciding: bool,
    /// Tells it from an earlier connection with the same addresses.
    generation: u64,
}

impl<P: Packet> HeldConnection<P> {
    fn cost(&self) -> usize {
        self.packets.iter().map(|packet| packet.length() + PACKET_OVERHEAD).sum()
    }
}

/// All held connections.
#[derive(Debug)]
pub(super) struct HeldTable<K, P> {
    by_key: BTreeMap<K, HeldConnection<P>>,
    /// Connections that are to be decided, in order.
    due: VecDeque<K>,
    /// Connections that wait for the rest of a header, with their generations and deadlines, in order.
    rests: VecDeque<(Time, K, u64)>,
    begun: u64,
    /// The room that all packets take.
    bytes: usize,
}

impl<K, P> Default for HeldTable<K, P> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), due: VecDeque::new(), rests: VecDeque::new(), begun: 0, bytes: 0 }
    }
}

impl<K: Copy + Ord, P: Packet> HeldTable<K, P> {
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.by_key.contains_key(&key)
    }

    /// A connection begins. Whatever an earlier one with the same addresses has left is dropped.
    fn begin(&mut self, key: K) {
        self.drop_any(key);
        self.begun += 1;
        let held = HeldConnection {
            packets: Vec::new(),
            wait: Wait::Decision,
            due: false,
            deciding: false,
            generation: self.begun,
        };
        self.by_key.insert(key, held);
    }

    pub(super) fn drop_any(&mut self, key: K) {
        if let Some(held) = self.by_key.remove(&key) {
            self.bytes -= held.cost();
        }
    }

    /// Keeps a packet of a connection that is held, and says whether there was room for it.
    fn push(&mut self, key: K, packet: P, bytes_max: usize) -> bool {
        let Some(held) = self.by_key.get_mut(&key) else { return true };
        self.bytes += packet.length() + PACKET_OVERHEAD;
        held.packets.push(packet);
        self.bytes <= bytes_max
    }

    /// A connection is to be decided. If it was already, it keeps its place in the order.
    fn make_due(&mut self, key: K) {
        if let Some(held) = self.by_key.get_mut(&key)
            && !core::mem::replace(&mut held.due, true)
            && !held.deciding
        {
            self.due.push_back(key);
        }
    }

    pub(super) fn next_undecided(&mut self) -> Option<(K, u64)> {
        loop {
            let key = self.due.pop_front()?;
            let Some(held) = self.by_key.get_mut(&key) else { continue };
            held.due = false;
            if held.wait != Wait::Admission {
                // A packet that comes meanwhile makes it due again only if the header was not complete.
                held.deciding = true;
                return Some((key, held.generation));
            }
        }
    }

    /// Takes a connection out, unless another one has its addresses by now.
    pub(super) fn take(&mut self, key: K, generation: u64) -> Option<HeldConnection<P>> {
        self.by_key.get(&key).filter(|held| held.generation == generation)?;
        let held = self.by_key.remove(&key)?;
        self.bytes -= held.cost();
        Some(held)
    }

    pub(super) fn get(&self, key: K, generation: u64) -> Option<&HeldConnection<P>> {
        self.by_key.get(&key).filter(|held| held.generation == generation)
    }

    fn get_mut(&mut self, key: K, generation: u64) -> Option<&mut HeldConnection<P>> {
        self.by_key.get_mut(&key).filter(|held| held.generation == generation)
    }

    pub(super) fn waits(&mut self, key: K, generation: u64) {
        if self.get(key, generation).is_some() {
            self.set_wait(key, Wait::Admission);
        }
    }

    fn set_wait(&mut self, key: K, wait: Wait) {
        if let Some(held) = self.by_key.get_mut(&key) {
            held.wait = wait;
        }
    }

    /// When the time of a header is over next.
    pub(super) fn due(&self) -> Option<Time> {
        self.rests.front().map(|(until, ..)| *until)
    }

    /// The next connection the rest of whose header has not come in time.
    fn next_overdue(&mut self, now: Time) -> Option<(K, u64)> {
        while let Some((_, key, generation)) = self.rests.pop_front_if(|(until, ..)| *until <= now) {
            if self.get_mut(key, generation).is_some_and(|held| held.wait == Wait::Rest) {
                return Some((key, generation));
            }
        }
        None
    }

    fn take_all(&mut self) -> BTreeMap<K, HeldConnection<P>> {
        self.due.clear();
        self.rests.clear();
        self.bytes = 0;
        core::mem::take(&mut self.by_key)
    }
}

impl<T: Parts> EdgeMachine<T> {
    pub(super) fn packet(
        &mut self,
        key: T::Key,
        first: bool,
        packet: T::Packet,
        late: bool,
        at: &mut Context<'_, T>,
    ) {
        if first {
            self.first_packet(key, packet, late, at);
        } else if self.holding.contains(key) {
            self.keep(key, packet, false, at);
        } else {
            self.further_packet(key, packet, late, at);
        }
    }

    /// The first packet of a connection. A late one opens nothing: the client may have sent it again, and another switch may
    /// have given the connection to a node. If it is sent again to this switch, it opens the connection then.
    fn first_packet(&mut self, key: T::Key, packet: T::Packet, late: bool, at: &mut Context<'_, T>) {
        self.end(key, End::Replaced, at);
        if late {
            self.holding.drop_any(key);
            at.out.push(Output::Late);
            return;
        }
        let full = self.holding.len() >= self.settings.held_max;
        self.holding.begin(key);
        self.keep(key, packet, full, at);
    }

    /// Keeps a packet for the decision. If there is no room, this host accepts the connection, with all that is held of it.
    fn keep(&mut self, key: T::Key, packet: T::Packet, full: bool, at: &mut Context<'_, T>) {
        let room = self.holding.push(key, packet, self.settings.held_bytes_max);
        if room && !full {
            return self.holding.make_due(key);
        }
        let generation = self.holding.by_key.get(&key).map(|held| held.generation);
        if let Some(generation) = generation {
            self.accept(key, generation, AcceptReason::HoldFull, at);
        }
    }

    /// A packet that was handed over before the decision took effect in the plane: it follows the others.
    fn further_packet(&mut self, key: T::Key, packet: T::Packet, late: bool, at: &mut Context<'_, T>) {
        match at.view.flow(key).map(|flow| (flow.to, flow.first_seq)) {
            Some((To::Node(node), _)) => at.out.push(Output::Forward { node, packet }),
            Some((To::Here, _)) => at.out.push(Output::Inject(packet)),
            // It was held by an earlier process, or was opened by a late packet, and the client has sent its first packet again.
            Some((To::Held, first_seq)) if packet.first_seq() == Some(first_seq) => {
                self.first_packet(key, packet, late, at);
            }
            // Nobody holds it: the client sends its first packet again, which opens the connection anew.
            Some((To::Held | To::Reset, _)) | None => at.out.push(Output::Forget(key)),
        }
    }

    /// The header is not complete: its rest is awaited, but not for ever.
    pub(super) fn await_rest(&mut self, key: T::Key, generation: u64, at: &mut Context<'_, T>) {
        let Some(held) = self.holding.get_mut(key, generation) else { return };
        held.deciding = false;
        let (more, begins) = (held.due, held.wait == Wait::Decision);
        if more {
            self.holding.due.push_back(key);
        }
        if begins {
            self.holding.set_wait(key, Wait::Rest);
            self.holding.rests.push_back((at.now + self.settings.header_wait, key, generation));
        }
    }

    pub(super) fn accept_overdue(&mut self, at: &mut Context<'_, T>) {
        while let Some((key, generation)) = self.holding.next_overdue(at.now) {
            self.accept(key, generation, AcceptReason::Incomplete, at);
        }
    }

    /// This host's own TCP gets a held connection.
    pub(super) fn accept(
        &mut self,
        key: T::Key,
        generation: u64,
        why: AcceptReason<T>,
        at: &mut Context<'_, T>,
    ) {
        if let Some(held) = self.take_decided(key, generation, at) {
            at.out.push(Output::Accept { key, why, packets: held.packets });
        }
    }

    /// Takes a held connection whose decision takes effect. `None` if the client has reset it, or has begun another one with its
    /// addresses: the plane knows of that before it is heard here.
    pub(super) fn take_decided(
        &mut self,
        key: T::Key,
        generation: u64,
        at: &Context<'_, T>,
    ) -> Option<HeldConnection<T::Packet>> {
        let held = self.holding.take(key, generation)?;
        let flow = at.view.flow(key).filter(|flow| flow.first_seq != 0);
        let begins = |packet: &T::Packet| {
            let numbers = flow.zip(packet.first_seq());
            numbers.is_none_or(|(flow, first_seq)| flow.first_seq == first_seq)
        };
        held.packets.first().is_none_or(begins).then_some(held)
    }

    /// The node accepts a held connection by its cookie.
    pub(super) fn hand(
        &mut self,
        key: T::Key,
        generation: u64,
        decision: Decision,
        load: T::Load,
        at: &mut Context<'_, T>,
    ) {
        let Some(held) = self.take_decided(key, generation, at) else { return };
        // The number that a reset needs if the plane has no room for the connection: only the packet has it.
        let ack = held.packets.first().and_then(Packet::acknowledges);
        let first_seq = held.packets.first().and_then(Packet::first_seq);
        // Before the connection is entered: what comes in between is handed over too, and follows.
        let forward = |packet| Output::Forward { node: decision.node, packet };
        at.out.extend(held.packets.into_iter().map(forward));
        at.out.push(Output::Point { key, to: To::Node(decision.node), by: Pointing::Handed { ack } });
        self.enter(key, Connection { first_seq, ..Connection::new(decision, load, at.now) }, at);
    }

    pub(super) fn accept_all(&mut self, at: &mut Context<'_, T>) {
        for (key, held) in self.holding.take_all() {
            at.out.push(Output::Accept { key, why: AcceptReason::Reload, packets: held.packets });
        }
    }

    /// Has the plane forget a connection that it holds and the machine does not.
    pub(super) fn forget_if_unheld(&mut self, key: T::Key, at: &mut Context<'_, T>) {
        let still = at.view.flow(key).is_some_and(|flow| flow.to == To::Held);
        if still && !self.holding.contains(key) {
            at.out.push(Output::Forget(key));
        }
    }
}
