//! The cluster of a proxy: its hosts and policy for the options of a plan, and the report on a change of policy.

use std::path::Path;

use larder_core::PolicyKind;
use larder_core::dispatch::Settings;
use larder_sim::plan::{NODES_MAX, Options, Plan};
use larder_sim::text::printable;

use crate::outcome::usage;
use crate::proxy::{self, Cluster, Hosts, Proxy};
use crate::report::plan::ProxyReport;

/// The policy that the plan compares with the policy in use.
const NEW_POLICY: PolicyKind = PolicyKind::LardR;

/// A cluster in the config of a proxy.
#[derive(Debug)]
pub(super) struct ProxyCluster {
    proxy: Proxy,
    file: String,
    cluster: Cluster,
}

impl ProxyCluster {
    /// Reads a cluster from a config file.
    pub(super) fn read(proxy: Proxy, path: &Path, name: Option<&str>) -> anyhow::Result<Self> {
        let cluster = proxy::read(proxy, path, name)?;
        Ok(Self { proxy, file: path.display().to_string(), cluster })
    }

    /// Returns the number of hosts, or an error if the plan cannot simulate so many.
    pub(super) fn nodes(&self) -> anyhow::Result<u16> {
        let problem = match &self.cluster.hosts {
            Hosts::Listed(count) if (1..=u32::from(NODES_MAX)).contains(count) => return Ok(*count as u16),
            Hosts::Listed(count) => format!("has {count} hosts, and a plan simulates at most {NODES_MAX}"),
            Hosts::Unlisted(reason) => format!("does not show the number of hosts: {reason}"),
        };
        let (what, name) = (self.proxy.cluster(), printable(&self.cluster.name));
        Err(usage(format!("{}: the {what} '{name}' {problem} (state the number with --nodes)", self.file)))
    }

    /// Adds the policy in use with its parameters, and the new policy.
    pub(super) fn apply(&self, options: &mut Options) {
        for kind in [self.cluster.in_use.kind, NEW_POLICY] {
            if !options.policies.contains(&kind) {
                options.policies.push(kind);
            }
        }
        self.cluster.in_use.apply(&mut options.settings);
    }

    /// Reports the change of policy.
    pub(super) fn report(self, plan: &Plan, settings: &Settings) -> ProxyReport {
        let Self { proxy, file, cluster } = self;
        let in_use = cluster.in_use;
        let changes = if in_use.kind == NEW_POLICY {
            Vec::new()
        } else {
            let own: Vec<&str> = proxy.own_policies().iter().map(|(kind, _)| kind.name()).collect();
            plan.changes(in_use.kind.name(), NEW_POLICY.name(), &own)
        };
        let pays = changes.iter().any(|change| change.pays);
        let lines = pays.then(|| proxy.lines(&Settings { policy: NEW_POLICY, ..settings.clone() }));
        let mut warnings = cluster.warnings;
        if pays {
            warnings.extend(cluster.lines_warnings);
        }
        ProxyReport {
            proxy,
            file,
            cluster: cluster.name,
            hosts: match cluster.hosts {
                Hosts::Listed(count) => Some(count),
                Hosts::Unlisted(_) => None,
            },
            in_use: in_use.written,
            simulated_as: in_use.kind.name().to_owned(),
            bound: in_use.factor_permille.map(|permille| f64::from(permille) / 1e3),
            notes: in_use.notes,
            policy: NEW_POLICY.name().to_owned(),
            changes,
            replaced: cluster.replaced,
            lines,
            warnings,
        }
    }
}
