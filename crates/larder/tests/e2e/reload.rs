//! Reloads and upgrades of a switch under load. No request is lost, and learned and administrative state
//! stays.

use larder_testkit::{free_port, holds_for};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::crowd::{Crowd, TARGETS, manifest};
use crate::http::{Client, ask, get, metrics, post};
use crate::process::{LARDER, Process, children, parent_of, until};

/// A switch with a master and workers and its folder, run as a service manager runs it.
pub struct Switch {
    child: Child,
    folder: tempfile::TempDir,
    pub address: SocketAddr,
    pub admin: SocketAddr,
}

impl Switch {
    pub fn start(lines: &str) -> Self {
        Self::start_as(Path::new(LARDER), lines, &[])
    }

    fn start_as(binary: &Path, lines: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), lines);
        let mut child = Command::new(binary)
            .args(["switch", "--ready-line", "--threads", "1", "--config"])
            .arg(folder.path().join("switch.toml"))
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.path().join("talk")).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            panic!("'{line}': {}", fs::read_to_string(folder.path().join("talk")).unwrap())
        });
        let address = |value: &Value| value.as_str().unwrap().parse().unwrap();
        Self { child, address: address(&ready["listen"][0]), admin: address(&ready["admin"]), folder }
    }

    pub fn write(&self, lines: &str) {
        write(self.folder.path(), lines);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the log.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.folder.path().join("talk")).unwrap()
    }

    fn status(&self) -> Value {
        get(self.admin, "/reload").json()
    }

    fn worker(&self) -> u32 {
        u32::try_from(self.status()["worker_pid"].as_u64().unwrap()).unwrap()
    }

    pub fn reload(&self) {
        let reply = post(self.admin, "/reload");
        assert_eq!(reply.status, 200, "{}\n{}", String::from_utf8_lossy(&reply.body), self.log_text());
        assert_eq!(reply.json()["last"]["outcome"], "done");
    }

    fn until_generation(&self, wanted: u64) {
        until(format!("generation {wanted} serves"), || {
            let status = self.status();
            let count = |of: &str| status[of].as_u64().unwrap();
            // The count rises a moment after the generation serves.
            (count("generation") == wanted && count("done") + count("restarted") == wanted - 1).then_some(())
        });
    }

    fn nodes(&self) -> Vec<Value> {
        get(self.admin, "/nodes").json().as_array().unwrap().clone()
    }

    fn node(&self, name: &str) -> Value {
        let nodes = self.nodes();
        nodes.into_iter().find(|node| node["name"] == name).unwrap_or_else(|| panic!("no node {name}"))
    }

    pub fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        until("the switch ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the switch said:\n{}", self.log_text());
        }
    }
}

/// Writes the config to a new file and renames it, so that no reader sees a part of it.
fn write(folder: &Path, lines: &str) {
    let text = format!(
        "[switch]\n{lines}\n[switch.health]\ninterval = \"50ms\"\n[switch.timeouts]\ndrain = \"5s\"\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    fs::write(folder.join("new"), text).unwrap();
    fs::rename(folder.join("new"), folder.join("switch.toml")).unwrap();
}

/// Starts nodes and returns them with their line in `[switch]`.
fn nodes(folder: &Path, names: &[&str]) -> (Vec<Process>, String) {
    let manifest = manifest(folder);
    let nodes: Vec<Process> =
        names.iter().map(|name| Process::model_node(name, "127.0.0.1:0", &manifest)).collect();
    let line = nodes_line(&names.iter().copied().zip(&nodes).collect::<Vec<_>>());
    (nodes, line)
}

pub fn nodes_line(nodes: &[(&str, &Process)]) -> String {
    let entry =
        |(name, node): &(&str, &Process)| format!("{{ name = \"{name}\", address = \"{}\" }}", node.address);
    format!("nodes = [{}]", nodes.iter().map(entry).collect::<Vec<_>>().join(", "))
}

const LISTEN: &str = "listen = \"127.0.0.1:0\"";

#[test]
fn many_reloads_under_load_lose_no_request() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a", "b", "c"]);
    let log = store.path().join("access.log");
    let switch = Switch::start(&format!("{LISTEN}\naccess_log.file = {log:?}\n{line}"));
    let crowd = Crowd::start(switch.address);
    crowd.more(200);
    for generation in 2..=13 {
        if generation % 3 == 0 {
            switch.signal(Signal::HUP);
            switch.until_generation(generation);
        } else {
            switch.reload();
        }
        // One connection per client, and requests that must not be retried.
        for _ in 0..10 {
            let reply = post(switch.address, "/t1");
            assert_eq!(reply.status, 405, "{}", reply.head);
            assert_eq!(get(switch.address, "/t2").status, 200);
        }
        crowd.more(50);
    }
    let replies: u64 = crowd.end().values().sum();
    let status = switch.status();
    assert_eq!((&status["generation"], &status["done"]), (&13.into(), &12.into()), "{status}");
    let metrics = metrics(switch.admin);
    assert!(metrics.contains("\nlarder_switch_generation 13\n"), "{metrics}");
    assert!(metrics.contains("\nlarder_switch_reloads_total{outcome=\"done\"} 12\n"), "{metrics}");
    until("those before have ended", || (children(switch.child.id()).len() == 1).then_some(()));
    assert!(switch.terminate().success());
    // Each worker has written the requests that it served.
    let lines = fs::read_to_string(log).unwrap().lines().count() as u64;
    assert_eq!(lines, replies + 12 * 20);
}

