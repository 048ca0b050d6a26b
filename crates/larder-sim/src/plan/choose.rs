//! The choice of the recommended cell. The rules are stated here beside the code that follows them.
//!
//! *Policies* are compared in order of simplicity. A policy that knows nothing of contents comes before one
//! that hashes, then one with a target map, then one that needs reports, tables or cache events. A simpler
//! policy is preferred if it is within 2 % (or within the error) of the best. Without a goal its hit ratio
//! must also be within 2 points of the best, because fewer reads are worth something by themselves.
//!
//! *With a goal*, clusters are tried from the cheapest on: by price if prices are known. Otherwise they are
//! ordered by nodes, then memory (throughput, p99), or by total memory, then nodes (hit ratio, origin bytes).
//! The first cluster on which a policy meets the goal, with its error counted against it, is recommended.
//!
//! *If locality does not pay*, the simplest content-blind policy is taken, unless no such policy meets the
//! goal. Locality does not pay if content-aware policies gain less than 5 % in throughput and less than 5
//! points in hits on the chosen cluster.
//!
//! *Without a goal*, a single node is recommended under two conditions. It carries the stated load, or else
//! the log's busiest minute, at 70 % of its throughput. Its hit ratio is within 2 points of the highest in
//! the grid. Of several such nodes, the one with the least memory is taken. Otherwise the knee is
//! recommended: the least total memory at which the best policy's hit ratio is within 2 points of the highest
//! in the grid. Of the clusters with no more memory and as many hits, the knee has the fewest nodes within 5
//! % of the highest throughput. Single nodes are excluded if the grid has other clusters.

use larder_core::Bytes;

use super::goal::{Goal, Prices};
use super::policies::{knows_contents, simplicity};
use super::result::{Cell, Estimate, Gain, LogFacts, LowGainCluster, Plan, PolicyChange};
use crate::text::rate;

/// The share within which two values count as near.
const NEAR: f64 = 0.02;

/// The share from which a difference counts as a gain.
const GAIN: f64 = 0.05;

/// The share of its throughput at which a node is used in normal operation.
pub(super) const USUAL_LOAD: f64 = 0.7;

/// The requirements of a cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requirement {
    pub(super) goal: Option<Goal>,
    /// The load that the goal refers to, in requests per second; 0 if there is none.
    pub(super) load: f64,
    /// The load that a single node must carry if no goal is stated, in requests per second.
    pub(super) peak: Option<f64>,
    pub(super) prices: Option<Prices>,
}

/// The cells of one cluster.
#[derive(Clone, Debug)]
pub(super) struct ClusterCells<'c> {
    pub(super) nodes: u16,
    pub(super) memory: u64,
    pub(super) cells: Vec<&'c Cell>,
}

impl ClusterCells<'_> {
    fn total(&self) -> u64 {
        self.memory.saturating_mul(u64::from(self.nodes))
    }

    fn best_hit(&self) -> f64 {
        self.cells.iter().map(|cell| cell.hit_ratio.value).fold(0.0, f64::max)
    }

    fn best_throughput(&self) -> f64 {
        self.cells.iter().map(|cell| cell.throughput.value).fold(0.0, f64::max)
    }

    fn best(&self, knowing: bool) -> Option<&Cell> {
        let of = self.cells.iter().filter(|cell| knows_contents(&cell.policy) == knowing);
        of.max_by(|a, b| a.throughput.value.total_cmp(&b.throughput.value)).copied()
    }
}

/// Groups the cells by cluster, ordered by nodes, then memory.
pub(super) fn group_clusters(cells: &[Cell]) -> Vec<ClusterCells<'_>> {
    let mut clusters: Vec<ClusterCells<'_>> = Vec::new();
    for cell in cells.iter().filter(|cell| simplicity(&cell.policy).is_some()) {
        let same = |c: &&mut ClusterCells<'_>| (c.nodes, c.memory) == (cell.nodes, cell.memory_bytes);
        match clusters.iter_mut().find(same) {
            Some(cluster) => cluster.cells.push(cell),
            None => {
                clusters.push(ClusterCells {
                    nodes: cell.nodes,
                    memory: cell.memory_bytes,
                    cells: vec![cell],
                });
            }
        }
    }
    clusters.sort_by_key(|cluster| (cluster.nodes, cluster.memory));
    clusters
}

