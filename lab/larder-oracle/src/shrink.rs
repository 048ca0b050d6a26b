//! Makes a failing case smaller: fewer steps, plainer values, as long as the same rule is broken.

use crate::case::{Case, Start};
use crate::drive::Lane;
use crate::model::judge;
use crate::run::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs that shrinking a case may take.
const RUNS_MAX: usize = 200;

/// Replaces the case of a failure by the smallest one found that breaks the same rule.
pub async fn shrink(lane: &mut Lane, runs: &AtomicU64, failure: &mut Failure) {
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
            let record = lane.run(&tried, runs.fetch_add(1, Ordering::Relaxed)).await;
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

/// Cases that differ from this one by one change towards the plainest.
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
                smaller.steps[0].start = Start::After;
            });
        }
    }
    add(&|smaller| smaller.hedged = false);
    for at in 0..case.steps.len() {
        add(&|smaller| smaller.steps[at].start = Start::After);
        add(&|smaller| smaller.steps[at].door = 0);
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
    fn every_change_makes_a_case_plainer_and_ends() {
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
