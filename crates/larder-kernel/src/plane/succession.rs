//! Takeover of a previous process's connections into a table of another size.
//!
//! The old programs keep running while their table is copied, and write only to that table, for example that an entry
//! was replaced or a new SYN was seen. So the table is compared once more after they have ended, and changes since the
//! copy are applied. The new programs are running by then. If both have changed a field, the later value wins. Changes
//! that the next packet corrects are left out, because an entry that is written here replaces one that programs may be
//! writing to.

use super::PlaneError;
use super::ring::Ring;
use crate::abi::flow_flag::{CLIENT_FIN, CLIENT_RST, SYN_SEEN};
use crate::abi::{Flow, RawFlowKey};
use crate::listing::each_flow_of;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use rustix::thread::{MembarrierCommand, membarrier};
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Free entries that the kernel reserves for each processor (kernel/bpf/bpf_lru_list.c): a table is full before all are
/// used.
const READY: usize = 128;
/// Wait for running programs if the kernel offers no way to wait for them. They take microseconds.
const PATIENCE: Duration = Duration::from_millis(20);

/// A table that was copied while it was in use.
#[derive(Debug)]
pub(super) struct Predecessor {
    table: MapHandle,
    /// The event ring of its programs.
    events: Option<MapHandle>,
    /// The copied entries, sorted by key.
    copied: Vec<(RawFlowKey, Flow)>,
}

/// Change to be made to an entry of the new table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryChange {
    Nothing,
    Put(Flow),
    Remove,
}

impl Predecessor {
    /// Copies `table` into another. If that has less room, the connections without a packet for longest are left out.
    /// The copied entries are kept in memory: 108 bytes each, and twice as much during [`Self::catch_up`].
    pub(super) fn copied(
        table: MapHandle,
        events: Option<MapHandle>,
        into: &MapHandle,
    ) -> Result<Self, PlaneError> {
        let mut copied = read_entries(&table)?;
        copied.sort_unstable_by_key(|(_, flow)| flow.seen_ns);
        // The oldest first, so that they are evicted if there is not enough room after all.
        let left_out = copied.len().saturating_sub(max_entries(into));
        let refused =
            copied.iter().skip(left_out).filter(|(key, flow)| put(into, key, flow).is_err()).count();
        if left_out + refused > 0 {
            tracing::warn!(
                connections = left_out + refused,
                "forwarding plane: the new connection table has no room for all connections"
            );
        }
        copied.sort_unstable_by_key(|(key, _)| *key);
        Ok(Self { table, events, copied })
    }

    /// Applies the changes since the copy. No program may write to the old table any more: those that were running when
    /// they were replaced have ended by then.
    pub(super) fn catch_up(&self, into: &MapHandle) -> Result<(), PlaneError> {
        // The kernel waits for everything that runs without preemption, as programs do (kernel/sched/membarrier.c). It
        // does not offer this if processors run without a tick.
        if membarrier(MembarrierCommand::Global).is_err() {
            std::thread::sleep(PATIENCE);
        }
        let Self { table, copied, .. } = self;
        let mut left = read_entries(table)?;
        left.sort_unstable_by_key(|(key, _)| *key);
        let find = |key| {
            let at = left.binary_search_by_key(key, |(key, _)| *key).ok()?;
            left.get(at).map(|(_, flow)| *flow)
        };
        let full = copied.len().max(left.len()) >= max_entries(table);
        let before = copied.iter().map(|(key, copied)| (*key, Some(*copied), find(key)));
        let new = left.iter().filter(|(key, _)| copied.binary_search_by_key(key, |(key, _)| *key).is_err());
        for (key, copied, old) in before.chain(new.map(|(key, old)| (*key, None, Some(*old)))) {
            if !has_changed(copied, old) {
                continue;
            }
            let there = into.lookup(key.as_bytes(), MapFlags::ANY);
            let there = there.map_err(PlaneError::bpf("read a connection"))?;
            let there = there.and_then(|bytes| Flow::read_from_bytes(&bytes).ok());
            match entry_change(copied, old, there, full) {
                EntryChange::Nothing => {}
                EntryChange::Put(flow) => put(into, &key, &flow)?,
                // It may have been removed already.
                EntryChange::Remove => drop(into.delete(key.as_bytes())),
            }
        }
        Ok(())
    }

