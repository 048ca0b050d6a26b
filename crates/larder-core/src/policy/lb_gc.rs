//! `lb-gc`: LB/GC, LARD's idealised competitor: the front-end knows what every cache holds (Pai et al., ASPLOS'98,
//! section 3.1).
//!
//! ```text
//! on request t:
//!   some node caches t:        the least loaded of those that do
//!   else:                      the node that holds the globally oldest target, by last use; that target will leave
//! ```
//! It shows what a front-end could do with perfect knowledge of the caches and of the order of use over all nodes;
//! load is not balanced. The mirror is fed by [cache events](crate::dispatch::CacheEvent).
//!
//! Where the paper is silent:
//! - *Caches that are not full*: as long as some node has room, the target goes where its hash says, as under LB. (Sent
//!   to the nodes with room alone, all misses of a time would meet at one disk.) A node that has evicted nothing since
//!   it came has room. So has one from whose cache a large object has left for a small one; else it would keep a few
//!   copies, hold the oldest too seldom, and stay almost empty. Sizes are inferred, in copies: what a node evicts before
//!   it stores is what the new object needed, less at most the last one evicted, since evicting ends as soon as there
//!   is room. Without any cache event all nodes have room, and what is left is LB.
//!   This choice decides much. Where sizes differ widely some cache nearly always has room: on a tenth of the rice-like
//!   trace with 8 nodes the oldest rule takes 2 to 4 % of the misses, and throughput is LB's. That LB/GC comes close to
//!   LB is therefore no independent finding. Sending those misses to the least loaded of the nodes with room instead
//!   gives about half to three quarters of LB's throughput; to the least loaded of all, a load balancer near LARD.
//! - *Between a miss and its `Stored`* the target counts as cached where it was sent, or every request for it in the
//!   meantime would read it again elsewhere; and the oldest copy counts as used, or every miss in the meantime would go
//!   to the same node. If it does leave, the event says so; if not, it is one round too young.
//! - *Order of use* is that of the decisions and of `Stored`, the front-end's view. A node's own replacement policy
//!   may evict something else than the oldest; the mirror follows what nodes say.
//! - *Copies at several nodes* (after retries): each ages by itself; the least loaded serves, equals by slot.
//! - *Hits as events*: `Stored` of a copy that is there already, as a shell tells that goes by `Cache-Status` of hits, makes it
//!   younger and nothing else; what has left in the meantime has left for another. From hits and misses alone nobody learns
//!   what leaves for what: no cache is ever full, and what is left is LB, with a retried target where it was found last.
//! - *Found out later*: `Gone` takes a copy that the node had confirmed out of the mirror, as what a new snapshot does not name
//!   after a link was down, or what was asked for and was a miss. It says nothing of room, and what left before it without
//!   a store has lost its meaning. A copy that is only expected stays: its miss is what puts it there.
//! - *Lost events*: a copy that has left unnoticed is asked for once, and is stored again. Copies of a node that failed,
//!   drained or left are forgotten. A retry goes to the least loaded node that was not tried and is not mirrored until
//!   it is stored.
//!
//! Parameters: `targets_max`, the most copies mirrored; beyond, the oldest is forgotten and counts as not cached.
//! State: the mirror behind one lock, 29 bytes a copy and more. Cost: O(1); O(n) for a
//! miss that finds the cache that had room full.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::lard::retry;
use super::mirror::{Copy, Mirror};
use super::open_nodes::open;
use super::{CacheEvent, Choice, LearnedState, Policy, Reason, Request, TargetServers};
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, VisitCounter, lock};
use crate::time::Time;
use core::cell::Cell;
use std::sync::Mutex;

/// The description of `lb-gc`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "lb-gc",
    "the node that caches the target, else the one with the globally oldest (LB/GC)",
)
.mirroring();

#[derive(Debug)]
pub(super) struct LbGc {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    mirror: Mirror,
    /// By slot: what is known of the room in the node's cache.
    rooms: Vec<Room>,
    search: Cell<Search>,
    visits: VisitCounter,
}

/// How the last search for a cache with room ended, so that not every miss looks at all nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    /// The membership it was for.
    members: Option<u64>,
    /// A node that had room; `None` if none had.
    found: Option<NodeId>,
}

/// What is known of the room in a node's cache. Sizes are in copies: an object for which nothing or one had to leave
/// counts 1.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// The epoch at which something last left; `None` if never.
    filled: Option<u32>,
    /// How much fits in before something leaves, once it was filled.
    free: u32,
    /// What has left since the last store, and the last of it.
    left: u32,
    left_last: u32,
}

