//! DBench: the number of concurrent users that a cluster can serve (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT Symposium
//! 1999, section 3.3; after Chen, Wharton and Day 1997).
//!
//! ```text
//! climb    users(t) = first + per_s t, each replaying a profile repeatedly
//! until    a request fails, or
//!          the mean connect time of a sub-epoch exceeds 3 s (static sites: 1 s), or
//!          a connect time exceeds 5 s (static sites: 2 s)
//! stable   no user arrives any more; after 100 s the run ends
//! ```
//!
//! Figures are recorded by sub-epoch of 10 s; those of the stable phase are the result. [`run`] needs a tokio runtime with
//! time and I/O, on which it does almost no work.
//!
//! The paper does not define the following; larder's choices are:
//! * The climb is linear, with one user a second. A steeper climb overshoots, because the latest users have not caused their
//!   load yet. With pauses of 2 s and sub-epochs of 10 s, each user sends about five requests in a sub-epoch.
//! * The mean is that of the current sub-epoch, once it has 10 values. A single value above the maximum ends the climb.
//! * A connect time counts when the connection is open. A connection that is not open at the request's timeout is a failure.
//! * Users continue in the stable phase even if requests fail; these failures are counted.
//! * The number of users is limited. At the limit the stable phase begins, with the reason `users_max`.
//! * User u replays profile u modulo the number of profiles. Users of the same profile start 7 requests apart.
//!
//! A modern server accepts connections at once and queues the requests, so its connect time means nothing.
//! [`RuleMetric::FirstByte`] applies the same limits to the time from connecting to the first byte of the reply.

mod climb;
mod epochs;
pub(crate) mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::plan::PlanError;
use crate::run::LoadError;
use crate::script::Script;
use crate::users::population::{self, Population};
use crate::users::run_state::UserRunState;
use crate::users::settings::{ConnectionLifetime, UserSettings};
use crate::users::{USERS_MAX, UserProgress};
use climb::{Climb, ClimbAction};
use epochs::Epochs;
pub use report::{DBENCH_SCHEMA, DbenchReport, Epoch, Stable, StopReason};

/// Maximum sub-epochs of a run.
pub const EPOCHS_MAX: u64 = 10_000;

/// Growth of the number of users.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Users at the start, 1 to `users_max`. Default 1.
    pub first: u32,
    /// Users added in a second, above 0, at most 100,000. Default 1.
    pub per_s: f64,
    /// Maximum users, 1..=[`USERS_MAX`]. Default 5,000.
    pub users_max: u32,
}

impl Default for Ramp {
    fn default() -> Self {
        Self { first: 1, per_s: 1.0, users_max: 5_000 }
    }
}

/// Time that the rules limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RuleMetric {
    /// Time to connect, as in the paper.
    #[default]
    Connect,
    /// Time from connecting to the first byte of the reply.
    FirstByte,
}

impl std::str::FromStr for RuleMetric {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "connect" => Ok(Self::Connect),
            "first-byte" => Ok(Self::FirstByte),
            _ => Err("unknown time for the rules: use connect or first-byte".to_owned()),
        }
    }
}

/// Rules that end the climb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Maximum failed requests. Default 0.
    pub failures_max: u64,
    /// Time that the other rules limit.
    pub metric: RuleMetric,
    /// Maximum mean of a sub-epoch. Above 0.
    pub mean_max: Duration,
    /// Maximum single value. Above 0.
    pub single_max: Duration,
    /// Minimum values of a sub-epoch for its mean to be checked; at least 1. Default 10.
    pub samples_min: u64,
}

impl Rules {
    /// Rules for dynamic content: 3 s on average, 5 s at most.
    pub fn dynamic_content() -> Self {
        Self {
            failures_max: 0,
            metric: RuleMetric::Connect,
            mean_max: Duration::from_secs(3),
            single_max: Duration::from_secs(5),
            samples_min: 10,
        }
    }

    /// Rules for static content: 1 s on average, 2 s at most.
    pub fn static_content() -> Self {
        Self {
            mean_max: Duration::from_secs(1),
            single_max: Duration::from_secs(2),
            ..Self::dynamic_content()
        }
    }
}

