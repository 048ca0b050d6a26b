//! `lb-gc`: LB/GC, an idealised competitor of LARD in which the front-end knows the contents of every cache (Pai et
//! al., ASPLOS'98, section 3.1).
//!
//! ```text
//! on request t:
//!   some node caches t:        the least loaded of those that do
//!   else:                      the node that holds the globally oldest target, by last use; that target will leave
//! ```
//!
//! The policy shows the possible benefit of perfect knowledge of the caches and of the order of use over all nodes. Load is not
//! balanced. Nearly all misses go to the node of the hash, so that it performs as LB by construction.
//! [Cache events](crate::dispatch::CacheEvent) update the mirror.
//!
//! The paper does not define the following:
//! - *Caches that are not full*: each cache counts by itself. If the node of the target's hash has room, the target goes
//!   there, as under LB; otherwise it goes to the globally oldest copy. (Sent to nodes with room alone, all misses of a
//!   time would go to one disk.) A node that has evicted nothing since it joined has room. So has a node that has evicted
//!   a large object for a small one; otherwise it would keep a few copies, have the oldest too rarely, and stay almost
//!   empty. Sizes are inferred, in copies. The copies that a node evicts before it stores an object are the size of that
//!   object, less at most the last one evicted. Eviction ends as soon as there is room. Without any cache event all nodes
//!   have room, and the policy is LB.
//! - *The victim*: cache events name targets without sizes, so the mirror cannot compute the copy that a cache under
//!   Greedy-Dual-Size evicts next. The oldest copy stands for it, as the paper says; under LRU it is the same copy.
//! - *Between a miss and its `Stored`* the target counts as cached at the chosen node. Otherwise every request for it in the
//!   meantime would read it again at another node. The oldest copy counts as used; otherwise every miss in the meantime would go
//!   to the same node. If the copy is evicted, an event reports it; if not, it is one round too young.
//! - *The order of use* is that of the decisions and of `Stored`, the front-end's view. A node's own replacement policy may
//!   evict another copy than the oldest; the mirror follows the nodes' reports.
//! - *Copies at several nodes* (after retries): each copy ages separately. The least loaded node serves, equals by slot.
//! - *Hits as events*: `Stored` of a copy that is there already, as a caller reports that reads hits from `Cache-Status`,
//!   only makes the copy younger. Evictions in the meantime were for another object. Hits and misses alone do not show
//!   which object was evicted for which. Then no cache is ever full, and the policy is LB, with a retried target at its
//!   last node.
//! - *Found out later*: `Gone` removes a copy that the node had confirmed. Examples are a copy that a new snapshot does not
//!   contain after a link was down, or a request that was a miss. `Gone` does not change the room, and earlier evictions
//!   without a store no longer count. A copy that is only expected stays, because its miss is what stores it.
//! - *Lost events*: a copy whose eviction was not reported is requested once, and is stored again. Copies of a node that failed,
//!   drained or left are removed. A retry goes to the least loaded node that was not tried and is not mirrored until it is
//!   stored.
//!
//! Parameters: `targets_max`, the largest number of mirrored copies. Beyond it, the oldest copy is removed and counts as not
//! cached. State: the mirror behind one lock, 29 bytes a copy and more. Cost: O(1).

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::lard::retry;
use super::mirror::{CachedCopy, Mirror};
use super::{CacheEvent, Choice, LearnedState, Policy, Reason, Request, TargetServers};
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, VisitCounter};
use crate::sync::Mutex;
use crate::time::Time;
use alloc::vec;
use alloc::vec::Vec;

/// The description of `lb-gc`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "lb-gc",
    "the node that caches the target, else the one with the globally oldest (LB/GC)",
)
.mirroring();

#[derive(Debug)]
pub(super) struct LbGc {
    state: Mutex<LbGcState>,
}

#[derive(Debug)]
struct LbGcState {
    mirror: Mirror,
    /// The room in each node's cache, by slot.
    rooms: Vec<Room>,
    visits: VisitCounter,
}

/// The room in a node's cache. Sizes are in copies: an object for which no copy or one copy was evicted counts 1.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// The epoch at which a copy was last evicted; `None` if never.
    filled: Option<u32>,
    /// The number of copies that fit before the next eviction, once the cache was full.
    free: u32,
    /// The size evicted since the last store, and the size of the last evicted copy.
    left: u32,
    left_last: u32,
}

