//! The module inside real Envoys.

mod prompts;
mod support;

use larder_sim::replay::Replay;
use larder_testkit::proxy::{CLIENTS, Client, Connections, Load, Node, get, path, placements};
use larder_testkit::{eventually, needs_tool};
use serde_json::json;
use std::fs::File;
use std::io::BufReader;
use std::process::{Command, Stdio};
use std::thread;
use std::time::SystemTime;
use support::config::{
    Endpoint, Endpoints, Options, bootstrap, cluster, frame, write_endpoints, write_resource,
};
use support::{Envoy, LATEST, Ports, VERSIONS, command, module, program, read};

/// The number of Envoy's workers.
const WORKERS: u32 = 4;

fn nodes(count: usize) -> Vec<Node> {
    (0..count).map(|_| Node::start()).collect()
}

fn ports(nodes: &[Node]) -> Vec<u16> {
    nodes.iter().map(|node| node.port).collect()
}

fn endpoints(nodes: &[Node]) -> Vec<Endpoint> {
    nodes.iter().map(|node| Endpoint::of(node.port)).collect()
}

/// Waits until the dispatcher has these numbers of nodes: those that take requests, and the others.
fn wait_for_nodes(envoy: &Envoy, up: usize, others: usize) {
    let count = || {
        let nodes = envoy.nodes();
        let up = nodes.iter().filter(|node| node["state"] == "up").count();
        (up, nodes.len() - up)
    };
    eventually(
        std::fmt::from_fn(|f| write!(f, "{up} nodes up, {others} others: {:?}", envoy.nodes())),
        || (count() == (up, others)).then_some(()),
    );
}

#[test]
fn all_workers_share_the_dispatcher_in_every_supported_envoy() {
    const TARGETS: usize = 200;
    for version in VERSIONS {
        let Some(program) = program(version) else { return };
        let nodes = nodes(4);
        let options =
            Options { policy: json!({ "policy": "lard" }), endpoints: Endpoints::Fixed(&ports(&nodes)) };
        let envoy = Envoy::start(&program, WORKERS, |ports, folder| bootstrap(ports, folder, &options));

        let first = placements(envoy.port, TARGETS);
        for _ in 0..3 {
            assert_eq!(placements(envoy.port, TARGETS), first, "{version}: targets stay at their nodes");
        }
        let requests = 4 * TARGETS as u64;
        assert_eq!(nodes.iter().map(Node::served).sum::<u64>(), requests, "{version}");
        assert!(nodes.iter().all(|node| node.served() > 0), "{version}: every node has targets");

        // The metrics, the access log and the admin filter tell the same.
        let stats = |names: &[&str]| names.iter().map(|name| envoy.stat(name)).collect::<Vec<_>>();
        eventually("the metrics are complete", || (envoy.stat("larder.replies") == requests).then_some(()));
        let counters = ["larder.hits", "larder.misses", "larder.decisions_first", "larder.decisions_local"];
        let (targets, again) = (TARGETS as u64, requests - TARGETS as u64);
        assert_eq!(stats(&counters), [again, targets, targets, again], "{version}");
        assert_eq!(
            stats(&["larder.bytes", "larder.bypassed", "larder.not_started"]),
            [1_000 * requests, 0, 0]
        );
        eventually("the access log is complete", || {
            (envoy.access_log().len() as u64 == requests).then_some(())
        });
        let lines = envoy.access_log();
        let line = format!("200 127.0.0.1:{} first {}", first[&7], path(7));
        assert!(lines.contains(&line), "{version}: no '{line}' in {lines:?}");
        let explained = envoy.larder_page(&format!("/explain?target=tier.example{}", path(7)));
        assert_eq!(explained["node"], format!("127.0.0.1:{}", first[&7]), "{version}: {explained}");
        assert_eq!(
            (&explained["reason"], &explained["key"]),
            (&json!("local"), &json!(format!("tier.example{}", path(7))))
        );
        let loads = || envoy.nodes().iter().filter_map(|node| node["load"].as_u64()).sum::<u64>();
        eventually("every request has ended", || (loads() == 0).then_some(()));
    }
}

