//! What a set of experiments gave: samples, figures, judgements.

use std::collections::BTreeMap;

use larder_sim::figure::Figure;
use serde::{Deserialize, Serialize};

use super::claim::Verdict;
use super::evidence::Evidence;

/// Named values at one x of one line. Names are those that figures and claims call metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The line, named as in the paper's figure.
    pub line: String,
    /// Where on the x axis.
    pub x: f64,
    /// The values: finite numbers in the unit of their metric.
    pub values: BTreeMap<String, f64>,
}

impl Sample {
    /// A sample with values.
    pub fn new<'v>(line: &str, x: f64, values: impl IntoIterator<Item = (&'v str, f64)>) -> Self {
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { line: line.to_owned(), x, values }
    }
}

/// A claim and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// Unique within the experiment.
    pub id: String,
    /// What the paper says, in our words.
    pub says: String,
    /// Where: section, figure.
    pub place: String,
    /// How well the published value is known.
    pub known: String,
    /// The published value.
    pub published: String,
    /// What its verdict is worth, written as in the experiment file.
    pub evidence: Evidence,
    /// Ours as a number; `None` if it could not be measured.
    pub ours: Option<f64>,
    /// Ours as text, in the unit of the published value.
    pub ours_text: String,
    /// How ours is measured and within what it holds.
    pub rule: String,
    /// Why the bounds are as they are.
    pub tolerance: String,
    /// Holds or not.
    pub verdict: Verdict,
    /// Why it does not hold; empty if it does or nobody has found out.
    pub why: String,
}

/// An experiment's outcome.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExperimentReport {
    /// Its id.
    pub id: String,
    /// The paper's short name.
    pub paper: String,
    /// Section and figures.
    pub place: String,
    /// What it reproduces.
    pub title: String,
    /// How, and what the reader must know.
    pub about: String,
    /// The workload and its size.
    pub recipe: String,
    /// Why it was left out; `None` if it was run.
    pub left_out: Option<LeftOut>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// The claims.
    pub claims: Vec<Judgement>,
    /// Everything measured.
    pub samples: Vec<Sample>,
}

/// Why an experiment was not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// The reason, for people.
    pub reason: String,
    /// Whether something is wrong, rather than a trace not there.
    pub is_error: bool,
}

/// How many claims there are, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Together.
    pub claims: usize,
    /// Those that hold.
    pub held: usize,
    /// Those that do not.
    pub not_held: usize,
    /// Those that could not be judged: their experiment was left out.
    pub not_judged: usize,
}

/// How many claims there are, by what they are worth as evidence. The headline is `reproduced`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// All.
    pub all: Count,
    /// Those that a run can refute.
    pub reproduced: Count,
    /// Those that something was fitted to.
    pub fitted: Count,
    /// Those that the experiment is built to meet.
    pub by_construction: Count,
    /// Those that follow from others.
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

    /// Everything that is counted apart from the headline, each with its name.
    pub const fn apart(&self) -> [(&'static str, Count); 4] {
        [
            ("fitted", self.fitted),
            ("by construction", self.by_construction),
            ("following from others", self.follows_from),
            ("our own controls", self.control),
        ]
    }
}

/// A set of experiments run and judged. The same experiments give the same report on every machine and on any number
/// of threads; it therefore holds no times of our own.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was asked for: `all`, `ci`, a paper or an experiment.
    pub set: String,
    /// All claims, by what they are worth.
    pub totals: Totals,
    /// The experiments, in the order of the catalogue.
    pub experiments: Vec<ExperimentReport>,
}

impl Report {
    pub(super) fn new(set: &str, experiments: Vec<ExperimentReport>) -> Self {
        let totals = Self::count(experiments.iter());
        Self { set: set.to_owned(), totals, experiments }
    }

    /// The papers in order of appearance.
    pub fn papers(&self) -> Vec<&str> {
        let mut papers: Vec<&str> = Vec::new();
        for experiment in &self.experiments {
            if !papers.contains(&experiment.paper.as_str()) {
                papers.push(&experiment.paper);
            }
        }
        papers
    }

    /// The claims of one paper.
    pub fn totals_of(&self, paper: &str) -> Totals {
        Self::count(self.experiments.iter().filter(|experiment| experiment.paper == paper))
    }

    /// Claims that do not hold and whose reason nobody has written down.
    pub fn unexplained(&self) -> Vec<String> {
        let named = |experiment: &ExperimentReport| {
            let open = |claim: &&Judgement| claim.verdict == Verdict::HoldsNot && claim.why.is_empty();
            experiment
                .claims
                .iter()
                .filter(open)
                .map(|claim| format!("{}/{}", experiment.id, claim.id))
                .collect::<Vec<_>>()
        };
        self.experiments.iter().flat_map(named).collect()
    }

    fn count<'e>(experiments: impl Iterator<Item = &'e ExperimentReport>) -> Totals {
        let mut totals = Totals::default();
        experiments.flat_map(|experiment| &experiment.claims).for_each(|claim| totals.note(claim));
        totals
    }
}
