//! Packets that came before their connection's socket: kept until it is there, then given to the stack.
//!
//! A front-end sends a connection's packets on from the moment it freezes the socket, so the first of them can overtake
//! the connection's state. Dropped, they would cost the client a retransmission timeout of 200 ms and more; given to the
//! stack, a reset. So they wait, up to [`WAIT`]. When no connection has come by then they are dropped: whose connection is
//! lost the front-end knows, and resets its client.

use larder_kernel::FlowKey;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a packet waits for its connection's socket.
pub const WAIT: Duration = Duration::from_secs(1);
/// How long packets that were seen before a restore may be told after it.
pub const ECHO: Duration = Duration::from_secs(2);
/// Connections that wait at most.
pub const STASH_FLOWS_MAX: usize = 4_096;
/// Packets of one connection at most.
pub const STASH_PACKETS_MAX: usize = 64;
/// Bytes of all packets at most.
pub const STASH_BYTES_MAX: usize = 16 << 20;
/// Restored connections that are remembered for [`ECHO`] at most; the oldest are forgotten first.
const RESTORED_MAX: usize = 65_536;

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Now {
    /// Its socket is there: give it to the stack.
    Inject,
    /// It waits.
    Held,
    /// There is no room: it is dropped, and the client will send it again.
    Full,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    packets: Vec<Vec<u8>>,
}

/// When a connection was restored: by the clock of packets as well, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Since {
    at: Instant,
    ns: u64,
}

/// Packets that wait. Time is given; nothing here looks at a clock.
#[derive(Debug, Default)]
pub(super) struct Stash {
    waiting: HashMap<FlowKey, Waiting>,
    /// In the order in which they came; those that are gone meanwhile are passed over.
    order: VecDeque<(Instant, FlowKey)>,
    restored: HashMap<FlowKey, Since>,
    restored_order: VecDeque<(Instant, FlowKey)>,
    bytes: usize,
    packets: usize,
}

impl Stash {
    /// Takes a packet that was seen at `seen_ns`. One that was seen after its connection had been restored has found no
    /// socket again, because that is gone or because the packet is of the next connection with these addresses: given to
    /// the stack it would come back for ever.
    pub(super) fn early(&mut self, now: Instant, key: FlowKey, seen_ns: u64, packet: &[u8]) -> Now {
        let before = |since: &Since| seen_ns < since.ns && now.saturating_duration_since(since.at) < ECHO;
        if self.restored.get(&key).is_some_and(before) {
            return Now::Inject;
        }
        let known = self.waiting.get(&key).map(|waiting| waiting.packets.len());
        let full = match known {
            Some(packets) => packets >= STASH_PACKETS_MAX,
            None => self.waiting.len() >= STASH_FLOWS_MAX,
        };
        if full || self.bytes + packet.len() > STASH_BYTES_MAX {
            return Now::Full;
        }
        if known.is_none() {
            self.order.push_back((now, key));
        }
        let fresh = || Waiting { since: now, packets: Vec::new() };
        self.waiting.entry(key).or_insert_with(fresh).packets.push(packet.to_vec());
        self.bytes += packet.len();
        self.packets += 1;
        Now::Held
    }

    /// Its socket is there: returns its packets in the order in which they came.
    pub(super) fn restored(&mut self, now: Instant, now_ns: u64, key: FlowKey) -> Vec<Vec<u8>> {
        if self.restored.insert(key, Since { at: now, ns: now_ns }).is_none() {
            self.restored_order.push_back((now, key));
        }
        if self.restored_order.len() > RESTORED_MAX {
            self.forget_restored();
        }
        self.take(key)
    }

    /// Its socket, if there is one, gets nothing from here on: what comes waits.
    pub(super) fn begin(&mut self, key: FlowKey) {
        self.restored.remove(&key);
    }

    /// Its socket will never be there: returns its packets.
    pub(super) fn take(&mut self, key: FlowKey) -> Vec<Vec<u8>> {
        let Some(waiting) = self.waiting.remove(&key) else { return Vec::new() };
        self.bytes -= waiting.packets.iter().map(Vec::len).sum::<usize>();
        self.packets -= waiting.packets.len();
        waiting.packets
    }

