//! A dispatcher that shares its nodes with the dispatchers of other switches ([`crate::switches`]).

use super::{Change, DequeuedRequest, Dispatcher};
use crate::id::RouteId;
use crate::nodes::{Demand, GroupId, PeerSwitchState, fair_share};
use crate::policy::{AdoptionCounts, LearnedState, SetChanges, SetPage};
use crate::read_source::ReadSource;
use crate::time::Time;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

impl Dispatcher {
    /// Enables the journals of changed server sets, for [`Dispatcher::changed_sets`].
    pub(crate) fn keep_journals(&self) {
        for sets in self.routes.iter().filter_map(|route| route.policy.sets()) {
            sets.keep_journals();
        }
    }

    /// Returns whether a route's policy uses server sets that switches exchange.
    #[cfg(test)]
    pub(crate) fn has_sets(&self, route: RouteId) -> bool {
        self.routes.get(route.index()).is_some_and(|route| route.policy.sets().is_some())
    }

    /// Returns about `most` of a route's server sets that have changed here since the last call, dated by the clock
    /// of changes.
    pub(crate) fn changed_sets(&self, route: RouteId, most: usize) -> SetChanges {
        let sets = self.route(route).policy.sets();
        sets.map(|sets| sets.changes(most, self.view(route, ReadSource::LIVE))).unwrap_or_default()
    }

    /// Returns a page of a route's server sets: about `most` of those created or received here between `since` and
    /// `now`, and some others. The page starts at position `at`, which is 0 or the last page's `next`.
    pub(crate) fn sets_page(
        &self,
        (now, since): (Time, Time),
        route: RouteId,
        at: u64,
        most: usize,
    ) -> SetPage {
        let sets = self.route(route).policy.sets();
        sets.map(|sets| sets.page((now, since), at, most, self.view(route, ReadSource::LIVE)))
            .unwrap_or_default()
    }

    /// Adopts the server sets of another switch that are newer than the route's own. Returns the number of sets by
    /// result.
    pub(crate) fn adopt_sets(&self, now: Time, route: RouteId, sets: &Arc<LearnedState>) -> AdoptionCounts {
        let mut adopted = AdoptionCounts::default();
        let act = |_: ReadSource<'_>| {
            adopted = self.adopt(now, route, sets);
            // If no set is taken, nothing has changed.
            if adopted.taken > 0 { Ok(Change::NO_NODE) } else { Err(()) }
        };
        let _ = self.change(now, || Change::Sets(route, sets.clone()), act);
        adopted
    }

    pub(super) fn adopt(&self, now: Time, route: RouteId, sets: &LearnedState) -> AdoptionCounts {
        let mine = self.routes.get(route.index()).and_then(|route| route.policy.sets());
        mine.map(|mine| mine.adopt(now, sets, self.view(route, ReadSource::LIVE))).unwrap_or_default()
    }

    /// Sets the state of the other switches. Decisions then count the load of those switches, and the admission
    /// limits leave them their part of S. Queued requests that can start now are appended to `started`.
    pub(crate) fn set_peer_switches(
        &self,
        now: Time,
        peer_switches: &Arc<PeerSwitchState>,
        started: &mut Vec<DequeuedRequest>,
    ) {
        let act = |_: ReadSource<'_>| {
            self.apply_peer_switches(peer_switches);
            Ok::<_, ()>(Change::NO_NODE)
        };
        let _ = self.change(now, || Change::PeerSwitches(peer_switches.clone()), act);
        let before = self.peer_switches.swap(Some(peer_switches.clone()));
        if before.is_none_or(|before| before.admitted != peer_switches.admitted) {
            self.refresh_admission(now, started);
        }
    }

    /// Applies the parts of the other switches' state that affect decisions.
    pub(super) fn apply_peer_switches(&self, peer_switches: &PeerSwitchState) {
        self.nodes.set_peer_switches(peer_switches);
        if self
            .peer_switches
            .load()
            .as_ref()
            .is_none_or(|before| before.clock_offset != peer_switches.clock_offset)
        {
            let sets = self.routes.iter().filter_map(|route| route.policy.sets());
            sets.for_each(|sets| sets.set_clock_offset(peer_switches.clock_offset));
        }
    }

    /// Returns the number of requests of a group's routes that are admitted here, and the number that wait.
    pub(crate) fn demand(&self, group: GroupId) -> Demand {
        let waiting = u32::try_from(self.queued_in(group)).unwrap_or(u32::MAX);
        Demand { outstanding: self.outstanding_in(group), waiting }
    }

    /// Returns this dispatcher's part of a limit for all switches.
    pub(super) fn own_share(&self, total: u32, group: GroupId) -> u32 {
        let peer_switches = self.peer_switches.load();
        let Some(peer_switches) = peer_switches.as_ref().filter(|_| total < u32::MAX) else { return total };
        let admitted = peer_switches.admitted.iter().find(|(its, _)| *its == group);
        match admitted {
            Some((_, others)) => fair_share(total, others),
            // No switch has reported this group, so every switch may need as much as it can get.
            None => fair_share(total, &vec![None; peer_switches.switches as usize]),
        }
    }
}