/// The plan of a run of DBench.
#[derive(Clone, Debug)]
pub struct DbenchPlan {
    /// The profiles; each visit of the script is one.
    pub script: Script,
    /// The server, and how requests are sent.
    pub settings: UserSettings,
    /// Growth of the number of users.
    pub ramp: Ramp,
    /// Rules that end the growth.
    pub rules: Rules,
    /// Length of a sub-epoch, at least 10 ms. Default 10 s.
    pub epoch: Duration,
    /// Length of the stable phase, above 0. Default 100 s.
    pub stable: Duration,
}

impl DbenchPlan {
    /// Creates a plan with the paper's parameters: a new connection for each request, one at a time. The rules are those for
    /// dynamic content if the script has dynamic resources.
    pub fn new(script: Script, settings: UserSettings) -> Self {
        let rules = if script.resources().iter().any(|resource| resource.dynamic) {
            Rules::dynamic_content()
        } else {
            Rules::static_content()
        };
        Self {
            script,
            settings: UserSettings { keep: ConnectionLifetime::Request, parallel: 1, ..settings },
            ramp: Ramp::default(),
            rules,
            epoch: Duration::from_secs(10),
            stable: Duration::from_secs(100),
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        let limit = |what, value: u64, max: u64| {
            if (1..=max).contains(&value) { Ok(()) } else { Err(PlanError::Limit { what, value, max }) }
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let hour = micros(Duration::from_secs(3_600));
        limit("most users", u64::from(self.ramp.users_max), u64::from(USERS_MAX))?;
        limit("users at the start", u64::from(self.ramp.first), u64::from(self.ramp.users_max))?;
        if !(self.ramp.per_s > 0.0 && self.ramp.per_s <= 100_000.0) {
            return Err(PlanError::Ramp(self.ramp.per_s));
        }
        limit("sub-epoch in hundredths of a second", micros(self.epoch) / 10_000, 360_000)?;
        limit("stable phase in microseconds", micros(self.stable), 24 * hour)?;
        limit("mean allowed in microseconds", micros(self.rules.mean_max), hour)?;
        limit("maximum allowed in microseconds", micros(self.rules.single_max), hour)?;
        limit("fewest values of a mean", self.rules.samples_min, 1 << 32)?;
        let climb_s = f64::from(self.ramp.users_max - self.ramp.first) / self.ramp.per_s;
        let epochs = ((climb_s + self.stable.as_secs_f64()) / self.epoch.as_secs_f64()).ceil() as u64;
        limit("sub-epochs up to the most users and the stable phase", epochs, EPOCHS_MAX)
    }
}

/// Runs DBench and returns a report. `progress` is called about twenty times a second and must not block.
///
/// Dropping the future stops the users at once; [`UserSettings::stop`] ends the run early with a report.
///
/// # Errors
/// [`LoadError`]. Failed requests are not errors: they end the climb.
pub async fn run(
    plan: DbenchPlan,
    progress: &(dyn Fn(UserProgress) + Sync),
) -> Result<DbenchReport, LoadError> {
    plan.check()?;
    let job = Arc::new(plan.settings.check(&plan.script, plan.ramp.users_max)?);
    job.probe().await?;
    let state = Arc::new(UserRunState::new(Instant::now(), Duration::MAX, None));
    let epochs = Arc::new(Epochs::new(plan.epoch, plan.rules.metric));
    let (users_sender, users) = watch::channel(0);
    let population = Population::Controlled { users, observer: Arc::clone(&epochs) as _ };
    let mut climb = Climb::new(plan.ramp, plan.rules, plan.stable);
    let results = population::run_users(&job, &state, &population, &mut |state| {
        let now = state.now();
        epochs.record_users(now, state.users());
        progress(UserProgress::new(state));
        if job.stop.is_stopped() {
            climb.interrupt(now);
            epochs.close(now);
        }
        match climb.step(now, &epochs.measurements(now)) {
            ClimbAction::SetUsers(users) => {
                users_sender.send_if_modified(|controlled| std::mem::replace(controlled, users) != users);
            }
            ClimbAction::BeginStable { from, until } => {
                state.set_window(from, until);
                epochs.close(until);
            }
            ClimbAction::Wait => {}
            ClimbAction::Finish => state.end(),
        }
    })
    .await?;
    Ok(DbenchReport::new(&plan, &job, &state, &results, &climb, &epochs))
}