impl Room {
    /// Something of this size has left.
    fn evicted(&mut self, size: u32, epoch: u32) {
        self.filled = Some(epoch);
        self.left = self.left.saturating_add(size);
        self.left_last = size;
    }

    /// Something was stored for which that had to leave; gives its size.
    fn stored(&mut self) -> u32 {
        let (left, last) = (self.left, self.left_last);
        (self.left, self.left_last) = (0, 0);
        if left > 0 {
            self.free = last - 1;
        }
        (left - last + 1).max(1)
    }
}

/// Says that what is handed over has sizes.
const SIZED: u64 = 1;

/// A decision, and the copy that it expects to leave.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    choice: Choice,
    leaves: Option<Copy>,
}

impl LbGc {
    pub(super) fn new(common: &CommonSettings) -> Self {
        let state = State {
            mirror: Mirror::new(common.targets_max),
            rooms: Vec::new(),
            search: Cell::default(),
            visits: VisitCounter::default(),
        };
        Self { state: Mutex::new(state) }
    }
}

impl State {
    fn decide(&self, target: TargetId, nodes: ClusterView<'_>) -> Option<Verdict> {
        let holders = self.mirror.of(target).filter(|copy| alive(copy, nodes)).map(|copy| copy.node);
        if let Some(node) = holders.min_by_key(|node| (nodes.key(*node), *node)) {
            return Some(Verdict { choice: Choice { node, reason: Reason::Local }, leaves: None });
        }
        let hashed = || {
            let node = nodes.hashed(target.0, |_| false)?;
            Some(Verdict { choice: Choice { node, reason: Reason::Hash }, leaves: None })
        };
        if self.some_has_room(nodes) {
            return hashed();
        }
        let Some(copy) = self.mirror.oldest_first().find(|copy| alive(copy, nodes)) else { return hashed() };
        let choice = Choice { node: copy.node, reason: Reason::Oldest };
        Some(Verdict { choice, leaves: Some(copy) })
    }

    /// Whether some cache has room. O(1) while the one found last has, or while none had and nothing has changed.
    fn some_has_room(&self, nodes: ClusterView<'_>) -> bool {
        let members = Some(nodes.members_epoch());
        let last = self.search.get();
        let has = |node: NodeId| nodes.is_open(node) && !self.is_full(node, nodes);
        if last.members == members && last.found.is_none_or(has) {
            return last.found.is_some();
        }
        let found = open(nodes).find(|node| has(*node));
        self.search.set(Search { members, found });
        found.is_some()
    }

    /// Whether something must leave before the node can store.
    fn is_full(&self, node: NodeId, nodes: ClusterView<'_>) -> bool {
        let room = self.rooms.get(node.index()).copied().unwrap_or_default();
        room.free == 0 && room.filled.is_some_and(|epoch| !nodes.lost_since(node, epoch))
    }

    /// Forgets the oldest copies of nodes that have lost theirs, up to the first that is alive.
    fn bury(&mut self, nodes: ClusterView<'_>) {
        loop {
            let oldest = self.mirror.oldest_first().next();
            let Some(copy) = oldest.filter(|copy| !alive(copy, nodes)) else { return };
            self.mirror.remove(copy.target, copy.node);
        }
    }
}

/// Whether the node still has what it had when the copy was put down.
fn alive(copy: &Copy, nodes: ClusterView<'_>) -> bool {
    nodes.is_open(copy.node) && !nodes.lost_since(copy.node, copy.epoch)
}

