//! Which cell is recommended, and why: rules in words beside the code that follows them.
//!
//! *Policies* are taken in order of simplicity: one that knows nothing of contents before one that hashes, before one
//! that remembers, before one that needs reports, tables or cache events. A simpler policy is preferred while it is within 2 % (or within the error) of the best; without a
//! goal also within 2 points of the best hit ratio, for reads that are spared are worth something by themselves.
//!
//! *With a goal*, clusters are tried from the cheapest on: by price where prices are known; else by nodes, then memory
//! (throughput, p99), or by memory in all, then nodes (hit ratio, origin bytes). The first on which some policy honours
//! the goal, its error counted against it, is recommended.
//!
//! *Where locality does not pay* (on the chosen cluster policies that look at contents gain less than 5 % in throughput
//! and less than 5 points in hits) the simplest policy that does not look at contents is taken, unless none of these
//! honours the goal.
//!
//! *Without a goal*, one node if it carries the stated load, else the log's busiest minute, at 70 % of its throughput
//! and hits within 2 points of the highest in the grid: the one with the least memory. Else the knee: the least memory in all at which the best policy's hit ratio is within two points of the
//! highest in the grid; of the clusters with no more memory than that which hit as well, the one with the fewest nodes
//! that is within 5 % of the highest throughput. Single nodes are left out where the grid has others.

use larder_core::Bytes;

use super::goal::{Goal, Prices};
use super::policies::{knows_contents, simplicity};
use super::result::{Cell, Estimate, Gain, LogFacts, NoGain};
use crate::text::rate;

/// What is near enough, as a share.
const NEAR: f64 = 0.02;

/// What counts as a gain, as a share.
const GAIN: f64 = 0.05;

/// Share of its throughput at which a node is used without haste.
pub(super) const USUAL_LOAD: f64 = 0.7;

/// What is wanted of a cluster.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wish {
    pub(super) goal: Option<Goal>,
    /// Requests per second that the goal speaks of; 0: none.
    pub(super) load: f64,
    /// Requests per second that one node must carry where no goal is stated.
    pub(super) peak: Option<f64>,
    pub(super) prices: Option<Prices>,
}

/// The cells of one cluster.
#[derive(Clone, Debug)]
pub(super) struct Cluster<'c> {
    pub(super) nodes: u16,
    pub(super) memory: u64,
    pub(super) cells: Vec<&'c Cell>,
}

impl Cluster<'_> {
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

/// The grid by clusters, nodes first, then memory.
pub(super) fn clusters(cells: &[Cell]) -> Vec<Cluster<'_>> {
    let mut clusters: Vec<Cluster<'_>> = Vec::new();
    for cell in cells.iter().filter(|cell| simplicity(&cell.policy).is_some()) {
        let same = |c: &&mut Cluster<'_>| (c.nodes, c.memory) == (cell.nodes, cell.memory_bytes);
        match clusters.iter_mut().find(same) {
            Some(cluster) => cluster.cells.push(cell),
            None => {
                clusters.push(Cluster { nodes: cell.nodes, memory: cell.memory_bytes, cells: vec![cell] });
            }
        }
    }
    clusters.sort_by_key(|cluster| (cluster.nodes, cluster.memory));
    clusters
}

