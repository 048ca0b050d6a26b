//! Which cell is recommended, and why: rules in words beside the code that follows them.
//!
//! *Policies* are taken in order of simplicity: one that knows nothing of contents before one that hashes, before one
//! that remembers. A simpler policy is preferred while it is within 2 % (or within the error) of the best; without a
//! goal also within 2 points of the best hit ratio, for reads that are spared are worth something by themselves.
//!
//! *With a goal*, clusters are tried from the cheapest on: by price where prices are known; else by nodes, then memory
//! (throughput, p99), or by memory in all, then nodes (hit ratio, origin bytes). The first on which some policy honours
//! the goal, its error counted against it, is recommended.
//!
//! *Without a goal*, the knee: the least memory in all at which the best policy's hit ratio is within two points of the
//! highest in the grid; of the clusters with no more memory than that which hit as well, the one with the fewest nodes
//! that is within 5 % of the highest throughput. Single nodes are left out where the grid has others.

use larder_core::{Bytes, PolicyKind};

use super::goal::{Goal, Prices};
use super::result::{Cell, Estimate, Gain, LogFacts, NoGain};

/// What is near enough, as a share.
const NEAR: f64 = 0.02;

/// What counts as a gain, as a share.
const GAIN: f64 = 0.05;

/// Order of simplicity; policies that are not live are never recommended.
const SIMPLEST: [PolicyKind; 7] = [
    PolicyKind::Rr,
    PolicyKind::Random,
    PolicyKind::LeastConn,
    PolicyKind::Wrr,
    PolicyKind::Hash,
    PolicyKind::Lard,
    PolicyKind::LardR,
];

/// Whether a policy looks at what is asked for.
pub(super) fn knows_contents(policy: &str) -> bool {
    matches!(policy, "hash" | "lard" | "lard-r")
}

fn simplicity(policy: &str) -> Option<usize> {
    SIMPLEST.into_iter().position(|kind| kind.name() == policy)
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

/// The grid by clusters, nodes first, then memory. Only policies that can be deployed.
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

/// The recommended cell: with a goal the first that honours it, without one the knee.
pub(super) fn choose<'c>(
    cells: &'c [Cell],
    goal: Option<Goal>,
    load: f64,
    prices: Option<&Prices>,
) -> Option<&'c Cell> {
    let clusters = clusters(cells);
    let Some(goal) = goal else { return knee(&clusters).and_then(|at| simplest(&hitting(at), Goal::Cost)) };
    if goal == Goal::Cost {
        let prices = prices?;
        let price = |cluster: &Cluster<'_>| {
            cluster.cells.iter().map(|cell| prices.per_million(cell)).fold(f64::INFINITY, f64::min)
        };
        let cheapest = clusters.iter().min_by(|a, b| price(a).total_cmp(&price(b)))?;
        return simplest(&cheapest.cells, goal);
    }
    let mut order: Vec<&Cluster<'_>> = clusters.iter().collect();
    match (prices, goal) {
        (Some(prices), _) => {
            order.sort_by(|a, b| prices.hour(a.nodes, a.memory).total_cmp(&prices.hour(b.nodes, b.memory)));
        }
        (None, Goal::Hit(_) | Goal::Origin(_)) => {
            order.sort_by_key(|cluster| (cluster.total(), cluster.nodes));
        }
        (None, _) => order.sort_by_key(|cluster| (cluster.nodes, cluster.memory)),
    }
    order.into_iter().find_map(|cluster| {
        let honours: Vec<&Cell> =
            cluster.cells.iter().copied().filter(|cell| goal.honoured(cell, load)).collect();
        simplest(&honours, goal)
    })
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
    let order = |cell: &&&Cell| simplicity(&cell.policy).unwrap_or(SIMPLEST.len());
    cells.iter().filter(near).min_by_key(order).copied()
}

/// Why this cluster.
pub(super) fn why_cluster(goal: Option<Goal>, prices: bool) -> String {
    match goal {
        None => "No goal was stated, so this is the knee: the least memory in all that brings the hit ratio within 2 \
                 points of the best in the grid, on the fewest nodes within 5 % of the most that so much memory serves."
            .to_owned(),
        Some(Goal::Cost) => "It serves a million requests for the lowest price in the grid.".to_owned(),
        Some(goal) if prices => format!("It is the cheapest cluster of the grid that honours {goal}."),
        Some(goal @ (Goal::Hit(_) | Goal::Origin(_))) => {
            format!("It has the least memory in all of the clusters in the grid that honour {goal}.")
        }
        Some(goal) => format!("It has the fewest nodes, then the least memory, of the clusters in the grid that honour {goal}."),
    }
}

