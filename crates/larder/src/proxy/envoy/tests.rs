//! Whole configs as operators write them.

use larder_core::PolicyKind;
use larder_core::dispatch::Settings;
use proptest::prelude::*;

use super::parse;
use crate::proxy::cluster::{Cluster, Hosts};

/// A proxy before three image servers, by a ring hash of the path with a bound.
const IMAGES: &str = r#"
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 9901 } } }
static_resources:
  listeners:
  - name: http
    address: { socket_address: { address: 0.0.0.0, port_value: 8080 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          http_filters:
          - name: envoy.filters.http.router
          route_config:
            virtual_hosts:
            - name: images
              domains: ["*"]
              routes:
              - match: { prefix: "/" }
                route:
                  cluster: images
                  hash_policy: [{ header: { header_name: ":path" } }]
  clusters:
  - name: images
    type: STRICT_DNS
    lb_policy: RING_HASH
    common_lb_config:
      healthy_panic_threshold: { value: 25 }
      consistent_hashing_lb_config: { hash_balance_factor: 150 }
    load_assignment:
      cluster_name: images
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: img-a.internal, port_value: 80 } } }
        - endpoint: { address: { socket_address: { address: img-b.internal, port_value: 80 } } }
        - endpoint: { address: { socket_address: { address: img-c.internal, port_value: 80 } } }
"#;

/// A service with weights, two priorities and a draining host, as JSON in camel case.
const JSON: &str = r#"{"staticResources": {"clusters": [{
  "name": "api", "type": 0, "lbPolicy": 1, "http2ProtocolOptions": {},
  "lbSubsetConfig": {"subsetSelectors": [{"keys": ["version"]}]},
  "leastRequestLbConfig": {"choiceCount": 4, "slowStartConfig": {"slowStartWindow": "10s"}},
  "loadAssignment": {"clusterName": "api", "endpoints": [
    {"locality": {"zone": "a"}, "lbEndpoints": [
      {"endpoint": {}, "loadBalancingWeight": 1}, {"endpoint": {}, "loadBalancingWeight": "3"},
      {"endpoint": {}, "healthStatus": "DRAINING"}, {"endpoint": {}, "healthStatus": 5}]},
    {"priority": 1, "lbEndpoints": [{"endpoint": {}}]}]}}]}}"#;