/// The recommended cell: with a goal the first that honours it, without one a single node that will do, else the knee.
pub(super) fn choose(cells: &[Cell], wish: Wish) -> Option<&Cell> {
    let clusters = clusters(cells);
    let Some(goal) = wish.goal else {
        if let Some(single) = single(&clusters, wish) {
            return deployed(single, &single.cells, Goal::Cost);
        }
        return knee(&clusters).and_then(|at| deployed(at, &hitting(at), Goal::Cost));
    };
    let honouring =
        |cluster: &Cluster<'_>| -> bool { cluster.cells.iter().any(|cell| goal.honoured(cell, wish.load)) };
    let mut order: Vec<&Cluster<'_>> = clusters.iter().filter(|cluster| honouring(cluster)).collect();
    match (wish.prices, goal) {
        (prices, Goal::Cost) => {
            let prices = prices?;
            let price = |cluster: &Cluster<'_>| {
                let honours = cluster.cells.iter().filter(|cell| goal.honoured(cell, wish.load));
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
        cluster.cells.iter().copied().filter(|cell| goal.honoured(cell, wish.load)).collect();
    deployed(cluster, &honours, goal)
}

/// Which of the cells of a cluster that would do is deployed: the simplest near the best of them; where locality does
/// not pay, near the best of those that do not look at contents, if there are any.
fn deployed<'c>(cluster: &Cluster<'c>, cells: &[&'c Cell], goal: Goal) -> Option<&'c Cell> {
    if gain(cluster).is_none_or(|(ratio, points)| pays(ratio, points)) {
        return simplest(cells, goal);
    }
    // What hits a little less is no loss that counts where a gain of 5 points counts as none.
    let of = if goal == Goal::Cost { &cluster.cells } else { cells };
    let blind: Vec<&Cell> = of.iter().copied().filter(|cell| !knows_contents(&cell.policy)).collect();
    simplest(&blind, goal).or_else(|| simplest(cells, goal))
}

/// What knowing contents gains on a cluster: throughput over throughput, and the difference of hit ratios. `None` where
/// policies of one kind only were compared.
fn gain(cluster: &Cluster<'_>) -> Option<(f64, f64)> {
    let (blind, knowing) = cluster.best(false).zip(cluster.best(true))?;
    let hits = |knowing: bool| {
        let of = cluster.cells.iter().filter(|cell| knows_contents(&cell.policy) == knowing);
        of.map(|cell| cell.hit_ratio.value).fold(0.0, f64::max)
    };
    let ratio = knowing.throughput.value / blind.throughput.value.max(f64::MIN_POSITIVE);
    Some((ratio, hits(true) - hits(false)))
}

/// Whether a gain in throughput and hits is worth a policy that looks at contents.
fn pays(ratio: f64, hits: f64) -> bool {
    ratio >= 1.0 + GAIN || hits >= GAIN
}

/// A node that needs no cluster, where the grid has others.
fn single<'a, 'c>(clusters: &'a [Cluster<'c>], wish: Wish) -> Option<&'a Cluster<'c>> {
    let peak = wish.peak.filter(|_| clusters.iter().any(|cluster| cluster.nodes > 1))?;
    let highest = clusters.iter().map(Cluster::best_hit).fold(0.0, f64::max);
    let carries = |cell: &Cell| cell.throughput.low() * USUAL_LOAD >= peak;
    let will_do = |cluster: &&Cluster<'_>| {
        cluster.nodes == 1
            && cluster.best_hit() >= highest - NEAR
            && cluster.cells.iter().all(|cell| carries(cell))
    };
    clusters.iter().filter(will_do).min_by_key(|cluster| cluster.memory)
}

fn knee<'a, 'c>(clusters: &'a [Cluster<'c>]) -> Option<&'a Cluster<'c>> {
    let several = clusters.iter().any(|cluster| cluster.nodes > 1);
    let eligible = || clusters.iter().filter(|cluster| !several || cluster.nodes > 1);
    let highest = eligible().map(Cluster::best_hit).fold(0.0, f64::max);
    let hits = |cluster: &&Cluster<'_>| cluster.best_hit() >= highest - NEAR;
    let least = eligible().filter(hits).map(Cluster::total).min()?;
    // Sizes are rounded to two digits, so equal totals differ a little.
    let as_little = |cluster: &&Cluster<'_>| cluster.total() <= least + least / 20;
    let left = || eligible().filter(hits).filter(as_little);
    let most = left().map(Cluster::best_throughput).fold(0.0, f64::max);
    left()
        .filter(|cluster| cluster.best_throughput() >= most * (1.0 - GAIN))
        .min_by_key(|cluster| cluster.nodes)
}

/// The cells of a cluster that hit nearly as well as the best of them.
fn hitting<'c>(cluster: &Cluster<'c>) -> Vec<&'c Cell> {
    let best = cluster.best_hit();
    cluster.cells.iter().copied().filter(|cell| cell.hit_ratio.high() >= best - NEAR).collect()
}

/// The simplest of the cells that is near the best of them in what the goal is about.
fn simplest<'c>(cells: &[&'c Cell], goal: Goal) -> Option<&'c Cell> {
    // Higher is better.
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

