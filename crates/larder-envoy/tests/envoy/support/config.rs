//! Envoy's config, with the lines that docs/operate/embed.md shows.

use super::Ports;
use serde_json::{Value, json};
use std::path::Path;

const TYPE: &str = "type.googleapis.com";

/// The options of a config.
pub(crate) struct Options<'a> {
    /// The config of the policy.
    pub(crate) policy: Value,
    /// The nodes, or a file with them that Envoy watches.
    pub(crate) endpoints: Endpoints<'a>,
}

pub(crate) enum Endpoints<'a> {
    Fixed(&'a [u16]),
    /// A file for EDS.
    File(&'a Path),
}

/// Returns the config of Envoy with a cluster `tier`.
pub(crate) fn bootstrap(ports: Ports, folder: &Path, options: &Options<'_>) -> Value {
    let mut config = frame(ports, folder);
    config["static_resources"]["clusters"] = json!([cluster(options)]);
    if options.policy["prompts"].is_object() {
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
        let filters =
            config.pointer_mut(manager).and_then(Value::as_array_mut).expect("the filters of the listener");
        filters.insert(0, filter("larder_prompts"));
    }
    config
}

/// Returns the config without clusters.
pub(crate) fn frame(ports: Ports, folder: &Path) -> Value {
    let log = json!({
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": format!("{TYPE}/envoy.extensions.access_loggers.file.v3.FileAccessLog"),
            "path": folder.join("access.log"),
            "log_format": { "text_format_source": {
                "inline_string": "%RESPONSE_CODE% %UPSTREAM_HOST% %DYNAMIC_METADATA(larder:reason)% %REQ(:PATH)%\n",
            } },
        },
    });
    // The cluster may come later, by CDS.
    let routes = json!({ "validate_clusters": false, "virtual_hosts": [{
        "name": "all",
        "domains": ["*"],
        "routes": [{ "match": { "prefix": "/" }, "route": {
            "cluster": "tier",
            "retry_policy": {
                "retry_on": "connect-failure,refused-stream,reset,unavailable",
                "num_retries": 3,
                "retry_host_predicate": [{
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {
                        "@type": format!("{TYPE}/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"),
                    },
                }],
                "host_selection_retry_max_attempts": 3,
            },
        } }],
    }] });
    let admin = json!({ "virtual_hosts": [] });
    json!({
        "admin": { "address": address(ports.admin) },
        "static_resources": { "listeners": [
            listener("requests", ports.requests, &json!([router()]), &routes, &json!([log])),
            listener("larder", ports.larder, &json!([filter("larder_admin"), router()]), &admin, &json!([])),
        ] },
    })
}

/// Returns the cluster `tier`.
pub(crate) fn cluster(options: &Options<'_>) -> Value {
    let protocol = format!("{TYPE}/envoy.extensions.upstreams.http.v3.HttpProtocolOptions");
    let policies = format!("{TYPE}/envoy.extensions.load_balancing_policies.dynamic_modules.v3");
    let mut cluster = json!({
        "name": "tier",
        "connect_timeout": "2s",
        // Envoy's default is 3 retries at a time. All clients may meet a failed node at once.
        "circuit_breakers": { "thresholds": [{ "max_retries": 1_000 }] },
        "load_balancing_policy": { "policies": [{ "typed_extension_config": {
            "name": "envoy.load_balancing_policies.dynamic_modules",
            "typed_config": {
                "@type": format!("{policies}.DynamicModulesLoadBalancerConfig"),
                "dynamic_module_config": { "name": "larder_envoy" },
                "lb_policy_name": "larder",
                "lb_policy_config": { "@type": format!("{TYPE}/google.protobuf.Struct"), "value": options.policy },
            },
        } }] },
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": protocol,
            "explicit_http_config": { "http_protocol_options": {} },
            "http_filters": [filter("larder"), {
                "name": "envoy.filters.http.upstream_codec",
                "typed_config": { "@type": format!("{TYPE}/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec") },
            }],
        } },
    });
    match options.endpoints {
        Endpoints::Fixed(ports) => {
            cluster["type"] = "STATIC".into();
            cluster["load_assignment"] =
                assignment(&ports.iter().map(|port| Endpoint::of(*port)).collect::<Vec<_>>());
        }
        Endpoints::File(path) => {
            cluster["type"] = "EDS".into();
            cluster["eds_cluster_config"] =
                json!({ "service_name": "tier", "eds_config": { "path_config_source": { "path": path } } });
        }
    }
    cluster
}

/// A host in a load assignment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) port: u16,
    pub(crate) health: &'static str,
    pub(crate) weight: u32,
    pub(crate) priority: u32,
}

impl Endpoint {
    pub(crate) fn of(port: u16) -> Self {
        Self { port, health: "HEALTHY", weight: 1, priority: 0 }
    }
}

/// Returns a load assignment.
pub(crate) fn assignment(endpoints: &[Endpoint]) -> Value {
    let levels = endpoints.iter().map(|endpoint| endpoint.priority).max().map_or(0, |most| most + 1);
    let level = |priority: u32| {
        let members = endpoints.iter().filter(|endpoint| endpoint.priority == priority);
        let shown = members.map(|Endpoint { port, health, weight, .. }| {
            json!({
                "endpoint": { "address": address(*port) },
                "health_status": health,
                "load_balancing_weight": weight,
            })
        });
        json!({ "priority": priority, "lb_endpoints": shown.collect::<Vec<_>>() })
    };
    json!({ "cluster_name": "tier", "endpoints": (0..levels).map(level).collect::<Vec<_>>() })
}

/// Writes a file that Envoy watches. Envoy sees a file that is moved into its place.
pub(crate) fn write_resource(path: &Path, kind: &str, mut resource: Value) {
    resource["@type"] = format!("{TYPE}/{kind}").into();
    let text = json!({ "version_info": "1", "resources": [resource] }).to_string();
    let new = path.with_extension("new");
    std::fs::write(&new, text).expect("written");
    std::fs::rename(&new, path).expect("moved");
}

/// Writes the hosts for EDS.
pub(crate) fn write_endpoints(path: &Path, endpoints: &[Endpoint]) {
    write_resource(path, "envoy.config.endpoint.v3.ClusterLoadAssignment", assignment(endpoints));
}

fn address(port: u16) -> Value {
    json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } })
}

fn filter(name: &str) -> Value {
    json!({
        "name": name,
        "typed_config": {
            "@type": format!("{TYPE}/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"),
            "dynamic_module_config": { "name": "larder_envoy" },
            "filter_name": name,
        },
    })
}

fn router() -> Value {
    json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": format!("{TYPE}/envoy.extensions.filters.http.router.v3.Router") },
    })
}

fn listener(name: &str, port: u16, filters: &Value, routes: &Value, logs: &Value) -> Value {
    json!({
        "name": name,
        "address": address(port),
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": format!("{TYPE}/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"),
                "stat_prefix": name,
                "http_filters": filters,
                "route_config": routes,
                "access_log": logs,
            },
        }] }],
    })
}
