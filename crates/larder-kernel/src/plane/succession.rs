//! A predecessor's connections in a table of another size.
//!
//! Its programs go on while its table is copied, and what they write meanwhile is in its table alone: that an entry has been
//! replaced, say, or a SYN that came for one. So the table is gone through once more when they have ended, and what has
//! changed since it was copied is made up for. The new programs have been at work by then; where both have changed something,
//! the later word stands. What the next packet corrects is left to it: an entry that is put takes the place of one that programs
//! may be writing to.

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

/// Entries that the kernel keeps ready for each processor (kernel/bpf/bpf_lru_list.c): a table is full before all are used.
const READY: usize = 128;
/// Where the kernel does not offer to wait for programs, they are given so long. They take microseconds.
const PATIENCE: Duration = Duration::from_millis(20);

/// A table that has been copied while it was in use.
#[derive(Debug)]
pub(super) struct Predecessor {
    table: MapHandle,
    /// What its programs tell.
    events: Option<MapHandle>,
    /// As it was, in order.
    copied: Vec<(RawFlowKey, Flow)>,
}

/// What is to be done with an entry of the new table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Put(Flow),
    Remove,
}

impl Predecessor {
    /// Copies `table` into another. Where that one has less room, connections are left out whose last packet is the longest
    /// ago. What has been copied is remembered: 108 bytes each, twice
    /// as much while it catches up.
    pub(super) fn copied(
        table: MapHandle,
        events: Option<MapHandle>,
        into: &MapHandle,
    ) -> Result<Self, PlaneError> {
        let mut copied = listed(&table)?;
        copied.sort_unstable_by_key(|(_, flow)| flow.seen_ns);
        // The oldest first: what does not fit after all pushes them out.
        let left_out = copied.len().saturating_sub(room(into));
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

    /// Makes up for what has changed since, once no program writes to the old table any more: those that were running when they
    /// were replaced have ended by then.
    pub(super) fn catch_up(&self, into: &MapHandle) -> Result<(), PlaneError> {
        // The kernel waits for all that runs without being preempted, as programs do (kernel/sched/membarrier.c). It does not
        // offer it where processors run without a tick.
        if membarrier(MembarrierCommand::Global).is_err() {
            std::thread::sleep(PATIENCE);
        }
        let Self { table, copied, .. } = self;
        let mut left = listed(table)?;
        left.sort_unstable_by_key(|(key, _)| *key);
        let find = |key| {
            let at = left.binary_search_by_key(key, |(key, _)| *key).ok()?;
            left.get(at).map(|(_, flow)| *flow)
        };
        let full = copied.len().max(left.len()) >= room(table);
        let before = copied.iter().map(|(key, copied)| (*key, Some(*copied), find(key)));
        let new = left.iter().filter(|(key, _)| copied.binary_search_by_key(key, |(key, _)| *key).is_err());
        for (key, copied, old) in before.chain(new.map(|(key, old)| (*key, None, Some(*old)))) {
            if !has_changed(copied, old) {
                continue;
            }
            let there = into.lookup(key.as_bytes(), MapFlags::ANY);
            let there = there.map_err(PlaneError::bpf("read a connection"))?;
            let there = there.and_then(|bytes| Flow::read_from_bytes(&bytes).ok());
            match due(copied, old, there, full) {
                Due::Nothing => {}
                Due::Put(flow) => put(into, &key, &flow)?,
                // It may have gone by itself.
                Due::Remove => drop(into.delete(key.as_bytes())),
            }
        }
        Ok(())
    }

    /// What its programs have told and nobody has read; once they have ended, nothing follows.
    pub(super) fn unread(&self) -> io::Result<Option<Ring>> {
        let ring = |events: &MapHandle| Ring::new(events.as_fd(), events.max_entries());
        self.events.as_ref().map(ring).transpose()
    }
}

fn listed(table: &MapHandle) -> Result<Vec<(RawFlowKey, Flow)>, PlaneError> {
    let mut entries = Vec::new();
    let listed = each_flow_of(table, |key, flow| entries.push((key, flow)));
    listed.map_err(PlaneError::io("read a predecessor's connections"))?;
    Ok(entries)
}

/// So many entries fit without pushing others out.
fn room(table: &MapHandle) -> usize {
    let entries = table.max_entries() as usize;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    entries.saturating_sub(READY * processors).max(entries / 2)
}

fn put(into: &MapHandle, key: &RawFlowKey, flow: &Flow) -> Result<(), PlaneError> {
    into.update(key.as_bytes(), flow.as_bytes(), MapFlags::ANY).map_err(PlaneError::bpf("fill a map"))
}

/// Whether an entry is another one, or something has become of it that the next packet does not tell again.
fn has_changed(copied: Option<Flow>, old: Option<Flow>) -> bool {
    let told_once = |flow: Flow| {
        (flow.opened_ns, flow.flags, flow.syn_seq, flow.answer_seq, flow.answer_ack, flow.denied)
    };
    copied.map(told_once) != old.map(told_once)
}

/// An entry as it was copied, as the old programs have left it, and as the new ones have it. Out of a `full` table entries go
/// also to make room.
fn due(copied: Option<Flow>, old: Option<Flow>, new: Option<Flow>, full: bool) -> Due {
    let was_copied = |flow: &Flow| copied.filter(|copied| copied.opened_ns == flow.opened_ns);
    let may_be_replaced = |flow: &Flow| flow.flags & (SYN_SEEN | CLIENT_FIN | CLIENT_RST) != 0;
    match (old, new) {
        (None, Some(new)) if was_copied(&new).is_some() => {
            if full && !may_be_replaced(&new) {
                Due::Nothing
            } else {
                Due::Remove
            }
        }
        (None, _) => Due::Nothing,
        // The new programs have ended it, or it had no room.
        (Some(old), None) if was_copied(&old).is_some() => Due::Nothing,
        (Some(old), None) => Due::Put(old),
        // Another connection by now.
        (Some(old), Some(new)) if new.opened_ns > old.opened_ns => Due::Nothing,
        (Some(old), Some(new)) => match was_copied(&old) {
            Some(copied) if new != copied => Due::Put(merged(&copied, &old, &new)),
            _ => Due::Put(old),
        },
    }
}

/// What the new programs have changed stands, all else is as the old ones have left it. Which connection it is and where it goes
/// has not changed.
fn merged(copied: &Flow, old: &Flow, new: &Flow) -> Flow {
    fn later<T: PartialEq + Copy>(copied: T, old: T, new: T) -> T {
        if new == copied { old } else { new }
    }
    let by_new = new.flags ^ copied.flags;
    let mut flow = Flow { flags: (new.flags & by_new) | (old.flags & !by_new), ..*new };
    macro_rules! keep_later {
        ($($field:ident)*) => { $(flow.$field = later(copied.$field, old.$field, new.$field);)* };
    }
    keep_later!(last_seq last_ack syn_seq held packets requests first_ack asked_ack seen_ns);
    keep_later!(answer_seq answer_ack frozen_seq denied next_seq);
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
        asked_ack: 300,
        seen_ns: 1_000,
        opened_ns: 500,
        answer_seq: 0,
        answer_ack: 0,
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
        let mut entries = listed(table).expect("listed");
        entries.sort_unstable_by_key(|(key, _)| u16::from_be_bytes(key.client_port_be));
        entries.into_iter().map(|(key, flow)| (u16::from_be_bytes(key.client_port_be), flow)).collect()
    }

