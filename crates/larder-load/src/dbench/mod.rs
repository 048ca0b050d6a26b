//! DBench: how many concurrent users a cluster carries (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT Symposium
//! 1999, section 3.3; after Chen, Wharton and Day 1997).
//!
//! ```text
//! climb    users(t) = first + per_s t, each replaying a profile again and again
//! until    a request fails, or
//!          the mean connect time of a sub-epoch exceeds 3 s (static sites: 1 s), or
//!          a connect time exceeds 5 s (static sites: 2 s)
//! stable   nobody comes any more; after 100 s the run is over
//! ```
//!
//! Figures are taken per sub-epoch of 10 s; those of the stable phase are the result. [`run`] is asynchronous and needs a
//! tokio runtime with time and I/O, on which almost no work is done.
//!
//! Ours, where the paper is silent:
//! * the rate of the climb: one user a second, linear. A climb too steep overshoots, as the users who came last have
//!   not shown their load yet; with pauses of 2 s and sub-epochs of 10 s, one a second leaves each some five requests
//!   per sub-epoch;
//! * the mean is that of the sub-epoch under way, once it has 10 values. The first value above the maximum counts;
//! * a connection that is still being made is seen when it is there, or at the request's time limit, as a failure;
//! * users stay in the stable phase, failures or not, and what fails there is counted;
//! * a most number of users, and what then happens: the stable phase begins, with the reason `users_max`;
//! * user u replays profile u modulo their number; users of the same profile begin 7 requests apart.
//!
//! A server of today accepts connections at once and lets requests wait behind them, so that its connect time says
//! nothing: [`Judged::FirstByte`] applies the same limits to the time from asking for a connection to the first byte of
//! the reply.

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
use crate::users::board::Board;
use crate::users::population::{self, Population};
use crate::users::stage::{Keep, Stage};
use crate::users::{USERS_MAX, UserProgress};
use climb::{Climb, Step};
use epochs::Epochs;
pub use report::{DBENCH_SCHEMA, DbenchReport, Epoch, Stable, Stopped};

/// Most sub-epochs of a run.
pub const EPOCHS_MAX: u64 = 10_000;

/// How users become more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Users at the start, 1 to `users_max`. Default 1.
    pub first: u32,
    /// Users who come in a second, above 0, at most 100,000. Default 1.
    pub per_s: f64,
    /// Most users, 1..=[`USERS_MAX`]. Default 5,000.
    pub users_max: u32,
}

impl Default for Ramp {
    fn default() -> Self {
        Self { first: 1, per_s: 1.0, users_max: 5_000 }
    }
}

/// Which time the rules judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// Of making a connection, as in the paper.
    #[default]
    Connect,
    /// From asking for a connection to the first byte of the reply.
    FirstByte,
}

impl std::str::FromStr for Judged {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "connect" => Ok(Self::Connect),
            "first-byte" => Ok(Self::FirstByte),
            _ => Err("the rules judge the time to connect or to the first-byte".to_owned()),
        }
    }
}

/// When the climb ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// More failed requests than this end it. Default 0.
    pub failures_max: u64,
    /// Which time the other two are about.
    pub judged: Judged,
    /// A mean above this ends it. Above 0.
    pub mean_max: Duration,
    /// A single time above this ends it. Above 0.
    pub most_max: Duration,
    /// A sub-epoch's mean is looked at from so many values on; at least 1. Default 10.
    pub samples_min: u64,
}

impl Rules {
    /// For dynamic content: 3 s on average, 5 s at most.
    pub fn dynamic() -> Self {
        Self {
            failures_max: 0,
            judged: Judged::Connect,
            mean_max: Duration::from_secs(3),
            most_max: Duration::from_secs(5),
            samples_min: 10,
        }
    }

    /// For static content: 1 s on average, 2 s at most.
    pub fn fixed() -> Self {
        Self { mean_max: Duration::from_secs(1), most_max: Duration::from_secs(2), ..Self::dynamic() }
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct DbenchPlan {
    /// The profiles: each visit of the script is one.
    pub script: Script,
    /// Where, and how requests are made.
    pub stage: Stage,
    /// How users become more.
    pub ramp: Ramp,
    /// When they do not any more.
    pub rules: Rules,
    /// Length of a sub-epoch, at least 10 ms. Default 10 s.
    pub epoch: Duration,
    /// Length of the stable phase, above 0. Default 100 s.
    pub stable: Duration,
}

impl DbenchPlan {
    /// The paper's, for dynamic content if a program makes anything of what the script asks for: a new connection for
    /// each request, one at a time.
    pub fn new(script: Script, stage: Stage) -> Self {
        let rules =
            if script.offers().iter().any(|offer| offer.made) { Rules::dynamic() } else { Rules::fixed() };
        Self {
            script,
            stage: Stage { keep: Keep::Request, parallel: 1, ..stage },
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
        limit("maximum allowed in microseconds", micros(self.rules.most_max), hour)?;
        limit("fewest values of a mean", self.rules.samples_min, 1 << 32)?;
        let climb_s = f64::from(self.ramp.users_max - self.ramp.first) / self.ramp.per_s;
        let epochs = ((climb_s + self.stable.as_secs_f64()) / self.epoch.as_secs_f64()).ceil() as u64;
        limit("sub-epochs up to the most users and the stable phase", epochs, EPOCHS_MAX)
    }
}

/// Runs DBench and reports. `progress` is called about twenty times a second and must not block.
///
/// Dropping the future ends the users at once; [`Stage::stop`] ends the run early with a report.
///
/// # Errors
/// [`LoadError`]. Failing requests are no error: they end the climb.
pub async fn run(
    plan: DbenchPlan,
    progress: &(dyn Fn(UserProgress) + Sync),
) -> Result<DbenchReport, LoadError> {
    plan.check()?;
    let job = Arc::new(plan.stage.job(&plan.script, plan.ramp.users_max)?);
    job.probe().await?;
    let board = Arc::new(Board::new(Instant::now(), Duration::MAX, None));
    let epochs = Arc::new(Epochs::new(plan.epoch, plan.rules.judged));
    let (call, users) = watch::channel(0);
    let population = Population::Called { users, watch: Arc::clone(&epochs) as _ };
    let mut climb = Climb::new(plan.ramp, plan.rules, plan.stable);
    let acted = population::act_out(&job, &board, &population, &mut |board| {
        let now = board.now();
        epochs.note_users(now, board.users());
        progress(UserProgress::of(board));
        if job.stop.stopped() {
            climb.interrupt(now);
            epochs.close(now);
        }
        match climb.step(now, &epochs.reading(now)) {
            Step::Users(users) => {
                call.send_if_modified(|called| std::mem::replace(called, users) != users);
            }
            Step::Stable { from, until } => {
                board.measure(from, until);
                epochs.close(until);
            }
            Step::Stay => {}
            Step::Over => board.end(),
        }
    })
    .await?;
    Ok(DbenchReport::new(&plan, &job, &board, &acted, &climb, &epochs))
}