#[test]
fn hosts_fail_join_and_leave_without_a_failed_request() {
    const TARGETS: usize = 100;
    let Some(program) = program(LATEST) else { return };
    let mut nodes = nodes(5);
    let spare = nodes.pop().expect("a fifth node");
    let mut hosts = None;
    let envoy = Envoy::start(&program, WORKERS, |ports, folder| {
        let file = folder.join("endpoints.json");
        write_endpoints(&file, &endpoints(&nodes));
        let options = Options { policy: json!({ "policy": "lard" }), endpoints: Endpoints::File(&file) };
        let config = bootstrap(ports, folder, &options);
        hosts = Some(file);
        with_node_id(config)
    });
    let hosts = hosts.expect("a file");
    let before = placements(envoy.port, TARGETS);
    Load::during(envoy.port, TARGETS, Connections::Kept, |load| {
        load.go_on(200);
        nodes[0].kill();
        load.go_on(200);
        let mut members = endpoints(&nodes);
        members[0].health = "UNHEALTHY";
        write_endpoints(&hosts, &members);
        wait_for_nodes(&envoy, 3, 1);
        load.go_on(200);
        members.push(Endpoint::of(spare.port));
        write_endpoints(&hosts, &members);
        wait_for_nodes(&envoy, 4, 1);
        load.go_on(200);
        members[1].health = "DRAINING";
        write_endpoints(&hosts, &members);
        wait_for_nodes(&envoy, 3, 2);
        load.go_on(200);
        members.drain(..2);
        write_endpoints(&hosts, &members);
        wait_for_nodes(&envoy, 3, 0);
        load.go_on(200);
    });
    let after = placements(envoy.port, TARGETS);
    let stayed = [nodes[2].port, nodes[3].port];
    for (target, node) in before.iter().filter(|(_, node)| stayed.contains(node)) {
        assert_eq!(after[target], *node, "target {target} stays at its node");
    }
    assert!(after.values().all(|node| stayed.contains(node) || *node == spare.port));
}

#[test]
fn all_hosts_are_replaced_at_once_without_a_failed_request() {
    const TARGETS: usize = 100;
    let Some(program) = program(LATEST) else { return };
    let sets = [nodes(2), nodes(2)];
    let mut hosts = None;
    let envoy = Envoy::start(&program, WORKERS, |ports, folder| {
        let file = folder.join("endpoints.json");
        write_endpoints(&file, &endpoints(&sets[0]));
        let options = Options { policy: json!({ "policy": "lard-r" }), endpoints: Endpoints::File(&file) };
        let config = bootstrap(ports, folder, &options);
        hosts = Some(file);
        with_node_id(config)
    });
    let hosts = hosts.expect("a file");
    Load::during(envoy.port, TARGETS, Connections::Kept, |load| {
        for turn in 1..=6 {
            let set = &sets[turn % 2];
            write_endpoints(&hosts, &endpoints(set));
            eventually("the other hosts take the requests", || {
                let nodes = envoy.nodes();
                let is_set = |node: &serde_json::Value| {
                    node["state"] == "up"
                        && set.iter().any(|of| node["name"] == format!("127.0.0.1:{}", of.port))
                };
                (nodes.len() == 2 && nodes.iter().all(is_set)).then_some(())
            });
            load.go_on(200);
        }
    });
}

/// Envoy's file-based discovery needs a name for the process.
fn with_node_id(mut config: serde_json::Value) -> serde_json::Value {
    config["node"] = json!({ "id": "test", "cluster": "test" });
    config
}

