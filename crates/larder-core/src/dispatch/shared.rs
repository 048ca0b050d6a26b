//! A dispatcher among others: switches side by side in front of the same nodes ([`crate::switches`]).

use super::{Change, Dispatcher, Started};
use crate::id::RouteId;
use crate::nodes::{Demand, Elsewhere, GroupId, fair_share};
use crate::policy::{Adopted, Changes, Memory, Page};
use crate::source::Source;
use crate::time::Time;
use std::sync::Arc;

impl Dispatcher {
    /// Keeps journals of the server sets that change, for [`Dispatcher::changed_sets`].
    pub fn keep_journals(&self) {
        for sets in self.routes.iter().filter_map(|route| route.policy.sets()) {
            sets.keep_journals();
        }
    }

    /// Whether a route's policy goes by server sets that switches tell each other.
    pub fn has_sets(&self, route: RouteId) -> bool {
        self.routes.get(route.index()).is_some_and(|route| route.policy.sets().is_some())
    }

    /// A route's server sets that have changed here since they were last asked for, dated by the clock of changes, about `most` of them.
    pub fn changed_sets(&self, route: RouteId, most: usize) -> Changes {
        let sets = self.route(route).policy.sets();
        sets.map(|sets| sets.changes(most, self.sight(route, Source::LIVE))).unwrap_or_default()
    }

    /// About `most` of a route's server sets that were made or heard here between `since` and `now`, and some others, from the place `at` on: 0, or the
    /// last page's `next`.
    pub fn sets_page(&self, (now, since): (Time, Time), route: RouteId, at: u64, most: usize) -> Page {
        let sets = self.route(route).policy.sets();
        sets.map(|sets| sets.page((now, since), at, most, self.sight(route, Source::LIVE)))
            .unwrap_or_default()
    }

    /// Takes over those of another's server sets that are later than a route's own; what became of them.
    pub fn adopt_sets(&self, now: Time, route: RouteId, sets: &Arc<Memory>) -> Adopted {
        let mut adopted = Adopted::default();
        let act = |_: Source<'_>| {
            adopted = self.adopt(now, route, sets);
            // Where nothing is taken nothing has changed.
            if adopted.taken > 0 { Ok(Change::NO_NODE) } else { Err(()) }
        };
        let _ = self.change(now, || Change::Sets(route, sets.clone()), act);
        adopted
    }

    pub(super) fn adopt(&self, now: Time, route: RouteId, sets: &Memory) -> Adopted {
        let mine = self.routes.get(route.index()).and_then(|route| route.policy.sets());
        mine.map(|mine| mine.adopt(now, sets, self.sight(route, Source::LIVE))).unwrap_or_default()
    }

    /// Lets decisions go by what other switches have, and the admission limits leave them their part of S. Requests that
    /// waited and find room are appended to `started`.
    pub fn set_elsewhere(&self, now: Time, elsewhere: &Arc<Elsewhere>, started: &mut Vec<Started>) {
        let act = |_: Source<'_>| {
            self.hear_elsewhere(elsewhere);
            Ok::<_, ()>(Change::NO_NODE)
        };
        let _ = self.change(now, || Change::Elsewhere(elsewhere.clone()), act);
        let before = self.elsewhere.swap(Some(elsewhere.clone()));
        if before.is_none_or(|before| before.admitted != elsewhere.admitted) {
            self.refit(now, started);
        }
    }

    /// What decisions go by of it.
    pub(super) fn hear_elsewhere(&self, elsewhere: &Elsewhere) {
        self.nodes.set_elsewhere(elsewhere);
        if self.elsewhere.load().as_ref().is_none_or(|before| before.ahead != elsewhere.ahead) {
            let sets = self.routes.iter().filter_map(|route| route.policy.sets());
            sets.for_each(|sets| sets.run_ahead(elsewhere.ahead));
        }
    }

    /// What a group's routes have admitted here, and what waits.
    pub fn demand(&self, group: GroupId) -> Demand {
        let waiting = u32::try_from(self.queued_in(group)).unwrap_or(u32::MAX);
        Demand { outstanding: self.outstanding_in(group), waiting }
    }

    /// This dispatcher's part of a limit for all switches.
    pub(super) fn part_of(&self, total: u32, group: GroupId) -> u32 {
        let elsewhere = self.elsewhere.load();
        let Some(elsewhere) = elsewhere.as_ref().filter(|_| total < u32::MAX) else { return total };
        let admitted = elsewhere.admitted.iter().find(|(its, _)| *its == group);
        match admitted {
            Some((_, others)) => fair_share(total, others),
            // Nobody has said anything of this group: all may want as much as they can get.
            None => fair_share(total, &vec![None; elsewhere.switches as usize]),
        }
    }
}
