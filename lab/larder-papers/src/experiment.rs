//! Checked experiments.

use std::fmt;
use std::sync::Arc;

use larder_sim::figure::{Figure, Line};
use serde::{Deserialize, Serialize};

use super::builtin::Plan;
use super::claim::{Claim, Verdict};
use super::cluster::{RunKind, RunSettings, RunSpec};
use super::file::{self, FileError};
use super::report::{ExperimentReport, Omission, Sample};
use super::traces::Traces;
use super::{PaperError, claim, point};

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    /// Pai et al., ASPLOS 1998.
    Lard,
    /// Cherkasova and Karlsson, HPL-2001-2.
    Ward,
    /// Carrera and Bianchini, PPoPP 2001.
    Press,
    /// Casalicchio and Colajanni, WWW 2001.
    Cap,
    /// Zhang et al., USENIX NT 1999.
    Hacc,
    /// No paper: an experiment of our own.
    Own,
}

impl Paper {
    /// All papers.
    pub const ALL: [Self; 5] = [Self::Lard, Self::Ward, Self::Press, Self::Cap, Self::Hacc];

    /// Returns the paper's short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lard => "lard",
            Self::Ward => "ward",
            Self::Press => "press",
            Self::Cap => "cap",
            Self::Hacc => "hacc",
            Self::Own => "own",
        }
    }

    /// Returns authors, title and venue.
    pub const fn citation(self) -> &'static str {
        match self {
            Self::Lard => {
                "Pai, Aron, Banga, Svendsen, Druschel, Zwaenepoel, Nahum: Locality-Aware Request Distribution in \
                 Cluster-based Network Servers. ASPLOS 1998"
            }
            Self::Ward => {
                "Cherkasova, Karlsson: Scalable Web Server Cluster Design with Workload-Aware Request Distribution \
                 Strategy WARD. HPL-2001-2"
            }
            Self::Press => {
                "Carrera, Bianchini: Efficiency vs. Portability in Cluster-Based Network Servers. PPoPP 2001"
            }
            Self::Cap => {
                "Casalicchio, Colajanni: A Client-Aware Dispatching Algorithm for Web Clusters Providing Multiple \
                 Services. WWW 2001"
            }
            Self::Hacc => {
                "Zhang, Barrientos, Chen, Seltzer: HACC: An Architecture for Cluster-Based Web Servers. USENIX \
                 Windows NT Symposium 1999"
            }
            Self::Own => "Own experiments",
        }
    }

    /// Returns the paper with that short name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain([Self::Own]).find(|paper| paper.name() == name)
    }
}

/// A line of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LineSpec {
    pub(super) name: String,
    pub(super) settings: RunSettings,
    pub(super) values: Vec<f64>,
}

/// The part of a sweep that the small run contains.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CiSubset {
    pub(super) set: RunSettings,
    pub(super) values: Vec<f64>,
    pub(super) lines: Vec<String>,
}

/// A sweep of the simulator: each line at each of its x.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sweep {
    pub(super) over: String,
    pub(super) lines: Vec<LineSpec>,
    pub(super) ci: Option<CiSubset>,
}

/// The source of an experiment's samples.
#[derive(Clone)]
pub(super) enum SampleSource {
    Sweep(Box<Sweep>),
    /// A builtin; `small` is the plan of the small run.
    Builtin {
        name: &'static str,
        plan: Arc<dyn Plan>,
        small: Option<Arc<dyn Plan>>,
    },
}

impl fmt::Debug for SampleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sweep(sweep) => sweep.fmt(f),
            Self::Builtin { name, .. } => f.debug_tuple("Builtin").field(name).finish(),
        }
    }
}

/// A figure of an experiment file.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureSpec {
    /// The figure's name in the paper.
    pub name: String,
    /// The title.
    pub title: String,
    /// The label of the x axis.
    pub x_label: String,
    /// The label of the y axis.
    pub y_label: String,
    /// The metric that is drawn.
    pub metric: String,
    /// The names of the lines.
    pub lines: Vec<String>,
    /// The upper end of the y axis.
    pub y_max: Option<f64>,
    /// Whether the y values are shares that are drawn as percent.
    pub y_percent: bool,
    /// Whether the x axis is logarithmic.
    pub x_log: bool,
}

/// An experiment: the reproduced result, its runs, figures and claims.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The id: a-z, 0-9 and '-'.
    pub id: String,
    /// The reproduced paper.
    pub paper: Paper,
    /// The section and figures.
    pub place: String,
    /// The reproduced result.
    pub title: String,
    /// The method, and remarks for the reader.
    pub about: String,
    pub(super) source: SampleSource,
    /// The figures of the report.
    pub figures: Vec<FigureSpec>,
    /// The claims that are judged.
    pub claims: Vec<Claim>,
}

/// A unit of an experiment's work.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// A run of the simulator, which returns the sample of `line` at `x`.
    Point { line: String, x: f64, run: Box<RunSpec>, key: String },
    /// A job of a builtin.
    Builtin { plan: Arc<dyn Plan>, job: usize, key: String },
}

impl fmt::Debug for dyn Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plan")
    }
}

impl Job {
    /// Returns everything that the result depends on, beside the code.
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Point { key, .. } | Self::Builtin { key, .. } => key,
        }
    }

    /// Runs the job. The samples of a point have no line and x yet, so that experiments can share them.
    pub(super) fn run(&self, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        match self {
            Self::Point { run, .. } => {
                let values = point::measure(run, traces)?;
                Ok(vec![Sample { values, ..Sample::default() }])
            }
            Self::Builtin { plan, job, .. } => plan.run(*job, traces),
        }
    }

    /// Adds line and x to the samples of a point.
    pub(super) fn label_samples(&self, samples: &[Sample]) -> Vec<Sample> {
        match self {
            Self::Point { line, x, .. } => samples
                .iter()
                .map(|sample| Sample { line: line.clone(), x: *x, values: sample.values.clone() })
                .collect(),
            Self::Builtin { .. } => samples.to_vec(),
        }
    }
}

