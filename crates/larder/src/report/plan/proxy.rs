//! The gain from a change of policy inside a proxy, and the lines of its config.

use larder_core::Bytes;
use larder_sim::plan::{Cell, Plan, PolicyChange};
use larder_sim::text::{cluster, per_s, printable};
use serde::Serialize;

use super::tables::{Grid, GridRow, GridValue};
use super::text::{plus_minus, ratio};
use crate::proxy::Proxy;
use crate::report::counted;

/// The utilisation from which the proxy limits the throughput.
const FRONT_BUSY: f64 = 0.9;

/// The cluster of a proxy whose policy may change.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProxyReport {
    /// The proxy.
    pub(crate) proxy: Proxy,
    /// Name of the config file, as the user wrote it.
    pub(crate) file: String,
    /// Name of the cluster.
    pub(crate) cluster: String,
    /// Number of hosts in the config; `None` if the config does not list them.
    pub(crate) hosts: Option<u32>,
    /// The policy in use, in the words of the config.
    pub(crate) in_use: String,
    /// The simulated policy that stands for the policy in use.
    pub(crate) simulated_as: String,
    /// The bound of `bounded` relative to the mean load.
    pub(crate) bound: Option<f64>,
    /// Differences between the policy in use and the simulated policy.
    pub(crate) notes: Vec<String>,
    /// The new policy.
    pub(crate) policy: String,
    /// The effect of the change on every cluster of the plan. Empty if the new policy is in use already.
    pub(crate) changes: Vec<PolicyChange>,
    /// Keys of the config that the lines replace.
    pub(crate) replaced: Vec<String>,
    /// The lines for the config; `None` if no change pays.
    pub(crate) lines: Option<String>,
    /// Parts of the config that larder refuses or ignores, or that the simulator cannot know.
    pub(crate) warnings: Vec<String>,
}

impl ProxyReport {
    /// Returns the sentences on the policy in use and on the gain.
    pub(super) fn sentences(&self, plan: &Plan) -> Vec<String> {
        let mut first = format!("{} ", self.title());
        if let Some(hosts) = self.hosts {
            first.push_str(&format!("has {} and ", counted(hosts, "host")));
        }
        if self.simulated_as == self.policy {
            first.push_str(&format!("already uses {}.", self.in_use));
            self.add_notes(&mut first);
            return vec![first];
        }
        first.push_str(&format!(
            "chooses hosts by {}. The plan simulates it as {}",
            self.in_use, self.simulated_as
        ));
        if let Some(bound) = self.bound {
            first.push_str(&format!(" with {bound:.2} times the mean load"));
        }
        first.push('.');
        self.add_notes(&mut first);
        let mut sentences = vec![first];
        sentences.extend(self.main_change(plan).and_then(|change| self.describe_change(plan, change)));
        sentences.extend(self.describe_clusters());
        if self.changes.iter().any(|change| change.memory_bytes != self.changes[0].memory_bytes) {
            sentences
                .push("The config does not tell the memory of a host; state it with --memory.".to_owned());
        }
        sentences
    }

    /// Returns the title of the page.
    pub(super) fn title(&self) -> String {
        format!("{}'s {} {}", self.proxy.name(), self.proxy.cluster(), printable(&self.cluster))
    }

    fn add_notes(&self, sentence: &mut String) {
        for note in &self.notes {
            sentence.push(' ');
            sentence.push_str(note);
        }
    }

    /// Names the clusters on which the change pays, if there are several clusters.
    fn describe_clusters(&self) -> Option<String> {
        let all = self.changes.len();
        let paying: Vec<String> = self
            .changes
            .iter()
            .filter(|change| change.pays)
            .map(|change| cluster(change.nodes, Bytes(change.memory_bytes)))
            .collect();
        let text = match paying.len() {
            0 => format!("The change pays on none of the {all} clusters."),
            count if count == all => format!("The change pays on all {all} clusters."),
            count => format!("The change pays on {count} of the {all} clusters: {}.", paying.join("; ")),
        };
        (all > 1).then_some(text)
    }

    /// Returns the change on the recommended cluster, or on the largest cluster.
    fn main_change(&self, plan: &Plan) -> Option<&PolicyChange> {
        let same = |change: &&PolicyChange| {
            let it = plan.recommendation.as_ref();
            it.is_some_and(|it| (it.nodes, it.memory_bytes) == (change.nodes, change.memory_bytes))
        };
        let largest = || self.changes.iter().max_by_key(|change| (change.nodes, change.memory_bytes));
        self.changes.iter().find(same).or_else(largest)
    }

