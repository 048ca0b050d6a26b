//! The module inside a real nginx.

mod support;

use larder_sim::replay::Replay;
use larder_testkit::proxy::{Connections, Load, Node, get, path, placements};
use larder_testkit::{eventually, free_port};
use serde_json::json;
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use support::{Config, Nginx, check, module, program, servers};

fn nodes(count: usize) -> Vec<Node> {
    (0..count).map(|_| Node::start()).collect()
}

#[test]
fn all_workers_share_the_dispatcher() {
    const TARGETS: usize = 200;
    let Some(program) = program() else { return };
    let nodes = nodes(4);
    let config = Config::new("larder policy=lard;", &servers(&nodes, ""));
    let nginx = Nginx::start(&program, &config);
    eventually("four workers run", || (nginx.workers().len() == 4).then_some(()));

    let first = placements(nginx.port, TARGETS);
    for _ in 0..3 {
        assert_eq!(placements(nginx.port, TARGETS), first, "targets stay at their nodes");
    }
    let requests = 4 * TARGETS as u64;
    assert_eq!(nodes.iter().map(Node::served).sum::<u64>(), requests);
    assert!(nodes.iter().all(|node| node.served() > 0), "every node has targets");

    // The status, the access log and the explanation tell the same.
    nginx.wait_until_idle();
    let status = nginx.upstream();
    let sum = |key: &str| nginx.nodes().iter().filter_map(|node| node[key].as_u64()).sum::<u64>();
    let (targets, again) = (TARGETS as u64, requests - TARGETS as u64);
    assert_eq!(status["decisions"], json!({ "first": targets, "local": again }), "{status}");
    assert_eq!([sum("replies"), sum("hits"), sum("misses"), sum("failures")], [requests, again, targets, 0]);
    assert_eq!(sum("bytes"), 1_000 * requests);
    assert_eq!(
        (&status["targets"], &status["fallback"], &status["resets"]),
        (&json!(TARGETS), &json!(0), &json!(0))
    );
    eventually("the access log is complete", || (nginx.access_log().len() as u64 == requests).then_some(()));
    let node = format!("127.0.0.1:{}", first[&7]);
    let line = format!("200 {node} first {node} {}", path(7));
    assert!(nginx.access_log().contains(&line), "no '{line}' in {:?}", nginx.access_log());
    let explained = nginx.page(&format!("/explain?target=tier.example{}", path(7)));
    assert_eq!((&explained["node"], &explained["reason"]), (&json!(node), &json!("local")), "{explained}");
}

#[test]
fn servers_fail_and_recover_without_a_failed_request() {
    const TARGETS: usize = 60;
    let Some(program) = program() else { return };
    // A node that returns needs a port that Linux assigns to no one else.
    let mut nodes: Vec<Node> = (0..3).map(|_| Node::at(free_port())).collect();
    // Without the zone, each worker has its own marks of failed servers, and larder has one for all.
    for with_zone in [true, false] {
        let mut lines = servers(&nodes, "max_fails=2 fail_timeout=1s");
        lines.truncate(if with_zone { lines.len() } else { lines.len() - 1 });
        let nginx = Nginx::start(&program, &Config::new("larder policy=lard;", &lines));
        placements(nginx.port, TARGETS);
        let port = nodes[0].port;
        Load::during(nginx.port, TARGETS, Connections::Kept, |load| {
            load.go_on(200);
            nodes[0].kill();
            nginx.wait_for_state(port, "down");
            load.go_on(200);
            nodes[0] = Node::at(port);
            nginx.wait_for_state(port, "up");
            load.go_on(200);
        });
        let joined = || placements(nginx.port, 4 * TARGETS).values().any(|node| *node == port);
        eventually("new targets go to the server that is back", || joined().then_some(()));
        assert_eq!(nginx.upstream()["resets"], 0);
        nginx.wait_until_idle();
    }
}

