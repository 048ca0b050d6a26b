//! Parts of a cluster's config that larder's module refuses or ignores.

use super::clusters::HostCount;
use super::policy::Used;
use super::routes::Routes;
use crate::proxy::field::{Field, KeyError};

/// Keys that the lines replace, or beside which Envoy refuses them.
const REPLACED: [&[&str]; 6] = [
    &["lb_policy"],
    &["load_balancing_policy"],
    &["lb_subset_config"],
    &["common_lb_config", "zone_aware_lb_config"],
    &["common_lb_config", "locality_weighted_lb_config"],
    &["common_lb_config", "consistent_hashing_lb_config"],
];

/// The key with the upstream protocol of a cluster.
const PROTOCOL: &str = "typed_extension_protocol_options";

/// The extension that the lines add to [`PROTOCOL`].
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The name of larder's filter in the lines.
const FILTER: &str = "larder";

/// Keys that Envoy ignores beside [`HTTP_OPTIONS`], with their places in it.
const LEGACY_PROTOCOL: [(&str, &str); 5] = [
    ("common_http_protocol_options", "common_http_protocol_options"),
    ("upstream_http_protocol_options", "upstream_http_protocol_options"),
    ("http_protocol_options", "explicit_http_config.http_protocol_options"),
    ("http2_protocol_options", "explicit_http_config.http2_protocol_options"),
    ("protocol_selection", "use_downstream_protocol_config"),
];

/// Returns the keys of the cluster that the lines replace.
pub(super) fn replaced_keys(cluster: &Field<'_>) -> Result<Vec<String>, KeyError> {
    let mut keys = Vec::new();
    for path in REPLACED {
        if cluster.find(path)?.is_some() {
            keys.push(path.join("."));
        }
    }
    Ok(keys)
}

/// Returns the warnings for a cluster.
pub(super) fn collect(
    cluster: &Field<'_>,
    hosts: &HostCount,
    used: &Used<'_>,
    routes: &Routes,
) -> Result<Vec<String>, KeyError> {
    let mut warnings = Vec::new();
    warn_of_wrappers(cluster, used, &mut warnings)?;
    warn_of_hosts(hosts, &mut warnings);
    warn_of_localities(cluster, hosts, used, &mut warnings)?;
    if routes.has_sessions {
        warnings.push(
            "stateful_session: larder does not count the requests whose host this filter chooses as load."
                .to_owned(),
        );
    }
    Ok(warnings)
}

fn warn_of_wrappers(
    cluster: &Field<'_>,
    used: &Used<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), KeyError> {
    if cluster.get("lb_subset_config")?.is_some() {
        warnings.push(
            "lb_subset_config: larder's module refuses subsets. Give each subset a cluster of its own."
                .to_owned(),
        );
    }
    for wrapper in &used.wrappers {
        let remedy = match wrapper.as_str() {
            "SUBSET" => "Give each subset a cluster of its own.",
            "OVERRIDE_HOST" => "Requests then go to the hosts that larder chooses.",
            _ => "Localities then have no weights.",
        };
        warnings.push(format!(
            "{wrapper}: larder's module refuses to run inside this policy, so the lines replace it. {remedy}"
        ));
    }
    Ok(())
}

fn warn_of_hosts(hosts: &HostCount, warnings: &mut Vec<String>) {
    if let Some((least, most)) = hosts.weights.filter(|_| hosts.are_weighted()) {
        warnings.push(format!(
            "load_balancing_weight: larder's module uses the weights ({least} to {most}), but the plan simulates equal hosts."
        ));
    }
    if hosts.of_other_levels > 0 {
        warnings.push(format!(
            "priority: the plan simulates the hosts of priority 0. larder's module uses the other {} only if none of \
             these is healthy, and does not divide requests between levels.",
            hosts.of_other_levels
        ));
    }
    if hosts.degraded > 0 {
        warnings.push(format!(
            "health_status: larder's module never chooses the degraded hosts ({}).",
            hosts.degraded
        ));
    }
    if hosts.unhealthy > 0 {
        warnings
            .push(format!("health_status: the plan leaves out the unhealthy hosts ({}).", hosts.unhealthy));
    }
    if hosts.are_names && hosts.unlisted.is_none() {
        warnings.push(
            "type: the hosts are names. The plan counts each name as one host; give --nodes if a name has several \
             addresses."
                .to_owned(),
        );
    }
    if hosts.is_logical {
        warnings.push(
            "type: a cluster of type LOGICAL_DNS has one host in Envoy, so no policy has a choice."
                .to_owned(),
        );
    } else if hosts.count == 1 {
        warnings.push(
            "The cluster has one host, so no policy has a choice. Give --nodes to plan for more.".to_owned(),
        );
    }
}

fn warn_of_localities(
    cluster: &Field<'_>,
    hosts: &HostCount,
    used: &Used<'_>,
    warnings: &mut Vec<String>,
) -> Result<(), KeyError> {
    let common = cluster.get("common_lb_config")?;
    let has_common = |key: &str| -> Result<bool, KeyError> {
        Ok(common.as_ref().map_or(Ok(None), |common| common.get(key))?.is_some())
    };
    let has_own = |key: &str| -> Result<bool, KeyError> {
        Ok(used.parameters().map_or(Ok(None), |parameters| parameters.get(key))?.is_some())
    };
    if hosts.localities > 1
        || has_common("zone_aware_lb_config")?
        || has_common("locality_weighted_lb_config")?
        || has_own("locality_lb_config")?
    {
        warnings.push(
            "Localities: larder's module does not use them, so requests may leave their zone.".to_owned(),
        );
    }
    if has_own("slow_start_config")? {
        warnings.push(
            "slow_start_config: larder's module does not use it; the key join of the policy replaces it."
                .to_owned(),
        );
    }
    Ok(())
}

/// Returns the warnings about keys that conflict with the lines.
pub(super) fn collect_for_lines(cluster: &Field<'_>) -> Result<Vec<String>, KeyError> {
    if let Some(options) = cluster.find(&[PROTOCOL, HTTP_OPTIONS])? {
        let warning = || {
            format!(
                "{PROTOCOL}: the cluster has {HTTP_OPTIONS} already. Keep its protocol, and add http_filters of the lines to it."
            )
        };
        return Ok(if has_filter(&options)? { Vec::new() } else { vec![warning()] });
    }
    let mut warnings = Vec::new();
    if cluster.get(PROTOCOL)?.is_some() {
        warnings.push(format!("{PROTOCOL}: the cluster has this key already. Add {HTTP_OPTIONS} to it."));
    }
    for (key, place) in LEGACY_PROTOCOL {
        if cluster.get(key)?.is_some() {
            warnings.push(format!(
                "{key}: Envoy ignores this key beside HttpProtocolOptions of the lines. To keep it, write it as \
                 {place} into HttpProtocolOptions."
            ));
        }
    }
    Ok(warnings)
}

/// Returns whether the upstream filters have larder's filter.
fn has_filter(options: &Field<'_>) -> Result<bool, KeyError> {
    for filter in options.list("http_filters")? {
        if filter.text("name")? == Some(FILTER) {
            return Ok(true);
        }
    }
    Ok(false)
}