    /// The next connection whose packets have waited long enough, and those packets.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<(FlowKey, Vec<Vec<u8>>)> {
        while let Some(&(_, key)) = self.restored_order.front().filter(|(at, _)| *at + ECHO <= now) {
            // Restored again meanwhile: stays, with its later time.
            match self.restored.get(&key) {
                Some(&Since { at, .. }) if at + ECHO > now => {
                    self.restored_order.pop_front();
                    self.restored_order.push_back((at, key));
                }
                _ => self.forget_restored(),
            }
        }
        while let Some(&(at, key)) = self.order.front() {
            // Gone, and perhaps come again: then it stands further behind as well.
            let same = self.waiting.get(&key).is_some_and(|waiting| waiting.since == at);
            if same && at + WAIT > now {
                return None;
            }
            self.order.pop_front();
            if same {
                return Some((key, self.take(key)));
            }
        }
        None
    }

    /// When [`Self::overdue`] has something to do next.
    pub(super) fn due(&self) -> Option<Instant> {
        let held = self.order.front().map(|(at, _)| *at + WAIT);
        let echo = self.restored_order.front().map(|(at, _)| *at + ECHO);
        held.into_iter().chain(echo).min()
    }

    /// Packets that wait.
    pub(super) fn len(&self) -> usize {
        self.packets
    }

    fn forget_restored(&mut self) {
        if let Some((_, key)) = self.restored_order.pop_front() {
            self.restored.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        FlowKey::new(([192, 0, 2, 1], port).into(), 0)
    }

    #[test]
    fn packets_wait_for_their_socket_and_keep_their_order() {
        let (mut stash, now) = (Stash::default(), Instant::now());
        for byte in 0..3 {
            assert_eq!(stash.early(now, key(1), 5, &[byte]), Now::Held);
        }
        assert_eq!(stash.early(now, key(2), 5, &[9]), Now::Held);
        assert_eq!(stash.restored(now, 9, key(1)), [[0], [1], [2]]);
        assert_eq!((stash.len(), stash.bytes), (1, 1));
        assert_eq!(stash.early(now + ECHO / 2, key(1), 8, &[3]), Now::Inject, "told late");
        assert_eq!(stash.early(now + ECHO / 2, key(1), 9, &[3]), Now::Held, "seen when its socket was gone");
        assert_eq!(stash.take(key(1)), [[3]]);
        assert_eq!(stash.overdue(now + WAIT), Some((key(2), vec![vec![9]])));
        assert_eq!(stash.overdue(now + ECHO), None);
        assert_eq!(stash.early(now + ECHO, key(1), 5, &[3]), Now::Held, "its socket is gone by now");
    }

    #[test]
    fn a_connection_that_does_not_come_is_given_up_once() {
        let (mut stash, now) = (Stash::default(), Instant::now());
        stash.early(now, key(1), 5, &[1]);
        stash.early(now + WAIT / 2, key(1), 5, &[2]);
        assert_eq!(stash.overdue(now + WAIT / 2), None);
        assert_eq!(stash.due(), Some(now + WAIT));
        assert_eq!(stash.overdue(now + WAIT), Some((key(1), vec![vec![1], vec![2]])));
        assert_eq!((stash.overdue(now + WAIT), stash.due(), stash.bytes), (None, None, 0));
        // Taken and come again: only the later time counts.
        stash.early(now, key(2), 5, &[1]);
        assert_eq!(stash.take(key(2)).len(), 1);
        stash.early(now + WAIT / 2, key(2), 5, &[2]);
        assert_eq!(stash.overdue(now + WAIT), None);
        assert_eq!(stash.overdue(now + WAIT * 2), Some((key(2), vec![vec![2]])));
    }

    #[test]
    fn each_table_has_its_limit() {
        let (mut stash, now) = (Stash::default(), Instant::now());
        for _ in 0..STASH_PACKETS_MAX {
            assert_eq!(stash.early(now, key(0), 5, &[0]), Now::Held);
        }
        assert_eq!(stash.early(now, key(0), 5, &[0]), Now::Full);
        for port in 1..u16::try_from(STASH_FLOWS_MAX).expect("few") {
            assert_eq!(stash.early(now, key(port), 5, &[0]), Now::Held);
        }
        assert_eq!(stash.early(now, key(u16::MAX), 5, &[0]), Now::Full);
        assert_eq!(stash.early(now, key(1), 5, &vec![0; STASH_BYTES_MAX]), Now::Full);
        let mut stash = Stash::default();
        for at in 0..RESTORED_MAX + 9 {
            let client =
                ([10, 0, (at >> 16).try_into().expect("few"), 1], (at & 0xffff).try_into().expect("a port"));
            stash.restored(now, 9, FlowKey::new(client.into(), 0));
        }
        assert_eq!((stash.restored.len(), stash.restored_order.len()), (RESTORED_MAX, RESTORED_MAX));
    }
}