/// Returns the recommended cell. With a goal it is the first cell that meets the goal; without one, a
/// sufficient single node or else the knee.
pub(super) fn choose(cells: &[Cell], requirement: Requirement) -> Option<&Cell> {
    let clusters = group_clusters(cells);
    let Some(goal) = requirement.goal else {
        if let Some(single) = find_single_node(&clusters, requirement) {
            return pick_deployed(single, &single.cells, Goal::Cost);
        }
        return find_knee(&clusters).and_then(|at| pick_deployed(at, &near_best_hits(at), Goal::Cost));
    };
    let honouring = |cluster: &ClusterCells<'_>| -> bool {
        cluster.cells.iter().any(|cell| goal.is_met_by(cell, requirement.load))
    };
    let mut order: Vec<&ClusterCells<'_>> = clusters.iter().filter(|cluster| honouring(cluster)).collect();
    match (requirement.prices, goal) {
        (prices, Goal::Cost) => {
            let prices = prices?;
            let price = |cluster: &ClusterCells<'_>| {
                let honours = cluster.cells.iter().filter(|cell| goal.is_met_by(cell, requirement.load));
                honours.map(|cell| prices.per_million(cell)).fold(f64::INFINITY, f64::min)
            };
            order.sort_by(|a, b| price(a).total_cmp(&price(b)));
        }
        (Some(prices), _) => {
            order.sort_by(|a, b| prices.hour(a.nodes, a.memory).total_cmp(&prices.hour(b.nodes, b.memory)));
        }
        (None, Goal::Hit(_) | Goal::Origin(_)) => {
            order.sort_by_key(|cluster| (cluster.total(), cluster.nodes));
        }
        (None, _) => order.sort_by_key(|cluster| (cluster.nodes, cluster.memory)),
    }
    let cluster = order.first()?;
    let honours: Vec<&Cell> =
        cluster.cells.iter().copied().filter(|cell| goal.is_met_by(cell, requirement.load)).collect();
    pick_deployed(cluster, &honours, goal)
}

/// Returns the cell to deploy among the sufficient cells of a cluster: the simplest near the best of them. If
/// locality does not pay, it is the simplest near the best content-blind policy, if there is one.
fn pick_deployed<'c>(cluster: &ClusterCells<'c>, cells: &[&'c Cell], goal: Goal) -> Option<&'c Cell> {
    if compute_gain(cluster).is_none_or(|(ratio, points)| is_gain_worthwhile(ratio, points)) {
        return pick_simplest(cells, goal);
    }
    // If a gain of 5 points counts as none, slightly fewer hits are no loss.
    let of = if goal == Goal::Cost { &cluster.cells } else { cells };
    let blind: Vec<&Cell> = of.iter().copied().filter(|cell| !knows_contents(&cell.policy)).collect();
    pick_simplest(&blind, goal).or_else(|| pick_simplest(cells, goal))
}

/// Returns the gain of content-aware policies on a cluster: the ratio of throughputs, and the difference of
/// hit ratios. `None` if policies of only one kind were compared.
fn compute_gain(cluster: &ClusterCells<'_>) -> Option<(f64, f64)> {
    let (blind, knowing) = cluster.best(false).zip(cluster.best(true))?;
    let hits = |knowing: bool| {
        let of = cluster.cells.iter().filter(|cell| knows_contents(&cell.policy) == knowing);
        of.map(|cell| cell.hit_ratio.value).fold(0.0, f64::max)
    };
    let ratio = knowing.throughput.value / blind.throughput.value.max(f64::MIN_POSITIVE);
    Some((ratio, hits(true) - hits(false)))
}

/// Returns whether a gain in throughput and hits is worth a content-aware policy.
fn is_gain_worthwhile(ratio: f64, hits: f64) -> bool {
    ratio >= 1.0 + GAIN || hits >= GAIN
}

/// Returns a sufficient single node, if the grid also has clusters.
fn find_single_node<'a, 'c>(
    clusters: &'a [ClusterCells<'c>],
    requirement: Requirement,
) -> Option<&'a ClusterCells<'c>> {
    let peak = requirement.peak.filter(|_| clusters.iter().any(|cluster| cluster.nodes > 1))?;
    let highest = clusters.iter().map(ClusterCells::best_hit).fold(0.0, f64::max);
    let carries = |cell: &Cell| cell.throughput.low() * USUAL_LOAD >= peak;
    let will_do = |cluster: &&ClusterCells<'_>| {
        cluster.nodes == 1
            && cluster.best_hit() >= highest - NEAR
            && cluster.cells.iter().all(|cell| carries(cell))
    };
    clusters.iter().filter(will_do).min_by_key(|cluster| cluster.memory)
}

