//! Failover between several origins with the same contents.
//!
//! ```text
//! in use --failures--> failed, not used for `pause` --time is up--> one trial request --reply--> in use
//!                         ^-- twice as long, up to `pause_max` ---failure---|
//! ```
//! An origin fails if there is no connection or no TLS, or if three requests in a row fail otherwise; a single
//! request may be at fault itself. A request goes to the first origin in use. If all have failed, all are
//! tried, in the order in which their pauses end. A request that would fail anyway may find a working origin.
//! The state of an origin is local to this process.

use super::error::OriginError;
use crate::config::Failover;
use http::uri::{Authority, Scheme};
use http::{StatusCode, Uri};
use larder_log::LogLimiter;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Failures in a row after which an origin counts as failed, although it accepts connections.
const FAILURES_IN_A_ROW: u32 = 3;
/// Most origins to which one request is sent.
const ATTEMPTS_MAX: usize = 3;
/// The state of an origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OriginStatus {
    /// Scheme, host and port.
    pub url: String,
    /// Whether other origins are used in its place.
    pub left: bool,
    /// Attempts that have failed.
    pub failures: u64,
}

/// An origin, and its state.
#[derive(Debug)]
pub(super) struct OriginServer {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    state: Mutex<ServerState>,
    failure_log: LogLimiter,
    recovery_log: LogLimiter,
    error_logs: [LogLimiter; OriginError::COUNT],
    /// Limits log lines about signed requests that the origin refuses.
    pub(super) refusal_log: LogLimiter,
}

#[derive(Debug, Default)]
struct ServerState {
    failures: u64,
    /// Failures since the last success.
    consecutive_failures: u32,
    left: Option<FailurePause>,
    trials: u64,
}

#[derive(Clone, Copy, Debug)]
struct FailurePause {
    until: Instant,
    pause: Duration,
    /// The number of the trial in progress. Other requests do without the origin until the trial ends.
    trial: Option<u64>,
}

/// An origin that a request may be sent to.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) origin: Arc<OriginServer>,
    /// The number of the trial, if the origin's pause is over and this request tries the origin.
    trial: Option<u64>,
}

impl Drop for Candidate {
    /// Releases a trial without a result, because its client left, to another request.
    fn drop(&mut self) {
        if self.trial.is_none() {
            return;
        }
        if let Some(left) = &mut self.origin.lock().left
            && left.trial == self.trial
        {
            left.trial = None;
        }
    }
}

/// All origins, in order.
#[derive(Debug)]
pub(super) struct OriginPool {
    all: Vec<Arc<OriginServer>>,
    failover: Option<Failover>,
}

impl OriginPool {
    /// Creates the origins of a validated configuration.
    pub(super) fn new(url: &Uri, failover: Option<&Failover>) -> Self {
        let server = |url: &Uri| {
            let scheme = url.scheme().cloned().unwrap_or(Scheme::HTTP);
            // A URL without an authority does not pass the check.
            let authority = url.authority().cloned().unwrap_or(Authority::from_static("localhost"));
            Arc::new(OriginServer {
                scheme,
                authority,
                state: Mutex::default(),
                failure_log: LogLimiter::default(),
                recovery_log: LogLimiter::default(),
                error_logs: Default::default(),
                refusal_log: LogLimiter::default(),
            })
        };
        let backups = failover.iter().flat_map(|failover| &failover.urls);
        Self { all: std::iter::once(url).chain(backups).map(server).collect(), failover: failover.cloned() }
    }

    /// Returns whether a reply with this status counts as a failure of its origin.
    pub(super) fn is_failure(&self, status: StatusCode) -> bool {
        self.failover.as_ref().is_some_and(|failover| failover.statuses.contains(&status))
    }

    /// Returns the origins that a request may be sent to, in order.
    pub(super) fn plan(&self, now: Instant) -> Vec<Candidate> {
        let (mut plan, mut later, mut found) = (Vec::with_capacity(self.all.len()), Vec::new(), false);
        for origin in &self.all {
            let mut state = origin.lock();
            let number = state.trials + 1;
            match &mut state.left {
                None => {
                    found = true;
                    plan.push(Candidate { origin: Arc::clone(origin), trial: None });
                }
                Some(left) if left.until <= now && left.trial.is_none() && !found => {
                    left.trial = Some(number);
                    state.trials = number;
                    plan.push(Candidate { origin: Arc::clone(origin), trial: Some(number) });
                }
                Some(left) => later.push((left.until, Arc::clone(origin))),
            }
        }
        later.sort_by_key(|(until, _)| *until);
        plan.extend(later.into_iter().map(|(_, origin)| Candidate { origin, trial: None }));
        plan.truncate(ATTEMPTS_MAX);
        plan
    }

    /// Records the reply to an attempt. A failed origin is used again only after the reply to a trial. Replies
    /// to requests from before the failure prove nothing.
    pub(super) fn record_success(&self, candidate: &Candidate) {
        let origin = &candidate.origin;
        let mut state = origin.lock();
        state.consecutive_failures = 0;
        if candidate.trial.is_some() && state.left.take().is_some() && origin.recovery_log.due().is_some() {
            tracing::info!(origin = %origin.authority, "origin: used again");
        }
    }