#[test]
fn a_client_of_the_admin_interface_gets_its_reply_across_a_reload() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a"]);
    let switch = Switch::start(&format!("{LISTEN}\n{line}"));
    for generation in 2..=4 {
        let mut connected = Client::connect(switch.admin).unwrap();
        // An answer to a second connection proves that the first one was accepted.
        assert_eq!(switch.status()["generation"], generation - 1);
        switch.signal(Signal::HUP);
        until("another serves", || {
            switch.log_text().contains(&format!("switch: ready generation={generation}")).then_some(())
        });
        assert_eq!(connected.ask("GET", "/reload", "").unwrap().status, 200);
        switch.until_generation(generation);
    }
}

#[test]
fn a_wrong_config_is_refused_and_named() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a"]);
    let switch = Switch::start(&format!("{LISTEN}\n{line}"));
    let worker = switch.worker();
    switch.write(&format!("{LISTEN}\npolcy = \"lard\"\n{line}"));
    let reply = post(switch.admin, "/reload");
    assert_eq!(reply.status, 409);
    let error = reply.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("switch.toml:3") && error.contains("switch.polcy"), "{error}");
    switch.signal(Signal::HUP);
    until("it is refused again", || (switch.status()["refused"] == 2).then_some(()));
    assert!(switch.log_text().contains("did you mean 'policy'"), "{}", switch.log_text());
    let status = switch.status();
    assert_eq!((&status["generation"], &status["last"]["by"]), (&1.into(), &"signal".into()), "{status}");
    // A valid config that needs an address in use.
    let holds = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holds.local_addr().unwrap();
    switch.write(&format!("listen = [\"127.0.0.1:0\", \"{taken}\"]\n{line}"));
    let error = post(switch.admin, "/reload").json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains(&taken.to_string()) && error.contains("in use"), "{error}");
    // An error that only the worker detects.
    switch.write(&format!("{LISTEN}\nnodes = [\"none.invalid:80\"]"));
    let error = post(switch.admin, "/reload").json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("none.invalid:80"), "{error}");
    assert_eq!((switch.status()["failed"].as_u64(), switch.worker()), (Some(1), worker));
    assert_eq!(get(switch.address, "/t1").status, 200);
    switch.write(&format!("{LISTEN}\n{line}"));
    switch.reload();
    assert_eq!(get(switch.address, "/t1").status, 200);
    assert_ne!(switch.worker(), worker);
}