fn find_knee<'a, 'c>(clusters: &'a [ClusterCells<'c>]) -> Option<&'a ClusterCells<'c>> {
    let several = clusters.iter().any(|cluster| cluster.nodes > 1);
    let eligible = || clusters.iter().filter(|cluster| !several || cluster.nodes > 1);
    let highest = eligible().map(ClusterCells::best_hit).fold(0.0, f64::max);
    let hits = |cluster: &&ClusterCells<'_>| cluster.best_hit() >= highest - NEAR;
    let least = eligible().filter(hits).map(ClusterCells::total).min()?;
    // Sizes are rounded to two digits, so equal totals differ slightly.
    let as_little = |cluster: &&ClusterCells<'_>| cluster.total() <= least + least / 20;
    let left = || eligible().filter(hits).filter(as_little);
    let most = left().map(ClusterCells::best_throughput).fold(0.0, f64::max);
    left()
        .filter(|cluster| cluster.best_throughput() >= most * (1.0 - GAIN))
        .min_by_key(|cluster| cluster.nodes)
}

/// Returns the cells of a cluster whose hit ratio is near the best of them.
fn near_best_hits<'c>(cluster: &ClusterCells<'c>) -> Vec<&'c Cell> {
    let best = cluster.best_hit();
    cluster.cells.iter().copied().filter(|cell| cell.hit_ratio.high() >= best - NEAR).collect()
}

/// Returns the simplest cell that is near the best in the goal's metric.
fn pick_simplest<'c>(cells: &[&'c Cell], goal: Goal) -> Option<&'c Cell> {
    // A higher merit is better.
    let merit = |cell: &Cell| match goal {
        Goal::Hit(_) => cell.hit_ratio,
        Goal::Origin(_) => Estimate { value: -cell.origin_bytes.value, error: cell.origin_bytes.error },
        Goal::P99(_) => match cell.at_load {
            Some(at) => Estimate { value: -at.p99_s.value, error: at.p99_s.error },
            None => Estimate::exact(f64::NEG_INFINITY),
        },
        Goal::Throughput(_) | Goal::Cost => cell.throughput,
    };
    let best = cells.iter().copied().max_by(|a, b| merit(a).value.total_cmp(&merit(b).value))?;
    let top = merit(best);
    let near = |cell: &&&Cell| {
        let own = merit(cell);
        let slack = (NEAR * top.value.abs()).max((own.error * own.error + top.error * top.error).sqrt());
        own.value >= top.value - slack
    };
    let order = |cell: &&&Cell| simplicity(&cell.policy).unwrap_or(usize::MAX);
    cells.iter().filter(near).min_by_key(order).copied()
}

/// Explains the choice of the cluster.
pub(super) fn explain_cluster(chosen: &Cell, cells: &[Cell], requirement: Requirement) -> String {
    let grid_has_more = cells.iter().any(|cell| cell.nodes > 1);
    match (requirement.goal, requirement.peak) {
        (None, Some(peak)) if chosen.nodes == 1 && grid_has_more => {
            let times = chosen.throughput.low() / peak.max(f64::MIN_POSITIVE);
            let times = if times >= 10.0 { format!("{times:.0}") } else { format!("{times:.1}") };
            format!(
                "One node with {} serves {times} times the {} of your busiest minute (or of --load), with hits \
                 within 2 points of the best in the grid; no cluster is needed. If more is to come, state it with \
                 --load or --goal.",
                Bytes(chosen.memory_bytes).exact(),
                rate(peak)
            )
        }
        (None, _) => "No goal was given, so this is the knee: the least total memory with a hit ratio within 2 \
                      points of the best in the grid, on the fewest nodes within 5 % of the most that so much memory \
                      serves."
            .to_owned(),
        (Some(Goal::Cost), _) if requirement.load > 0.0 => format!(
            "It has the lowest price per million requests of the simulated clusters that carry {}.",
            rate(requirement.load)
        ),
        (Some(Goal::Cost), _) => "It has the lowest price per million requests of the simulated clusters.".to_owned(),
        (Some(goal), _) if requirement.prices.is_some() => {
            format!("It is the cheapest simulated cluster that meets {goal}.")
        }
        (Some(goal @ (Goal::Hit(_) | Goal::Origin(_))), _) => {
            format!("It has the least total memory of the simulated clusters that meet {goal}.")
        }
        (Some(goal), _) => format!(
            "It has the fewest nodes, then the least memory, of the simulated clusters that meet {goal}."
        ),
    }
}

