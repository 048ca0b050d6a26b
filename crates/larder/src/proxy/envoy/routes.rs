//! The routes to a cluster: the parts of a request that they hash, and filters that choose hosts.

use crate::proxy::field::{Field, KeyError, shown};

/// The parts of a request that determine its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HashKey {
    /// The file does not tell.
    Unknown,
    /// No hash policy. Envoy then draws a host at random.
    Absent,
    /// The path, or other parts that name the target. The text lists them.
    Target(String),
    /// Parts that name the client. The text lists them.
    Client(String),
}

/// The routes to a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Routes {
    pub(super) hash_key: HashKey,
    /// Whether a listener has the filter `stateful_session`.
    pub(super) has_sessions: bool,
}

impl Routes {
    /// Reads the routes of all static listeners to a cluster.
    pub(super) fn read(root: &Field<'_>, cluster: &str) -> Result<Self, KeyError> {
        let mut routes = Self { hash_key: HashKey::Unknown, has_sessions: false };
        let Some(resources) = root.get("static_resources")? else { return Ok(routes) };
        for listener in resources.list("listeners")? {
            let mut chains = listener.list("filter_chains")?;
            chains.extend(listener.get("default_filter_chain")?);
            for chain in chains {
                for filter in chain.list("filters")? {
                    if let Some(manager) = filter.get("typed_config")? {
                        routes.add_manager(&manager, cluster)?;
                    }
                }
            }
        }
        Ok(routes)
    }

    /// Adds the routes of an HTTP connection manager. Other filters have none of its keys.
    fn add_manager(&mut self, manager: &Field<'_>, cluster: &str) -> Result<(), KeyError> {
        let mut leads_here = false;
        if let Some(table) = manager.get("route_config")? {
            for host in table.list("virtual_hosts")? {
                for route in host.list("routes")? {
                    let Some(action) = route.get("route")? else { continue };
                    if leads_to(&action, cluster)? {
                        leads_here = true;
                        self.merge(read_hash_key(&action)?);
                    }
                }
            }
        }
        if leads_here {
            for filter in manager.list("http_filters")? {
                self.has_sessions |=
                    filter.text("name")?.is_some_and(|name| name.contains("stateful_session"));
            }
        }
        Ok(())
    }

    /// Merges the key of another route. A key that names the target has precedence over the others.
    fn merge(&mut self, key: HashKey) {
        let rank = |key: &HashKey| match key {
            HashKey::Unknown => 0,
            HashKey::Absent => 1,
            HashKey::Client(_) => 2,
            HashKey::Target(_) => 3,
        };
        if rank(&key) > rank(&self.hash_key) {
            self.hash_key = key;
        }
    }
}

/// Returns whether a route leads to a cluster, alone or among others.
fn leads_to(action: &Field<'_>, cluster: &str) -> Result<bool, KeyError> {
    if action.text("cluster")? == Some(cluster) {
        return Ok(true);
    }
    let Some(weighted) = action.get("weighted_clusters")? else { return Ok(false) };
    for one in weighted.list("clusters")? {
        if one.text("name")? == Some(cluster) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the list `hash_policy` of a route, or of a policy.
pub(super) fn read_hash_key(action: &Field<'_>) -> Result<HashKey, KeyError> {
    let (mut parts, mut of_client) = (Vec::new(), false);
    for entry in action.list("hash_policy")? {
        if let Some(header) = entry.get("header")? {
            parts.push(format!("the header {}", shown(header.text("header_name")?.unwrap_or_default())));
        } else if let Some(parameter) = entry.get("query_parameter")? {
            parts.push(format!("the query parameter {}", shown(parameter.text("name")?.unwrap_or_default())));
        } else if entry.get("filter_state")?.is_some() {
            parts.push("a filter state".to_owned());
        } else if entry.get("cookie")?.is_some() {
            parts.push("a cookie".to_owned());
            of_client = true;
        } else if entry.get("connection_properties")?.is_some() {
            parts.push("the client's address".to_owned());
            of_client = true;
        }
        // If this part exists, Envoy does not look at the next ones.
        if entry.flag("terminal")? && !parts.is_empty() {
            break;
        }
    }
    let list = parts.join(" and ");
    Ok(match (parts.is_empty(), of_client) {
        (true, _) => HashKey::Absent,
        (false, true) => HashKey::Client(list),
        (false, false) => HashKey::Target(list),
    })
}