#[test]
fn listeners_and_nodes_come_and_go() {
    let store = tempfile::tempdir().unwrap();
    let (nodes, _) = nodes(store.path(), &["a", "b", "c"]);
    let [a, b, c] = &nodes[..] else { panic!("three nodes") };
    let switch = Switch::start(&format!("{LISTEN}\n{}", nodes_line(&[("a", a), ("b", b)])));
    let crowd = Crowd::start(switch.address);
    crowd.more(200);
    let second = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let two = format!("listen = [\"127.0.0.1:0\", \"{second}\"]\n{}", nodes_line(&[("b", b), ("c", c)]));
    switch.write(&two);
    switch.reload();
    assert_eq!(get(second, "/t1").status, 200);
    let names: Vec<Value> = switch.nodes().into_iter().map(|node| node["name"].clone()).collect();
    assert_eq!(names, ["b", "c"]);
    assert_eq!(switch.node("c")["joining"], true, "nothing is taken from the others for it");
    crowd.more(200);
    // No client uses the remaining connections of the first worker.
    until("the one before has ended", || (children(switch.child.id()).len() == 1).then_some(()));
    switch.write(&format!("{LISTEN}\n{}", nodes_line(&[("b", b), ("c", c)])));
    switch.reload();
    until("nobody listens there", || std::net::TcpStream::connect(second).is_err().then_some(()));
    crowd.more(200);
    let seen = crowd.end();
    assert!(["a", "b"].iter().all(|name| seen.contains_key(*name)), "{seen:?}");
}

#[test]
fn learned_and_administrative_state_stays() {
    let store = tempfile::tempdir().unwrap();
    let (nodes, line) = nodes(store.path(), &["a", "b", "c", "d", "e"]);
    let line = line.replace(&format!(", {{ name = \"e\", address = \"{}\" }}", nodes[4].address), "");
    let switch = Switch::start(&format!("{LISTEN}\npolicy = \"lard-r\"\n{line}"));
    assert_eq!(post(switch.admin, "/nodes/d/drain").status, 200);
    assert_eq!(post(switch.admin, "/nodes/c/weight?value=2.5").status, 200);
    assert_eq!(post(switch.admin, &format!("/nodes/e/join?address={}", nodes[4].address)).status, 200);
    let where_is = |target: u64| get(switch.address, &format!("/t{target}")).node_and_hit();
    let before: Vec<String> = (0..TARGETS).map(|target| where_is(target).0).collect();
    for by in ["/reload", "SIGHUP"] {
        if by == "SIGHUP" {
            switch.signal(Signal::HUP);
            switch.until_generation(3);
        } else {
            switch.reload();
        }
        let after: Vec<(String, bool)> = (0..TARGETS).map(where_is).collect();
        for (target, (then, (now, hit))) in before.iter().zip(&after).enumerate() {
            assert!(*hit && then == now, "{by}: /t{target} was at {then} and is at {now}, hit: {hit}");
        }
        assert_eq!(switch.node("d")["state"], "draining");
        assert_eq!(switch.node("c")["weight"], 2.5);
        assert_eq!(switch.node("e")["address"], nodes[4].address.to_string());
    }
    let known = get(switch.admin, "/status").json()["targets"].as_u64().unwrap();
    assert_eq!(known, TARGETS);
    // A weight in the config is also set by the operator, and it is newer.
    switch.write(&format!(
        "{LISTEN}\npolicy = \"lard-r\"\n{}",
        line.replace("name = \"c\"", "weight = 1.5, name = \"c\"")
    ));
    switch.reload();
    assert_eq!(switch.node("c")["weight"], 1.5);
}

#[test]
fn a_share_stays_until_the_config_changes_it() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a"]);
    let text = |share: u32| {
        let arm = |name: &str, share| {
            format!("[[switch.routes]]\nname = \"{name}\"\nof = \"default\"\nshare = {share}\n")
        };
        format!("{LISTEN}\n{line}\n{}{}", arm("less", 60), arm("more", share))
    };
    let switch = Switch::start(&text(20));
    let share = |name: &str| {
        let routes = get(switch.admin, "/routes").json();
        let found = routes.as_array().unwrap().iter().find(|route| route["name"] == name);
        found.unwrap()["share"].as_f64().unwrap()
    };
    assert_eq!(post(switch.admin, "/routes/less/share?percent=10").status, 200);
    assert_eq!(post(switch.admin, "/routes/more/share?percent=85.5").status, 200);
    switch.reload();
    assert_eq!((share("less"), share("more")), (10.0, 85.5));
    // The newer value of the config is also set by the operator.
    switch.write(&text(30));
    switch.reload();
    assert_eq!((share("less"), share("more")), (10.0, 30.0));
    switch.write(&text(40));
    switch.reload();
    assert_eq!((share("less"), share("more")), (10.0, 40.0));
}