    #[test]
    fn what_nobody_has_changed_or_has_gone_stays_as_it_is() {
        let later = Flow { opened_ns: 2_000, ..COPIED };
        let touched = Flow { packets: 5, last_seq: 201, seen_ns: 1_010, ..COPIED };
        assert!(!has_changed(Some(COPIED), Some(touched)), "the next packet says it again");
        let asked = Flow { flags: SYN_SEEN, ..touched };
        assert!(has_changed(Some(COPIED), Some(asked)));
        assert_eq!(
            due(Some(COPIED), Some(asked), None, false),
            Due::Nothing,
            "the new programs have ended it"
        );
        assert_eq!(due(Some(COPIED), None, None, false), Due::Nothing);
        assert_eq!(
            due(Some(COPIED), None, Some(later), false),
            Due::Nothing,
            "another connection has its place"
        );
        assert_eq!(due(None, None, Some(later), false), Due::Nothing);
    }

    #[test]
    fn what_the_old_programs_have_ended_or_begun_is_made_up_for() {
        let begun = Flow { opened_ns: 1_500, first_seq: 9, ..COPIED };
        let touched = Flow { packets: 5, ..COPIED };
        for new in [COPIED, touched] {
            assert_eq!(due(Some(COPIED), None, Some(new), false), Due::Remove);
            assert_eq!(due(Some(COPIED), None, Some(new), true), Due::Nothing, "it may have made room");
            let asked = Flow { flags: SYN_SEEN, ..new };
            assert_eq!(due(Some(COPIED), None, Some(asked), true), Due::Remove);
            assert_eq!(due(Some(COPIED), Some(begun), Some(new), false), Due::Put(begun));
        }
        assert_eq!(due(None, Some(begun), None, false), Due::Put(begun));
        assert_eq!(due(Some(COPIED), Some(begun), None, false), Due::Put(begun));
        let later = Flow { opened_ns: 2_000, ..COPIED };
        assert_eq!(due(None, Some(begun), Some(later), false), Due::Nothing);
        assert_eq!(due(Some(COPIED), Some(begun), Some(later), false), Due::Nothing);
    }