fn read(text: &str) -> Cluster {
    parse(text, None).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn refusal(text: &str, name: Option<&str>) -> String {
    parse(text, name).unwrap_err().to_string()
}

/// Returns a config with one cluster of four hosts and these lines.
fn cluster(lines: &str) -> String {
    let hosts = "load_assignment: { endpoints: [{ lb_endpoints: [{}, {}, {}, {}] }] }";
    let lines: String = lines.lines().map(|line| format!("    {line}\n")).collect();
    format!("static_resources:\n  clusters:\n  - name: tier\n    {hosts}\n{lines}")
}

/// Returns the lines of an extension.
fn extension(name: &str, parameters: &str) -> String {
    format!(
        "load_balancing_policy:\n  policies:\n  - typed_extension_config:\n      name: \
         envoy.load_balancing_policies.{name}\n      typed_config: {parameters}"
    )
}

fn has(texts: &[String], part: &str) -> bool {
    texts.iter().any(|text| text.contains(part))
}

#[test]
fn a_ring_with_a_balance_factor_is_bounded() {
    let images = read(IMAGES);
    assert_eq!((&*images.name, images.hosts), ("images", Hosts::Listed(3)));
    assert_eq!(images.in_use.kind, PolicyKind::BoundedJump);
    assert_eq!(images.in_use.written, "RING_HASH with hash_balance_factor 150");
    assert!(
        has(&images.in_use.notes, "one request more than the simulator's bound"),
        "{:?}",
        images.in_use.notes
    );
    let mut settings = Settings::default();
    images.in_use.apply(&mut settings);
    assert_eq!(settings.policies.bounded.factor_permille, 1_500);
    assert_eq!(images.replaced, ["lb_policy", "common_lb_config.consistent_hashing_lb_config"]);
    assert!(has(&images.warnings, "the hosts are names"), "{:?}", images.warnings);
}

#[test]
fn hashes_that_do_not_follow_the_target_are_random() {
    let with =
        |policy: &str| read(&IMAGES.replace("[{ header: { header_name: \":path\" } }]", policy)).in_use;
    let absent = with("[]");
    assert_eq!(absent.kind, PolicyKind::Random);
    assert!(has(&absent.notes, "No route to the cluster has hash_policy"), "{:?}", absent.notes);
    let cookie = with("[{ cookie: { name: session } }]");
    assert_eq!(cookie.kind, PolicyKind::Random);
    assert!(has(&cookie.notes, "Envoy hashes a cookie"), "{:?}", cookie.notes);
    let header = with("[{ header: { header_name: x-image }, terminal: true }, { cookie: { name: s } }]");
    assert_eq!(header.kind, PolicyKind::BoundedJump);
    assert!(has(&header.notes, "Envoy hashes the header x-image"), "{:?}", header.notes);
    let weighted = IMAGES
        .replace("cluster: images\n", "weighted_clusters: { clusters: [{ name: images, weight: 1 }] }\n");
    assert_eq!(read(&weighted).in_use.kind, PolicyKind::BoundedJump);
}

#[test]
fn json_in_camel_case_with_numbers_is_read() {
    let api = read(JSON);
    assert_eq!((api.hosts, api.in_use.kind), (Hosts::Listed(2), PolicyKind::LeastConn));
    assert_eq!(api.replaced, ["lb_policy", "lb_subset_config"]);
    for part in [
        "lb_subset_config: larder's module refuses subsets",
        "weights (1 to 3)",
        "uses the other 1 only if none",
        "degraded hosts (1)",
        "unhealthy hosts (1)",
        "slow_start_config",
    ] {
        assert!(has(&api.warnings, part), "{part}: {:?}", api.warnings);
    }
    assert!(has(&api.lines_warnings, "http2_protocol_options: Envoy ignores"), "{:?}", api.lines_warnings);
}

#[test]
fn protocol_keys_that_conflict_with_the_lines_cause_warnings() {
    let conflicts = |lines: &str| read(&cluster(lines)).lines_warnings;
    for key in [
        "common_http_protocol_options",
        "upstream_http_protocol_options",
        "http_protocol_options",
        "http2_protocol_options",
        "protocol_selection",
    ] {
        assert!(has(&conflicts(&format!("{key}: {{}}")), &format!("{key}: Envoy ignores this key")), "{key}");
    }
    let options = |filters: &str| {
        conflicts(&format!(
            "typed_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \
             http_filters: {filters} }} }}"
        ))
    };
    assert!(has(&options("[{ name: other }]"), "add http_filters of the lines"));
    assert_eq!(options("[{ name: other }, { name: larder }]"), [""; 0]);
}

#[test]
fn a_logical_name_is_one_host() {
    let logical = read(&cluster("type: LOGICAL_DNS"));
    assert_eq!(logical.hosts, Hosts::Listed(1));
    assert!(has(&logical.warnings, "LOGICAL_DNS has one host"), "{:?}", logical.warnings);
    assert!(!has(&logical.warnings, "--nodes"), "{:?}", logical.warnings);
}

#[test]
fn the_config_of_the_module_is_a_struct_or_a_text() {
    let with = |value: &str| {
        extension(
            "dynamic_modules",
            &format!(
                "{{ dynamic_module_config: {{ name: larder_envoy }}, lb_policy_config: {{ value: {value} }} }}"
            ),
        )
    };
    for value in ["{ policy: rr, join: 5s }", "'{\"policy\": \"rr\", \"join\": \"5s\"}'"] {
        let used = read(&cluster(&with(value))).in_use;
        assert_eq!(used.kind, PolicyKind::Rr, "{value}");
        assert!(has(&used.notes, "the other keys of its config (join)"), "{:?}", used.notes);
    }
    assert_eq!(read(&cluster(&with("{ policy: rr }"))).in_use.notes, [""; 0]);
    let error = refusal(&cluster(&with("'policy'")), None);
    assert!(error.contains("lb_policy_config.value: the text is not JSON"), "{error}");
}

#[test]
fn each_policy_has_its_equivalent() {
    for (lines, kind, written) in [
        ("type: STATIC", PolicyKind::Rr, "ROUND_ROBIN"),
        ("lb_policy: RANDOM", PolicyKind::Random, "RANDOM"),
        ("lb_policy: LEAST_REQUEST", PolicyKind::P2c, "LEAST_REQUEST"),
        (
            "lb_policy: LEAST_REQUEST\nleast_request_lb_config: { choice_count: 5 }",
            PolicyKind::P2c,
            "LEAST_REQUEST with choice_count 5",
        ),
        ("lb_policy: RING_HASH", PolicyKind::Hash, "RING_HASH"),
        ("lb_policy: MAGLEV\nmaglev_lb_config: { table_size: 1021 }", PolicyKind::Maglev, "MAGLEV"),
        (&extension("round_robin", "{}"), PolicyKind::Rr, "ROUND_ROBIN"),
        (
            &extension("least_request", "{ selection_method: FULL_SCAN }"),
            PolicyKind::LeastConn,
            "LEAST_REQUEST",
        ),
        (
            &extension("maglev", "{ consistent_hashing_lb_config: { hash_balance_factor: 120 } }"),
            PolicyKind::BoundedJump,
            "MAGLEV with hash_balance_factor 120",
        ),
        (
            &extension(
                "ring_hash",
                "{ consistent_hashing_lb_config: { hash_policy: [{ cookie: { name: a } }] } }",
            ),
            PolicyKind::Random,
            "RING_HASH",
        ),
        (
            &extension(
                "x",
                "{ \"@type\": t/xds.type.v3.TypedStruct, type_url: t/envoy.extensions.load_balancing_policies.random.v3.Random, value: {} }",
            ),
            PolicyKind::Random,
            "RANDOM",
        ),
    ] {
        let read = read(&cluster(lines));
        assert_eq!((read.in_use.kind, &*read.in_use.written), (kind, written), "{lines}");
        assert_eq!(read.hosts, Hosts::Listed(4), "{lines}");
    }
    let maglev = |size: &str| {
        read(&cluster(&format!("lb_policy: MAGLEV\nmaglev_lb_config: {{ table_size: {size} }}")))
            .in_use
            .table_size
    };
    assert_eq!((maglev("1021"), maglev("1000")), (Some(1_021), None), "a table needs a prime");
}

#[test]
fn policies_around_another_are_named() {
    let inner =
        "{ policies: [{ typed_extension_config: { name: envoy.load_balancing_policies.least_request } }] }";
    let subset = read(&cluster(&extension("subset", &format!("{{ subset_lb_policy: {inner} }}"))));
    assert_eq!(subset.in_use.kind, PolicyKind::P2c);
    assert!(has(&subset.warnings, "SUBSET: larder's module refuses to run inside"), "{:?}", subset.warnings);
    assert_eq!(subset.replaced, ["load_balancing_policy"]);
    let over = read(&cluster(&extension("override_host", &format!("{{ fallback_policy: {inner} }}"))));
    assert!(has(&over.warnings, "OVERRIDE_HOST: "), "{:?}", over.warnings);
}

#[test]
fn hosts_of_other_sources_are_unlisted() {
    let why = |text: &str| match read(text).hosts {
        Hosts::Unlisted(reason) => reason,
        Hosts::Listed(count) => panic!("{count} hosts: {text}"),
    };
    let eds = cluster("type: EDS\neds_cluster_config: { eds_config: { ads: {} } }");
    assert_eq!(why(&eds), "a cluster of type EDS has its hosts elsewhere");
    let aggregate = cluster("cluster_type: { name: envoy.clusters.aggregate }");
    assert_eq!(why(&aggregate), "a cluster of type AGGREGATE has its hosts elsewhere");
    assert_eq!(why("static_resources: { clusters: [{ name: a }] }"), "load_assignment lists no hosts");
    let draining = cluster("type: STATIC").replace("{}, {}, {}, {}", "{ health_status: DRAINING }");
    assert_eq!(why(&draining), "load_assignment lists no healthy host of priority 0");
}

#[test]
fn errors_name_the_key_and_the_remedy() {
    let two = "static_resources: { clusters: [{ name: a }, { name: b }] }";
    assert_eq!(
        refusal(two, None),
        "static_resources.clusters: there are 2 clusters: a, b (choose one of them with --cluster NAME)"
    );
    assert!(refusal(two, Some("c")).contains("there is no cluster 'c', only: a, b"));
    assert!(has(&parse(two, Some("b")).unwrap().warnings, "Envoy has other clusters too"));
    assert!(
        refusal("dynamic_resources: { cds_config: { ads: {} } }", None)
            .contains("dynamic_resources.cds_config")
    );
    assert!(refusal("node: { id: x }", None).contains("lists no cluster (give Envoy's static bootstrap)"));
    assert!(refusal("static_resources: 3", None).starts_with("static_resources: the value is not a mapping"));
    assert!(refusal("just text", None).starts_with("the config: the value is not a mapping"));
    assert!(
        refusal("static_resources: { clusters: [{}] }", None).starts_with("static_resources.clusters[0]: ")
    );
    for (lines, part) in [
        (
            "lb_policy: CLUSTER_PROVIDED",
            "clusters[0].lb_policy: the simulator has no equivalent of CLUSTER_PROVIDED",
        ),
        ("lb_policy: 99", "clusters[0].lb_policy: 99 is not a known value"),
        (
            "lb_policy: MAGLEV\ncommon_lb_config: { consistent_hashing_lb_config: { hash_balance_factor: 20 } }",
            "consistent_hashing_lb_config.hash_balance_factor: 20 is below 100",
        ),
        ("load_balancing_policy: {}", "load_balancing_policy: there is no policy"),
        (&extension("subset", "{}"), "policies[0]: SUBSET contains no policy (add subset_lb_policy)"),
        (
            &extension("client_side_weighted_round_robin", "{}"),
            "no equivalent of CLIENT_SIDE_WEIGHTED_ROUND_ROBIN",
        ),
        (&extension("dynamic_modules", "{ dynamic_module_config: { name: other } }"), "the module 'other'"),
    ] {
        let error = refusal(&cluster(lines), None);
        assert!(error.contains(part) && error.ends_with(')'), "{part}: {error}");
    }
}

#[test]
fn long_lists_and_odd_names_stay_readable() {
    let names: String = (0..50).map(|n| format!("{{ name: \"c\\e{n}\" }}, ")).collect();
    let error = refusal(&format!("static_resources: {{ clusters: [{names}] }}"), None);
    assert!(
        error.contains("there are 50 clusters: c?0, c?1, ") && error.contains("c?19, and 30 more"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn damaged_configs_give_a_cluster_or_an_error(at in 0_usize..2_400, cut in 0_usize..2_400, piece in "[-{}\\[\\]:,0-9a-z \\n]{0,6}") {
        for whole in [IMAGES, JSON] {
            let mut text: String = whole.chars().take(at).collect();
            text.push_str(&piece);
            text.extend(whole.chars().skip(at.max(cut.min(at + 40))));
            let _ = parse(&text, None);
        }
    }
}