/// Why this cluster.
pub(super) fn why_cluster(chosen: &Cell, cells: &[Cell], wish: Wish) -> String {
    let grid_has_more = cells.iter().any(|cell| cell.nodes > 1);
    match (wish.goal, wish.peak) {
        (None, Some(peak)) if chosen.nodes == 1 && grid_has_more => {
            let times = chosen.throughput.low() / peak.max(f64::MIN_POSITIVE);
            let times = if times >= 10.0 { format!("{times:.0}") } else { format!("{times:.1}") };
            format!(
                "One node with {} serves {times} times the {} of your busiest minute (or of --load) and hits \
                 within 2 points of the best in the grid; no cluster is needed. If more is to come, state it with \
                 --load or --goal.",
                Bytes(chosen.memory_bytes).exact(),
                rate(peak)
            )
        }
        (None, _) => "No goal was stated, so this is the knee: the least memory in all that brings the hit ratio within 2 \
                      points of the best in the grid, on the fewest nodes within 5 % of the most that so much memory \
                      serves."
            .to_owned(),
        (Some(Goal::Cost), _) if wish.load > 0.0 => format!(
            "It serves a million requests for the lowest price of the clusters in the grid that carry {}.",
            rate(wish.load)
        ),
        (Some(Goal::Cost), _) => "It serves a million requests for the lowest price in the grid.".to_owned(),
        (Some(goal), _) if wish.prices.is_some() => {
            format!("It is the cheapest cluster of the grid that honours {goal}.")
        }
        (Some(goal @ (Goal::Hit(_) | Goal::Origin(_))), _) => {
            format!("It has the least memory in all of the clusters in the grid that honour {goal}.")
        }
        (Some(goal), _) => format!(
            "It has the fewest nodes, then the least memory, of the clusters in the grid that honour {goal}."
        ),
    }
}

/// Why this policy, and whether locality pays on this cluster.
pub(super) fn why_policy(
    chosen: &Cell,
    cells: &[Cell],
    facts: &LogFacts,
    goal: Option<Goal>,
) -> (String, bool) {
    let clusters = clusters(cells);
    let same = clusters.iter().find(|c| (c.nodes, c.memory) == (chosen.nodes, chosen.memory_bytes));
    let known = same.and_then(|c| c.best(false).zip(c.best(true)).zip(gain(c)));
    let Some(((blind, knowing), (ratio, hits))) = known else {
        return (
            "It is the best of the policies that were compared.".to_owned(),
            knows_contents(&chosen.policy),
        );
    };
    let (points, pays) = (hits * 100.0, pays(ratio, hits));
    let limit = why_no_gain(chosen.nodes, chosen.memory_bytes, knowing, facts);
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
                true => format!("What it gains over policies that do not look at contents is {only}."),
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
        _ => format!(
            "It honours the goal already, although {} would serve {ratio:.2} times as many.",
            knowing.policy
        ),
    };
    (text, pays)
}

/// The clusters on which contents gain less than 5 % in throughput and less than 5 points in hits, single nodes aside.
pub(super) fn no_gain(cells: &[Cell], facts: &LogFacts) -> Vec<NoGain> {
    let clusters = clusters(cells);
    let one = |cluster: &Cluster<'_>| {
        let (knowing, (ratio, hits)) = cluster.best(true).zip(gain(cluster))?;
        let why = || why_no_gain(cluster.nodes, cluster.memory, knowing, facts);
        let (nodes, memory_bytes) = (cluster.nodes, cluster.memory);
        let little = !pays(ratio, hits);
        little.then(|| NoGain { nodes, memory_bytes, ratio, why: why() })
    };
    clusters.iter().filter(|cluster| cluster.nodes > 1).filter_map(one).collect()
}

fn why_no_gain(nodes: u16, memory: u64, knowing: &Cell, facts: &LogFacts) -> String {
    if nodes == 1 {
        "there is one node only".to_owned()
    } else if memory >= facts.working_set_bytes {
        format!("the whole working set ({}) fits into one node", Bytes(facts.working_set_bytes))
    } else if memory >= facts.core98_bytes {
        format!("what 98 % of the requests ask for ({}) fits into one node", Bytes(facts.core98_bytes))
    } else if knowing.front_busy >= 0.9 {
        "the switch is the limit, not the nodes".to_owned()
    } else if knowing.cpu_busy >= 0.9 {
        "processors are the limit, not memory".to_owned()
    } else if facts.cold_share >= 0.5 {
        format!(
            "{:.0} % of the measured requests are the first for their target, which no memory answers",
            facts.cold_share * 100.0
        )
    } else {
        "nodes do not wait long enough for what they read".to_owned()
    }
}