    fn describe_change(&self, plan: &Plan, change: &PolicyChange) -> Option<String> {
        let (old, new) = self.cells(plan, change)?;
        let subject = if change.pays || change.rival.is_none() { "it" } else { &self.policy };
        let gain = format!(
            "on {} {subject} serves {} times as many requests at saturation ({} instead of {} requests/s), and {} of the \
             requests cause no read instead of {}",
            cluster(change.nodes, Bytes(change.memory_bytes)),
            ratio(change.gain.throughput_ratio),
            plus_minus(new.throughput, 1.0, ""),
            plus_minus(old.throughput, 1.0, ""),
            plus_minus(new.hit_ratio, 100.0, " %"),
            plus_minus(old.hit_ratio, 100.0, " %"),
        );
        let limit = if new.front_busy >= FRONT_BUSY {
            " The simulated proxy limits the throughput, not the hosts, so compare the reads."
        } else {
            ""
        };
        let mixed = self.changes.iter().any(|other| other.pays != change.pays);
        let place = match mixed {
            true => format!(" on {}", cluster(change.nodes, Bytes(change.memory_bytes))),
            false => String::new(),
        };
        let policy = &self.policy;
        Some(match &change.rival {
            _ if change.pays => format!("Change the policy to {policy}{place}: {gain}.{limit}"),
            Some(_) => {
                let own = self.proxy.own_policies().iter();
                let own =
                    own.filter_map(|(kind, _)| plan.cell(kind.name(), change.nodes, change.memory_bytes));
                let best = own.max_by(|a, b| a.throughput.value.total_cmp(&b.throughput.value))?;
                format!(
                    "Do not change the policy to {policy}{place}, because {policy} gains too little over {}'s own policies. \
                     Of these in the plan, {} serves most: {} requests/s, and {} of the requests cause no read. Compared \
                     with {}, {gain}.{limit}",
                    self.proxy.name(),
                    self.own_name(&best.policy),
                    plus_minus(best.throughput, 1.0, ""),
                    plus_minus(best.hit_ratio, 100.0, " %"),
                    self.simulated_as,
                )
            }
            None => {
                format!(
                    "Keep the policy{place}, because {policy} {}: {gain}.{limit}",
                    describe_low_gain(change)
                )
            }
        })
    }

    /// Returns a policy of the proxy in the words of its config, with its name in the tables.
    fn own_name(&self, policy: &str) -> String {
        let own = self.proxy.own_policies().iter().find(|(kind, _)| kind.name() == policy);
        own.map_or_else(|| policy.to_owned(), |(_, written)| format!("{written} ({policy})"))
    }

    fn cells<'p>(&self, plan: &'p Plan, change: &PolicyChange) -> Option<(&'p Cell, &'p Cell)> {
        let cell = |policy: &str| plan.cell(policy, change.nodes, change.memory_bytes);
        cell(&self.simulated_as).zip(cell(&self.policy))
    }

    /// Builds the table of the change on every cluster of the plan; `None` if there is no change.
    pub(super) fn table(&self, plan: &Plan) -> Option<Grid> {
        let (old, new) = (&self.simulated_as, &self.policy);
        let mut head = vec![format!("from {old} to {new}")];
        head.extend(
            ["requests/s", "then", "ratio", "no read", "then", "origin/request", "then"].map(str::to_owned),
        );
        let row = |change: &PolicyChange| {
            let (old, new) = self.cells(plan, change)?;
            let hits = |cell: &Cell| format!("{:.1} %", cell.hit_ratio.value * 100.0);
            let origin = |cell: &Cell| Bytes(cell.origin_bytes.value as u64).to_string();
            let values = [
                per_s(old.throughput.value),
                per_s(new.throughput.value),
                format!("{:.2}x", change.gain.throughput_ratio.value),
                hits(old),
                hits(new),
                origin(old),
                origin(new),
            ];
            let name = cluster(change.nodes, Bytes(change.memory_bytes));
            let values = values.into_iter().map(GridValue::from).collect();
            Some(GridRow { name, recommended: change.pays, values })
        };
        let rows: Vec<GridRow> = self.changes.iter().filter_map(row).collect();
        (!rows.is_empty()).then_some(Grid { head, rows })
    }

    /// Returns the task for the operator, with the lines of the config; `None` if there is nothing to change.
    pub(super) fn task(&self) -> Option<(String, &str)> {
        let lines = self.lines.as_deref()?;
        let mut task = format!(
            "To run {} inside {}, load larder's module and add these lines to the {} {} of {}",
            self.policy,
            self.proxy.name(),
            self.proxy.cluster(),
            printable(&self.cluster),
            printable(&self.file)
        );
        if !self.replaced.is_empty() {
            task.push_str(&format!(", in place of {}", self.replaced.join(", ")));
        }
        task.push(':');
        Some((task, lines))
    }
}

/// Returns the reason why a change does not pay in comparison with the old policy.
fn describe_low_gain(change: &PolicyChange) -> String {
    let percent = (change.gain.throughput_ratio.value - 1.0) * 100.0;
    let points = change.gain.hit_points;
    if percent < -5.0 {
        format!("loses {:.0} % of throughput", -percent)
    } else if points < -5.0 {
        format!("loses {:.0} points of hits", -points)
    } else if percent < 5.0 && points < 5.0 {
        "gains less than 5 % of throughput and less than 5 points of hits".to_owned()
    } else {
        "does not surely gain 5 % of throughput or 5 points of hits without a loss, because the ranges are wide"
            .to_owned()
    }
}
