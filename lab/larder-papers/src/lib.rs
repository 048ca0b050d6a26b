//! The papers' figures and claims, run again and judged.
//!
//! An [`Experiment`] is a TOML file under `experiments/`: what it reproduces, its recipe, the runs, the figures drawn
//! from them and the claims judged by them. [`catalogue`] holds those that come with larder; [`Experiment::parse`]
//! reads anybody's. [`Session::run`] does all runs of many experiments on all cores and gives a [`Report`], which
//! [`text`] writes as a table or as Markdown.
//!
//! # Where samples come from
//!
//! Everything after the runs works on [`Sample`]s: a line's name, an x, and named values there. There are two sources:
//!
//! * a **sweep** of the simulator, described in the file: cluster, lines, x values. One run is one sample;
//! * a **builtin**, named in the file: code of its own, for what is no plain sweep (an analytic model, a policy
//!   vector, an offline analysis).
//!
//! # Adding a builtin
//!
//! 1. Write `src/NAME.rs` with a type that implements [`Builtin`]: it reads the file's `[params]` table and gives a
//!    [`Plan`], which splits the work into jobs. Each job gives samples; jobs run on all cores, in any order, and may
//!    be read back from an earlier run, so a job depends on nothing but its parameters.
//! 2. Add it to `builtins::ALL`.
//! 3. Write `experiments/PAPER/FILE.toml` with `builtin = "NAME"`, its figures and its claims, and add the file to
//!    `catalogue::FILES`.
//!
//! A job gets workloads from [`Traces`], where jobs of other experiments find the same ones.
//!
//! # Claims
//!
//! A claim says what is published and where, how ours is measured ([`Measure`], a closed vocabulary), within what
//! bounds it holds, why these bounds, and, if it does not hold, why not. Bounds come from the paper's own words
//! ("about", "slightly", "below") and stand in the file beside the claim. What does not hold is reported so. Each claim
//! says what it is worth as [`Evidence`]: fits, constructions and repetitions are counted apart from reproductions.

mod builtin;
mod builtins;
mod cap;
mod cap_vector;
pub mod catalogue;
mod claim;
mod cluster;
mod cooperation;
mod evidence;
mod experiment;
mod file;
mod hacc;
mod lard;
mod peers;
mod point;
mod press;
mod report;
mod run;
mod store;
pub mod text;
mod traces;
mod users;
mod ward;

pub use builtin::{Builtin, Plan};
pub use claim::{Bounds, Claim, Measure, Verdict, Versus};
pub use evidence::Evidence;
pub use experiment::{Experiment, FigureSpec, Paper};
pub use file::FileError;
pub use report::{Count, ExperimentReport, Judgement, LeftOut, Report, Sample, Totals};
pub use run::{Options, Progress, Session};
pub use traces::{Traces, WorkloadSpec};

/// What can go wrong while experiments run. The experiment is at fault, or a file it needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperError {
    /// The simulator refuses the run.
    #[error(transparent)]
    Sim(#[from] larder_sim::SimError),
    /// The recipe cannot be made into a trace.
    #[error("the workload cannot be made: {0}")]
    Workload(String),
    /// A trace file is not there. Its experiment is left out, which the report says.
    #[error("the trace {0} is not there")]
    NoTrace(String),
    /// A builtin's own complaint.
    #[error("{0}")]
    Builtin(String),
}
