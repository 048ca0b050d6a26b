//! Runs many cases at a time against one system and adds up what the model says.

use crate::case::{Case, Coverage};
use crate::drive::{Lane, Target};
use crate::model::judge::{Share, judge};
use crate::model::{Rule, Verdict};
use crate::origin::Registry;
use crate::record::Record;
use crate::shrink;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Cases to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all cases.
    pub seed: u64,
    /// Numbers of the cases.
    pub numbers: Range<u64>,
    /// Cases at one time.
    pub lanes: usize,
    /// See [`Lane::new`].
    pub grace: Duration,
    /// Cases that are shown for each broken rule.
    pub shown_max: usize,
}

/// A case whose replies break a rule.
#[derive(Debug)]
pub struct Failure {
    /// Number of the case under the run's seed.
    pub number: u64,
    /// The rule.
    pub rule: Rule,
    /// The smallest case found that breaks the rule, as it ran.
    pub record: Record,
    /// The model's verdict on the case.
    pub verdict: Verdict,
}

/// Outcome of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Name of the system.
    pub topology: &'static str,
    /// Cases that ran.
    pub cases: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Requests that reached the origin.
    pub exchanges: u64,
    /// Requests that reached the origin after their case had ended.
    pub strays: u64,
    /// Replies that break a rule.
    pub wrong: u64,
    /// How often each rule was broken.
    pub broken: BTreeMap<Rule, u64>,
    /// How often each rule alone forbade to share a reply.
    pub decisive: BTreeMap<Rule, u64>,
    /// Requests that could be served from a stored reply.
    pub stored: Share,
    /// Requests that could be served from a reply on its way.
    pub waited: Share,
    /// Replies that were made from one to a request at another node; `None` if there is one door.
    pub across: Option<u64>,
    /// Requests that reached the origin a second time or more for the same client request.
    pub repeated: u64,
    /// Requests that a node has dropped; `None` if no node does.
    pub dropped: Option<u64>,
    /// Replies by their source: own exchange, stored and validated, made by larder itself.
    pub own: u64,
    /// See `own`.
    pub validated: u64,
    /// See `own`.
    pub generated: u64,
    /// Pairs of values that the cases have had.
    pub coverage: Coverage,
    /// Cases that were kept to be shown.
    pub failures: Vec<Failure>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Outcome {
    /// Whether no reply was wrong, and the run could have found one.
    pub fn passes(&self) -> bool {
        self.wrong == 0 && self.idle().is_none()
    }

    /// Feature of the system that the run never used. A run with such a feature shows too little.
    pub fn idle(&self) -> Option<&'static str> {
        let has_hedged = self.dropped.is_none() || self.repeated > 0;
        [
            (self.stored.done == 0, "no stored reply was used"),
            (self.waited.done == 0, "no request shared a reply on its way"),
            (self.validated == 0, "no stored reply was validated"),
            (self.across == Some(0), "no reply of one node was used at another"),
            (self.dropped == Some(0), "no request was dropped, so none was retried"),
            (!has_hedged, "no request was hedged"),
        ]
        .into_iter()
        .find_map(|(is_idle, what)| is_idle.then_some(what))
    }

    /// Adds a case. Returns the rules that it breaks, each once.
    fn add(&mut self, record: &Record, verdict: &Verdict) -> Vec<Rule> {
        self.cases += 1;
        self.requests += record.asked.len() as u64;
        self.exchanges += record.exchanges.len() as u64;
        self.coverage.note(&record.case);
        for rule in &verdict.decisive {
            *self.decisive.entry(*rule).or_default() += 1;
        }
        let mut steps: Vec<usize> = verdict.violations.iter().map(|violation| violation.step).collect();
        steps.sort_unstable();
        steps.dedup();
        self.wrong += steps.len() as u64;
        let mut rules: Vec<Rule> = verdict.violations.iter().map(|violation| violation.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        for rule in &rules {
            *self.broken.entry(*rule).or_default() += 1;
        }
        self.across = Some(self.across.unwrap_or(0) + verdict.across);
        let first = |step: &usize| record.exchanges.iter().any(|exchange| exchange.step == *step);
        let firsts = (0..record.asked.len()).filter(first).count();
        self.repeated += (record.exchanges.len() - firsts) as u64;
        self.own += verdict.own;
        self.validated += verdict.validated;
        self.generated += verdict.generated;
        add_share(&mut self.stored, verdict.stored);
        add_share(&mut self.waited, verdict.waited);
        rules
    }

    /// Adds the counts of another part of the same run.
    fn merge(&mut self, other: Self) {
        self.cases += other.cases;
        self.requests += other.requests;
        self.exchanges += other.exchanges;
        self.wrong += other.wrong;
        self.across = Some(self.across.unwrap_or(0) + other.across.unwrap_or(0));
        self.repeated += other.repeated;
        self.own += other.own;
        self.validated += other.validated;
        self.generated += other.generated;
        add_share(&mut self.stored, other.stored);
        add_share(&mut self.waited, other.waited);
        self.coverage.merge(&other.coverage);
        for (rule, count) in other.broken {
            *self.broken.entry(rule).or_default() += count;
        }
        for (rule, count) in other.decisive {
            *self.decisive.entry(rule).or_default() += count;
        }
        self.failures.extend(other.failures);
    }
}