#[test]
fn weight_down_and_backup_reach_the_dispatcher() {
    const TARGETS: usize = 40;
    let Some(program) = program() else { return };
    let mut nodes = nodes(4);
    let line = |node: &Node, parameters: &str| format!("server 127.0.0.1:{} {parameters};", node.port);
    let with = |nodes: &[Node]| {
        let parameters = ["weight=3", "fail_timeout=60s", "down", "backup"];
        nodes.iter().zip(parameters).map(|(node, parameters)| line(node, parameters)).collect::<Vec<_>>()
    };
    let nginx = Nginx::start(&program, &Config::new("larder;", &with(&nodes)));
    placements(nginx.port, TARGETS);
    let shown = |key: &str| nginx.nodes().iter().map(|node| node[key].clone()).collect::<Vec<_>>();
    assert_eq!(shown("weight"), [3.0, 1.0, 1.0, 1.0].map(|weight| json!(weight)));
    assert_eq!(shown("state"), ["up", "up", "down", "up"].map(|state| json!(state)));
    assert_eq!(shown("backup"), [false, false, false, true].map(|backup| json!(backup)));
    assert_eq!((nodes[2].served(), nodes[3].served()), (0, 0));
    nodes[0].kill();
    nodes[1].kill();
    for target in 0..TARGETS {
        assert_eq!(get(nginx.port, &path(target)).expect("a reply").status, 200);
    }
    assert_eq!((nodes[2].served(), nodes[3].served()), (0, TARGETS as u64));
}

#[test]
fn a_server_with_all_its_connections_gets_no_more() {
    let Some(program) = program() else { return };
    let slow = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let other = Node::start();
    let slow_port = slow.local_addr().expect("an address").port();
    let lines = [
        format!("server 127.0.0.1:{slow_port} max_conns=2;"),
        format!("server 127.0.0.1:{};", other.port),
        "zone tier 1m;".to_owned(),
    ];
    let nginx = Nginx::start(&program, &Config::new("larder policy=rr;", &lines));
    // Two requests wait at the server that never replies. All others go to the other one.
    let held: Vec<TcpStream> = (0..4)
        .map(|target| {
            let mut stream = TcpStream::connect(("127.0.0.1", nginx.port)).expect("a connection");
            write!(stream, "GET {} HTTP/1.1\r\nHost: tier.example\r\n\r\n", path(target)).expect("sent");
            stream
        })
        .collect();
    eventually("the slow server has two requests", || {
        let loads = nginx.nodes();
        (loads[0]["load"] == 2).then_some(())
    });
    for target in 10..30 {
        assert_eq!(get(nginx.port, &path(target)).expect("a reply").node, Some(other.port));
    }
    assert_eq!(nginx.nodes()[0]["load"], 2);
    drop(held);
}

#[test]
fn a_reload_under_load_keeps_the_targets_and_applies_the_servers() {
    const TARGETS: usize = 100;
    let Some(program) = program() else { return };
    let mut nodes = nodes(4);
    let spare = nodes.pop().expect("a fourth node");
    let mut config = Config::new("larder policy=lard;", &servers(&nodes, ""));
    let nginx = Nginx::start(&program, &config);
    let before = placements(nginx.port, TARGETS);
    let count = |expected: usize| {
        eventually("the servers are applied", || (nginx.nodes().len() == expected).then_some(()));
    };
    Load::during(nginx.port, TARGETS, Connections::Single, |load| {
        load.go_on(100);
        nginx.reload(&config);
        load.go_on(100);
        nodes.push(spare);
        config.set_upstream("larder policy=lard;", &servers(&nodes, ""));
        nginx.reload(&config);
        count(4);
        load.go_on(100);
        nodes.remove(0);
        config.set_upstream("larder policy=lard;", &servers(&nodes, ""));
        nginx.reload(&config);
        count(3);
        load.go_on(100);
        // Another policy and another memory. Both keep the learned state.
        config.set_upstream("larder policy=lard-r;", &servers(&nodes, ""));
        nginx.reload(&config);
        config.set_upstream("larder policy=lard-r memory=32m;", &servers(&nodes, ""));
        nginx.reload(&config);
        load.go_on(100);
    });
    let status = nginx.upstream();
    assert_eq!((&status["policy"], &status["fallback"]), (&json!("lard-r"), &json!(0)), "{status}");
    assert_eq!(nginx.log().matches("learned state loaded").count(), 2, "{}", nginx.log());
    let after = placements(nginx.port, TARGETS);
    let stayed = |node: &u16| nodes[..2].iter().any(|known| known.port == *node);
    for (target, node) in before.iter().filter(|(_, node)| stayed(node)) {
        assert_eq!(after[target], *node, "target {target} stays at its node");
    }
    nginx.wait_until_idle();
}