#[test]
fn a_lower_priority_level_is_used_while_the_higher_one_has_no_healthy_host() {
    const TARGETS: usize = 40;
    let Some(program) = program(LATEST) else { return };
    let nodes = nodes(3);
    let mut members = endpoints(&nodes);
    members[2].priority = 1;
    let mut hosts = None;
    let envoy = Envoy::start(&program, WORKERS, |ports, folder| {
        let file = folder.join("endpoints.json");
        write_endpoints(&file, &members);
        let options = Options { policy: json!({ "policy": "lard-r" }), endpoints: Endpoints::File(&file) };
        let config = bootstrap(ports, folder, &options);
        hosts = Some(file);
        with_node_id(config)
    });
    let hosts = hosts.expect("a file");
    placements(envoy.port, TARGETS);
    assert_eq!(nodes[2].served(), 0);
    members[0].health = "UNHEALTHY";
    members[1].health = "UNHEALTHY";
    write_endpoints(&hosts, &members);
    wait_for_nodes(&envoy, 1, 2);
    assert!(placements(envoy.port, TARGETS).values().all(|node| *node == nodes[2].port));
    members[0].health = "HEALTHY";
    write_endpoints(&hosts, &members);
    // A node of the first level is up as soon as one worker has it, and the other workers follow.
    eventually("all requests go to the healthy host of the first level", || {
        placements(envoy.port, TARGETS).values().all(|node| *node == nodes[0].port).then_some(())
    });
}

#[test]
fn a_changed_policy_keeps_the_targets_at_their_nodes() {
    const TARGETS: usize = 100;
    let Some(program) = program(LATEST) else { return };
    let nodes = nodes(4);
    let ports = ports(&nodes);
    let options = |t_high: u32| Options {
        policy: json!({ "policy": "lard", "policies": { "lard": { "t_high": t_high } } }),
        endpoints: Endpoints::Fixed(&ports),
    };
    let kind = "envoy.config.cluster.v3.Cluster";
    let mut file = None;
    let envoy = Envoy::start(&program, WORKERS, |ports, folder| {
        let clusters = folder.join("clusters.json");
        write_resource(&clusters, kind, cluster(&options(80)));
        let mut config = with_node_id(frame(ports, folder));
        config["dynamic_resources"] =
            json!({ "cds_config": { "path_config_source": { "path": &clusters } } });
        file = Some(clusters);
        config
    });
    let before = placements(envoy.port, TARGETS);
    Load::during(envoy.port, TARGETS, Connections::Kept, |load| {
        write_resource(&file.expect("a file"), kind, cluster(&options(90)));
        eventually("the new policy is used", || {
            let status = envoy.larder_page("/status");
            (status["clusters"][0]["t_high"] == 90).then_some(())
        });
        load.go_on(400);
    });
    envoy.wait_for_log("learned state loaded (targets=100)");
    assert_eq!(placements(envoy.port, TARGETS), before);
}

#[test]
fn a_hot_restart_keeps_the_targets_at_their_nodes() {
    const TARGETS: usize = 100;
    let Some(program) = program(LATEST) else { return };
    let nodes = nodes(4);
    let folder = tempfile::TempDir::new().expect("a folder");
    let ports = Ports::free();
    let options = Options {
        policy: json!({ "policy": "lard", "state_file": folder.path().join("state") }),
        endpoints: Endpoints::Fixed(&self::ports(&nodes)),
    };
    let config = bootstrap(ports, folder.path(), &options);
    // The old process tells every client to close its connection, and ends long after the last one has done so.
    let shared = [
        "--concurrency",
        "4",
        "--drain-strategy",
        "immediate",
        "--drain-time-s",
        "1",
        "--parent-shutdown-time-s",
        "6",
    ];
    let id = folder.path().join("base-id");
    let mut first = command(&program, folder.path(), &config);
    first.args(shared).arg("--use-dynamic-base-id").arg("--base-id-path").arg(&id);
    let second_folder = tempfile::TempDir::new().expect("a folder");
    let state = folder.path().join("state");
    let mut old = Envoy::run(&mut first, folder, ports);
    // It ends after the clients.
    let mut current = None;
    let before = placements(old.port, TARGETS);
    let placed = SystemTime::now();
    // The state file is written every 10 s. A target takes at least 16 bytes.
    eventually("the state file has all targets", || {
        let file = std::fs::metadata(&state).ok()?;
        let is_new = file.modified().is_ok_and(|written| written > placed);
        (is_new && file.len() > 16 * TARGETS as u64).then_some(())
    });
    Load::during(old.port, TARGETS, Connections::Kept, |load| {
        let mut second = command(&program, second_folder.path(), &config);
        second.args(shared).args([
            "--restart-epoch",
            "1",
            "--base-id",
            read(old.folder.path(), "base-id").trim(),
        ]);
        let new = Envoy::run(&mut second, second_folder, ports);
        old.wait();
        load.go_on(400);
        new.wait_for_log("learned state loaded (targets=100)");
        assert_eq!(placements(new.port, TARGETS), before);
        current = Some(new);
    });
    drop(current);
}