#[test]
fn an_idle_connection_is_not_closed_under_a_request() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a"]);
    let switch = Switch::start(&format!("{LISTEN}\n{line}"));
    let mut idle = Client::connect(switch.address).unwrap();
    assert_ne!(idle.ask("GET", "/t1", "").unwrap().header("connection"), Some("close"));
    switch.reload();
    let both = || children(switch.child.id()).len() == 2;
    holds_for(Duration::from_millis(300), "the worker before waits for its client", both);
    let reply = idle.ask("GET", "/t1", "").unwrap();
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    until("the one before has ended", || (children(switch.child.id()).len() == 1).then_some(()));
}

#[test]
fn a_dead_worker_is_replaced_and_a_dead_master_leaves_no_process() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a"]);
    let mut switch = Switch::start(&format!("{LISTEN}\n{line}"));
    // A config that has become invalid meanwhile has no effect.
    switch.write("nonsense");
    for generation in 2..4 {
        let worker = switch.worker();
        kill_process(Pid::from_raw(i32::try_from(worker).unwrap()).unwrap(), Signal::KILL).unwrap();
        // The master owns the listeners, so a connection waits for the next worker.
        assert_eq!(get(switch.address, "/t1").status, 200);
        switch.until_generation(generation);
        assert_eq!(switch.status()["restarted"], generation - 1);
        assert_eq!(switch.status()["last"]["by"], "fault");
    }
    let _idle = Client::connect(switch.address).unwrap();
    let workers = children(switch.child.id());
    assert_eq!(workers, [switch.worker()]);
    switch.child.kill().unwrap();
    switch.child.wait().unwrap();
    until("nobody is left", || workers.iter().all(|worker| parent_of(*worker).is_none()).then_some(()));
}

#[test]
fn an_upgrade_under_load_loses_no_request() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a", "b"]);
    let binary: PathBuf = store.path().join("larder");
    let install = |make: &dyn Fn(&Path)| {
        let new = store.path().join("larder.new");
        make(&new);
        fs::rename(&new, &binary).unwrap();
    };
    let copy = |path: &Path| {
        fs::copy(LARDER, path).unwrap();
        // A process that another test starts meanwhile holds the file open for writing until its `exec`.
        let runs = || Command::new(path).arg("version").stdout(Stdio::null()).status().is_ok();
        until("the copy can be run", || runs().then_some(()));
    };
    install(&copy);
    let switch = Switch::start_as(&binary, &format!("{LISTEN}\n{line}"), &[]);
    let master = switch.child.id();
    let crowd = Crowd::start(switch.address);
    crowd.more(200);
    for generation in 2..=3 {
        install(&copy);
        switch.signal(Signal::USR2);
        switch.until_generation(generation);
        let status = switch.status();
        assert_eq!(
            (&status["last"]["by"], &status["master_pid"]),
            (&"upgrade".into(), &master.into()),
            "{status}"
        );
        assert_eq!(fs::read_link(format!("/proc/{master}/exe")).unwrap(), binary);
        assert_eq!(fs::read_link(format!("/proc/{}/exe", switch.worker())).unwrap(), binary);
        crowd.more(100);
    }
    // A program that is no larder, or an incompatible one, does not replace the process.
    for script in ["#!/bin/sh\necho no thanks >&2\nexit 2\n", "#!/bin/sh\nexit 0\n"] {
        let refused = switch.status()["refused"].as_u64().unwrap();
        install(&|path| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::write(path, script).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        });
        switch.signal(Signal::USR2);
        until("it is refused", || (switch.status()["refused"] == refused + 1).then_some(()));
        crowd.more(50);
    }
    let error = switch.status()["last"]["error"].as_str().unwrap().to_owned();
    assert!(error.contains("not a larder binary") && switch.log_text().contains("no thanks"), "{error}");
    // The running switch can still be reloaded.
    switch.reload();
    crowd.more(50);
    crowd.end();
    assert!(switch.terminate().success());
}