#[test]
fn a_killed_worker_leaves_no_load_behind() {
    const TARGETS: usize = 100;
    let Some(program) = program() else { return };
    let nodes = nodes(3);
    let nginx = Nginx::start(&program, &Config::new("larder policy=lard;", &servers(&nodes, "")));
    let before = placements(nginx.port, TARGETS);
    let failed = Load::count_failed(nginx.port, TARGETS, Connections::Kept, |load| {
        for _ in 0..3 {
            load.go_on(100);
            let workers = nginx.workers();
            let killed =
                Command::new("kill").args(["-9", &workers[0].to_string()]).status().expect("kill runs");
            assert!(killed.success());
            eventually("nginx has four workers again", || {
                let now = nginx.workers();
                (now.len() == 4 && !now.contains(&workers[0])).then_some(())
            });
        }
        load.go_on(100);
    });
    // A killed worker cuts the connections that it has.
    assert!(failed <= 3 * 8, "{failed} requests failed");
    nginx.wait_until_idle();
    if nginx.upstream()["resets"] == 0 {
        assert_eq!(placements(nginx.port, TARGETS), before);
    }
}

#[test]
fn a_bug_in_the_module_costs_one_request() {
    let Some(program) = program() else { return };
    let nodes = nodes(2);
    let mut config = Config::new("larder policy=lard;", &servers(&nodes, ""));
    config.workers = 1;
    config.head += "\nenv LARDER_TEST_PANIC;";
    let key = format!("tier.example{}", path(5));
    let mut nginx = Nginx::start_with(&program, &config, &[("LARDER_TEST_PANIC", &key)]);
    // The end of the first request takes a snapshot.
    let first = get(nginx.port, &path(0)).expect("a reply").node;
    nginx.wait_until_idle();
    placements(nginx.port, 5);
    assert_eq!(get(nginx.port, &path(5)).expect("a reply").status, 500);
    nginx.wait_for_log("bug in larder: provoked at ");
    assert_eq!(get(nginx.port, &path(0)).expect("a reply").node, first);
    nginx.wait_for_log("learned state loaded (targets=1)");
    placements(nginx.port, 5);
    assert_eq!(get(nginx.port, &path(5)).expect("a reply").status, 200);
    assert!(nginx.is_running());
    assert_eq!(nginx.log().matches("bug in larder").count(), 1);
    nginx.wait_until_idle();
}

#[test]
fn the_state_file_keeps_the_targets_while_nginx_is_stopped() {
    const TARGETS: usize = 100;
    let Some(program) = program() else { return };
    let nodes = nodes(4);
    let folder = tempfile::tempdir().expect("a folder");
    let larder = format!("larder policy=lard state_file={};", folder.path().join("state").display());
    let mut config = Config::new(&larder, &servers(&nodes, ""));
    // The workers are another user than the master, where tests may choose one.
    if rustix::process::geteuid().is_root() {
        let open =
            |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("a mode");
        open(folder.path());
        config.user = "www-data";
    }
    let mut nginx = Nginx::start(&program, &config);
    let before = placements(nginx.port, TARGETS);
    nginx.end(&config);
    let nginx = Nginx::start(&program, &config);
    assert_eq!(placements(nginx.port, TARGETS), before);
    nginx.wait_for_log("learned state loaded (targets=100)");
}

#[test]
fn a_tunnel_is_load_and_not_within_the_limit() {
    let Some(program) = program() else { return };
    let server = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let port = server.local_addr().expect("an address").port();
    let nginx = Nginx::start(&program, &Config::new("larder;", &[format!("server 127.0.0.1:{port};")]));
    let mut client = TcpStream::connect(("127.0.0.1", nginx.port)).expect("a connection");
    let head = "GET /tunnel HTTP/1.1\r\nHost: tier.example\r\nConnection: upgrade\r\nUpgrade: test\r\n\r\n";
    client.write_all(head.as_bytes()).expect("sent");
    let (mut tunnel, _) = server.accept().expect("the request arrives");
    larder_testkit::http::read_head(&mut tunnel).expect("a head");
    let reply = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: test\r\n\r\n";
    tunnel.write_all(reply.as_bytes()).expect("sent");
    let shown = |load: u64| {
        eventually(std::fmt::from_fn(|f| write!(f, "{load} tunnels: {}", nginx.upstream())), || {
            let status = nginx.upstream();
            let node = &status["nodes"][0];
            (node["load"] == load && node["long_lived"] == load && status["outstanding"] == 0).then_some(())
        });
    };
    shown(1);
    drop((client, tunnel));
    shown(0);
}

