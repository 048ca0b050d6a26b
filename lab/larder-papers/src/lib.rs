//! The papers' figures and claims, reproduced and judged.
//!
//! An [`Experiment`] is a TOML file under `experiments/`. It states the reproduced result, the recipe, the
//! runs, the figures and the claims. [`catalogue`] holds the experiments that come with larder;
//! [`Experiment::parse`] reads other files. [`Session::run`] does the runs of many experiments on all cores
//! and returns a [`Report`]. [`text`] formats the report as a table or as Markdown.
//!
//! # The sources of samples
//!
//! Everything after the runs works on [`Sample`]s: the name of a line, an x, and named values. There are two
//! sources:
//!
//! * A **sweep** of the simulator, described in the file: cluster, lines and x values. One run gives one
//!   sample.
//! * A **builtin**, named in the file: code for experiments that are not plain sweeps (an analytic model, a
//!   policy vector, an offline analysis).
//!
//! # Adding a builtin
//!
//! 1. Write `src/NAME.rs` with a type that implements [`Builtin`]. It reads the file's `[params]` table and returns a
//!    [`Plan`], which splits the work into jobs. Each job returns samples. Jobs run on all cores in any order, and
//!    may be read back from an earlier run, so a job depends only on its parameters.
//! 2. Add the type to `builtins::ALL`.
//! 3. Write `experiments/PAPER/FILE.toml` with `builtin = "NAME"`, its figures and its claims, and add the file to
//!    `catalogue::FILES`.
//!
//! A job gets workloads from [`Traces`], which shares them with the jobs of other experiments.
//!
//! # Claims
//!
//! A claim states the published value with its place, the [`Measure`] (a closed vocabulary), the bounds
//! within which the claim holds, and the reason for the bounds. If the claim does not hold, it states why.
//! Bounds come from the paper's own words ("about", "slightly", "below") and stand in the file beside the
//! claim. A claim that does not hold is reported as such. Each claim states its value as [`Evidence`]: fits,
//! constructions and consequences are counted separately from reproductions.

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
pub use claim::{Bounds, Claim, Comparison, Measure, Verdict};
pub use evidence::Evidence;
pub use experiment::{Experiment, FigureSpec, Paper};
pub use file::FileError;
pub use report::{Count, ExperimentReport, Judgement, Omission, Report, Sample, Totals};
pub use run::{Options, Progress, Session};
pub use traces::{Traces, WorkloadSpec};

/// An error of a run. The experiment is at fault, or a file that it needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperError {
    /// The simulator rejects the run.
    #[error(transparent)]
    Sim(#[from] larder_sim::SimError),
    /// The recipe is invalid.
    #[error("the workload cannot be made: {0}")]
    Workload(String),
    /// A trace file does not exist. The experiment is left out, and the report says so.
    #[error("the trace {0} is not there")]
    NoTrace(String),
    /// An error of a builtin.
    #[error("{0}")]
    Builtin(String),
}
