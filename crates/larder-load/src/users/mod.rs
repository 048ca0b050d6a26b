//! Users who fetch pages and think: a [`Script`] acted out.
//!
//! [`run`] has users begin at the script's times (open: CAP's sessions, so many a second) or keeps a fixed number of them
//! (closed: WebStone's clients). It is asynchronous and needs a tokio runtime with time and I/O, on which almost no work
//! is done: users have threads of their own.
//!
//! # What a user does
//! 1. fetches a page as a browser does: the base page first, then what it embeds, over at most
//!    [`Stage::parallel`] connections, the base page's among them; each asks for the next object when it has got the
//!    last. With [`Keep::Request`](crate::Keep::Request) every object takes a connection of its own;
//! 2. pauses, [`Stage::time_scale`] times as long as the script says; then comes the next page.
//!
//! An open user leaves after its last page, or when a base page fails: a user who sees an error goes away. A closed one
//! pauses after its last page too and then begins the script's next visit. Closed users come evenly over the warm-up, so
//! that they do not all ask at once.
//!
//! # What counts
//! Pages that are due within the window, from the end of the warm-up to the end of the run, count however late they
//! end. No page begins after the window. A page's latency runs from when it was *due* to the end of its last object: a
//! client that is late in asking does not forgive itself. A page fails if one of its requests does. Embedded objects are
//! due when a connection is free for them: waiting for the browser's own connections is part of the page's latency, not
//! of the request's. Rates (pages, hits and connections per second) count what ended within the window.

mod bench;
pub(crate) mod board;
mod browser;
mod pauses;
pub(crate) mod population;
pub(crate) mod report;
pub(crate) mod seen;
pub(crate) mod stage;
pub(crate) mod sweep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::plan::{CONNECTIONS_MAX, PlanError};
use crate::run::LoadError;
use crate::script::Script;
use board::Board;
use population::Population;
use report::{UsersReport, UsersSetup};
use stage::Stage;
pub use sweep::{SWEEP_MAX, SWEEP_SCHEMA, SweepReport, sweep};

/// Most users at a time, in all threads together.
pub const USERS_MAX: u32 = CONNECTIONS_MAX;

/// How users come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// At the times of the script's visits, whatever became of earlier ones. A visit that finds `at_once_max` users
    /// there waits, and its latency shows it.
    Open {
        /// Most users at a time, 1..=[`USERS_MAX`].
        at_once_max: u32,
    },
    /// A fixed number, each beginning the script's next visit when it has finished one.
    Closed {
        /// How many, 1..=[`USERS_MAX`].
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

    fn most(self) -> u32 {
        match self {
            Self::Open { at_once_max } => at_once_max,
            Self::Closed { clients } => clients,
        }
    }
}

/// A whole run of users.
#[derive(Clone, Debug)]
pub struct UserPlan {
    /// What they do.
    pub script: Script,
    /// Where, and how they fetch pages.
    pub stage: Stage,
    /// How they come.
    pub users: Users,
    /// Pages due before this time do not count. Below `duration`.
    pub warmup: Duration,
    /// No page begins after this time, from the start of the run. Above 0.
    pub duration: Duration,
}

/// How far a run of users is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UserProgress {
    /// Time since the start.
    pub elapsed: Duration,
    /// Users there now.
    pub users: u64,
    /// Requests finished, well or not.
    pub finished: u64,
    /// How many of them failed.
    pub failed: u64,
    /// Whether pages count by now.
    pub measuring: bool,
}

impl UserProgress {
    pub(crate) fn of(board: &Board) -> Self {
        let (finished, failed) = board.counts();
        let elapsed = board.now();
        Self { elapsed, users: board.users(), finished, failed, measuring: elapsed >= board.measured_from() }
    }
}

/// Acts a script out and reports. `progress` is called about twenty times a second and must not block.
///
/// Dropping the future ends the users at once; [`Stage::stop`] ends the run early with a report.
///
/// # Errors
/// [`LoadError`]. Failing requests are no error; they are in the report.
pub async fn run(plan: UserPlan, progress: &(dyn Fn(UserProgress) + Sync)) -> Result<UsersReport, LoadError> {
    plan.check()?;
    let job = Arc::new(plan.stage.job(&plan.script, plan.users.most())?);
    job.probe().await?;
    let board = Arc::new(Board::new(Instant::now(), plan.warmup, Some(plan.duration)));
    let population = match plan.users {
        Users::Open { at_once_max } => Population::Open { at_once_max },
        Users::Closed { clients } => Population::Closed { clients, over: plan.warmup },
    };
    let acted = population::act_out(&job, &board, &population, &mut |board| {
        progress(UserProgress::of(board));
        if job.stop.stopped() || board.now() >= plan.duration {
            board.end();
        }
    })
    .await?;
    // Where the script has run out before, so has the window.
    board.end();
    let setup = UsersSetup::new(&plan);
    Ok(UsersReport::new(setup, &job, &board, &acted, plan.script.span()))
}

impl UserPlan {
    fn check(&self) -> Result<(), PlanError> {
        let limit = |what, value: u64, max: u64| {
            if (1..=max).contains(&value) { Ok(()) } else { Err(PlanError::Limit { what, value, max }) }
        };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        limit("users", u64::from(self.users.most()), u64::from(USERS_MAX))?;
        limit("duration in microseconds", micros(self.duration), micros(crate::run::RUN_MAX))?;
        let room = micros(self.duration) - micros(self.warmup).min(micros(self.duration));
        limit("duration after the warm-up in microseconds", room, micros(crate::run::RUN_MAX))
    }
}
