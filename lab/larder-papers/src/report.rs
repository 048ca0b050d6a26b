//! The results of a set of experiments: samples, figures and judgements.

use std::collections::BTreeMap;

use larder_sim::figure::Figure;
use serde::{Deserialize, Serialize};

use super::claim::Verdict;
use super::evidence::Evidence;

/// Named values at one x of one line. The names are the metrics of figures and claims.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The line's name, as in the paper's figure.
    pub line: String,
    /// The position on the x axis.
    pub x: f64,
    /// The values: finite numbers in the unit of their metric.
    pub values: BTreeMap<String, f64>,
}

impl Sample {
    /// Creates a sample with values.
    pub fn new<'v>(line: &str, x: f64, values: impl IntoIterator<Item = (&'v str, f64)>) -> Self {
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { line: line.to_owned(), x, values }
    }
}

/// A judged claim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The id, unique within the experiment.
    pub id: String,
    /// The paper's statement, in our words.
    pub says: String,
    /// The section and figure.
    pub place: String,
    /// The evidence for the published value.
    pub known: String,
    /// The published value.
    pub published: String,
    /// The value of the verdict as evidence, written as in the experiment file.
    pub evidence: Evidence,
    /// Our value; `None` if it could not be measured.
    pub ours: Option<f64>,
    /// Our value as text, in the unit of the published value.
    pub ours_text: String,
    /// The measure of our value, and its bounds.
    pub rule: String,
    /// The reason for the bounds.
    pub tolerance: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason why the claim does not hold; empty if it holds or the reason is unknown.
    pub why: String,
}

/// The report of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExperimentReport {
    /// The identifier of the experiment.
    pub id: String,
    /// The paper's short name.
    pub paper: String,
    /// The section and figures.
    pub place: String,
    /// The reproduced result.
    pub title: String,
    /// The method, and remarks for the reader.
    pub about: String,
    /// The workload and its size.
    pub recipe: String,
    /// The reason why the experiment was left out; `None` if it was run.
    pub left_out: Option<Omission>,
    /// The figures with the measured lines.
    pub figures: Vec<Figure>,
    /// The judged claims.
    pub claims: Vec<Judgement>,
    /// All samples.
    pub samples: Vec<Sample>,
}

/// The reason why an experiment was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Omission {
    /// The reason in words.
    pub reason: String,
    /// Whether there is an error, and not only a missing trace.
    pub is_error: bool,
}

/// Numbers of claims by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// All claims.
    pub claims: usize,
    /// Claims that hold.
    pub held: usize,
    /// Claims that do not hold.
    pub not_held: usize,
    /// Claims that could not be judged, because their experiment was left out.
    pub not_judged: usize,
}

/// Numbers of claims by kind of evidence. The headline is `reproduced`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// All claims.
    pub all: Count,
    /// Claims that a run can refute.
    pub reproduced: Count,
    /// Claims that a parameter or variant was fitted to.
    pub fitted: Count,
    /// Claims that the experiment is built to meet.
    pub by_construction: Count,
    /// Claims that follow from others.
    pub follows_from: Count,
    /// Controls of ours.
    pub control: Count,
}

impl Totals {
    fn note(&mut self, claim: &Judgement) {
        let kind = match claim.evidence {
            Evidence::Reproduced => &mut self.reproduced,
            Evidence::Fitted => &mut self.fitted,
            Evidence::ByConstruction => &mut self.by_construction,
            Evidence::FollowsFrom(_) => &mut self.follows_from,
            Evidence::Control => &mut self.control,
        };
        for count in [&mut self.all, kind] {
            count.claims += 1;
            match claim.verdict {
                Verdict::Holds => count.held += 1,
                Verdict::HoldsNot => count.not_held += 1,
                Verdict::NotJudged => count.not_judged += 1,
            }
        }
    }

    /// Returns the counts outside the headline, each with its name.
    pub const fn apart(&self) -> [(&'static str, Count); 4] {
        [
            ("fitted", self.fitted),
            ("by construction", self.by_construction),
            ("following from others", self.follows_from),
            ("our own controls", self.control),
        ]
    }
}

/// The report of a set of experiments. The same experiments give the same report on every machine and any
/// number of threads, so the report contains no run times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The name of the set: `all`, `ci`, a paper or an experiment.
    pub set: String,
    /// The numbers of claims by kind of evidence.
    pub totals: Totals,
    /// The experiments, in the order of the catalogue.
    pub experiments: Vec<ExperimentReport>,
}

impl Report {
    pub(super) fn new(set: &str, experiments: Vec<ExperimentReport>) -> Self {
        let totals = Self::count(experiments.iter());
        Self { set: set.to_owned(), totals, experiments }
    }

    /// Returns the papers in order of appearance.
    pub fn papers(&self) -> Vec<&str> {
        let mut papers: Vec<&str> = Vec::new();
        for experiment in &self.experiments {
            if !papers.contains(&experiment.paper.as_str()) {
                papers.push(&experiment.paper);
            }
        }
        papers
    }

    /// Returns the numbers of claims of one paper.
    pub fn totals_of(&self, paper: &str) -> Totals {
        Self::count(self.experiments.iter().filter(|experiment| experiment.paper == paper))
    }

    fn count<'e>(experiments: impl Iterator<Item = &'e ExperimentReport>) -> Totals {
        let mut totals = Totals::default();
        experiments.flat_map(|experiment| &experiment.claims).for_each(|claim| totals.note(claim));
        totals
    }
}
