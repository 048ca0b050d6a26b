//! The clusters of a config, and the hosts of a cluster.

use crate::proxy::field::{Field, KeyError, names, shown};

/// The names of `DiscoveryType`.
const TYPES: [(u64, &str); 5] =
    [(0, "STATIC"), (1, "STRICT_DNS"), (2, "LOGICAL_DNS"), (3, "EDS"), (4, "ORIGINAL_DST")];

/// The states of health in which a host gets no requests.
const UNHEALTHY: [&str; 3] = ["UNHEALTHY", "DRAINING", "TIMEOUT"];

/// The names of `HealthStatus`.
const HEALTH: [(u64, &str); 6] =
    [(0, "UNKNOWN"), (1, "HEALTHY"), (2, "UNHEALTHY"), (3, "DRAINING"), (4, "TIMEOUT"), (5, "DEGRADED")];

/// The clusters of a config.
pub(super) struct Clusters<'v> {
    all: Vec<NamedCluster<'v>>,
    /// Whether Envoy gets clusters from another source too.
    has_cds: bool,
}

/// A cluster with its name.
pub(super) struct NamedCluster<'v> {
    pub(super) name: String,
    pub(super) field: Field<'v>,
}

impl<'v> Clusters<'v> {
    /// Finds the static clusters.
    pub(super) fn read(root: &Field<'v>) -> Result<Self, KeyError> {
        let has_cds = root.find(&["dynamic_resources", "cds_config"])?.is_some();
        let resources = root.get("static_resources")?;
        let fields = resources.map_or(Ok(Vec::new()), |resources| resources.list("clusters"))?;
        let mut all = Vec::with_capacity(fields.len());
        for field in fields {
            let unnamed = || field.error("the cluster has no name", "add the key name");
            let name = field.text("name")?.ok_or_else(unnamed)?.to_owned();
            all.push(NamedCluster { name, field });
        }
        Ok(Self { all, has_cds })
    }

    /// Returns the cluster with a name, or the only cluster.
    pub(super) fn choose(&self, name: Option<&str>) -> Result<&NamedCluster<'v>, KeyError> {
        let error = |problem, remedy: &str| Err(KeyError::new("static_resources.clusters", problem, remedy));
        match (name, &self.all[..]) {
            (_, []) if self.has_cds => error(
                "the file lists no cluster, and Envoy gets its clusters from dynamic_resources.cds_config"
                    .to_owned(),
                "copy the cluster into static_resources.clusters of a file",
            ),
            (_, []) => error("the file lists no cluster".to_owned(), "give Envoy's static bootstrap"),
            (None, [only]) => Ok(only),
            (None, _) => error(
                format!("there are {} clusters: {}", self.all.len(), self.names()),
                "choose one of them with --cluster NAME",
            ),
            (Some(name), all) => match all.iter().find(|cluster| cluster.name == name) {
                Some(cluster) => Ok(cluster),
                None => error(
                    format!("there is no cluster '{}', only: {}", shown(name), self.names()),
                    "choose one of them with --cluster NAME",
                ),
            },
        }
    }

    fn names(&self) -> String {
        names(self.all.iter().map(|cluster| &*cluster.name))
    }

    /// Returns a warning if the log may have requests of other clusters.
    pub(super) fn warning(&self) -> Option<String> {
        (self.all.len() > 1 || self.has_cds).then(|| {
            "Envoy has other clusters too, and the plan takes all requests of the log as this cluster's. Give a log of \
             this cluster only."
                .to_owned()
        })
    }
}

/// The hosts of a cluster by their part in the first priority level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostCount {
    /// The healthy hosts of the first level.
    pub(super) count: u32,
    /// The reason why the file does not list the hosts.
    pub(super) unlisted: Option<String>,
    /// Whether names stand for the hosts, so that a name may have several addresses.
    pub(super) are_names: bool,
    /// Whether the cluster has one logical host, whatever the number of its addresses.
    pub(super) is_logical: bool,
    /// The hosts of other levels.
    pub(super) of_other_levels: u32,
    pub(super) degraded: u32,
    /// The hosts that the file marks as unhealthy.
    pub(super) unhealthy: u32,
    /// The least and the largest weight of the hosts.
    pub(super) weights: Option<(u64, u64)>,
    /// The number of localities of the first level.
    pub(super) localities: u32,
}

impl HostCount {
    /// Counts the hosts of a cluster.
    pub(super) fn read(cluster: &Field<'_>) -> Result<Self, KeyError> {
        let kind = discovery_type(cluster)?;
        let mut hosts = Self::default();
        match kind.as_str() {
            "STATIC" => {}
            "STRICT_DNS" | "DNS" => hosts.are_names = true,
            "LOGICAL_DNS" => {
                // The name stands for one logical host.
                return Ok(Self { count: 1, is_logical: true, ..hosts });
            }
            _ => {
                let reason = format!("a cluster of type {} has its hosts elsewhere", shown(&kind));
                return Ok(Self { unlisted: Some(reason), ..hosts });
            }
        }
        if let Some(assignment) = cluster.get("load_assignment")? {
            for locality in assignment.list("endpoints")? {
                hosts.add_locality(&locality)?;
            }
        }
        if hosts.count == 0 {
            hosts.unlisted = Some(match hosts.of_other_levels + hosts.degraded + hosts.unhealthy {
                0 => "load_assignment lists no hosts".to_owned(),
                _ => "load_assignment lists no healthy host of priority 0".to_owned(),
            });
        }
        Ok(hosts)
    }

    fn add_locality(&mut self, locality: &Field<'_>) -> Result<(), KeyError> {
        let is_first = locality.number("priority")?.unwrap_or(0) == 0;
        let hosts = locality.list("lb_endpoints")?;
        if !is_first {
            self.of_other_levels += hosts.len() as u32;
            return Ok(());
        }
        self.localities += 1;
        for host in hosts {
            let health = host.choice("health_status", &HEALTH)?.unwrap_or_default();
            if health == "DEGRADED" {
                self.degraded += 1;
            } else if UNHEALTHY.contains(&health.as_str()) {
                self.unhealthy += 1;
            } else {
                self.count += 1;
                let weight = host.number("load_balancing_weight")?.unwrap_or(1);
                let (least, most) = self.weights.unwrap_or((weight, weight));
                self.weights = Some((least.min(weight), most.max(weight)));
            }
        }
        Ok(())
    }

    /// Returns whether the hosts have different weights.
    pub(super) fn are_weighted(&self) -> bool {
        self.weights.is_some_and(|(least, most)| least != most)
    }
}

/// Returns the type of a cluster in upper case. `cluster_type` names an extension such as
/// `envoy.clusters.strict_dns`.
fn discovery_type(cluster: &Field<'_>) -> Result<String, KeyError> {
    if let Some(extension) = cluster.get("cluster_type")? {
        let name = extension.text("name")?.unwrap_or_default();
        return Ok(name.rsplit('.').next().unwrap_or(name).to_ascii_uppercase());
    }
    Ok(cluster.choice("type", &TYPES)?.unwrap_or_else(|| "STATIC".to_owned()))
}
