//! The stash: packets that arrived before their connection's socket. They are held until the socket exists, then passed
//! to the stack.
//!
//! A switch forwards a connection's packets from the moment at which it freezes the socket, so the first packets can
//! overtake the connection's state. Dropping them would cost the client a retransmission timeout of at least 200 ms.
//! The stack would answer them with a reset. Therefore they wait up to [`STASH_WAIT`] and are then dropped; the switch
//! knows that the handoff failed, and resets the client.

use larder_kernel::FlowKey;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Maximum time that a packet waits for its connection's socket.
pub const STASH_WAIT: Duration = Duration::from_secs(1);
/// Time after a restore during which events about packets received before it may still arrive.
pub const LATE_EVENT_WINDOW: Duration = Duration::from_secs(2);
/// Maximum number of connections with held packets.
pub const STASH_FLOWS_MAX: usize = 4_096;
/// Maximum number of held packets of one connection.
pub const STASH_PACKETS_MAX: usize = 64;
/// Maximum size of all held packets. Bytes.
pub const STASH_BYTES_MAX: usize = 16 << 20;
/// Maximum number of restores that are remembered for [`LATE_EVENT_WINDOW`]. The oldest are forgotten first.
const RESTORED_MAX: usize = 65_536;

/// Decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StashVerdict {
    /// The socket exists: pass the packet to the stack.
    Inject,
    /// The packet is held.
    Held,
    /// The stash is full: drop the packet. The client will retransmit it.
    Full,
}

#[derive(Debug)]
struct HeldPackets {
    since: Instant,
    packets: Vec<Vec<u8>>,
}

/// Time of a restore, also in nanoseconds of `CLOCK_MONOTONIC`, which packets are stamped with.
#[derive(Clone, Copy, Debug)]
struct RestoreTime {
    at: Instant,
    ns: u64,
}

/// The held packets. The caller passes the time; nothing here reads a clock.
#[derive(Debug, Default)]
pub(super) struct Stash {
    held: HashMap<FlowKey, HeldPackets>,
    /// In order of arrival. Entries whose connection has been removed are skipped.
    held_queue: VecDeque<(Instant, FlowKey)>,
    restored: HashMap<FlowKey, RestoreTime>,
    restored_queue: VecDeque<(Instant, FlowKey)>,
    bytes: usize,
    packets: usize,
}

impl Stash {
    /// Decides about a packet that was received at `received_ns`.
    ///
    /// A packet that was received after its connection's restore and still found no socket is held again: either the
    /// socket has closed, or the packet belongs to the next connection with these addresses. Injecting it would bring
    /// it back here for ever.
    pub(super) fn push(
        &mut self,
        now: Instant,
        key: FlowKey,
        received_ns: u64,
        packet: &[u8],
    ) -> StashVerdict {
        let before = |since: &RestoreTime| {
            received_ns < since.ns && now.saturating_duration_since(since.at) < LATE_EVENT_WINDOW
        };
        if self.restored.get(&key).is_some_and(before) {
            return StashVerdict::Inject;
        }
        let known = self.held.get(&key).map(|held| held.packets.len());
        let full = match known {
            Some(packets) => packets >= STASH_PACKETS_MAX,
            None => self.held.len() >= STASH_FLOWS_MAX,
        };
        if full || self.bytes + packet.len() > STASH_BYTES_MAX {
            return StashVerdict::Full;
        }
        if known.is_none() {
            self.held_queue.push_back((now, key));
        }
        let fresh = || HeldPackets { since: now, packets: Vec::new() };
        self.held.entry(key).or_insert_with(fresh).packets.push(packet.to_vec());
        self.bytes += packet.len();
        self.packets += 1;
        StashVerdict::Held
    }

    /// Notes that the connection's socket exists. Returns its packets in order of arrival.
    pub(super) fn mark_restored(&mut self, now: Instant, now_ns: u64, key: FlowKey) -> Vec<Vec<u8>> {
        if self.restored.insert(key, RestoreTime { at: now, ns: now_ns }).is_none() {
            self.restored_queue.push_back((now, key));
        }
        if self.restored_queue.len() > RESTORED_MAX {
            self.remove_oldest_restored();
        }
        self.remove(key)
    }

    /// Holds the connection's packets from now on, even if its socket exists.
    pub(super) fn hold(&mut self, key: FlowKey) {
        self.restored.remove(&key);
    }

    /// Removes a connection whose socket will not come, and returns its packets.
    pub(super) fn remove(&mut self, key: FlowKey) -> Vec<Vec<u8>> {
        let Some(held) = self.held.remove(&key) else { return Vec::new() };
        self.bytes -= held.packets.iter().map(Vec::len).sum::<usize>();
        self.packets -= held.packets.len();
        held.packets
    }