impl Policy for LbGc {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let mut state = lock(&self.state);
        nodes.record_visit(&mut state.visits);
        let epoch = nodes.epoch();
        state.bury(nodes);
        let verdict = state.decide(request.target, nodes)?;
        if let Some(copy) = verdict.leaves {
            state.mirror.used(copy.target, copy.node, copy.epoch);
        }
        let node = verdict.choice.node;
        if let Some(room) =
            state.rooms.get_mut(node.index()).filter(|_| verdict.choice.reason == Reason::Hash)
        {
            room.free = room.free.saturating_sub(1);
        }
        state.mirror.used(request.target, node, epoch);
        Some(verdict.choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes);
        }
        lock(&self.state).decide(request.target, nodes).map(|verdict| verdict.choice)
    }

    fn known(&self, target: TargetId, nodes: ClusterView<'_>) -> Option<TargetServers> {
        let state = lock(&self.state);
        let mut servers: Vec<NodeId> =
            state.mirror.of(target).filter(|copy| alive(copy, nodes)).map(|copy| copy.node).collect();
        servers.sort_unstable();
        (!servers.is_empty()).then_some(TargetServers { servers, changed: None })
    }

    fn cache_event(
        &self,
        _now: Time,
        node: NodeId,
        target: TargetId,
        event: CacheEvent,
        nodes: ClusterView<'_>,
    ) -> bool {
        let mut state = lock(&self.state);
        nodes.record_visit(&mut state.visits);
        let epoch = nodes.epoch();
        if state.rooms.len() <= node.index() {
            state.rooms.resize(node.index() + 1, Room::default());
        }
        let State { mirror, rooms, .. } = &mut *state;
        let room = &mut rooms[node.index()];
        if room.filled.is_some_and(|filled| nodes.lost_since(node, filled)) {
            *room = Room::default();
        }
        match event {
            CacheEvent::Stored
                if mirror.at(target, node).is_some_and(|copy| copy.size > 0 && alive(&copy, nodes)) =>
            {
                mirror.used(target, node, epoch);
            }
            CacheEvent::Stored => mirror.stored(Copy { target, node, epoch, size: room.stored() }),
            CacheEvent::Evicted => {
                let size = mirror.remove(target, node).map_or(1, |copy| copy.size.max(1));
                room.evicted(size, epoch);
            }
            CacheEvent::Gone => {
                if mirror.at(target, node).is_some_and(|copy| copy.size > 0) {
                    mirror.remove(target, node);
                }
                (room.left, room.left_last) = (0, 0);
            }
        }
        if !state.is_full(node, nodes) {
            state.search.set(Search { found: Some(node), ..state.search.get() });
        }
        true
    }

    fn targets(&self) -> usize {
        lock(&self.state).mirror.len()
    }

    /// The copies as sets of one, in the order of use, with their sizes for times, of which one number tells; and of each
    /// node's room whether it was filled, what is free, what has left and the last of it.
    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        let state = lock(&self.state);
        let mut memory = LearnedState { numbers: vec![SIZED], ..LearnedState::default() };
        for copy in state.mirror.oldest_first().filter(|copy| alive(copy, nodes)) {
            let size = Time::from_nanos(copy.size.into());
            memory.push((copy.target, size, true), core::iter::once(copy.node));
        }
        for (index, room) in state.rooms.iter().enumerate() {
            let Ok(node) = u16::try_from(index).map(NodeId) else { break };
            let filled = room.filled.is_some_and(|epoch| !nodes.lost_since(node, epoch));
            let of = [filled.into(), room.free, room.left, room.left_last];
            memory.per_node.push((node, of.map(u64::from).to_vec()));
        }
        memory
    }

    fn restore(&self, memory: &LearnedState, nodes: ClusterView<'_>) {
        let mut state = lock(&self.state);
        let epoch = nodes.epoch();
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        // Another policy's sets say where targets are expected, and no sizes.
        let sized = memory.numbers == [SIZED];
        for set in memory.sets() {
            let size = if sized { small(set.changed.as_nanos()) } else { 0 };
            for node in set.servers {
                state.mirror.stored(Copy { target: set.target, node: *node, epoch, size });
            }
        }
        for (node, of) in memory.per_node.iter().filter(|(node, _)| node.index() < nodes.slots()) {
            let [filled, free, left, left_last] = of[..] else { continue };
            if state.rooms.len() <= node.index() {
                state.rooms.resize(node.index() + 1, Room::default());
            }
            let left = small(left);
            // The last is one of those that have left, each of which counts at least 1.
            let left_last = small(left_last).clamp(left.min(1), left);
            let filled = (filled == 1).then_some(epoch);
            state.rooms[node.index()] = Room { filled, free: small(free), left, left_last };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Arrival, Dispatcher, Settings};
    use crate::nodes::NodeSpec;
    use crate::policy::PolicyKind;
    use CacheEvent::{Evicted, Gone, Stored};

    fn dispatcher(names: &[&str], targets_max: usize) -> Dispatcher {
        let settings = Settings {
            policy: PolicyKind::LbGc,
            admission: Admission::Unlimited,
            targets_max,
            ..Settings::default()
        };
        let specs: Vec<NodeSpec> = names.iter().map(|name| NodeSpec::named(*name)).collect();
        Dispatcher::new(settings, &specs).expect("the settings are in range")
    }

    fn send(dispatcher: &Dispatcher, target: u64) -> (u16, Reason) {
        match dispatcher.arrive(Time::ZERO, Request::new(TargetId(target))) {
            Arrival::Start(choice) => {
                dispatcher.finish(Time::ZERO, choice.node, &mut Vec::new());
                (choice.node.0, choice.reason)
            }
            other => panic!("expected a start, got {other:?}"),
        }
    }

    fn event(dispatcher: &Dispatcher, node: u16, target: u64, event: CacheEvent) {
        assert!(dispatcher.cache_event(Time::ZERO, NodeId(node), TargetId(target), event));
    }

    /// Two nodes with full caches: 1 at a, 2 at b, 3 at a, in the order of use.
    fn full() -> Dispatcher {
        let dispatcher = dispatcher(&["a", "b"], 100);
        for (node, target) in [(0, 1), (1, 2), (0, 3)] {
            event(&dispatcher, node, target, Stored);
        }
        for node in [0, 1] {
            event(&dispatcher, node, 99, Evicted);
        }
        dispatcher
    }

    #[test]
    fn a_hit_goes_where_it_is_cached_and_a_miss_to_the_globally_oldest() {
        let dispatcher = full();
        assert_eq!(send(&dispatcher, 1), (0, Reason::Local), "now 2 is the oldest, at b");
        let known = dispatcher.explain(Time::from_secs(9), TargetId(1)).known.expect("it is cached");
        assert_eq!((known.servers, known.changed), (vec![NodeId(0)], None));
        assert_eq!(send(&dispatcher, 4), (1, Reason::Oldest));
        event(&dispatcher, 1, 2, Evicted);
        event(&dispatcher, 1, 4, Stored);
        assert_eq!(send(&dispatcher, 4), (1, Reason::Local));
        assert_eq!(send(&dispatcher, 2), (0, Reason::Oldest), "3, at a, is older than 1");
    }

    #[test]
    fn misses_at_once_take_one_old_copy_each() {
        let dispatcher = full();
        // 1 at a, 2 at b, 3 at a are there to leave, in this order.
        assert_eq!([4, 5, 6].map(|target| send(&dispatcher, target).0), [0, 1, 0]);
        assert_eq!(send(&dispatcher, 5), (1, Reason::Local), "it is on its way");
    }

    #[test]
    fn while_there_is_room_the_hash_decides() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        event(&dispatcher, 0, 1, Stored);
        event(&dispatcher, 0, 9, Evicted);
        assert_eq!(send(&dispatcher, 2), (0, Reason::Hash), "b has room");
        assert_eq!(send(&dispatcher, u64::MAX), (1, Reason::Hash));
        event(&dispatcher, 1, 9, Evicted);
        assert_eq!(send(&dispatcher, 3), (0, Reason::Oldest), "1 is older than the others");
    }

    #[test]
    fn a_node_that_a_large_object_has_left_is_filled_again() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        for target in 1..=4 {
            event(&dispatcher, 0, target, Stored);
        }
        event(&dispatcher, 1, 20, Stored);
        event(&dispatcher, 1, 9, Evicted);
        // All four leave a for 5, which therefore counts as four; then 5 leaves for 6, and three more fit in.
        (1..=4).for_each(|target| event(&dispatcher, 0, target, Evicted));
        event(&dispatcher, 0, 5, Stored);
        event(&dispatcher, 0, 5, Evicted);
        event(&dispatcher, 0, 6, Stored);
        let nodes = [31, 32, 33, 34].map(|target| send(&dispatcher, target));
        assert_eq!(nodes[..3], [(0, Reason::Hash); 3]);
        assert_eq!(nodes[3], (1, Reason::Oldest), "20 is the oldest");
        assert_eq!(send(&dispatcher, 35), (0, Reason::Oldest), "6 is next");
    }

    #[test]
    fn a_hit_told_as_an_event_says_nothing_of_room() {
        let run = |hits: bool| {
            let dispatcher = full();
            // 3 copies leave a for 4; in between a client hits 3, which is still there.
            (10..=12).for_each(|target| event(&dispatcher, 0, target, Stored));
            (10..=12).for_each(|target| event(&dispatcher, 0, target, Evicted));
            if hits {
                event(&dispatcher, 0, 3, Stored);
            }
            event(&dispatcher, 0, 4, Stored);
            // 4 takes three places: when it leaves for 5, there is room for two more.
            event(&dispatcher, 0, 4, Evicted);
            event(&dispatcher, 0, 5, Stored);
            [40, 41, 42, 43].map(|target| send(&dispatcher, target).1)
        };
        assert_eq!(run(true), run(false));
        assert_eq!(run(true), [Reason::Hash, Reason::Hash, Reason::Oldest, Reason::Oldest]);
    }

    #[test]
    fn what_left_while_nobody_listened_made_no_room() {
        let run = |event_of_the_gap: CacheEvent| {
            let dispatcher = full();
            (100..200).for_each(|target| event(&dispatcher, 0, target, Stored));
            // The link is down while 100 to 199 leave, each for another; the new snapshot names those, and then what it misses.
            (300..400).for_each(|target| event(&dispatcher, 0, target, Stored));
            (100..200).for_each(|target| event(&dispatcher, 0, target, event_of_the_gap));
            assert_eq!(dispatcher.explain(Time::ZERO, TargetId(150)).known, None);
            // The next object is one of usual size, and leaves again.
            event(&dispatcher, 0, 1, Evicted);
            event(&dispatcher, 0, 500, Stored);
            event(&dispatcher, 0, 500, Evicted);
            event(&dispatcher, 0, 501, Stored);
            send(&dispatcher, 600).1
        };
        assert_eq!(run(Gone), Reason::Oldest, "every cache is as full as before");
        assert_eq!(run(Evicted), Reason::Hash, "a hundred at once for one: that one was large");
    }

    #[test]
    fn a_miss_takes_a_copy_out_that_was_confirmed() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        let holders = || dispatcher.explain(Time::ZERO, TargetId(7)).known.map(|known| known.servers);
        let (node, _) = send(&dispatcher, 7);
        event(&dispatcher, node, 7, Gone);
        assert_eq!(holders(), Some(vec![NodeId(node)]), "its first miss: it is on its way");
        // It is found at the other node, where a retry took it, and at this one.
        event(&dispatcher, 1 - node, 7, Stored);
        event(&dispatcher, node, 7, Stored);
        assert_eq!(holders(), Some(vec![NodeId(0), NodeId(1)]));
        event(&dispatcher, node, 7, Gone);
        assert_eq!(holders(), Some(vec![NodeId(1 - node)]));
        assert_eq!(send(&dispatcher, 7), (1 - node, Reason::Local));
    }

    #[test]
    fn from_hits_alone_it_is_hashing() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        for target in (0..50).map(crate::nodes::mix) {
            let (node, reason) = send(&dispatcher, target);
            assert_eq!(reason, Reason::Hash);
            event(&dispatcher, node, target, Stored);
            assert_eq!(send(&dispatcher, target), (node, Reason::Local));
        }
    }

    #[test]
    fn of_several_copies_the_least_loaded_serves() {
        let dispatcher = dispatcher(&["a", "b", "c"], 100);
        event(&dispatcher, 0, 1, Stored);
        event(&dispatcher, 2, 1, Stored);
        let start = || match dispatcher.arrive(Time::ZERO, Request::new(TargetId(1))) {
            Arrival::Start(choice) => choice.node.0,
            other => panic!("expected a start, got {other:?}"),
        };
        assert_eq!([start(), start(), start(), start()], [0, 2, 0, 2]);
    }

    #[test]
    fn a_failed_nodes_copies_are_forgotten() {
        let dispatcher = full();
        dispatcher.fail(Time::ZERO, NodeId(0), &mut Vec::new());
        dispatcher.recover(Time::ZERO, NodeId(0), &mut Vec::new());
        assert_eq!(dispatcher.explain(Time::ZERO, TargetId(1)).known, None);
        assert_eq!(send(&dispatcher, 1), (0, Reason::Hash), "a came back empty: there is room");
        assert_eq!(dispatcher.targets_known(), 3, "1 and 3 of before are 3 still: 2, 3 and the new 1");
    }

    #[test]
    fn the_mirror_forgets_the_oldest_where_it_is_full() {
        let dispatcher = dispatcher(&["a"], 2);
        (1..=3).for_each(|target| event(&dispatcher, 0, target, Stored));
        assert_eq!(dispatcher.targets_known(), 2);
        assert_eq!(dispatcher.explain(Time::ZERO, TargetId(1)).known, None);
        assert_eq!(send(&dispatcher, 3), (0, Reason::Local));
    }
}
