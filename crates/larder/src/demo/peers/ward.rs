//! Routing tables of the demo, computed from the warm-up requests or by the nodes themselves.

use std::path::Path;
use std::time::Duration;

use larder_trace::ward::{Frequencies, WardCosts};

use super::cluster::{PeersClusterSpec, TablesSpec};
use super::result::Rates;
use super::run::{PeersDemo, cores};
use super::system::{Cooperation, System};
use crate::demo::policy_config;
use crate::report::number;

/// Interval between tables that nodes build. In service it is 15 minutes, but here a run takes seconds.
const TABLE_INTERVAL: Duration = Duration::from_secs(2);
/// The first table is built after the nodes have seen this fraction of the warm-up requests.
const FIRST_TABLE_DIVISOR: usize = 4;

impl PeersDemo {
    /// Prepares the routing tables of peers that use them.
    ///
    /// # Errors
    /// Returns an error if a table cannot be computed or written.
    pub(super) fn prepare_tables(
        &self,
        how: Cooperation,
        spec: &mut PeersClusterSpec,
        rates: Option<&Rates>,
        folder: &Path,
    ) -> anyhow::Result<()> {
        if matches!(how, Cooperation::Press | Cooperation::Card) {
            return Ok(());
        }
        let mut trace = self.plan.trace(self.plan.warmup);
        // Targets that are not kept in memory need no owner.
        trace.requests.retain(|request| request.size < spec.large_min);
        let costs = costs(&Frequencies::of(&trace), spec, rates);
        if how == Cooperation::WardOwn {
            let first = self.plan.warmup / spec.nodes.max(1) / FIRST_TABLE_DIVISOR;
            spec.peers.tables = TablesSpec {
                first_requests: (first as u64).max(1),
                refresh: TABLE_INTERVAL,
                forward_us: costs.forward_us,
                disk_us_per_byte: costs.disk_us_per_byte,
            };
        }
        let Some(core) = how.core() else { return Ok(()) };
        let path = folder.join(format!("{}.routes", System::Peers(how)));
        let cluster = policy_config::cluster(spec.nodes, spec.memory, costs)?;
        let analysis = policy_config::write_table(&trace, &self.plan.info.source, &cluster, core, &path)?;
        self.print_line(&format!(
            "the table of {how}: {} targets on all nodes, {} with an owner, a forwarded request costs {} us",
            number(analysis.core.targets as f64),
            number(analysis.partition.targets as f64),
            number(analysis.costs.forward_us),
            how = System::Peers(how),
        ));
        spec.peers.table = Some(path);
        Ok(())
    }
}

/// Returns the costs on this machine. The cost of forwarding is its processor time, scaled to a node's part
/// of a processor. The cost of a read is the modelled disk time per byte. Without measured costs, those of
/// the LARD paper are used.
fn costs(counts: &Frequencies, spec: &PeersClusterSpec, rates: Option<&Rates>) -> WardCosts {
    let mut costs = WardCosts::lard98(counts);
    costs.disk_us_per_byte /= spec.disk_speed;
    if let Some(rates) = rates {
        let shared = (spec.nodes as f64 / cores() as f64).max(1.0);
        costs.forward_us = rates.forward_us * shared;
        costs.origin = "measured, and the modelled disk".to_owned();
    }
    costs
}
