//! `larder plan --envoy`.

use serde_json::Value;

use super::{Files, text};

/// Envoy's config with a cluster of four hosts. POLICY stands for the policy.
const CONFIG: &str = r#"static_resources:
  listeners:
  - name: web
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          route_config:
            virtual_hosts:
            - domains: ["*"]
              routes:
              - match: { prefix: / }
                route: { cluster: tier, hash_policy: [{ header: { header_name: ":path" } }] }
  clusters:
  - name: tier
    type: STATIC
    lb_policy: POLICY
    load_assignment:
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 10.0.0.1, port_value: 80 } } }
        - endpoint: { address: { socket_address: { address: 10.0.0.2, port_value: 80 } } }
        - endpoint: { address: { socket_address: { address: 10.0.0.3, port_value: 80 } } }
        - endpoint: { address: { socket_address: { address: 10.0.0.4, port_value: 80 } } }
"#;

/// Returns the files, with a log in Envoy's default format.
fn files() -> Files {
    Files::new("--envoy", |n, [hour, minute, second], path| {
        format!(
            "[2026-03-01T0{hour}:{minute:02}:{second:02}.000Z] \"GET {path} HTTP/1.1\" 200 - 0 10000 12 11 \"192.0.2.1\" \
             \"agent\" \"id-{n}\" \"www.example.org\" \"10.0.0.1:80\""
        )
    })
}

