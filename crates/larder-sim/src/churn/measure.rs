//! The comparison of a disturbed run with the undisturbed run.

use super::{ChurnEvent, ChurnRow};
use crate::{RequestOutcome, RunHistory};

/// The number of windows of a run.
const WINDOWS: usize = 50;

/// The number of windows for which a loss must stay near its final value.
const SETTLED_WINDOWS: usize = 3;

/// The largest distance from the final value that counts as near.
const POINT: f64 = 0.01;

/// Computes the row of one policy and event. `items` is the number of targets.
pub(super) fn compute_row(
    policy: &str,
    event: ChurnEvent,
    calm: &RunHistory,
    run: &RunHistory,
    items: usize,
) -> ChurnRow {
    let begin = run.changed_at.first().copied().unwrap_or(0).min(run.requests.len());
    let end = run.changed_at.last().copied().unwrap_or(begin).min(run.requests.len());
    // Both runs are the same up to the event.
    let calm_begin = calm.changed_at.first().copied().unwrap_or(0).min(calm.requests.len());
    let total = calm.requests.len();
    let (before, after) = run.requests.split_at(begin);
    let (calm_before, calm_after) = calm.requests.split_at(calm_begin);
    let tenth = |outcomes: &[RequestOutcome]| {
        hit_ratio(&outcomes[outcomes.len() - (total / 10).min(outcomes.len())..])
    };
    let window = (total / WINDOWS).max(1);
    let (hits, calm_hits) = (window_hit_ratios(after, window), window_hit_ratios(calm_after, window));
    let lost: Vec<f64> = calm_hits.iter().zip(&hits).map(|(calm, hit)| calm - hit).collect();
    let count = |outcomes: &[RequestOutcome]| outcomes.iter().filter(|outcome| outcome.hit).count() as i64;
    let same = after.len().min(calm_after.len());
    ChurnRow {
        policy: policy.to_owned(),
        event,
        moved: moved_share(before, &run.requests[end..], items),
        moved_anyway: moved_share(calm_before, calm_after, items),
        moved_meanwhile: (end > begin).then(|| moved_share(before, &run.requests[begin..end], items)),
        hit_before: tenth(before),
        hit_lowest: hits.iter().copied().fold(1.0, f64::min),
        hit_after: tenth(after),
        hit_anyway: tenth(calm_after),
        hits_lost: count(&calm_after[..same]) - count(&after[..same]),
        settled_after: find_settling(&lost).map(|windows| (windows * window) as u64),
    }
}

fn hit_ratio(outcomes: &[RequestOutcome]) -> f64 {
    outcomes.iter().filter(|outcome| outcome.hit).count() as f64 / outcomes.len().max(1) as f64
}

/// Returns the hit ratios of whole windows.
fn window_hit_ratios(outcomes: &[RequestOutcome], window: usize) -> Vec<f64> {
    outcomes.chunks_exact(window).map(hit_ratio).collect()
}

/// Returns the share of targets requested in both parts whose last request before and first request after
/// went to different nodes.
fn moved_share(before: &[RequestOutcome], after: &[RequestOutcome], items: usize) -> f64 {
    const NOWHERE: u16 = u16::MAX;
    let mut last = vec![NOWHERE; items];
    for outcome in before {
        last[outcome.item as usize] = outcome.node;
    }
    let (mut both, mut moved) = (0_u64, 0_u64);
    for outcome in after {
        let at = core::mem::replace(&mut last[outcome.item as usize], NOWHERE);
        if at != NOWHERE {
            both += 1;
            moved += u64::from(at != outcome.node);
        }
    }
    moved as f64 / both.max(1) as f64
}

/// Returns the number of windows until the loss stays near its final value, which is the mean of the last
/// fifth.
fn find_settling(lost: &[f64]) -> Option<usize> {
    let tail = &lost[lost.len() - (lost.len() / 5).max(1).min(lost.len())..];
    let last = tail.iter().sum::<f64>() / tail.len().max(1) as f64;
    let near = |loss: &f64| (loss - last).abs() <= POINT;
    let run = lost.windows(SETTLED_WINDOWS).position(|run| run.iter().all(near))?;
    // Windows at the very end are near their own mean in any case.
    (run + SETTLED_WINDOWS + tail.len() <= lost.len()).then_some(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(rows: &[(u32, u16, bool)]) -> Vec<RequestOutcome> {
        rows.iter().map(|&(item, node, hit)| RequestOutcome { item, node, hit }).collect()
    }

    #[test]
    fn a_target_has_moved_if_its_next_request_has_another_node() {
        let before = outcomes(&[(0, 1, true), (0, 2, true), (1, 1, true), (2, 0, false)]);
        let after = outcomes(&[(0, 2, true), (0, 0, true), (1, 0, false), (3, 0, false)]);
        // Items 0 and 1 are in both parts, and item 1 has moved. A later move of item 0 does not count.
        assert!((moved_share(&before, &after, 4) - 0.5).abs() < 1e-12);
        assert!(moved_share(&before, &[], 4).abs() < 1e-12);
    }

    #[test]
    fn a_loss_has_settled_when_it_stays_near_its_end() {
        let dip = [0.3, 0.2, 0.02, 0.012, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01];
        assert_eq!(find_settling(&dip), Some(2));
        assert_eq!(find_settling(&[0.0; 10]), Some(0));
        let falling: Vec<f64> = (0..10).map(|n| 1.0 - f64::from(n) / 10.0).collect();
        assert_eq!(find_settling(&falling), None);
        assert_eq!(find_settling(&[]), None);
    }

    #[test]
    fn a_row_is_the_difference_of_two_runs() {
        let calm = RunHistory { requests: outcomes(&[(0, 0, true); 100]), changed_at: vec![50] };
        let mut rows = vec![(0, 0, true); 100];
        rows[50..60].fill((0, 1, false));
        rows[60..].fill((0, 1, true));
        let run = RunHistory { requests: outcomes(&rows), changed_at: vec![50, 52] };
        let row = compute_row("rr", ChurnEvent::Flap, &calm, &run, 1);
        assert_eq!((row.hits_lost, row.settled_after), (10, Some(10)));
        assert_eq!((row.moved, row.moved_anyway, row.moved_meanwhile), (1.0, 0.0, Some(1.0)));
        assert_eq!((row.hit_before, row.hit_lowest, row.hit_after), (1.0, 0.0, 1.0));
    }
}