#[test]
fn a_limit_of_the_policy_refuses_requests_and_counts_them() {
    let Some(program) = program() else { return };
    let node = TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let port = node.local_addr().expect("an address").port();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    fs::write(&file, "[admission]\nlimit = 1\n").expect("written");
    let larder = format!("larder config={};", file.display());
    let nginx = Nginx::start(&program, &Config::new(&larder, &[format!("server 127.0.0.1:{port};")]));
    let mut held = TcpStream::connect(("127.0.0.1", nginx.port)).expect("a connection");
    write!(held, "GET / HTTP/1.1\r\nHost: tier.example\r\n\r\n").expect("sent");
    eventually("the request is in progress", || (nginx.upstream()["outstanding"] == 1).then_some(()));
    assert_eq!(get(nginx.port, "/").expect("a reply").status, 502);
    assert_eq!(nginx.upstream()["refused"]["limit"], 1);
}

#[test]
fn a_wrong_config_is_refused_with_the_reason_and_the_line() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("policy.toml");
    fs::write(&file, "[policies.lard]\nt_hgh = 3\n").expect("written");
    let from_file = format!("larder config={};", file.display());
    let one = ["server 127.0.0.1:1;".to_owned()];
    let twice = [one[0].clone(), one[0].clone()];
    let keepalive = ["keepalive 2;".to_owned(), "larder;".to_owned(), one[0].clone()];
    for (larder, lines, reason) in [
        ("larder policy=lard-x;", &one[..], "policy: "),
        (
            "larder policy=cap;",
            &one,
            "cap cannot run inside nginx: it needs the service class of each request",
        ),
        ("larder policy=hacc;", &one, "it needs load reports of the nodes"),
        ("larder lard-r;", &one, "invalid parameter \"lard-r\": write NAME=VALUE, such as policy=lard-r"),
        ("larder key=$nothing;", &one, "unknown \"nothing\" variable"),
        ("larder memory=1m;", &one, "is too little for this upstream"),
        (&from_file, &one, "t_hgh"),
        ("least_conn; larder;", &one, "larder must be the only method of its upstream"),
        ("", &keepalive, "stand before keepalive"),
        ("larder; least_conn;", &one, "larder must be the only method of its upstream"),
        ("larder; larder;", &one, "the directive is duplicate"),
        ("larder;", &twice, "two servers have the address 127.0.0.1:1"),
    ] {
        let output = check(&program, folder.path(), &Config::new(larder, lines));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{larder}");
        assert!(text.contains(reason), "no '{reason}' in {text}");
        // nginx reports unknown variables after it has read all of the config.
        assert!(text.contains("nginx.conf:") || text.contains(" variable"), "{text}");
    }
    let good = check(&program, folder.path(), &Config::new("larder;", &one));
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
}

/// The simulator repeats the decisions of nginx byte for byte, as it repeats those of a switch.
#[test]
fn a_record_of_one_worker_is_repeated_by_the_simulator() {
    const TARGETS: usize = 300;
    let Some(program) = program() else { return };
    for policy in ["lard-r", "lard-cost", "bounded"] {
        let nodes = nodes(3);
        let folder = tempfile::tempdir().expect("a folder");
        let record = folder.path().join("record");
        let larder = format!("larder policy={policy} record_file={};", record.display());
        let mut config = Config::new(&larder, &servers(&nodes, ""));
        config.workers = 1;
        let mut nginx = Nginx::start(&program, &config);
        for _ in 0..3 {
            placements(nginx.port, TARGETS);
        }
        assert_eq!(nginx.upstream()["record"]["state"], "recording");
        nginx.end(&config);
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

/// The lines of docs/operate/nginx.md make an upstream of an ordinary config one with larder's policy.
#[test]
fn the_lines_of_the_guide_run_as_written() {
    let Some(program) = program() else { return };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/nginx.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let lines = page.split("```nginx\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a fence");
    assert_eq!(lines.lines().count(), 5, "the page promises little");
    let nodes = nodes(2);
    let own =
        |address: &str, node: &Node, text: String| text.replace(address, &format!("127.0.0.1:{}", node.port));
    let text = own("10.0.0.1:80", &nodes[0], lines.to_owned());
    let text = own("10.0.0.2:80", &nodes[1], text);
    let text = text.replace("modules/ngx_http_larder_module.so", &module().display().to_string());
    let (load, upstream) = text.split_once('\n').expect("several lines");
    let mut config = Config::new("larder;", &[]);
    (config.head, config.upstream) = (load.to_owned(), upstream.to_owned());
    let nginx = Nginx::start(&program, &config);
    let first = placements(nginx.port, 20);
    assert_eq!(placements(nginx.port, 20), first);
    nginx.wait_until_idle();
}