    #[test]
    fn of_what_both_have_changed_the_later_word_stands() {
        let old = Flow {
            flags: SYN_SEEN,
            syn_seq: 77,
            answer_seq: 5,
            last_seq: 210,
            seen_ns: 1_100,
            packets: 5,
            ..COPIED
        };
        assert_eq!(due(Some(COPIED), Some(old), Some(COPIED), false), Due::Put(old), "untouched since");
        let new = Flow { flags: IDLE | CLIENT_FIN, last_ack: 400, seen_ns: 1_200, packets: 6, ..COPIED };
        let both = Flow {
            flags: SYN_SEEN | CLIENT_FIN,
            syn_seq: 77,
            answer_seq: 5,
            last_seq: 210,
            last_ack: 400,
            seen_ns: 1_200,
            packets: 6,
            ..COPIED
        };
        assert_eq!(due(Some(COPIED), Some(old), Some(new), false), Due::Put(both));
        // What the old ones alone have taken back stays so.
        assert_eq!(both.flags & IDLE, 0);
    }

    #[test]
    fn what_changes_while_a_table_is_copied_is_in_the_new_one() {
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

    /// Into less room: the connections that were heard of last.
    #[test]
    fn what_has_no_room_is_what_nobody_has_heard_of_for_longest() {
        if !may_load() {
            return;
        }
        let (old, new) = (table(1 << 14), table(1 << 13));
        for port in 0..10_000_u16 {
            // Scattered over the keys.
            let seen_ns = u64::from(port.wrapping_mul(7_919) % 10_000);
            put(&old, &key(port), &Flow { seen_ns, ..COPIED }).expect("room");
        }
        Predecessor::copied(old, None, &new).expect("copied");
        let mut kept: Vec<u64> = in_it(&new).iter().map(|(_, flow)| flow.seen_ns).collect();
        kept.sort_unstable();
        assert_eq!(kept.len(), room(&new));
        let before = (0..10_000_u16).map(|port| u64::from(port.wrapping_mul(7_919) % 10_000));
        let mut all: Vec<u64> = before.collect();
        all.sort_unstable();
        assert_eq!(kept, all[all.len() - kept.len()..]);
    }
}
