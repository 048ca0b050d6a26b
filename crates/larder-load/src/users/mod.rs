//! Simulated users who fetch pages and pause, following a [`Script`].
//!
//! With [`run`], users arrive at the script's times (open, as CAP's sessions), or their number is fixed (closed, as WebStone's
//! clients). The function needs a tokio runtime with time and I/O but does almost no work on it, because users run on their
//! own threads.
//!
//! # Behaviour of a user
//! 1. The user fetches a page as a browser does: first the base object, then the embedded objects over at most
//!    [`UserSettings::parallel`] connections, including that of the base object. With
//!    [`ConnectionLifetime::Request`](crate::ConnectionLifetime::Request) each object has its own connection.
//! 2. The user pauses for the script's time multiplied by [`UserSettings::time_scale`], and then fetches the next page.
//!
//! An open user leaves after the last page, or when a base object fails. A closed user pauses after the last page as well and
//! then starts the script's next visit. Closed users arrive evenly over the warm-up, so that they do not all start at once.
//!
//! # What counts
//! The window lasts from the end of the warm-up to the end of the run. Pages that are due within the window are counted, even
//! if they finish later. No page starts after the window. A page's latency lasts from when it was *due* to the end of its last
//! object, so it includes delays of the client. A page fails if one of its requests fails. An embedded object is due when a
//! connection is free for it, so the wait for a connection is part of the page's latency but not of the request's. Rates
//! (pages, hits and connections per second) count events within the window.

mod browser;
mod context;
pub(crate) mod page_stats;
pub(crate) mod population;
pub(crate) mod report;
pub(crate) mod run_state;
pub(crate) mod settings;
pub(crate) mod sweep;
mod timer_queue;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plan::{CONNECTIONS_MAX, PlanError};
use crate::run::LoadError;
use crate::script::Script;
use population::Population;
use report::{UsersReport, UsersSetup};
use run_state::UserRunState;
use settings::UserSettings;
pub use sweep::{SWEEP_MAX, SWEEP_SCHEMA, SweepReport, sweep};

/// Maximum concurrent users, in all threads together.
pub const USERS_MAX: u32 = CONNECTIONS_MAX;

/// Arrival of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Users arrive at the times of the script's visits, independent of earlier ones. A visit that would exceed `at_once_max`
    /// users waits, and the wait is part of its latency.
    Open {
        /// Maximum concurrent users, 1..=[`USERS_MAX`].
        at_once_max: u32,
    },
    /// The number of users is fixed. Each starts the script's next visit when it has finished one.
    Closed {
        /// Number of users, 1..=[`USERS_MAX`].
        clients: u32,
    },
}

impl Users {
    /// The load model's name: `sessions-open`, `sessions-closed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open { .. } => "sessions-open",
            Self::Closed { .. } => "sessions-closed",
        }
    }

    /// Maximum concurrent users.
    fn count_max(self) -> u32 {
        match self {
            Self::Open { at_once_max } => at_once_max,
            Self::Closed { clients } => clients,
        }
    }
}

/// The plan of a run of users.
#[derive(Clone, Debug)]
pub struct UserPlan {
    /// Behaviour of the users.
    pub script: Script,
    /// The server, and how users fetch pages.
    pub settings: UserSettings,
    /// Arrival of the users.
    pub users: Users,
    /// Pages due before this time are not counted. Below `duration`.
    pub warmup: Duration,
    /// No page starts after this time, from the start of the run. Above 0.
    pub duration: Duration,
}

/// Progress of a run of users.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UserProgress {
    /// Time since the start.
    pub elapsed: Duration,
    /// Current number of users.
    pub users: u64,
    /// Finished requests, including failed ones.
    pub finished: u64,
    /// Failed requests.
    pub failed: u64,
    /// Whether the window has started.
    pub measuring: bool,
}

impl UserProgress {
    pub(crate) fn new(state: &UserRunState) -> Self {
        let (finished, failed) = state.counts();
        let elapsed = state.now();
        Self { elapsed, users: state.users(), finished, failed, measuring: elapsed >= state.measured_from() }
    }
}

/// Runs users by a script and returns a report. `progress` is called about twenty times a second and must not block.
///
/// Dropping the future stops the users at once; [`UserSettings::stop`] ends the run early with a report.
///
/// # Errors
/// [`LoadError`]. Failed requests are not errors; the report counts them.
pub async fn run(plan: UserPlan, progress: &(dyn Fn(UserProgress) + Sync)) -> Result<UsersReport, LoadError> {
    plan.check()?;
    let job = Arc::new(plan.settings.check(&plan.script, plan.users.count_max())?);
    job.probe().await?;
    let state = Arc::new(UserRunState::new(Instant::now(), plan.warmup, Some(plan.duration)));
    let population = match plan.users {
        Users::Open { at_once_max } => Population::Open { at_once_max },
        Users::Closed { clients } => Population::Closed { clients, over: plan.warmup },
    };
    let result = population::run_users(&job, &state, &population, &mut |state| {
        progress(UserProgress::new(state));
        if job.stop.is_stopped() || state.now() >= plan.duration {
            state.end();
        }
    })
    .await?;
    // If the script has ended before `duration`, the window ends with it.
    state.end();
    let setup = UsersSetup::new(&plan);
    Ok(UsersReport::new(setup, &job, &state, &result, plan.script.span()))
}

impl UserPlan {
    fn check(&self) -> Result<(), PlanError> {
        let limit = |what, value: u64, max: u64| {
            if (1..=max).contains(&value) { Ok(()) } else { Err(PlanError::Limit { what, value, max }) }
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        limit("users", u64::from(self.users.count_max()), u64::from(USERS_MAX))?;
        limit("duration in microseconds", micros(self.duration), micros(crate::pacer::RUN_MAX))?;
        let room = micros(self.duration) - micros(self.warmup).min(micros(self.duration));
        limit("duration after the warm-up in microseconds", room, micros(crate::pacer::RUN_MAX))
    }
}
