//! The explanation for a goal that no cell meets: the nearest cell, and the advice. More nodes or memory are
//! advised only if they can help.

use larder_core::Bytes;

use super::goal::{Goal, significant};
use super::result::Cell;
use crate::text::{cluster, rate};

/// The utilisation of the switch from which it counts as the bottleneck.
const BUSY: f64 = 0.9;

/// Describes the unmet goal. `load` is in requests per second, `cold_share` the share of the measured requests that are
/// first uses.
pub(super) fn describe_unmet_goal(cells: &[Cell], goal: Goal, load: f64, cold_share: f64) -> String {
    let nearest = describe_nearest(cells, goal, load)
        .map_or_else(String::new, |text| format!(": {text}, its error counted against it"));
    let advice = explain_limit(cells, goal, load, cold_share)
        .unwrap_or_else(|| "Try more nodes (--nodes) or memory (--memory).".to_owned());
    format!("No simulated cluster meets {goal}{nearest}. {advice}")
}

fn find_best(cells: &[Cell], merit: impl Fn(&Cell) -> f64) -> Option<&Cell> {
    cells.iter().max_by(|a, b| merit(a).total_cmp(&merit(b)))
}

/// Returns the cell with the shortest delays at the load.
fn find_quickest(cells: &[Cell]) -> Option<&Cell> {
    find_best(cells, |cell| {
        cell.at_load.map_or(f64::NEG_INFINITY, |at| -at.p99_s.high() - at.refused_share * 1e6)
    })
}

fn describe_nearest(cells: &[Cell], goal: Goal, load: f64) -> Option<String> {
    let of = |cell: &Cell| format!("{} on {}", cell.policy, cluster(cell.nodes, Bytes(cell.memory_bytes)));
    match goal {
        Goal::Throughput(_) | Goal::Cost => find_best(cells, |cell| cell.throughput.low())
            .map(|cell| format!("{} reaches {}", of(cell), rate(cell.throughput.low()))),
        Goal::Hit(_) => find_best(cells, |cell| cell.hit_ratio.low())
            .map(|cell| format!("{} hits {:.1} %", of(cell), cell.hit_ratio.low() * 100.0)),
        Goal::Origin(_) => find_best(cells, |cell| -cell.origin_bytes.high()).map(|cell| {
            let read = Bytes((cell.origin_bytes.high() * load) as u64);
            format!("{} reads {read}/s at {}", of(cell), rate(load))
        }),
        Goal::P99(_) => {
            let (cell, at) = find_quickest(cells).and_then(|cell| Some((cell, cell.at_load?)))?;
            Some(format!(
                "{} has {} ms and refuses {:.1} %",
                of(cell),
                significant(at.p99_s.high() * 1e3),
                at.refused_share * 100.0
            ))
        }
    }
}

/// Explains why more nodes or memory cannot help; `None` if they might.
fn explain_limit(cells: &[Cell], goal: Goal, load: f64, cold_share: f64) -> Option<String> {
    // The load that the switch could carry if it were the only limit.
    let switch = |cell: &Cell| cell.throughput.high() / cell.front_busy;
    let carried =
        cells.iter().filter(|cell| cell.front_busy > 0.0).map(switch).fold(f64::NEG_INFINITY, f64::max);
    let beyond = |wanted: f64| {
        let limit =
            find_best(cells, |cell| cell.throughput.value).is_some_and(|cell| cell.front_busy >= BUSY);
        ((carried.is_finite() && wanted > carried) || limit).then(|| {
            format!(
                "The switch is the limit: it carries about {}, however many nodes there are. Several \
                 switches, or one with more cores, would.",
                rate(carried)
            )
        })
    };
    let most = 1.0 - cold_share;
    match goal {
        Goal::Throughput(rate) => beyond(rate),
        Goal::Cost => beyond(load),
        Goal::Hit(share) => (share > most).then(|| {
            format!(
                "More memory cannot help: without any limit {:.1} % of the measured requests hit, the others are the \
                 first for their target. A longer log may show more.",
                most * 100.0
            )
        }),
        Goal::P99(seconds) => {
            let at = find_quickest(cells)?.at_load?;
            (at.p50_s.low() > seconds).then(|| {
                format!(
                    "More nodes or memory cannot help: half of the requests take longer, {} ms there, and those wait for \
                     little. It takes faster nodes, or another cost model (--costs).",
                    significant(at.p50_s.value * 1e3)
                )
            })
        }
        Goal::Origin(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::choose::tests::cell;
    use super::super::result::{Estimate, LoadDelays};
    use super::*;

    #[test]
    fn advice_matches_the_limits() {
        let mut cells = [cell("rr", 2, 10, 100.0, 0.5), cell("lard-r", 4, 10, 150.0, 0.8)];
        let text = |cells: &[Cell], goal| describe_unmet_goal(cells, goal, 1.0, 0.12);
        assert!(text(&cells, Goal::Hit(0.85)).ends_with("memory (--memory)."));
        assert!(text(&cells, Goal::Hit(0.95)).contains("More memory cannot help: without any limit 88.0 %"));
        assert!(
            text(&cells, Goal::Throughput(300.0))
                .contains("lard-r on 4 nodes with 10 B each reaches 150 requests/s")
        );
        assert!(text(&cells, Goal::Throughput(300.0)).ends_with("memory (--memory)."));
        cells[1].front_busy = 0.75;
        assert!(
            text(&cells, Goal::Throughput(300.0))
                .contains("The switch is the limit: it carries about 200 requests/s,")
        );
        cells[1].at_load = Some(LoadDelays {
            load: 1.0,
            exact: true,
            p50_s: Estimate::exact(1e-4),
            p99_s: Estimate::exact(3e-4),
            refused_share: 0.0,
        });
        let impossible = text(&cells, Goal::P99(1e-5));
        assert!(impossible.contains("p99=0.01ms: lard-r") && impossible.contains("0.3 ms"), "{impossible}");
        assert!(impossible.contains("cannot help: half of the requests take longer, 0.1 ms"), "{impossible}");
    }
}