    /// Returns the ring with the unread events of the old programs. Once they have ended, nothing is added.
    pub(super) fn unread_ring(&self) -> io::Result<Option<Ring>> {
        let ring = |events: &MapHandle| Ring::new(events.as_fd(), events.max_entries());
        self.events.as_ref().map(ring).transpose()
    }
}

fn read_entries(table: &MapHandle) -> Result<Vec<(RawFlowKey, Flow)>, PlaneError> {
    let mut entries = Vec::new();
    let listed = each_flow_of(table, |key, flow| entries.push((key, flow)));
    listed.map_err(PlaneError::io("read the connections of the previous process"))?;
    Ok(entries)
}

/// Number of entries that fit without evictions.
fn max_entries(table: &MapHandle) -> usize {
    let entries = table.max_entries() as usize;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    entries.saturating_sub(READY * processors).max(entries / 2)
}

fn put(into: &MapHandle, key: &RawFlowKey, flow: &Flow) -> Result<(), PlaneError> {
    into.update(key.as_bytes(), flow.as_bytes(), MapFlags::ANY).map_err(PlaneError::bpf("fill a map"))
}

/// Whether an entry is a different connection, or has changed in a way that the next packet does not show again.
fn has_changed(copied: Option<Flow>, old: Option<Flow>) -> bool {
    let told_once =
        |flow: Flow| (flow.opened_ns, flow.flags, flow.syn_seq, flow.stack_seq, flow.stack_ack, flow.denied);
    copied.map(told_once) != old.map(told_once)
}

/// Decides on an entry, given its copy, its state in the old table and in the new one. A `full` table also evicts
/// entries to make room.
fn entry_change(copied: Option<Flow>, old: Option<Flow>, new: Option<Flow>, full: bool) -> EntryChange {
    let was_copied = |flow: &Flow| copied.filter(|copied| copied.opened_ns == flow.opened_ns);
    let may_be_replaced = |flow: &Flow| flow.flags & (SYN_SEEN | CLIENT_FIN | CLIENT_RST) != 0;
    match (old, new) {
        (None, Some(new)) if was_copied(&new).is_some() => {
            if full && !may_be_replaced(&new) {
                EntryChange::Nothing
            } else {
                EntryChange::Remove
            }
        }
        (None, _) => EntryChange::Nothing,
        // The new programs have ended it, or it had no room.
        (Some(old), None) if was_copied(&old).is_some() => EntryChange::Nothing,
        (Some(old), None) => EntryChange::Put(old),
        // It is another connection by now.
        (Some(old), Some(new)) if new.opened_ns > old.opened_ns => EntryChange::Nothing,
        (Some(old), Some(new)) => match was_copied(&old) {
            Some(copied) if new != copied => EntryChange::Put(merged(&copied, &old, &new)),
            _ => EntryChange::Put(old),
        },
    }
}

