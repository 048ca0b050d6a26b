//! A predecessor's connections in a table of another size.
//!
//! Its programs go on while its table is copied, and what they write meanwhile is in its table alone: that an entry has been
//! replaced, say, or a SYN that came for one. So the table is gone through once more when they have ended, and what has
//! changed since it was copied is made up for. The new programs have been at work by then; where both have changed something,
//! the later word stands.

use super::PlaneError;
use crate::abi::{Flow, RawFlowKey};
use crate::listing::each_flow_of;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use rustix::thread::{MembarrierCommand, membarrier};
use std::collections::HashMap;
use zerocopy::{FromBytes as _, IntoBytes as _};

/// A table that has been copied while it was in use.
#[derive(Debug)]
pub(super) struct Predecessor {
    table: MapHandle,
    copied: HashMap<RawFlowKey, Flow>,
}

/// What is to be done with an entry of the new table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Put(Flow),
    Remove,
}

impl Predecessor {
    /// Copies `table` into another. Beyond that one's room the rest is left out: packets find their node by its tag. What has
    /// been copied is remembered, about as many bytes as the table has.
    pub(super) fn copied(table: MapHandle, into: &MapHandle) -> Result<Self, PlaneError> {
        let mut copied = HashMap::new();
        let listed = each_flow_of(&table, |key, flow| {
            copied.insert(key, flow);
        });
        listed.map_err(PlaneError::io("read a predecessor's connections"))?;
        for (key, flow) in &copied {
            put(into, key, flow)?;
        }
        Ok(Self { table, copied })
    }

    /// Makes up for what has changed since, once no program writes to the old table any more: those that were running when they
    /// were replaced have ended when this returns.
    pub(super) fn catch_up(mut self, into: &MapHandle) -> Result<(), PlaneError> {
        // The kernel waits for all that runs without being preempted, as programs do (kernel/sched/membarrier.c).
        if membarrier(MembarrierCommand::Global).is_err() {
            // Not offered where processors run without a tick. A program takes microseconds.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let mut changed = Vec::new();
        let listed = each_flow_of(&self.table, |key, flow| {
            let copied = self.copied.remove(&key);
            if copied != Some(flow) {
                changed.push((key, copied, Some(flow)));
            }
        });
        listed.map_err(PlaneError::io("read a predecessor's connections"))?;
        changed.extend(self.copied.drain().map(|(key, copied)| (key, Some(copied), None)));
        for (key, copied, old) in changed {
            let new = into.lookup(key.as_bytes(), MapFlags::ANY);
            let new = new.map_err(PlaneError::bpf("read a connection"))?;
            let new = new.and_then(|bytes| Flow::read_from_bytes(&bytes).ok());
            match due(copied, old, new) {
                Due::Nothing => {}
                Due::Put(flow) => put(into, &key, &flow)?,
                // It may have gone by itself.
                Due::Remove => drop(into.delete(key.as_bytes())),
            }
        }
        Ok(())
    }
}

fn put(into: &MapHandle, key: &RawFlowKey, flow: &Flow) -> Result<(), PlaneError> {
    into.update(key.as_bytes(), flow.as_bytes(), MapFlags::ANY).map_err(PlaneError::bpf("fill a map"))
}

/// An entry as it was copied, as the old programs have left it, and as the new ones have it.
fn due(copied: Option<Flow>, old: Option<Flow>, new: Option<Flow>) -> Due {
    match (old, new) {
        (None, Some(new)) if copied.is_some_and(|copied| copied.opened_ns == new.opened_ns) => Due::Remove,
        (None, _) => Due::Nothing,
        (Some(old), None) => Due::Put(old),
        // Another connection by now.
        (Some(old), Some(new)) if new.opened_ns > old.opened_ns => Due::Nothing,
        (Some(old), Some(new)) => match copied.filter(|copied| copied.opened_ns == old.opened_ns) {
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
    keep_later!(answer_seq answer_ack frozen_seq denied);
    flow
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::flow_flag::{CLIENT_FIN, IDLE, SYN_SEEN};
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

    #[test]
    fn what_nobody_has_changed_or_has_gone_stays_as_it_is() {
        let later = Flow { opened_ns: 2_000, ..COPIED };
        assert_eq!(due(Some(COPIED), None, None), Due::Nothing);
        assert_eq!(due(Some(COPIED), None, Some(later)), Due::Nothing, "another connection has its place");
        assert_eq!(due(None, None, Some(later)), Due::Nothing);
    }

    #[test]
    fn what_the_old_programs_have_ended_or_begun_is_made_up_for() {
        let begun = Flow { opened_ns: 1_500, first_seq: 9, ..COPIED };
        let touched = Flow { packets: 5, ..COPIED };
        for new in [COPIED, touched] {
            assert_eq!(due(Some(COPIED), None, Some(new)), Due::Remove);
            assert_eq!(due(Some(COPIED), Some(begun), Some(new)), Due::Put(begun));
        }
        assert_eq!(due(None, Some(begun), None), Due::Put(begun));
        assert_eq!(due(Some(COPIED), Some(begun), None), Due::Put(begun));
        let later = Flow { opened_ns: 2_000, ..COPIED };
        assert_eq!(due(None, Some(begun), Some(later)), Due::Nothing);
        assert_eq!(due(Some(COPIED), Some(begun), Some(later)), Due::Nothing);
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
        assert_eq!(due(Some(COPIED), Some(old), Some(COPIED)), Due::Put(old), "untouched since");
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
        assert_eq!(due(Some(COPIED), Some(old), Some(new)), Due::Put(both));
        // What the old ones alone have taken back stays so.
        assert_eq!(both.flags & IDLE, 0);
    }

    #[test]
    fn what_changes_while_a_table_is_copied_is_in_the_new_one() {
        if !may_load() {
            return;
        }
        let table = |entries| {
            let options = MapCreateOpts { sz: size_of::<MapCreateOpts>() as _, ..MapCreateOpts::default() };
            let sizes = (size_of::<RawFlowKey>() as u32, size_of::<Flow>() as u32);
            MapHandle::create(MapType::LruHash, Some("flows"), sizes.0, sizes.1, entries, &options)
                .expect("a map")
        };
        let key = |port: u16| RawFlowKey { client_port_be: port.to_be_bytes(), ..RawFlowKey::default() };
        let in_it = |table: &MapHandle| {
            let mut entries = Vec::new();
            each_flow_of(table, |key, flow| {
                entries.push((u16::from_be_bytes(key.client_port_be), flow));
            })
            .expect("listed");
            entries.sort_by_key(|(port, _)| *port);
            entries
        };
        let (old, new) = (table(1 << 14), table(1 << 15));
        (0..3_000).for_each(|port| put(&old, &key(port), &COPIED).expect("room"));
        let predecessor = Predecessor::copied(old, &new).expect("copied");
        assert_eq!(in_it(&new), in_it(&predecessor.table));
        let asked = Flow { flags: SYN_SEEN, syn_seq: 77, ..COPIED };
        let begun = Flow { opened_ns: 1_500, ..COPIED };
        predecessor.table.delete(key(1).as_bytes()).expect("there");
        put(&predecessor.table, &key(2), &asked).expect("room");
        put(&predecessor.table, &key(3), &begun).expect("room");
        put(&predecessor.table, &key(4_000), &begun).expect("room");
        put(&new, &key(5), &asked).expect("room");
        let mut expected = in_it(&predecessor.table);
        expected[4] = (5, asked);
        predecessor.catch_up(&new).expect("caught up");
        assert_eq!(in_it(&new), expected);
    }
}
