//! Routing tables of the demo: made of the requests that warm up, or by the nodes themselves.

use std::path::Path;
use std::time::Duration;

use larder_trace::ward::{Frequencies, WardCosts};

use super::cluster::{ClusterSpec, TablesSpec};
use super::result::Rates;
use super::run::{Demo, cores};
use super::system::{Cooperation, System};
use crate::demo::signals;
use crate::report::number;

/// Time from one table of the nodes' own to the next. In service it is a quarter of an hour; here a run takes seconds.
const TABLE_EVERY: Duration = Duration::from_secs(2);
/// The first is made when the nodes have seen this part of the requests that warm up.
const FIRST_OF_WARMUP: usize = 4;

impl Demo {
    /// Says what peers that go by tables begin with.
    ///
    /// # Errors
    /// A table cannot be made or written.
    pub(super) fn go_by_tables(
        &self,
        how: Cooperation,
        spec: &mut ClusterSpec,
        rates: Option<&Rates>,
        folder: &Path,
    ) -> anyhow::Result<()> {
        if matches!(how, Cooperation::Press | Cooperation::Card) {
            return Ok(());
        }
        let mut trace = self.plan.trace(self.plan.warmup);
        // What no memory keeps needs no owner.
        trace.requests.retain(|request| request.size < spec.large_min);
        let costs = costs(&Frequencies::of(&trace), spec, rates);
        if how == Cooperation::WardOwn {
            let first = self.plan.warmup / spec.nodes.max(1) / FIRST_OF_WARMUP;
            spec.peers.tables = TablesSpec {
                first_requests: (first as u64).max(1),
                refresh: TABLE_EVERY,
                forward_us: costs.forward_us,
                disk_us_per_byte: costs.disk_us_per_byte,
            };
        }
        let Some(core) = how.core() else { return Ok(()) };
        let path = folder.join(format!("{}.routes", System::Peers(how)));
        let cluster = signals::cluster(spec.nodes, spec.memory, costs)?;
        let made = signals::write_table(&trace, &self.plan.info.source, &cluster, core, &path)?;
        self.say(&format!(
            "the table of {how}: {} targets for all, {} with an owner, a forwarded request at {} us",
            number(made.core.targets as f64),
            number(made.partition.targets as f64),
            number(made.costs.forward_us),
            how = System::Peers(how),
        ));
        spec.peers.table = Some(path);
        Ok(())
    }
}

/// The prices of this machine: what forwarding takes of a node's part of a processor, and what the modelled disk takes for a
/// byte. Without measured ones those of the LARD paper.
fn costs(counts: &Frequencies, spec: &ClusterSpec, rates: Option<&Rates>) -> WardCosts {
    let mut costs = WardCosts::lard98(counts);
    costs.disk_us_per_byte /= spec.disk_speed;
    if let Some(rates) = rates {
        let shared = (spec.nodes as f64 / cores() as f64).max(1.0);
        costs.forward_us = rates.forward_us * shared;
        costs.origin = "measured, and the modelled disk".to_owned();
    }
    costs
}