/// Merges an entry: fields that the new programs have changed stay, the others are taken from the old table. Key and
/// destination have not changed.
fn merged(copied: &Flow, old: &Flow, new: &Flow) -> Flow {
    fn later_value<T: PartialEq + Copy>(copied: T, old: T, new: T) -> T {
        if new == copied { old } else { new }
    }
    let by_new = new.flags ^ copied.flags;
    let mut flow = Flow { flags: (new.flags & by_new) | (old.flags & !by_new), ..*new };
    macro_rules! keep_later {
        ($($field:ident)*) => { $(flow.$field = later_value(copied.$field, old.$field, new.$field);)* };
    }
    keep_later!(last_seq last_ack syn_seq held packets requests first_ack request_ack seen_ns);
    keep_later!(stack_seq stack_ack frozen_seq denied next_seq);
    flow
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::flow_flag::IDLE;
    use crate::plane::tests::may_load;
    use libbpf_rs::MapType;
    use libbpf_rs::libbpf_sys::bpf_map_create_opts as MapCreateOpts;

    const COPIED: Flow = Flow {
        state: 2,
        zero: 0,
        node: 7,
        flags: IDLE,
        flags_rest: [0; 3],
        first_echo: 1,
        next_seq: 200,
        zero2: 0,
        first_seq: 100,
        last_seq: 200,
        last_ack: 300,
        syn_seq: 0,
        held: 0,
        packets: 4,
        requests: 1,
        first_ack: 250,
        request_ack: 300,
        seen_ns: 1_000,
        opened_ns: 500,
        stack_seq: 0,
        stack_ack: 0,
        frozen_seq: 0,
        denied: 0,
    };

    fn table(entries: u32) -> MapHandle {
        let options = MapCreateOpts { sz: size_of::<MapCreateOpts>() as _, ..MapCreateOpts::default() };
        let sizes = (size_of::<RawFlowKey>() as u32, size_of::<Flow>() as u32);
        MapHandle::create(MapType::LruHash, Some("flows"), sizes.0, sizes.1, entries, &options)
            .expect("a map")
    }

    fn key(port: u16) -> RawFlowKey {
        RawFlowKey { client_port_be: port.to_be_bytes(), ..RawFlowKey::default() }
    }

    fn in_it(table: &MapHandle) -> Vec<(u16, Flow)> {
        let mut entries = read_entries(table).expect("listed");
        entries.sort_unstable_by_key(|(key, _)| u16::from_be_bytes(key.client_port_be));
        entries.into_iter().map(|(key, flow)| (u16::from_be_bytes(key.client_port_be), flow)).collect()
    }

    #[test]
    fn unchanged_or_removed_entries_are_kept() {
        let later = Flow { opened_ns: 2_000, ..COPIED };
        let touched = Flow { packets: 5, last_seq: 201, seen_ns: 1_010, ..COPIED };
        assert!(!has_changed(Some(COPIED), Some(touched)), "the next packet says it again");
        let asked = Flow { flags: SYN_SEEN, ..touched };
        assert!(has_changed(Some(COPIED), Some(asked)));
        assert_eq!(
            entry_change(Some(COPIED), Some(asked), None, false),
            EntryChange::Nothing,
            "the new programs have ended it"
        );
        assert_eq!(entry_change(Some(COPIED), None, None, false), EntryChange::Nothing);
        assert_eq!(
            entry_change(Some(COPIED), None, Some(later), false),
            EntryChange::Nothing,
            "another connection has its place"
        );
        assert_eq!(entry_change(None, None, Some(later), false), EntryChange::Nothing);
    }

    #[test]
    fn changes_by_the_old_programs_are_applied() {
        let begun = Flow { opened_ns: 1_500, first_seq: 9, ..COPIED };
        let touched = Flow { packets: 5, ..COPIED };
        for new in [COPIED, touched] {
            assert_eq!(entry_change(Some(COPIED), None, Some(new), false), EntryChange::Remove);
            assert_eq!(
                entry_change(Some(COPIED), None, Some(new), true),
                EntryChange::Nothing,
                "it may have made room"
            );
            let asked = Flow { flags: SYN_SEEN, ..new };
            assert_eq!(entry_change(Some(COPIED), None, Some(asked), true), EntryChange::Remove);
            assert_eq!(entry_change(Some(COPIED), Some(begun), Some(new), false), EntryChange::Put(begun));
        }
        assert_eq!(entry_change(None, Some(begun), None, false), EntryChange::Put(begun));
        assert_eq!(entry_change(Some(COPIED), Some(begun), None, false), EntryChange::Put(begun));
        let later = Flow { opened_ns: 2_000, ..COPIED };
        assert_eq!(entry_change(None, Some(begun), Some(later), false), EntryChange::Nothing);
        assert_eq!(entry_change(Some(COPIED), Some(begun), Some(later), false), EntryChange::Nothing);
    }

    #[test]
    fn later_change_wins_when_both_changed() {
        let old = Flow {
            flags: SYN_SEEN,
            syn_seq: 77,
            stack_seq: 5,
            last_seq: 210,
            seen_ns: 1_100,
            packets: 5,
            ..COPIED
        };
        assert_eq!(
            entry_change(Some(COPIED), Some(old), Some(COPIED), false),
            EntryChange::Put(old),
            "untouched since"
        );
        let new = Flow { flags: IDLE | CLIENT_FIN, last_ack: 400, seen_ns: 1_200, packets: 6, ..COPIED };
        let both = Flow {
            flags: SYN_SEEN | CLIENT_FIN,
            syn_seq: 77,
            stack_seq: 5,
            last_seq: 210,
            last_ack: 400,
            seen_ns: 1_200,
            packets: 6,
            ..COPIED
        };
        assert_eq!(entry_change(Some(COPIED), Some(old), Some(new), false), EntryChange::Put(both));
        // A flag that only the old programs have cleared stays cleared.
        assert_eq!(both.flags & IDLE, 0);
    }

    #[test]
    fn changes_during_the_copy_are_applied() {
        if !may_load() {
            return;
        }
        let (old, new) = (table(1 << 14), table(1 << 15));
        (0..3_000).for_each(|port| put(&old, &key(port), &COPIED).expect("room"));
        let predecessor = Predecessor::copied(old, None, &new).expect("copied");
        assert_eq!(in_it(&new), in_it(&predecessor.table));
        let asked = Flow { flags: SYN_SEEN, syn_seq: 77, ..COPIED };
        let begun = Flow { opened_ns: 1_500, ..COPIED };
        predecessor.table.delete(key(1).as_bytes()).expect("there");
        put(&predecessor.table, &key(2), &asked).expect("room");
        put(&predecessor.table, &key(3), &begun).expect("room");
        put(&predecessor.table, &key(4_000), &begun).expect("room");
        put(&new, &key(5), &asked).expect("room");
        put(&predecessor.table, &key(6), &asked).expect("room");
        put(&new, &key(6), &Flow { packets: 9, ..COPIED }).expect("room");
        new.delete(key(7).as_bytes()).expect("there");
        let mut expected = in_it(&predecessor.table);
        (expected[4], expected[5]) = ((5, asked), (6, Flow { packets: 9, ..asked }));
        assert_eq!(expected.remove(6), (7, COPIED));
        predecessor.catch_up(&new).expect("caught up");
        assert_eq!(in_it(&new), expected);
    }

    /// With less room, the connections with the latest packets are kept.
    #[test]
    fn oldest_entries_are_dropped_when_full() {
        if !may_load() {
            return;
        }
        let (old, new) = (table(1 << 14), table(1 << 13));
        for port in 0..10_000_u16 {
            // Spread over the keys.
            let seen_ns = u64::from(port.wrapping_mul(7_919) % 10_000);
            put(&old, &key(port), &Flow { seen_ns, ..COPIED }).expect("room");
        }
        Predecessor::copied(old, None, &new).expect("copied");
        let mut kept: Vec<u64> = in_it(&new).iter().map(|(_, flow)| flow.seen_ns).collect();
        kept.sort_unstable();
        assert_eq!(kept.len(), max_entries(&new));
        let before = (0..10_000_u16).map(|port| u64::from(port.wrapping_mul(7_919) % 10_000));
        let mut all: Vec<u64> = before.collect();
        all.sort_unstable();
        assert_eq!(kept, all[all.len() - kept.len()..]);
    }
}