/// The chosen cell against the usual ones of the same cluster.
pub(super) fn gains(chosen: &Cell, cells: &[Cell]) -> Vec<Gain> {
    let same = |cell: &&Cell| (cell.nodes, cell.memory_bytes) == (chosen.nodes, chosen.memory_bytes);
    let usual = ["rr", "least-conn", "hash"].into_iter().filter(|name| *name != chosen.policy);
    usual
        .filter_map(|name| cells.iter().filter(same).find(|cell| cell.policy == name))
        .map(|other| Gain {
            over: other.policy.clone(),
            throughput_ratio: ratio(chosen.throughput, other.throughput),
            hit_points: (chosen.hit_ratio.value - other.hit_ratio.value) * 100.0,
            origin_ratio: chosen.origin_bytes.value / other.origin_bytes.value.max(f64::MIN_POSITIVE),
        })
        .collect()
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

    fn goal(goal: Goal) -> Wish {
        Wish { goal: Some(goal), load: 1.0, ..Wish::default() }
    }

    /// Where locality is said not to pay the policy does not look at contents, or the text names the goal.
    fn says_what_it_does(chosen: &Cell, cells: &[Cell], goal: Option<Goal>) -> Result<(), TestCaseError> {
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
        let (text, pays) = why_policy(chosen, cells, &facts, goal);
        let named = goal.is_some_and(|goal| text.contains(&format!("honour {goal}")));
        prop_assert!(pays || !knows_contents(&chosen.policy) || named, "{}: {text}", chosen.policy);
        if named {
            let blind = |cell: &&Cell| !knows_contents(&cell.policy);
            let same = |cell: &&Cell| (cell.nodes, cell.memory_bytes) == (chosen.nodes, chosen.memory_bytes);
            let honours = |cell: &Cell| goal.is_some_and(|goal| goal.honoured(cell, 1.0));
            prop_assert!(!cells.iter().filter(same).filter(blind).any(honours));
        }
        Ok(())
    }

    #[test]
    fn one_node_that_will_do_needs_no_cluster() {
        let cells = [
            cell("rr", 1, 10, 100.0, 0.5),
            cell("rr", 1, 40, 140.0, 0.9),
            cell("lard-r", 4, 10, 400.0, 0.9),
            cell("rr", 4, 10, 300.0, 0.5),
        ];
        let at = |peak: Option<f64>| {
            let wish = Wish { peak, ..Wish::default() };
            let chosen = choose(&cells, wish).expect("one");
            (chosen.nodes, chosen.memory_bytes, why_cluster(chosen, &cells, wish))
        };
        let (nodes, memory, why) = at(Some(10.0));
        assert_eq!((nodes, memory), (1, 40));
        assert!(why.starts_with("One node with 40 B serves 14 times"), "{why}");
        // 100 requests/s are more than 70 % of what one node serves; without a rate nothing is known.
        assert_eq!((at(Some(100.0)).0, at(None).0), (4, 4));
    }

    #[test]
    fn the_cheapest_that_carries_the_load() {
        let cells = [cell("rr", 1, 10, 100.0, 0.5), cell("rr", 4, 10, 300.0, 0.5)];
        let prices = Some(Prices { node_hour: 1.0, gb_hour: 0.0 });
        let at = |load: f64| {
            choose(&cells, Wish { goal: Some(Goal::Cost), load, peak: None, prices }).map(|cell| cell.nodes)
        };
        assert_eq!([at(0.0), at(200.0), at(400.0)], [Some(1), Some(4), None]);
    }

    #[test]
    fn the_simplest_that_is_near_enough_wins() {
        let cells =
            [cell("lard-r", 4, 10, 100.0, 0.9), cell("hash", 4, 10, 98.5, 0.9), cell("rr", 4, 10, 50.0, 0.5)];
        let chosen = choose(&cells, Wish::default()).map(|cell| cell.policy.as_str());
        assert_eq!(chosen, Some("hash"));
        assert_eq!(choose(&cells, goal(Goal::Throughput(99.0))).map(|c| c.policy.as_str()), Some("lard-r"));
        assert!(choose(&cells, goal(Goal::Throughput(101.0))).is_none());
    }

    #[test]
    fn the_knee_is_where_more_memory_gives_nothing() {
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
        let knee = choose(&cells, Wish::default()).map(|cell| (cell.nodes, cell.memory_bytes));
        assert_eq!(knee, Some((8, 10)));
    }

    proptest! {
        #[test]
        fn what_is_recommended_honours_the_goal(
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
                        prop_assert!(goal.honoured(chosen, 1.0));
                        says_what_it_does(chosen, &cells, Some(goal))?;
                    }
                    None => prop_assert!(!cells.iter().any(|cell| goal.honoured(cell, 1.0))),
                }
            }
            if let Some(chosen) = choose(&cells, Wish { peak: Some(rate), ..Wish::default() }) {
                says_what_it_does(chosen, &cells, None)?;
            }
        }
    }
}
