//! Several origins with the same contents, in order: which one is asked.
//!
//! ```text
//! asked --failure--> left for `pause` --time is up--> one request tries it --reply--> asked
//!                         ^-- twice as long, up to `pause_max` ---failure---|
//! ```
//! The first origin that is not left is asked. If all are left, all are tried, the one first whose time is up first: a request
//! that would fail anyway may find one that works again. An origin's state is known to this process alone.

use http::uri::{Authority, Scheme};
use http::{StatusCode, Uri};
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most origins besides the first.
pub(super) const BACKUPS_MAX: usize = 16;

/// Origins that stand in for the first one, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// Where they are, in order, as the first one's URL. At most 16.
    pub urls: Vec<Uri>,
    /// Statuses by which an origin says that it has failed. Default 502, 503 and 504.
    pub statuses: Vec<StatusCode>,
    /// Time for which an origin is left after a failure; doubles with each further one. 1 ms to 1 h, default 1 s.
    pub pause: Duration,
    /// The longest such time. `pause` to 1 day, default 1 min.
    pub pause_max: Duration,
}

impl Failover {
    /// The defaults for these origins.
    pub fn new(urls: Vec<Uri>) -> Self {
        let statuses =
            vec![StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
        Self { urls, statuses, pause: Duration::from_secs(1), pause_max: Duration::from_secs(60) }
    }
}

/// How an origin stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OriginStanding {
    /// Scheme, host and port.
    pub url: String,
    /// Whether others are asked in its place.
    pub left: bool,
    /// Attempts that have failed.
    pub failures: u64,
}

/// An origin.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u64,
    /// Until when it is left, and for how long it was, if it has failed last.
    left: Option<(Instant, Duration)>,
}

/// An origin that a request may be sent to.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) origin: Arc<Standing>,
    /// Its time is up, and this request tries it.
    trial: bool,
}

/// All origins, in order.
#[derive(Debug)]
pub(super) struct Standings {
    all: Vec<Arc<Standing>>,
    failover: Option<Failover>,
}

impl Standings {
    /// Those of a checked configuration.
    pub(super) fn new(url: &Uri, failover: Option<&Failover>) -> Self {
        let standing = |url: &Uri| {
            let scheme = url.scheme().cloned().unwrap_or(Scheme::HTTP);
            // A URL without an authority does not pass the check.
            let authority = url.authority().cloned().unwrap_or(Authority::from_static("localhost"));
            Arc::new(Standing { scheme, authority, state: Mutex::default() })
        };
        let backups = failover.iter().flat_map(|failover| &failover.urls);
        Self { all: std::iter::once(url).chain(backups).map(standing).collect(), failover: failover.cloned() }
    }

    /// Whether a reply with this status tells that its origin has failed.
    pub(super) fn tells_failure(&self, status: StatusCode) -> bool {
        self.failover.as_ref().is_some_and(|failover| failover.statuses.contains(&status))
    }

    /// The origins that a request may be sent to, one after another.
    pub(super) fn plan(&self, now: Instant) -> Vec<Candidate> {
        let (mut plan, mut later, mut found) = (Vec::with_capacity(self.all.len()), Vec::new(), false);
        for origin in &self.all {
            let mut state = origin.lock();
            match &mut state.left {
                None => {
                    found = true;
                    plan.push(Candidate { origin: Arc::clone(origin), trial: false });
                }
                // Others go on without it until this request knows more.
                Some((until, pause)) if *until <= now && !found => {
                    *until = now + *pause;
                    plan.push(Candidate { origin: Arc::clone(origin), trial: true });
                }
                Some((until, _)) => later.push((*until, Arc::clone(origin))),
            }
        }
        later.sort_by_key(|(until, _)| *until);
        plan.extend(later.into_iter().map(|(_, origin)| Candidate { origin, trial: false }));
        plan
    }

    /// An attempt has had a reply.
    pub(super) fn succeeded(&self, candidate: &Candidate) {
        if candidate.origin.lock().left.take().is_some() {
            tracing::info!(origin = %candidate.origin.authority, "origin: used again");
        }
    }