fn add_share(sum: &mut Share, other: Share) {
    sum.allowed += other.allowed;
    sum.done += other.done;
}

/// Runs all cases of a plan. `runs` numbers the runs of cases at this origin.
pub async fn run(
    target: &Arc<Target>,
    registry: &Arc<Registry>,
    runs: &Arc<AtomicU64>,
    plan: &Plan,
) -> Outcome {
    let started = Instant::now();
    let strays = registry.strays();
    let next = Arc::new(AtomicU64::new(plan.numbers.start));
    let mut lanes = JoinSet::new();
    for number in 0..plan.lanes {
        let lane = Lane::new(number, Arc::clone(target), Arc::clone(registry), plan.grace);
        lanes.spawn(cases(lane, Arc::clone(&next), Arc::clone(runs), plan.clone()));
    }
    let mut outcome = Outcome { topology: target.name, ..Outcome::default() };
    while let Some(ended) = lanes.join_next().await {
        match ended {
            Ok(part) => outcome.merge(part),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    outcome.elapsed = started.elapsed();
    outcome.strays = registry.strays() - strays;
    outcome.across = outcome.across.filter(|_| target.doors.len() > 1);
    outcome.dropped = target.dropped.as_ref().map(|dropped| dropped.load(Ordering::Relaxed));
    outcome.failures = choose(std::mem::take(&mut outcome.failures), plan.shown_max);
    let mut lane = Lane::new(0, Arc::clone(target), Arc::clone(registry), plan.grace);
    for failure in &mut outcome.failures {
        shrink::shrink(&mut lane, runs, failure).await;
    }
    outcome
}

/// Runs cases until there are none left.
async fn cases(mut lane: Lane, next: Arc<AtomicU64>, runs: Arc<AtomicU64>, plan: Plan) -> Outcome {
    let mut part = Outcome::default();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= plan.numbers.end {
            return part;
        }
        let case = Arc::new(Case::draw(plan.seed, number));
        let record = lane.run(&case, runs.fetch_add(1, Ordering::Relaxed)).await;
        let verdict = judge(&record);
        for rule in part.add(&record, &verdict) {
            let shown = part.failures.iter().filter(|failure| failure.rule == rule).count();
            if shown < plan.shown_max {
                let (record, verdict) = (record.clone(), verdict.clone());
                part.failures.push(Failure { number, rule, record, verdict });
            }
        }
    }
}

/// The first failures of each rule, in order of rule and number.
fn choose(mut failures: Vec<Failure>, shown_max: usize) -> Vec<Failure> {
    failures.sort_by_key(|failure| (failure.rule, failure.number));
    let mut shown: BTreeMap<Rule, usize> = BTreeMap::new();
    failures.retain(|failure| {
        let count = shown.entry(failure.rule).or_default();
        *count += 1;
        *count <= shown_max
    });
    failures
}