impl Room {
    /// Records the eviction of a copy of this size.
    fn record_eviction(&mut self, size: u32, epoch: u32) {
        self.filled = Some(epoch);
        self.left = self.left.saturating_add(size);
        self.left_last = size;
    }

    /// Records a store after these evictions, and returns the size of the stored object.
    fn record_store(&mut self) -> u32 {
        let (left, last) = (self.left, self.left_last);
        (self.left, self.left_last) = (0, 0);
        if left > 0 {
            self.free = last - 1;
        }
        (left - last + 1).max(1)
    }
}

/// The marker of a learned state that contains sizes.
const SIZED: u64 = 1;

/// A decision, and the copy that is expected to be evicted.
#[derive(Clone, Copy, Debug)]
struct CopyDecision {
    choice: Choice,
    leaves: Option<CachedCopy>,
}

impl LbGc {
    pub(super) fn new(common: &CommonSettings) -> Self {
        let state = LbGcState {
            mirror: Mirror::new(common.targets_max),
            rooms: Vec::new(),
            visits: VisitCounter::default(),
        };
        Self { state: Mutex::new(state) }
    }
}

impl LbGcState {
    fn decide(&self, target: TargetId, nodes: ClusterView<'_>) -> Option<CopyDecision> {
        let holders = self.mirror.of(target).filter(|copy| is_valid(copy, nodes)).map(|copy| copy.node);
        if let Some(node) = holders.min_by_key(|node| (nodes.key(*node), *node)) {
            return Some(CopyDecision { choice: Choice { node, reason: Reason::Local }, leaves: None });
        }
        let hashed = nodes.hashed(target.0, |_| false)?;
        let by_hash = CopyDecision { choice: Choice { node: hashed, reason: Reason::Hash }, leaves: None };
        if !self.is_full(hashed, nodes) {
            return Some(by_hash);
        }
        let Some(copy) = self.mirror.oldest_first().find(|copy| is_valid(copy, nodes)) else {
            return Some(by_hash);
        };
        let choice = Choice { node: copy.node, reason: Reason::Oldest };
        Some(CopyDecision { choice, leaves: Some(copy) })
    }

    /// Returns whether the node must evict a copy before it can store one.
    fn is_full(&self, node: NodeId, nodes: ClusterView<'_>) -> bool {
        let room = self.rooms.get(node.index()).copied().unwrap_or_default();
        room.free == 0 && room.filled.is_some_and(|epoch| !nodes.lost_since(node, epoch))
    }

    /// Removes the oldest copies whose nodes have lost their targets, up to the first copy that is valid.
    fn remove_invalid(&mut self, nodes: ClusterView<'_>) {
        loop {
            let oldest = self.mirror.oldest_first().next();
            let Some(copy) = oldest.filter(|copy| !is_valid(copy, nodes)) else { return };
            self.mirror.remove(copy.target, copy.node);
        }
    }
}

/// Returns whether the node still has the contents it had when the copy was recorded.
fn is_valid(copy: &CachedCopy, nodes: ClusterView<'_>) -> bool {
    nodes.is_open(copy.node) && !nodes.lost_since(copy.node, copy.epoch)
}