#[test]
fn the_service_manager_is_notified() {
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a"]);
    let path = store.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let told = || {
        let mut text = [0; 200];
        let bytes = socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..bytes]).into_owned()
    };
    let lines = format!("{LISTEN}\n{line}");
    let switch = Switch::start_as(Path::new(LARDER), &lines, &[("NOTIFY_SOCKET", path.to_str().unwrap())]);
    assert_eq!(told(), "READY=1");
    switch.signal(Signal::HUP);
    assert!(told().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(told(), "READY=1");
    assert!(switch.terminate().success());
    assert_eq!(told(), "STOPPING=1");
}

#[test]
fn a_failed_start_is_explained_and_a_single_process_is_not_reloaded() {
    let start = |arguments: &[&str]| Command::new(LARDER).arg("switch").args(arguments).output().unwrap();
    let output = start(&["--listen", "127.0.0.1:0", "--node", "none.invalid:80", "--admin", "off"]);
    let talk = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1)
            && talk.contains("larder: command line: switch.nodes[0]: cannot resolve 'none.invalid'"),
        "{talk}"
    );
    let output = start(&["--listen", "nowhere", "--node", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2));

    let listen = ["switch", "--listen", "127.0.0.1:0", "--node", "127.0.0.1:1", "--admin", "127.0.0.1:0"];
    let one = Process::start(&[&listen[..], &["--one-process"]].concat());
    let admin = one.admin.unwrap();
    let reply = ask(admin, "POST", "/reload", "");
    assert!(reply.status == 409 && reply.json()["error"].as_str().unwrap().contains("one process"));
    assert_eq!(get(admin, "/reload").json()["generation"], 1);
    assert!(one.terminate().success());
}

/// Returns the user, group and capabilities of a process, as the kernel reports them.
fn rights(pid: u32) -> Vec<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let wanted = ["Uid:", "Gid:", "Groups:", "CapPrm:", "CapEff:"];
    let lines = status.lines().filter(|line| wanted.iter().any(|name| line.starts_with(name)));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_worker_has_only_the_privileges_of_its_user() {
    if !rustix::process::geteuid().is_root() {
        // A process without privileges cannot change its user. It must report that, and must not serve as the
        // current user.
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &format!("{LISTEN}\nprocess.user = \"0\"\nnodes = [\"127.0.0.1:9\"]"));
        let config = folder.path().join("switch.toml");
        let ran = Command::new(LARDER).args(["switch", "--config"]).arg(config).output().unwrap();
        assert!(
            !ran.status.success() && String::from_utf8_lossy(&ran.stderr).contains("switch.process.user: ")
        );
        return;
    }
    let store = tempfile::tempdir().unwrap();
    let (_nodes, line) = nodes(store.path(), &["a"]);
    let switch =
        Switch::start(&format!("{LISTEN}\nprocess = {{ user = \"65534\", group = \"65533\" }}\n{line}"));
    let none = "0000000000000000";
    let expected = [
        "Uid: 65534 65534 65534 65534".to_owned(),
        "Gid: 65533 65533 65533 65533".to_owned(),
        "Groups:".to_owned(),
        format!("CapPrm: {none}"),
        format!("CapEff: {none}"),
    ];
    let before = rights(switch.child.id());
    for generation in 1..=3 {
        assert_eq!(rights(switch.worker()), expected, "generation {generation}");
        assert_eq!(get(switch.address, "/t1").status, 200);
        if generation == 1 {
            switch.reload();
        } else {
            switch.signal(Signal::USR2);
            switch.until_generation(generation + 1);
        }
    }
    assert_eq!(rights(switch.worker()), expected, "one that takes the place of another");
    assert_eq!(rights(switch.child.id()), before, "the one with the listeners stays who it is");
    assert!(switch.terminate().success());
}