/// Explains the choice of the policy. Also returns whether locality pays on this cluster.
pub(super) fn explain_policy(
    chosen: &Cell,
    cells: &[Cell],
    facts: &LogFacts,
    goal: Option<Goal>,
) -> (String, bool) {
    let clusters = group_clusters(cells);
    let same = clusters.iter().find(|c| (c.nodes, c.memory) == (chosen.nodes, chosen.memory_bytes));
    let known = same.and_then(|c| c.best(false).zip(c.best(true)).zip(compute_gain(c)));
    let Some(((blind, knowing), (ratio, hits))) = known else {
        return (
            "It is the best of the policies that were compared.".to_owned(),
            knows_contents(&chosen.policy),
        );
    };
    let (points, pays) = (hits * 100.0, is_gain_worthwhile(ratio, hits));
    let limit = explain_low_gain(chosen.nodes, chosen.memory_bytes, knowing, facts);
    let knows = knows_contents(&chosen.policy);
    let text = match goal {
        Some(goal) if !pays && knows => format!(
            "Locality gains little here ({ratio:.2} times the throughput and {points:.1} points more hits: {limit}), but \
             of the policies compared only those that look at contents honour {goal} on this cluster."
        ),
        _ if !pays => {
            format!("Locality does not pay here: {limit}, so the simplest policy is the better choice.")
        }
        _ if ratio < 1.0 + GAIN => {
            let only =
                format!("{points:.1} points more hits, and so fewer reads, but no more throughput: {limit}");
            match knows {
                true => format!("Its gain over policies that do not look at contents is {only}."),
                false => format!("A policy that looks at contents would have {only}."),
            }
        }
        _ if chosen.policy == knowing.policy => format!(
            "Of the policies compared it serves most: {ratio:.2} times as many requests as {}, the best that does not \
             look at contents.",
            blind.policy
        ),
        _ if knows => {
            format!("It is the simplest policy within 2 % (or the error) of the best, {}.", knowing.policy)
        }
        _ => format!("It meets the goal, although {} would serve {ratio:.2} times as many.", knowing.policy),
    };
    (text, pays)
}

/// Returns the clusters on which content-aware policies gain less than 5 % in throughput and less than 5
/// points in hits, without single nodes.
pub(super) fn find_low_gain(cells: &[Cell], facts: &LogFacts) -> Vec<LowGainCluster> {
    let clusters = group_clusters(cells);
    let one = |cluster: &ClusterCells<'_>| {
        let (knowing, (ratio, hits)) = cluster.best(true).zip(compute_gain(cluster))?;
        let why = || explain_low_gain(cluster.nodes, cluster.memory, knowing, facts);
        let (nodes, memory_bytes) = (cluster.nodes, cluster.memory);
        let little = !is_gain_worthwhile(ratio, hits);
        little.then(|| LowGainCluster { nodes, memory_bytes, ratio, why: why() })
    };
    clusters.iter().filter(|cluster| cluster.nodes > 1).filter_map(one).collect()
}