impl Policy for LbGc {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let mut state = self.state.lock();
        nodes.record_visit(&mut state.visits);
        let epoch = nodes.epoch();
        state.remove_invalid(nodes);
        let decision = state.decide(request.target, nodes)?;
        if let Some(copy) = decision.leaves {
            state.mirror.record_use(copy.target, copy.node, copy.epoch);
        }
        let node = decision.choice.node;
        if let Some(room) =
            state.rooms.get_mut(node.index()).filter(|_| decision.choice.reason == Reason::Hash)
        {
            room.free = room.free.saturating_sub(1);
        }
        state.mirror.record_use(request.target, node, epoch);
        Some(decision.choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return retry(now, request, nodes);
        }
        self.state.lock().decide(request.target, nodes).map(|decision| decision.choice)
    }

    fn known(&self, target: TargetId, nodes: ClusterView<'_>) -> Option<TargetServers> {
        let state = self.state.lock();
        let mut servers: Vec<NodeId> =
            state.mirror.of(target).filter(|copy| is_valid(copy, nodes)).map(|copy| copy.node).collect();
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
        let mut state = self.state.lock();
        nodes.record_visit(&mut state.visits);
        let epoch = nodes.epoch();
        if state.rooms.len() <= node.index() {
            state.rooms.resize(node.index() + 1, Room::default());
        }
        let LbGcState { mirror, rooms, .. } = &mut *state;
        let room = &mut rooms[node.index()];
        if room.filled.is_some_and(|filled| nodes.lost_since(node, filled)) {
            *room = Room::default();
        }
        match event {
            CacheEvent::Stored
                if mirror.at(target, node).is_some_and(|copy| copy.size > 0 && is_valid(&copy, nodes)) =>
            {
                mirror.record_use(target, node, epoch);
            }
            CacheEvent::Stored => {
                mirror.record_store(CachedCopy { target, node, epoch, size: room.record_store() });
            }
            CacheEvent::Evicted => {
                let size = mirror.remove(target, node).map_or(1, |copy| copy.size.max(1));
                room.record_eviction(size, epoch);
            }
            CacheEvent::Gone => {
                if mirror.at(target, node).is_some_and(|copy| copy.size > 0) {
                    mirror.remove(target, node);
                }
                (room.left, room.left_last) = (0, 0);
            }
        }
        true
    }

    fn targets(&self) -> usize {
        self.state.lock().mirror.len()
    }

    /// Returns the copies as sets with one server, in the order of use, with their sizes in place of times; the
    /// number [`SIZED`] marks this. For each node's room, returns whether the cache was full, the free room, the
    /// evicted size and its last copy.
    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        let state = self.state.lock();
        let mut saved = LearnedState { numbers: vec![SIZED], ..LearnedState::default() };
        for copy in state.mirror.oldest_first().filter(|copy| is_valid(copy, nodes)) {
            let size = Time::from_nanos(copy.size.into());
            saved.push((copy.target, size, true), core::iter::once(copy.node));
        }
        for (index, room) in state.rooms.iter().enumerate() {
            let Ok(node) = u16::try_from(index).map(NodeId) else { break };
            let filled = room.filled.is_some_and(|epoch| !nodes.lost_since(node, epoch));
            let of = [filled.into(), room.free, room.left, room.left_last];
            saved.per_node.push((node, of.map(u64::from).to_vec()));
        }
        saved
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        let mut state = self.state.lock();
        let epoch = nodes.epoch();
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        // Sets of another policy contain the nodes at which targets are expected, but no sizes.
        let sized = saved.numbers == [SIZED];
        for set in saved.sets() {
            let size = if sized { small(set.changed.as_nanos()) } else { 0 };
            for node in set.servers {
                state.mirror.record_store(CachedCopy { target: set.target, node: *node, epoch, size });
            }
        }
        for (node, of) in saved.per_node.iter().filter(|(node, _)| node.index() < nodes.slots()) {
            let [filled, free, left, left_last] = of[..] else { continue };
            if state.rooms.len() <= node.index() {
                state.rooms.resize(node.index() + 1, Room::default());
            }
            let left = small(left);
            // The last evicted copy is part of the evicted size, and each copy counts at least 1.
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

    /// Creates a dispatcher with two nodes whose caches are full: 1 at a, 2 at b, 3 at a, in the order of use.
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
    fn hit_goes_to_its_cache_and_miss_to_the_globally_oldest() {
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
    fn concurrent_misses_use_different_old_copies() {
        let dispatcher = full();
        // The objects 1 at a, 2 at b and 3 at a will be evicted, in this order.
        assert_eq!([4, 5, 6].map(|target| send(&dispatcher, target).0), [0, 1, 0]);
        assert_eq!(send(&dispatcher, 5), (1, Reason::Local), "it is on its way");
    }

    #[test]
    fn with_room_at_its_node_the_hash_decides() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        event(&dispatcher, 0, 1, Stored);
        event(&dispatcher, 0, 9, Evicted);
        assert_eq!(send(&dispatcher, 2), (0, Reason::Oldest), "the hash is a, which is full; b has room");
        assert_eq!(send(&dispatcher, u64::MAX), (1, Reason::Hash));
        event(&dispatcher, 1, 9, Evicted);
        assert_eq!(send(&dispatcher, 3), (0, Reason::Oldest), "1 is older than the others");
    }

    #[test]
    fn room_of_an_evicted_large_object_is_refilled() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        for target in 1..=4 {
            event(&dispatcher, 0, target, Stored);
        }
        event(&dispatcher, 1, 20, Stored);
        event(&dispatcher, 1, 9, Evicted);
        // All four are evicted from a for 5, which therefore counts as four. Then 5 is evicted for 6, and three more
        // fit.
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
    fn hit_event_does_not_change_room() {
        let run = |hits: bool| {
            let dispatcher = full();
            // 3 copies are evicted from a for 4; in between a client hits 3, which is still there.
            (10..=12).for_each(|target| event(&dispatcher, 0, target, Stored));
            (10..=12).for_each(|target| event(&dispatcher, 0, target, Evicted));
            if hits {
                event(&dispatcher, 0, 3, Stored);
            }
            event(&dispatcher, 0, 4, Stored);
            // 4 has the size of three copies: when it is evicted for 5, there is room for two more.
            event(&dispatcher, 0, 4, Evicted);
            event(&dispatcher, 0, 5, Stored);
            [40, 41, 42, 43].map(|target| send(&dispatcher, target).1)
        };
        assert_eq!(run(true), run(false));
        assert_eq!(run(true), [Reason::Hash, Reason::Hash, Reason::Oldest, Reason::Oldest]);
    }

    #[test]
    fn evictions_during_a_lost_link_make_no_room() {
        let run = |event_of_the_gap: CacheEvent| {
            let dispatcher = full();
            (100..200).for_each(|target| event(&dispatcher, 0, target, Stored));
            // The link is down while 100 to 199 are evicted, each for another target. The new snapshot contains the
            // new targets, and then the missing ones.
            (300..400).for_each(|target| event(&dispatcher, 0, target, Stored));
            (100..200).for_each(|target| event(&dispatcher, 0, target, event_of_the_gap));
            assert_eq!(dispatcher.explain(Time::ZERO, TargetId(150)).known, None);
            // The next object has the usual size, and is evicted again.
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
    fn miss_removes_a_confirmed_copy() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        let holders = || dispatcher.explain(Time::ZERO, TargetId(7)).known.map(|known| known.servers);
        let (node, _) = send(&dispatcher, 7);
        event(&dispatcher, node, 7, Gone);
        assert_eq!(holders(), Some(vec![NodeId(node)]), "its first miss: it is on its way");
        // The target is found at the other node, where a retry stored it, and at this one.
        event(&dispatcher, 1 - node, 7, Stored);
        event(&dispatcher, node, 7, Stored);
        assert_eq!(holders(), Some(vec![NodeId(0), NodeId(1)]));
        event(&dispatcher, node, 7, Gone);
        assert_eq!(holders(), Some(vec![NodeId(1 - node)]));
        assert_eq!(send(&dispatcher, 7), (1 - node, Reason::Local));
    }

    #[test]
    fn with_hits_alone_the_policy_is_hashing() {
        let dispatcher = dispatcher(&["a", "b"], 100);
        for target in (0..50).map(crate::nodes::mix) {
            let (node, reason) = send(&dispatcher, target);
            assert_eq!(reason, Reason::Hash);
            event(&dispatcher, node, target, Stored);
            assert_eq!(send(&dispatcher, target), (node, Reason::Local));
        }
    }

    #[test]
    fn least_loaded_of_several_copies_serves() {
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
    fn copies_of_a_failed_node_are_removed() {
        let dispatcher = full();
        dispatcher.fail(Time::ZERO, NodeId(0), &mut Vec::new());
        dispatcher.recover(Time::ZERO, NodeId(0), &mut Vec::new());
        assert_eq!(dispatcher.explain(Time::ZERO, TargetId(1)).known, None);
        assert_eq!(send(&dispatcher, 1), (0, Reason::Hash), "a came back empty: there is room");
        assert_eq!(dispatcher.targets_known(), 3, "1 and 3 of before are 3 still: 2, 3 and the new 1");
    }

    #[test]
    fn full_mirror_removes_the_oldest_copy() {
        let dispatcher = dispatcher(&["a"], 2);
        (1..=3).for_each(|target| event(&dispatcher, 0, target, Stored));
        assert_eq!(dispatcher.targets_known(), 2);
        assert_eq!(dispatcher.explain(Time::ZERO, TargetId(1)).known, None);
        assert_eq!(send(&dispatcher, 3), (0, Reason::Local));
    }
}