    /// Records a failed attempt; `unreachable` if there was no connection or no TLS. A single origin never
    /// counts as failed.
    pub(super) fn record_failure(&self, candidate: &Candidate, unreachable: bool, now: Instant) {
        let origin = &candidate.origin;
        let mut state = origin.lock();
        state.failures += 1;
        state.consecutive_failures = state.consecutive_failures.saturating_add(1);
        let Some(failover) = self.failover.as_ref().filter(|_| self.all.len() > 1) else { return };
        let pause = match state.left {
            None if unreachable || state.consecutive_failures >= FAILURES_IN_A_ROW => failover.pause,
            Some(FailurePause { pause, .. }) if candidate.trial.is_some() => {
                (pause * 2).min(failover.pause_max)
            }
            // Requests that were in progress fail together with the origin.
            None | Some(_) => return,
        };
        state.left = Some(FailurePause { until: now + pause, pause, trial: None });
        if let Some(times) = origin.failure_log.due() {
            let pause_s = pause.as_secs_f64();
            tracing::warn!(origin = %origin.authority, pause_s, times, "origin: failed, others are asked");
        }
    }

    /// Returns the state of each origin; empty if there is only one.
    pub(super) fn status(&self, now: Instant) -> Vec<OriginStatus> {
        let status = |origin: &Arc<OriginServer>| {
            let state = origin.lock();
            let left = state.left.is_some_and(|left| left.until > now || left.trial.is_some());
            let url = format!("{}://{}", origin.scheme, origin.authority);
            OriginStatus { url, left, failures: state.failures }
        };
        let origins = self.all.iter().filter(|_| self.all.len() > 1);
        origins.map(status).collect()
    }
}

impl OriginServer {
    /// Returns the limiter for log lines about an error at this origin.
    pub(super) const fn log(&self, error: OriginError) -> &LogLimiter {
        &self.error_logs[error as usize]
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn three_origins() -> OriginPool {
        let urls = ["http://b", "http://c"].map(Uri::from_static).to_vec();
        let failover = Failover { pause: S, pause_max: 4 * S, ..Failover::new(urls) };
        OriginPool::new(&Uri::from_static("http://a"), Some(&failover))
    }

    fn names(plan: &[Candidate]) -> String {
        plan.iter().map(|candidate| candidate.origin.authority.as_str()).collect()
    }

    #[test]
    fn a_failed_origin_is_retried_by_one_request_after_doubling_pauses() {
        let (origins, mut now) = (three_origins(), Instant::now());
        assert_eq!(names(&origins.plan(now)), "abc");
        let pauses = [(); 4].map(|()| {
            let plan = origins.plan(now);
            assert_eq!(names(&plan), "abc");
            origins.record_failure(&plan[0], true, now);
            // Another request that was in progress neither extends the pause nor ends it.
            let in_progress = Candidate { origin: Arc::clone(&plan[0].origin), trial: None };
            origins.record_failure(&in_progress, true, now);
            origins.record_success(&in_progress);
            assert_eq!(names(&origins.plan(now)), "bca");
            let until = (0..).find(|s| names(&origins.plan(now + *s * S)) == "abc").unwrap();
            now += until * S;
            // While one request tries the origin, however long that takes, other requests do without it.
            let trial = origins.plan(now);
            assert_eq!(names(&trial), "abc");
            assert_eq!(names(&origins.plan(now + 100 * S)), "bca");
            // A trial without a result is left to the next request.
            drop(trial);
            until
        });
        let plan = origins.plan(now);
        assert_eq!(names(&plan), "abc");
        origins.record_success(&plan[0]);
        assert_eq!(names(&origins.plan(now)), "abc");
        assert_eq!(pauses, [1, 2, 4, 4]);
        let status = origins.status(now);
        assert_eq!((status[0].url.as_str(), status[0].left, status[0].failures), ("http://a", false, 8));
    }

    #[test]
    fn with_all_origins_failed_all_are_tried_and_a_backup_only_in_its_turn() {
        let (origins, now) = (three_origins(), Instant::now());
        let plan = origins.plan(now);
        for (nth, candidate) in plan.iter().enumerate() {
            origins.record_failure(candidate, true, now + u32::try_from(2 - nth).unwrap() * S);
        }
        assert_eq!(names(&origins.plan(now)), "cba", "the first whose time is up first");
        let trial = origins.plan(now + 10 * S);
        assert_eq!(names(&trial), "abc", "all are tried");
        origins.record_success(&trial[0]);
        drop(trial);
        assert_eq!(names(&origins.plan(now + 10 * S)), "acb", "a works: nobody has to try others");
    }

    #[test]
    fn an_origin_that_replies_is_not_marked_failed_by_a_few_failures() {
        let (origins, now) = (three_origins(), Instant::now());
        for _ in 0..10 {
            let plan = origins.plan(now);
            assert_eq!(names(&plan), "abc");
            origins.record_failure(&plan[0], false, now);
            origins.record_failure(&plan[0], false, now);
            origins.record_success(&plan[0]);
        }
        let plan = origins.plan(now);
        (0..3).for_each(|_| origins.record_failure(&plan[0], false, now));
        assert_eq!(names(&origins.plan(now)), "bca");
    }

    #[test]
    fn the_only_origin_is_never_marked_failed() {
        let (origins, now) = (OriginPool::new(&Uri::from_static("http://a"), None), Instant::now());
        let plan = origins.plan(now);
        origins.record_failure(&plan[0], true, now);
        assert_eq!(names(&origins.plan(now)), "a");
        assert!(origins.status(now).is_empty() && !origins.is_failure(StatusCode::BAD_GATEWAY));
    }
}