    /// An attempt has failed. The only origin is never left.
    pub(super) fn failed(&self, candidate: &Candidate, now: Instant) {
        let mut state = candidate.origin.lock();
        state.failures += 1;
        let Some(failover) = self.failover.as_ref().filter(|_| self.all.len() > 1) else { return };
        let pause = match state.left {
            None => failover.pause,
            // Requests that were under way fail with it.
            Some((until, _)) if until > now && !candidate.trial => return,
            Some((_, pause)) => (pause * 2).min(failover.pause_max),
        };
        state.left = Some((now + pause, pause));
        let pause_s = pause.as_secs_f64();
        tracing::warn!(origin = %candidate.origin.authority, pause_s, "origin: failed, others are asked");
    }

    /// How each origin stands; none if there is only one.
    pub(super) fn standing(&self, now: Instant) -> Vec<OriginStanding> {
        let standing = |origin: &Arc<Standing>| {
            let state = origin.lock();
            let left = state.left.is_some_and(|(until, _)| until > now);
            let url = format!("{}://{}", origin.scheme, origin.authority);
            OriginStanding { url, left, failures: state.failures }
        };
        let several = self.all.iter().filter(|_| self.all.len() > 1);
        several.map(standing).collect()
    }
}

impl Standing {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn three() -> Standings {
        let urls = ["http://b", "http://c"].map(Uri::from_static).to_vec();
        let failover = Failover { pause: S, pause_max: 4 * S, ..Failover::new(urls) };
        Standings::new(&Uri::from_static("http://a"), Some(&failover))
    }

    fn names(plan: &[Candidate]) -> String {
        plan.iter().map(|candidate| candidate.origin.authority.as_str()).collect()
    }

    #[test]
    fn a_failed_origin_is_left_and_tried_by_one_request_for_times_that_double() {
        let (origins, mut now) = (three(), Instant::now());
        assert_eq!(names(&origins.plan(now)), "abc");
        let pauses = [(); 4].map(|()| {
            let plan = origins.plan(now);
            assert_eq!(names(&plan), "abc");
            origins.failed(&plan[0], now);
            // Another request that was under way does not make it longer.
            origins.failed(&Candidate { trial: false, ..plan[0].clone() }, now);
            assert_eq!(names(&origins.plan(now)), "bca");
            let until = (0..).find(|s| names(&origins.plan(now + *s * S)) == "abc").unwrap();
            // This was the trial, which has come to nothing; the next comes as much later.
            assert_eq!(names(&origins.plan(now + until * S)), "bca");
            now += until * S + until * S;
            until
        });
        let plan = origins.plan(now);
        assert_eq!(names(&plan), "abc");
        origins.succeeded(&plan[0]);
        assert_eq!(names(&origins.plan(now)), "abc");
        assert_eq!(pauses, [1, 2, 4, 4]);
        let standing = origins.standing(now);
        assert_eq!(
            (standing[0].url.as_str(), standing[0].left, standing[0].failures),
            ("http://a", false, 8)
        );
    }

    #[test]
    fn if_all_are_left_all_are_tried_and_a_backup_is_tried_again_only_in_its_turn() {
        let (origins, now) = (three(), Instant::now());
        let plan = origins.plan(now);
        for (nth, candidate) in plan.iter().enumerate() {
            origins.failed(candidate, now + u32::try_from(2 - nth).unwrap() * S);
        }
        assert_eq!(names(&origins.plan(now)), "cba", "the first whose time is up first");
        origins.succeeded(&plan[0]);
        assert_eq!(names(&origins.plan(now + 10 * S)), "acb", "a works: nobody has to try others");
    }

    #[test]
    fn the_only_origin_is_never_left() {
        let (origins, now) = (Standings::new(&Uri::from_static("http://a"), None), Instant::now());
        let plan = origins.plan(now);
        origins.failed(&plan[0], now);
        assert_eq!(names(&origins.plan(now)), "a");
        assert!(origins.standing(now).is_empty() && !origins.tells_failure(StatusCode::BAD_GATEWAY));
    }
}