#[test]
fn a_limit_of_the_policy_refuses_requests_and_counts_them() {
    let Some(program) = program(LATEST) else { return };
    let nodes = nodes(2);
    let options = Options {
        policy: json!({ "policy": "lard-r", "admission": { "limit": 1 } }),
        endpoints: Endpoints::Fixed(&ports(&nodes)),
    };
    let mut envoy = Envoy::start(&program, 1, |ports, folder| bootstrap(ports, folder, &options));
    let replies: Vec<u16> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let port = envoy.port;
                scope.spawn(move || {
                    let mut connection = Client::connect(port).expect("a connection");
                    (0..50)
                        .map(|turn| connection.get(&path(50 * client + turn)).expect("a reply").status)
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    let refused = replies.iter().filter(|status| **status == 503).count();
    assert_eq!(replies.iter().filter(|status| **status == 200).count() + refused, CLIENTS * 50);
    assert!(refused > 0);
    eventually("refusals are counted", || {
        (envoy.stat("larder.refused_limit") == refused as u64).then_some(())
    });
    assert!(envoy.is_running());
}

#[test]
fn a_wrong_config_is_refused_with_the_reason() {
    let Some(program) = program(LATEST) else { return };
    let folder = tempfile::TempDir::new().expect("a folder");
    let refusal = |config: &serde_json::Value| {
        let mut check = command(&program, folder.path(), config);
        let output = check.args(["--mode", "validate"]).stderr(Stdio::piped()).output().expect("Envoy runs");
        assert!(!output.status.success(), "{config}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let with = |policy: serde_json::Value| {
        let options = Options { policy, endpoints: Endpoints::Fixed(&[1]) };
        bootstrap(Ports::free(), folder.path(), &options)
    };
    for (policy, reason) in [
        (json!({ "policy": "lard-x" }), "lard-x"),
        (
            json!({ "policy": "cap" }),
            "cap cannot run inside Envoy: it needs the service class of each request",
        ),
        (json!({ "policy": "hacc" }), "it needs load reports of the nodes"),
        (json!({ "nodes": ["a"] }), "Envoy's cluster lists the hosts"),
        (json!({ "policies": { "lard": { "t_hgh": 3 } } }), "t_hgh"),
    ] {
        let log = refusal(&with(policy));
        assert!(log.contains(reason), "no '{reason}' in {log}");
    }
    let mut config = with(json!({}));
    let policy =
        "/static_resources/clusters/0/load_balancing_policy/policies/0/typed_extension_config/typed_config";
    config.pointer_mut(policy).expect("a policy")["lb_policy_name"] = "lard".into();
    assert!(refusal(&config).contains("lb_policy_name is 'lard': write larder"));
}

#[test]
fn a_cluster_without_the_filter_is_refused_with_the_reason() {
    let Some(program) = program(LATEST) else { return };
    let nodes = nodes(1);
    let options = Options { policy: json!({}), endpoints: Endpoints::Fixed(&ports(&nodes)) };
    let mut envoy = Envoy::start(&program, 1, |ports, folder| {
        let mut config = bootstrap(ports, folder, &options);
        let cluster =
            config.pointer_mut("/static_resources/clusters/0").and_then(serde_json::Value::as_object_mut);
        cluster.expect("a cluster").remove("typed_extension_protocol_options");
        config
    });
    assert_eq!(get(envoy.port, "/").expect("a reply").status, 503);
    envoy.wait_for_log("the policy needs the HTTP filter larder");
    assert!(envoy.is_running());
}

/// A process that is no Envoy has none of the functions, like Envoy 1.37, which lacks those for policies.
#[test]
fn a_program_without_the_functions_is_refused_with_the_reason() {
    let Some(python) = needs_tool("python3", "python3") else { return };
    let load = "import ctypes, os, sys\n\
                module = ctypes.CDLL(sys.argv[1], os.RTLD_LAZY)\n\
                init = module.envoy_dynamic_module_on_program_init\n\
                init.restype = ctypes.c_void_p\n\
                print(init())\n";
    let module = module().join("liblarder_envoy.so");
    let output = Command::new(python).args(["-c", load]).arg(module).output().expect("python runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(out.trim(), "None", "{err}");
    assert!(err.contains("this Envoy cannot run the module larder_envoy: it lacks the function"), "{err}");
    assert!(err.contains("Use Envoy 1.38, 1.39 or 1.40."), "{err}");
}

/// The simulator repeats the decisions of Envoy byte for byte, as it repeats those of a switch.
#[test]
fn a_record_of_one_worker_is_repeated_by_the_simulator() {
    const TARGETS: usize = 300;
    let Some(program) = program(LATEST) else { return };
    for policy in ["lard-r", "lard-cost", "bounded"] {
        let nodes = nodes(3);
        let folder = tempfile::TempDir::new().expect("a folder");
        let record = folder.path().join("record");
        let options = Options {
            policy: json!({ "policy": policy, "record_file": record }),
            endpoints: Endpoints::Fixed(&ports(&nodes)),
        };
        let mut envoy = Envoy::start(&program, 1, |ports, folder| bootstrap(ports, folder, &options));
        for _ in 0..3 {
            placements(envoy.port, TARGETS);
        }
        assert_eq!(envoy.larder_page("/status")["clusters"][0]["record"]["state"], "recording");
        envoy.end();
        let file = BufReader::new(File::open(&record).expect("a record"));
        let mut replay = Replay::open(file).expect("a record that can be repeated");
        for line in replay.by_ref() {
            let line = line.expect("a whole record");
            assert_eq!(line.live, line.replayed, "{policy}");
        }
        let summary = replay.summary();
        assert_eq!(
            (summary.decisions, summary.differing, summary.end),
            (3 * TARGETS as u64, 0, Some("complete"))
        );
    }
}

/// The lines of docs/operate/embed.md make a cluster of an ordinary config one with larder's policy.
#[test]
fn the_lines_of_the_guide_run_as_written() {
    let Some(program) = program(LATEST) else { return };
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/embed.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let lines = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a fence");
    assert_eq!(lines.lines().count(), 10, "the page promises little");
    let nodes = nodes(2);
    let folder = tempfile::TempDir::new().expect("a folder");
    let ports = Ports::free();
    let options = Options { policy: json!({}), endpoints: Endpoints::Fixed(&self::ports(&nodes)) };
    let mut config = bootstrap(ports, folder.path(), &options);
    let cluster =
        config.pointer_mut("/static_resources/clusters/0").and_then(serde_json::Value::as_object_mut);
    let mut cluster = cluster.expect("a cluster").clone();
    cluster.remove("typed_extension_protocol_options");
    cluster.remove("load_balancing_policy");
    config["static_resources"]["clusters"] = json!([]);
    // JSON is YAML, so that the cluster can be written with the lines of the page.
    let own = cluster.iter().map(|(key, value)| format!("      {key}: {value}\n")).collect::<String>();
    let added = lines.lines().map(|line| format!("      {line}\n")).collect::<String>();
    let yaml = format!(
        "admin: {}\nstatic_resources:\n  listeners: {}\n  clusters:\n    -\n{own}{added}",
        config["admin"], config["static_resources"]["listeners"]
    );
    let mut command = command(&program, folder.path(), &yaml);
    command.args(["--disable-hot-restart", "--concurrency", "2"]);
    let envoy = Envoy::run(&mut command, folder, ports);
    placements(envoy.port, 20);
    eventually("replies are counted", || (envoy.stat("larder.replies") == 20).then_some(()));
}