#[test]
fn the_gain_and_the_lines_of_config_are_printed() {
    let files = files();
    let config = files.write("envoy.yaml", &CONFIG.replace("POLICY", "LEAST_REQUEST"));
    let page = files.folder.path().join("plan.html").to_str().unwrap().to_owned();
    let output = files.plan(&config, &["--memory", "1MB", "--html", &page]);
    let words = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let flowing = words.replace('\n', " ");
    for part in [
        "Envoy's cluster tier has 4 hosts and chooses hosts by LEAST_REQUEST. The plan simulates it as p2c.",
        "Change the policy to lard-r: on 4 nodes with 1 MB each it serves ",
        "add these lines to the cluster tier of ",
        "envoy.yaml, in place of lb_policy:",
    ] {
        assert!(flowing.contains(part), "{part}: {words}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("Change the policy to lard-r") && page.contains("lb_policy_name: larder"),
        "{page}"
    );

    let output = files.plan(&config, &["--memory", "1MB", "--json"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["logs"][0]["format"], "envoy");
    let proxy = &plan["proxy"];
    let facts =
        ["proxy", "cluster", "in_use", "simulated_as", "policy"].map(|key| proxy[key].as_str().unwrap());
    assert_eq!(facts, ["envoy", "tier", "LEAST_REQUEST", "p2c", "lard-r"]);
    assert_eq!((&proxy["hosts"], &proxy["replaced"]), (&4.into(), &serde_json::json!(["lb_policy"])));
    let lines = proxy["lines"].as_str().unwrap();
    assert!(words.contains(lines), "the text has the lines of JSON");
    let change = &proxy["changes"][0];
    assert_eq!((&change["nodes"], &change["over"]), (&4.into(), &"p2c".into()));
    assert!(change["hit_points"].as_f64().unwrap() > 5.0 && change["pays"] == true, "{change}");
    let cells = plan["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3, "rr, and the two policies of the change");
}

#[test]
fn the_lines_of_the_plan_are_a_config_that_needs_no_change() {
    let files = files();
    let config = CONFIG.replace("POLICY", "LEAST_REQUEST");
    let path = files.write("envoy.yaml", &config);
    let output = files.plan(&path, &["--memory", "1MB", "--t-low", "30", "--json"]);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["proxy"]["simulated_as"], "p2c");
    let lines = plan["proxy"]["lines"].as_str().unwrap();
    assert!(lines.contains("{ policy: lard-r, policies: { lard: { t_low: 30, t_high: 65 } } }"), "{lines}");
    let lines: String = lines.lines().map(|line| format!("    {line}\n")).collect();
    let changed = config.replace("    lb_policy: LEAST_REQUEST\n", &lines);
    let path = files.write("changed.yaml", &changed);
    let output = files.plan(&path, &["--memory", "1MB"]);
    let words = text(&output.stdout).replace('\n', " ");
    assert!(words.contains("already uses larder's policy lard-r."), "{words}");
    assert!(!words.contains("add these lines"), "{words}");
    assert!(!words.contains("http_filters"), "{words}");
}

#[test]
fn a_bounded_hash_has_the_factor_of_the_config() {
    let files = files();
    let bound =
        "MAGLEV\n    common_lb_config: { consistent_hashing_lb_config: { hash_balance_factor: 120 } }";
    let config = files.write("envoy.yaml", &CONFIG.replace("POLICY", bound));
    let output = files.plan(&config, &["--nodes", "2,3", "--memory", "1MB,2MB"]);
    let words = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let flowing = words.replace('\n', " ");
    for part in [
        "by MAGLEV with hash_balance_factor 120. The plan simulates it as bounded-jump with 1.20 times the mean load.",
        "The config does not tell the memory of a host; state it with --memory.",
        "in place of lb_policy, common_lb_config.consistent_hashing_lb_config:",
    ] {
        assert!(flowing.contains(part), "{part}: {words}");
    }
    assert!(words.contains("from bounded-jump to lard-r"), "{words}");
    let rows = words.lines().filter(|line| line.trim_start_matches("> ").starts_with(['2', '3']));
    assert_eq!(rows.filter(|line| line.contains(" MB each  ")).count(), 4, "{words}");
}

#[test]
fn parts_that_the_module_refuses_cause_warnings() {
    let files = files();
    let subsets = "ROUND_ROBIN\n    lb_subset_config: { subset_selectors: [{ keys: [version] }] }";
    let config = files.write("envoy.yaml", &CONFIG.replace("POLICY", subsets));
    let words = text(&files.plan(&config, &["--memory", "1MB"]).stdout);
    assert!(words.contains("\nwarning: lb_subset_config: larder's module refuses subsets."), "{words}");
}

#[test]
fn wrong_configs_are_named_with_the_remedy() {
    let files = files();
    let eds = CONFIG.replace("STATIC", "EDS").replace("POLICY", "ROUND_ROBIN");
    let other = "  - { name: other, type: STATIC }\n";
    let good = files.write("good.yaml", &CONFIG.replace("POLICY", "ROUND_ROBIN"));
    let (eds, two) = (files.write("eds.yaml", &eds), files.write("two.yaml", &format!("{eds}{other}")));
    let broken = files.write("broken.yaml", "static_resources: [\n");
    let policy = files.write("policy.yaml", &CONFIG.replace("POLICY", "CLUSTER_PROVIDED"));
    let cases: [(&str, &[&str], &[&str]); 8] = [
        (
            &eds,
            &[],
            &["eds.yaml: the cluster 'tier' ", "a cluster of type EDS", "(state the number with --nodes)"],
        ),
        (
            &two,
            &[],
            &["two.yaml: static_resources.clusters: there are 2 clusters: tier, other", "--cluster NAME"],
        ),
        (&good, &["--cluster", "x"], &["there is no cluster 'x', only: tier"]),
        (&broken, &[], &["broken.yaml: the config: it is not YAML: "]),
        (
            &policy,
            &[],
            &[
                "policy.yaml: static_resources.clusters[0].lb_policy: ",
                "CLUSTER_PROVIDED",
                "a copy of the file",
            ],
        ),
        (&good, &["--switch", "larder.toml"], &["cannot be used with"]),
        (&good, &["--write-config", "larder.toml"], &["cannot be used with"]),
        ("/nonexistent.yaml", &[], &["cannot read /nonexistent.yaml"]),
    ];
    for (config, more, parts) in cases {
        let output = files.plan(config, more);
        let talk = text(&output.stderr);
        let code = if config.starts_with("/non") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{config} {more:?}: {talk}");
        for part in parts {
            assert!(talk.contains(part), "{config} {more:?}: {part}: {talk}");
        }
    }
    let output = files.plan(&eds, &["--nodes", "3", "--memory", "1MB"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let words = text(&output.stdout);
    assert!(words.contains("Envoy's cluster tier chooses hosts by ROUND_ROBIN."), "{words}");
}
