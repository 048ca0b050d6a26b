//! Shrinks a failing case to fewer steps and plainer values that still violate the same rule.

use crate::case::{Case, StartTime};
use crate::model::judge;
use crate::run::Failure;
use crate::runner::CaseRunner;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum runs for shrinking a case.
const RUNS_MAX: usize = 200;

/// Replaces the case of a failure by the smallest one found that violates the same rule.
pub async fn shrink(runner: &mut CaseRunner, runs: &AtomicU64, failure: &mut Failure) {
    let mut left = RUNS_MAX;
    let mut case = Case::clone(&failure.record.case);
    loop {
        let mut was_smaller = false;
        for smaller in simpler(&case) {
            if left == 0 {
                return;
            }
            left -= 1;
            let tried = Arc::new(smaller);
            let record = runner.run(&tried, runs.fetch_add(1, Ordering::Relaxed)).await;
            let verdict = judge(&record);
            if verdict.violations.iter().any(|violation| violation.rule == failure.rule) {
                case = Case::clone(&tried);
                (failure.record, failure.verdict) = (record, verdict);
                was_smaller = true;
                break;
            }
        }
        if !was_smaller {
            return;
        }
    }
}

/// Returns the cases that differ from this one by one step of simplification.
fn simpler(case: &Case) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |change: &dyn Fn(&mut Case)| {
        let mut smaller = case.clone();
        change(&mut smaller);
        if smaller != *case {
            cases.push(smaller);
        }
    };
    if case.steps.len() > 2 {
        for at in 0..case.steps.len() {
            add(&|smaller| {
                smaller.steps.remove(at);
                smaller.steps[0].start = StartTime::After;
            });
        }
    }
    add(&|smaller| smaller.hedged = false);
    for at in 0..case.steps.len() {
        add(&|smaller| smaller.steps[at].start = StartTime::After);
        add(&|smaller| smaller.steps[at].entry_point = 0);
        for dimension in 0..case.steps[at].request.len() {
            add(&|smaller| smaller.steps[at].request[dimension] = 0);
        }
        for dimension in 0..case.steps[at].reply.len() {
            add(&|smaller| smaller.steps[at].reply[dimension] = 0);
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simplification_ends_with_the_plainest_case() {
        let mut case = Case::draw(1, 4);
        let mut changes = 0;
        while let Some(smaller) = simpler(&case).into_iter().next() {
            case = smaller;
            changes += 1;
            assert!(changes < 200, "{case:?}");
        }
        assert_eq!(case.steps.len(), 2);
        assert!(case.steps.iter().all(|step| step.values().all(|value| value == 0)));
    }
}