fn explain_low_gain(nodes: u16, memory: u64, knowing: &Cell, facts: &LogFacts) -> String {
    if nodes == 1 {
        "there is one node only".to_owned()
    } else if memory >= facts.working_set_bytes {
        format!("the whole working set ({}) fits into the memory of one node", Bytes(facts.working_set_bytes))
    } else if memory >= facts.core98_bytes {
        format!(
            "the targets of 98 % of the requests ({}) fit into the memory of one node",
            Bytes(facts.core98_bytes)
        )
    } else if knowing.front_busy >= 0.9 {
        "the switch limits the throughput, not the nodes".to_owned()
    } else if knowing.cpu_busy >= 0.9 {
        "processors limit the throughput, not memory".to_owned()
    } else if facts.cold_share >= 0.5 {
        format!(
            "{:.0} % of the measured requests are the first for their target, so no cache can have the reply",
            facts.cold_share * 100.0
        )
    } else {
        "nodes do not wait long enough for reads".to_owned()
    }
}

/// Compares the chosen cell with the usual policies on the same cluster.
pub(super) fn list_gains(chosen: &Cell, cells: &[Cell]) -> Vec<Gain> {
    let same = |cell: &&Cell| (cell.nodes, cell.memory_bytes) == (chosen.nodes, chosen.memory_bytes);
    let usual = ["rr", "least-conn", "hash"].into_iter().filter(|name| *name != chosen.policy);
    usual
        .filter_map(|name| cells.iter().filter(same).find(|cell| cell.policy == name))
        .map(|other| compare_cells(chosen, other))
        .collect()
}

/// Compares a cell with another cell of the same cluster.
fn compare_cells(cell: &Cell, other: &Cell) -> Gain {
    Gain {
        over: other.policy.clone(),
        throughput_ratio: ratio(cell.throughput, other.throughput),
        hit_points: (cell.hit_ratio.value - other.hit_ratio.value) * 100.0,
        origin_ratio: cell.origin_bytes.value / other.origin_bytes.value.max(f64::MIN_POSITIVE),
    }
}

impl Plan {
    /// Returns the effect of a change from one policy to another on every cluster that has both. The change pays
    /// only if the new policy also gains over the alternatives.
    pub fn changes(&self, from: &str, to: &str, alternatives: &[&str]) -> Vec<PolicyChange> {
        list_changes(&self.cells, from, to, alternatives)
    }
}

fn list_changes(cells: &[Cell], from: &str, to: &str, alternatives: &[&str]) -> Vec<PolicyChange> {
    let change = |cell: &Cell| {
        let same = |other: &&Cell| (other.nodes, other.memory_bytes) == (cell.nodes, cell.memory_bytes);
        let other = cells.iter().filter(same).find(|other| other.policy == from)?;
        let gain = compare_cells(cell, other);
        let rival = cells
            .iter()
            .filter(same)
            .filter(|own| {
                own.policy != from && alternatives.contains(&&*own.policy) && !surely_gains(cell, own)
            })
            .max_by(|a, b| a.throughput.value.total_cmp(&b.throughput.value));
        let pays = rival.is_none() && surely_gains(cell, other);
        let rival = rival.map(|rival| compare_cells(cell, rival));
        Some(PolicyChange { nodes: cell.nodes, memory_bytes: cell.memory_bytes, pays, rival, gain })
    };
    cells.iter().filter(|cell| cell.policy == to).filter_map(change).collect()
}

/// Returns whether a cell gains enough over another cell in throughput or hits, and loses little of the other
/// value. The low ends of the ranges count.
fn surely_gains(cell: &Cell, other: &Cell) -> bool {
    let ratio = ratio(cell.throughput, other.throughput).low();
    let error = cell.hit_ratio.error.hypot(other.hit_ratio.error);
    let hits = cell.hit_ratio.value - other.hit_ratio.value - error;
    is_gain_worthwhile(ratio, hits) && ratio >= 1.0 - GAIN && hits >= -GAIN
}

fn ratio(a: Estimate, b: Estimate) -> Estimate {
    let value = a.value / b.value.max(f64::MIN_POSITIVE);
    let part = |e: Estimate| e.error / e.value.max(f64::MIN_POSITIVE);
    Estimate { value, error: value * (part(a) * part(a) + part(b) * part(b)).sqrt() }
}