/// Why this policy, and whether locality pays on this cluster.
pub(super) fn why_policy(chosen: &Cell, cells: &[Cell], facts: &LogFacts) -> (String, bool) {
    let clusters = clusters(cells);
    let same = clusters.iter().find(|c| (c.nodes, c.memory) == (chosen.nodes, chosen.memory_bytes));
    let Some((blind, knowing)) = same.and_then(|c| c.best(false).zip(c.best(true))) else {
        return (
            "It is the best of the policies that were compared.".to_owned(),
            knows_contents(&chosen.policy),
        );
    };
    let ratio = knowing.throughput.value / blind.throughput.value.max(f64::MIN_POSITIVE);
    let points = hit_gain(&clusters, chosen.nodes, chosen.memory_bytes) * 100.0;
    let pays = ratio >= 1.0 + GAIN || points >= GAIN * 100.0;
    let limit = why_no_gain(chosen.nodes, chosen.memory_bytes, knowing, facts);
    let text = if !pays {
        let simple =
            if knows_contents(&chosen.policy) { "" } else { ", so the simpler policy is the better choice" };
        format!("Locality does not pay here: {limit}{simple}.")
    } else if ratio < 1.0 + GAIN {
        let only =
            format!("{points:.1} points more hits, and so fewer reads, but no more throughput: {limit}");
        match knows_contents(&chosen.policy) {
            true => format!("What it gains over policies that do not look at contents is {only}."),
            false => format!("A policy that looks at contents would have {only}."),
        }
    } else if chosen.policy == knowing.policy {
        format!(
            "Of the policies compared it serves most: {ratio:.2} times as many requests as {}, the best that does not \
             look at contents.",
            blind.policy
        )
    } else if knows_contents(&chosen.policy) {
        format!("It is the simplest policy within 2 % (or the error) of the best, {}.", knowing.policy)
    } else {
        format!(
            "It honours the goal already, although {} would serve {ratio:.2} times as many.",
            knowing.policy
        )
    };
    (text, pays)
}

/// Highest hit ratio of the policies that look at contents less that of those that do not.
fn hit_gain(clusters: &[Cluster<'_>], nodes: u16, memory: u64) -> f64 {
    let Some(cluster) = clusters.iter().find(|c| (c.nodes, c.memory) == (nodes, memory)) else { return 0.0 };
    let best = |knowing: bool| {
        let of = cluster.cells.iter().filter(|cell| knows_contents(&cell.policy) == knowing);
        of.map(|cell| cell.hit_ratio.value).fold(0.0, f64::max)
    };
    best(true) - best(false)
}

/// The clusters on which contents gain less than 5 % in throughput and less than 5 points in hits, single nodes aside.
pub(super) fn no_gain(cells: &[Cell], facts: &LogFacts) -> Vec<NoGain> {
    let clusters = clusters(cells);
    let one = |cluster: &Cluster<'_>| {
        let (blind, knowing) = cluster.best(false).zip(cluster.best(true))?;
        let ratio = knowing.throughput.value / blind.throughput.value.max(f64::MIN_POSITIVE);
        let why = || why_no_gain(cluster.nodes, cluster.memory, knowing, facts);
        let (nodes, memory_bytes) = (cluster.nodes, cluster.memory);
        let little = ratio < 1.0 + GAIN && hit_gain(&clusters, nodes, memory_bytes) < GAIN;
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

/// What to say where no cell honours the goal.
pub(super) fn unreached(cells: &[Cell], goal: Goal, load: f64) -> String {
    let best = |merit: fn(&Cell) -> f64| cells.iter().max_by(|a, b| merit(a).total_cmp(&merit(b)));
    let of =
        |cell: &Cell| format!("{} on {} nodes with {}", cell.policy, cell.nodes, Bytes(cell.memory_bytes));
    let nearest = match goal {
        Goal::Throughput(_) => best(|cell| cell.throughput.low())
            .map(|cell| format!("{} reaches {:.0} requests/s", of(cell), cell.throughput.low())),
        Goal::Hit(_) => best(|cell| cell.hit_ratio.low())
            .map(|cell| format!("{} hits {:.1} %", of(cell), cell.hit_ratio.low() * 100.0)),
        Goal::Origin(_) => best(|cell| -cell.origin_bytes.high()).map(|cell| {
            format!(
                "{} reads {}/s at {load:.1} requests/s",
                of(cell),
                Bytes((cell.origin_bytes.high() * load) as u64)
            )
        }),
        Goal::P99(_) => best(|cell| {
            cell.at_load.map_or(f64::NEG_INFINITY, |at| -at.p99_s.high() - at.refused_share * 1e6)
        })
        .and_then(|cell| cell.at_load.map(|at| (cell, at)))
        .map(|(cell, at)| {
            format!(
                "{} has {:.0} ms and refuses {:.1} %",
                of(cell),
                at.p99_s.high() * 1e3,
                at.refused_share * 100.0
            )
        }),
        Goal::Cost => None,
    };
    let nearest = nearest.map_or_else(String::new, |text| format!(": {text}, its error counted against it"));
    format!("No cluster in the grid honours {goal}{nearest}. Try more nodes (--nodes) or memory (--memory).")
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn the_simplest_that_is_near_enough_wins() {
        let cells =
            [cell("lard-r", 4, 10, 100.0, 0.9), cell("hash", 4, 10, 98.5, 0.9), cell("rr", 4, 10, 50.0, 0.5)];
        let chosen = choose(&cells, None, 1.0, None).map(|cell| cell.policy.as_str());
        assert_eq!(chosen, Some("hash"));
        assert_eq!(
            choose(&cells, Some(Goal::Throughput(99.0)), 1.0, None).map(|c| c.policy.as_str()),
            Some("lard-r")
        );
        assert!(choose(&cells, Some(Goal::Throughput(101.0)), 1.0, None).is_none());
        assert!(unreached(&cells, Goal::Throughput(101.0), 1.0).contains("lard-r on 4 nodes"));
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
        let knee = choose(&cells, None, 1.0, None).map(|cell| (cell.nodes, cell.memory_bytes));
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
                match choose(&cells, Some(goal), 1.0, None) {
                    Some(chosen) => prop_assert!(goal.honoured(chosen, 1.0)),
                    None => prop_assert!(!cells.iter().any(|cell| goal.honoured(cell, 1.0))),
                }
            }
        }
    }
}