impl Experiment {
    /// Reads an experiment file; `name` is its name in errors.
    ///
    /// # Errors
    /// Returns a [`FileError`] with file, line, key and valid values.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        file::parse(name, text)
    }

    /// Returns whether the small run contains a part of the experiment.
    pub fn in_ci(&self) -> bool {
        match &self.source {
            SampleSource::Sweep(sweep) => sweep.ci.is_some(),
            SampleSource::Builtin { .. } => self.claims.iter().any(|claim| claim.ci),
        }
    }

    /// Returns the experiment's jobs; those of the small run if `ci`.
    pub(super) fn jobs(&self, ci: bool) -> Result<Vec<Job>, PaperError> {
        match &self.source {
            SampleSource::Builtin { name, plan, small } => {
                let plan = small.as_ref().filter(|_| ci).unwrap_or(plan);
                let key = |job| format!("{name} {}", plan.key(job));
                let job = |job| Job::Builtin { plan: Arc::clone(plan), job, key: key(job) };
                Ok((0..plan.jobs()).map(job).collect())
            }
            SampleSource::Sweep(sweep) => {
                let mut jobs = Vec::new();
                for line in &sweep.lines {
                    let (settings, values) = match sweep.ci.as_ref().filter(|_| ci) {
                        Some(small) if !small.lines.contains(&line.name) => continue,
                        Some(small) => (line.settings.override_with(&small.set), &small.values),
                        None => (line.settings.clone(), &line.values),
                    };
                    for x in values {
                        jobs.push(job(&line.name, &settings, &sweep.over, *x)?);
                    }
                }
                Ok(jobs)
            }
        }
    }

    /// Describes the workloads in one line.
    fn recipe(&self, jobs: &[Job]) -> String {
        let mut all: Vec<String> = Vec::new();
        for job in jobs {
            let text = match job {
                Job::Point { run, .. } => run.workload.describe(),
                Job::Builtin { .. } => continue,
            };
            if !all.contains(&text) {
                all.push(text);
            }
        }
        match (&self.source, all.len()) {
            (SampleSource::Builtin { name, .. }, _) => format!("builtin {name}"),
            (_, 0..=3) => all.join("; "),
            (_, more) => format!("{}; and {} more like it", all[0], more - 1),
        }
    }

    /// Creates the report from all samples, or from the reason why there are none.
    pub(super) fn report(
        &self,
        jobs: &[Job],
        samples: Result<Vec<Sample>, PaperError>,
        ci: bool,
    ) -> ExperimentReport {
        let (samples, left_out) = match samples {
            Ok(samples) => (samples, None),
            Err(error) => {
                let is_error = !matches!(error, PaperError::NoTrace(_));
                (Vec::new(), Some(Omission { reason: error.to_string(), is_error }))
            }
        };
        let claims = self.claims.iter().filter(|claim| claim.ci || !ci).map(|claim| claim.judge(&samples));
        let claims: Vec<_> = claims.collect();
        debug_assert!(left_out.is_none() || claims.iter().all(|claim| claim.verdict == Verdict::NotJudged));
        ExperimentReport {
            id: self.id.clone(),
            paper: self.paper.name().to_owned(),
            place: self.place.clone(),
            title: self.title.clone(),
            about: self.about.trim().to_owned(),
            recipe: self.recipe(jobs),
            left_out,
            figures: self.figures.iter().map(|figure| self.figure(figure, &samples)).collect(),
            claims,
            samples,
        }
    }

    fn figure(&self, spec: &FigureSpec, samples: &[Sample]) -> Figure {
        let line = |name: &String| Line {
            name: name.clone(),
            ceiling: self.is_bound(name),
            points: claim::series(samples, name, &spec.metric),
        };
        let lines = spec.lines.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let share = |name: &String| Line {
            name: name.clone(),
            ceiling: false,
            points: claim::series(samples, name, "bound_share"),
        };
        let shares = spec.lines.iter().filter(|_| spec.metric == "throughput").map(share);
        Figure {
            name: spec.name.clone(),
            title: spec.title.clone(),
            x_label: spec.x_label.clone(),
            y_label: spec.y_label.clone(),
            y_max: spec.y_max,
            y_percent: spec.y_percent,
            x_log: spec.x_log,
            bound_shares: shares.filter(|line| !line.points.is_empty()).collect(),
            lines,
        }
    }

    fn is_bound(&self, name: &str) -> bool {
        match &self.source {
            SampleSource::Sweep(sweep) => {
                sweep.lines.iter().any(|line| line.name == name && line.settings.bound == Some(true))
            }
            SampleSource::Builtin { .. } => false,
        }
    }
}

fn job(line: &str, settings: &RunSettings, over: &str, x: f64) -> Result<Job, PaperError> {
    // The file's reader has checked every point of the sweep, but not the settings of the small run.
    let settings = settings.with(over, x).map_err(PaperError::Builtin)?;
    let run = Box::new(settings.run().map_err(PaperError::Builtin)?);
    let kind = if matches!(run.what, RunKind::Bound(_)) { "bound" } else { "run" };
    let set = serde_json::to_string(&settings).map_err(|error| PaperError::Builtin(error.to_string()))?;
    Ok(Job::Point { line: line.to_owned(), x, run, key: format!("{kind} {set}") })
}