#[cfg(test)]
pub(in crate::plan) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::plan) fn cell(policy: &str, nodes: u16, memory: u64, throughput: f64, hit: f64) -> Cell {
        Cell {
            policy: policy.to_owned(),
            nodes,
            memory_bytes: memory,
            exact: true,
            throughput: Estimate::exact(throughput),
            hit_ratio: Estimate::exact(hit),
            origin_bytes: Estimate::exact((1.0 - hit) * 1e4),
            imbalance: Estimate::exact(1.0),
            cpu_busy: 0.5,
            front_busy: 0.0,
            p50_s: 0.01,
            p99_s: 0.1,
            node_shares: vec![1.0; nodes as usize],
            at_load: None,
        }
    }

    fn goal(goal: Goal) -> Requirement {
        Requirement { goal: Some(goal), load: 1.0, ..Requirement::default() }
    }

    /// Checks that the policy is content-blind if locality is said not to pay, or that the text names the
    /// goal.
    fn check_explanation(chosen: &Cell, cells: &[Cell], goal: Option<Goal>) -> Result<(), TestCaseError> {
        let coverage = larder_trace::stats::Coverage {
            requests_permille: 1_000,
            targets: 1,
            targets_share: 1.0,
            bytes: None,
            working_set_share: None,
            transferred_share: None,
        };
        let facts = LogFacts {
            requests: 3,
            warmup_requests: 1,
            targets: 1,
            working_set_bytes: 3,
            request_bytes_mean: 1.0,
            hottest_share: 0.5,
            cold_share: 0.1,
            core98_bytes: 2,
            seconds: None,
            rate_mean: None,
            rate_peak: None,
            coverage: vec![coverage],
        };
        let (text, pays) = explain_policy(chosen, cells, &facts, goal);
        let named = goal.is_some_and(|goal| text.contains(&format!("honour {goal}")));
        prop_assert!(pays || !knows_contents(&chosen.policy) || named, "{}: {text}", chosen.policy);
        if named {
            let blind = |cell: &&Cell| !knows_contents(&cell.policy);
            let same = |cell: &&Cell| (cell.nodes, cell.memory_bytes) == (chosen.nodes, chosen.memory_bytes);
            let honours = |cell: &Cell| goal.is_some_and(|goal| goal.is_met_by(cell, 1.0));
            prop_assert!(!cells.iter().filter(same).filter(blind).any(honours));
        }
        Ok(())
    }

    #[test]
    fn one_sufficient_node_needs_no_cluster() {
        let cells = [
            cell("rr", 1, 10, 100.0, 0.5),
            cell("rr", 1, 40, 140.0, 0.9),
            cell("lard-r", 4, 10, 400.0, 0.9),
            cell("rr", 4, 10, 300.0, 0.5),
        ];
        let at = |peak: Option<f64>| {
            let requirement = Requirement { peak, ..Requirement::default() };
            let chosen = choose(&cells, requirement).expect("one");
            (chosen.nodes, chosen.memory_bytes, explain_cluster(chosen, &cells, requirement))
        };
        let (nodes, memory, why) = at(Some(10.0));
        assert_eq!((nodes, memory), (1, 40));
        assert!(why.starts_with("One node with 40 B serves 14 times"), "{why}");
        // 100 requests/s are more than 70 % of one node's throughput. Without a rate, no single node is
        // chosen.
        assert_eq!((at(Some(100.0)).0, at(None).0), (4, 4));
    }

    #[test]
    fn the_cheapest_cluster_that_carries_the_load_is_chosen() {
        let cells = [cell("rr", 1, 10, 100.0, 0.5), cell("rr", 4, 10, 300.0, 0.5)];
        let prices = Some(Prices { node_hour: 1.0, gb_hour: 0.0 });
        let at = |load: f64| {
            choose(&cells, Requirement { goal: Some(Goal::Cost), load, peak: None, prices })
                .map(|cell| cell.nodes)
        };
        assert_eq!([at(0.0), at(200.0), at(400.0)], [Some(1), Some(4), None]);
    }

    #[test]
    fn the_simplest_policy_near_the_best_is_chosen() {
        let cells =
            [cell("lard-r", 4, 10, 100.0, 0.9), cell("hash", 4, 10, 98.5, 0.9), cell("rr", 4, 10, 50.0, 0.5)];
        let chosen = choose(&cells, Requirement::default()).map(|cell| cell.policy.as_str());
        assert_eq!(chosen, Some("hash"));
        assert_eq!(choose(&cells, goal(Goal::Throughput(99.0))).map(|c| c.policy.as_str()), Some("lard-r"));
        assert!(choose(&cells, goal(Goal::Throughput(101.0))).is_none());
    }

    #[test]
    fn a_change_of_policy_is_compared_on_each_cluster() {
        let cells = [
            cell("hash", 2, 10, 100.0, 0.8),
            cell("hash", 4, 10, 200.0, 0.8),
            cell("lard-r", 2, 10, 102.0, 0.82),
            cell("lard-r", 4, 10, 260.0, 0.9),
            cell("lard-r", 8, 10, 500.0, 0.9),
        ];
        let changes = list_changes(&cells, "hash", "lard-r", &[]);
        assert_eq!(
            changes.iter().map(|change| (change.nodes, change.pays)).collect::<Vec<_>>(),
            [(2, false), (4, true)]
        );
        let gain = &changes[1].gain;
        assert_eq!((&*gain.over, gain.throughput_ratio.value), ("hash", 1.3));
        assert!((gain.hit_points - 10.0).abs() < 1e-9 && (gain.origin_ratio - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_change_pays_if_it_surely_gains_over_all_alternatives() {
        let old = cell("maglev", 4, 10, 100.0, 0.5);
        let change = |new: Cell, own: Cell| {
            let changes = list_changes(&[old.clone(), own, new], "maglev", "lard-r", &["rr", "maglev"]);
            (changes[0].pays, changes[0].rival.as_ref().map(|rival| rival.over.clone()))
        };
        let (new, slow) = (cell("lard-r", 4, 10, 170.0, 0.5), cell("rr", 4, 10, 90.0, 0.4));
        assert_eq!(change(new.clone(), slow.clone()), (true, None));
        assert_eq!(change(new.clone(), cell("rr", 4, 10, 180.0, 0.5)), (false, Some("rr".to_owned())));
        assert_eq!(change(new.clone(), cell("wrr", 4, 10, 180.0, 0.5)), (true, None), "no alternative");
        let fewer_hits = cell("lard-r", 4, 10, 170.0, 0.44);
        assert_eq!(change(fewer_hits, slow.clone()), (false, None), "a loss of 6 points of hits");
        let throughput = Estimate { value: 170.0, error: 80.0 };
        assert!(!change(Cell { throughput, ..new }, slow).0, "the range reaches below the gain");
    }

    #[test]
    fn the_knee_is_the_least_memory_near_the_best() {
        let mut cells = Vec::new();
        for (nodes, memory, throughput, hit) in [
            (2, 10, 100.0, 0.5),
            (2, 40, 190.0, 0.89),
            (8, 10, 700.0, 0.895),
            (8, 40, 720.0, 0.9),
            (1, 40, 90.0, 0.9),
        ] {
            cells.push(cell("lard-r", nodes, memory, throughput, hit));
        }
        let knee = choose(&cells, Requirement::default()).map(|cell| (cell.nodes, cell.memory_bytes));
        assert_eq!(knee, Some((8, 10)));
    }

    proptest! {
        #[test]
        fn recommendations_meet_the_goal(
            figures in prop::collection::vec((0_usize..6, 1_u16..5, 1_u64..5, 1.0_f64..1e3, 0.0_f64..1.0, 0.0_f64..50.0), 1..40),
            rate in 1.0_f64..1e3, hit in 0.0_f64..1.0,
        ) {
            let names = ["rr", "least-conn", "wrr", "hash", "lard", "lard-r"];
            let cells: Vec<Cell> = figures
                .into_iter()
                .map(|(policy, nodes, memory, throughput, hit, error)| Cell {
                    throughput: Estimate { value: throughput, error },
                    ..cell(names[policy], nodes, memory, throughput, hit)
                })
                .collect();
            for goal in [Goal::Throughput(rate), Goal::Hit(hit), Goal::Origin(hit * 1e4)] {
                match choose(&cells, self::goal(goal)) {
                    Some(chosen) => {
                        prop_assert!(goal.is_met_by(chosen, 1.0));
                        check_explanation(chosen, &cells, Some(goal))?;
                    }
                    None => prop_assert!(!cells.iter().any(|cell| goal.is_met_by(cell, 1.0))),
                }
            }
            if let Some(chosen) = choose(&cells, Requirement { peak: Some(rate), ..Requirement::default() }) {
                check_explanation(chosen, &cells, None)?;
            }
        }
    }
}