    /// Removes and returns the next connection whose packets have waited too long, with its packets.
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<(FlowKey, Vec<Vec<u8>>)> {
        while let Some(&(_, key)) =
            self.restored_queue.front().filter(|(at, _)| *at + LATE_EVENT_WINDOW <= now)
        {
            // If it was restored again since, it is queued again with the later time.
            match self.restored.get(&key) {
                Some(&RestoreTime { at, .. }) if at + LATE_EVENT_WINDOW > now => {
                    self.restored_queue.pop_front();
                    self.restored_queue.push_back((at, key));
                }
                _ => self.remove_oldest_restored(),
            }
        }
        while let Some(&(at, key)) = self.held_queue.front() {
            // If it was removed and came back, it is also further back in the queue.
            let same = self.held.get(&key).is_some_and(|held| held.since == at);
            if same && at + STASH_WAIT > now {
                return None;
            }
            self.held_queue.pop_front();
            if same {
                return Some((key, self.remove(key)));
            }
        }
        None
    }

    /// Returns the time at which [`Self::pop_expired`] has work to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let held = self.held_queue.front().map(|(at, _)| *at + STASH_WAIT);
        let echo = self.restored_queue.front().map(|(at, _)| *at + LATE_EVENT_WINDOW);
        held.into_iter().chain(echo).min()
    }

    /// Returns the number of held packets.
    pub(super) fn len(&self) -> usize {
        self.packets
    }

    fn remove_oldest_restored(&mut self) {
        if let Some((_, key)) = self.restored_queue.pop_front() {
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
    fn packets_are_held_in_order_until_the_restore() {
        let (mut stash, now) = (Stash::default(), Instant::now());
        for byte in 0..3 {
            assert_eq!(stash.push(now, key(1), 5, &[byte]), StashVerdict::Held);
        }
        assert_eq!(stash.push(now, key(2), 5, &[9]), StashVerdict::Held);
        assert_eq!(stash.mark_restored(now, 9, key(1)), [[0], [1], [2]]);
        assert_eq!((stash.len(), stash.bytes), (1, 1));
        assert_eq!(
            stash.push(now + LATE_EVENT_WINDOW / 2, key(1), 8, &[3]),
            StashVerdict::Inject,
            "event arrived late"
        );
        assert_eq!(
            stash.push(now + LATE_EVENT_WINDOW / 2, key(1), 9, &[3]),
            StashVerdict::Held,
            "received after the restore"
        );
        assert_eq!(stash.remove(key(1)), [[3]]);
        assert_eq!(stash.pop_expired(now + STASH_WAIT), Some((key(2), vec![vec![9]])));
        assert_eq!(stash.pop_expired(now + LATE_EVENT_WINDOW), None);
        assert_eq!(
            stash.push(now + LATE_EVENT_WINDOW, key(1), 5, &[3]),
            StashVerdict::Held,
            "the restore is forgotten by now"
        );
    }

    #[test]
    fn packets_of_a_connection_that_does_not_come_expire_once() {
        let (mut stash, now) = (Stash::default(), Instant::now());
        stash.push(now, key(1), 5, &[1]);
        stash.push(now + STASH_WAIT / 2, key(1), 5, &[2]);
        assert_eq!(stash.pop_expired(now + STASH_WAIT / 2), None);
        assert_eq!(stash.next_deadline(), Some(now + STASH_WAIT));
        assert_eq!(stash.pop_expired(now + STASH_WAIT), Some((key(1), vec![vec![1], vec![2]])));
        assert_eq!(
            (stash.pop_expired(now + STASH_WAIT), stash.next_deadline(), stash.bytes),
            (None, None, 0)
        );
        // Removed and held again: only the later time counts.
        stash.push(now, key(2), 5, &[1]);
        assert_eq!(stash.remove(key(2)).len(), 1);
        stash.push(now + STASH_WAIT / 2, key(2), 5, &[2]);
        assert_eq!(stash.pop_expired(now + STASH_WAIT), None);
        assert_eq!(stash.pop_expired(now + STASH_WAIT * 2), Some((key(2), vec![vec![2]])));
    }

    #[test]
    fn tables_are_bounded() {
        let (mut stash, now) = (Stash::default(), Instant::now());
        for _ in 0..STASH_PACKETS_MAX {
            assert_eq!(stash.push(now, key(0), 5, &[0]), StashVerdict::Held);
        }
        assert_eq!(stash.push(now, key(0), 5, &[0]), StashVerdict::Full);
        for port in 1..u16::try_from(STASH_FLOWS_MAX).expect("few") {
            assert_eq!(stash.push(now, key(port), 5, &[0]), StashVerdict::Held);
        }
        assert_eq!(stash.push(now, key(u16::MAX), 5, &[0]), StashVerdict::Full);
        assert_eq!(stash.push(now, key(1), 5, &vec![0; STASH_BYTES_MAX]), StashVerdict::Full);
        let mut stash = Stash::default();
        for at in 0..RESTORED_MAX + 9 {
            let client =
                ([10, 0, (at >> 16).try_into().expect("few"), 1], (at & 0xffff).try_into().expect("a port"));
            stash.mark_restored(now, 9, FlowKey::new(client.into(), 0));
        }
        assert_eq!((stash.restored.len(), stash.restored_queue.len()), (RESTORED_MAX, RESTORED_MAX));
    }
}
