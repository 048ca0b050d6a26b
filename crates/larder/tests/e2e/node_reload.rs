//! Reloads of a node under load. Its memory stays, no request is lost, and a wrong config changes nothing.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use larder_testkit::Authority;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::crowd::{Crowd, TARGETS, manifest};
use crate::http::{Client, get, metric, metrics, post};
use crate::peers::{NAMES, PeerCluster, status};
use crate::process::{LARDER, Process, until};
use crate::secured::{connect, shake, shown};

/// PROXY header with which a balancer announces a client.
const ANNOUNCED: &[u8] = b"PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\n";

/// A node with a config file and a log file in its folder, run as a service manager runs it.
pub struct Node {
    child: Child,
    pub folder: tempfile::TempDir,
    pub address: SocketAddr,
    secure: Option<SocketAddr>,
    admin: SocketAddr,
}

impl Node {
    /// Starts a node with these lines in `[node]` and after it. `lines` may prepare the folder.
    pub fn start(lines: impl FnOnce(&Path) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &lines(folder.path()));
        let mut child = Command::new(LARDER)
            .args(["node", "--ready-line", "--threads", "1", "--config"])
            .arg(folder.path().join("node.toml"))
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
        let address = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
        let listen = |at: usize| address(&ready["listen"][at]);
        let admin = address(&ready["admin"]).unwrap();
        Self { child, address: listen(0).unwrap(), secure: listen(1), admin, folder }
    }

    /// Starts a node whose modelled store has the crowd's targets.
    pub fn with_targets(lines: &str) -> Self {
        Self::start(|folder| format!("{}{lines}", model(&manifest(folder))))
    }

    /// Returns the line of the modelled store, for a new config.
    pub fn model(&self) -> String {
        model(&self.folder.path().join("manifest.tsv"))
    }

    pub fn write(&self, lines: &str) {
        write(self.folder.path(), lines);
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the log.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.folder.path().join("talk")).unwrap()
    }

    pub fn status(&self) -> Value {
        get(self.admin, "/reload").json()
    }

    pub fn stats(&self, of: &str) -> u64 {
        get(self.admin, "/stats").json()[of].as_u64().unwrap()
    }

    pub fn metric(&self, line: &str) -> bool {
        metrics(self.admin).lines().any(|found| found == line)
    }

    /// Reloads the node with these lines, and checks that it accepts them.
    pub fn reload(&self, lines: &str) -> Value {
        self.write(lines);
        let reply = post(self.admin, "/reload");
        assert_eq!(reply.status, 200, "{}\n{}", String::from_utf8_lossy(&reply.body), self.log_text());
        let status = reply.json();
        assert_eq!((&status["last"]["outcome"], &status["last_failed"]), (&"done".into(), &false.into()));
        status
    }

    /// Reloads the node with these lines, checks that it refuses them, and returns the error.
    pub fn reload_error(&self, lines: &str) -> String {
        self.write(lines);
        let reply = post(self.admin, "/reload");
        assert_eq!(reply.status, 409, "{}", String::from_utf8_lossy(&reply.body));
        reply.json()["error"].as_str().unwrap().to_owned()
    }

    pub fn hits(&self, target: &str) -> bool {
        get(self.address, target).node_and_hit().1
    }

    pub fn terminate(self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_for_exit()
    }

    /// Waits until the node has exited. A second signal would end it without a drain.
    pub fn wait_for_exit(mut self) -> ExitStatus {
        until("the node ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the node said:\n{}", self.log_text());
        }
    }
}

/// Writes the config to a new file and renames it, so that no reader sees a part of it.
fn write(folder: &Path, lines: &str) {
    let text = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[node]\nname = \"n\"\nlisten = \"127.0.0.1:0\"\n{lines}\n"
    );
    fs::write(folder.join("new"), text).unwrap();
    fs::rename(folder.join("new"), folder.join("node.toml")).unwrap();
}

/// Returns the line of a modelled store. The store is too fast to affect the test.
fn model(manifest: &Path) -> String {
    format!("model = {{ manifest = {manifest:?}, speed = 200.0 }}\n")
}

fn root(folder: &Path) -> String {
    let root = folder.join("root");
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("a"), "hello").unwrap();
    format!("root = {root:?}\n")
}

/// Reports whether the peer closes a connection, after any number of bytes.
fn is_closed(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn the_memory_stays_over_many_reloads_under_load_and_no_request_is_lost() {
    let node = Node::with_targets("");
    for target in 0..TARGETS {
        assert_eq!(get(node.address, &format!("/t{target}")).status, 200);
    }
    assert_eq!(node.stats("store_reads"), TARGETS);
    let crowd = Crowd::start(node.address);
    crowd.more(200);
    for number in 1..=20_u64 {
        let (size, timeout) = (8 + number % 3, 10 + number % 2);
        let lines = format!(
            "cache.size = \"{size}MiB\"\nlimits = {{ head_timeout = \"{timeout}s\", connections_max = {} }}\n{}",
            100 + number % 4,
            node.model()
        );
        if number % 2 == 0 {
            node.write(&lines);
            node.signal(Signal::HUP);
            until("it is done", || (node.status()["done"] == number).then_some(()));
        } else {
            node.reload(&lines);
        }
        assert_eq!(node.stats("cache_bytes_max"), size << 20);
        // One connection per target.
        for target in 0..10 {
            assert!(node.hits(&format!("/t{target}")), "/t{target} after {number} reloads");
        }
        crowd.more(50);
    }
    let replies: u64 = crowd.end().values().sum();
    assert!(replies >= 1_200);
    assert_eq!((node.stats("store_reads"), node.stats("cache_objects")), (TARGETS, TARGETS));
    assert_eq!((node.stats("aborted"), node.stats("connections_refused")), (0, 0));
    let status = node.status();
    assert_eq!((&status["done"], &status["last"]["by"]), (&20.into(), &"signal".into()), "{status}");
    assert!(node.metric("larder_node_reloads_total{node=\"n\",outcome=\"done\"} 20"));
    assert!(node.terminate().success());
}

#[test]
fn a_memory_shrinks_at_once_and_grows_again() {
    let node = Node::with_targets("");
    let ask_all = || (0..TARGETS).filter(|target| node.hits(&format!("/t{target}"))).count() as u64;
    assert_eq!((ask_all(), ask_all()), (0, TARGETS));
    node.reload(&format!("cache.size = 100000\n{}", node.model()));
    assert_eq!((node.stats("cache_bytes_max"), node.stats("cache_objects")), (100_000, 100));
    assert_eq!(node.stats("cache_evictions"), TARGETS - 100);
    assert!(node.metric("larder_node_cache_max_bytes{node=\"n\",store=\"model\"} 100000"));
    node.reload(&format!("cache.size = \"1GiB\"\n{}", node.model()));
    assert_eq!(ask_all(), 100, "what had stayed is still there");
    assert_eq!((ask_all(), node.stats("cache_objects")), (TARGETS, TARGETS));
    // Targets that were too large for the first memory fit now.
    node.reload(&format!("cache = {{ size = \"1GiB\", object_max = 999 }}\n{}", node.model()));
    assert!(node.hits("/t1"), "what is kept is kept");
    node.reload(&format!("cache = {{ size = 0, object_max = 999 }}\n{}", node.model()));
    assert_eq!(node.stats("cache_objects"), 0);
    node.reload(&format!("cache = {{ size = \"1MiB\", object_max = 999 }}\n{}", node.model()));
    assert_eq!((ask_all(), ask_all()), (0, 0), "nothing is small enough to be kept");
}

#[test]
fn a_wrong_config_is_refused_and_its_place_is_named() {
    let node = Node::with_targets("");
    assert!(!node.hits("/t1"));
    let wrong = format!("cache.size = 100000\nlimts = 1\n{}", node.model());
    let error = node.reload_error(&wrong);
    assert!(error.contains("node.toml:7") && error.contains("node.limts"), "{error}");
    assert!(error.contains("did you mean 'limits'"), "{error}");
    node.signal(Signal::HUP);
    until("it is refused again", || (node.status()["refused"] == 2).then_some(()));
    let status = node.status();
    assert_eq!((&status["last"]["by"], &status["last"]["outcome"]), (&"signal".into(), &"refused".into()));
    assert!(
        node.log_text().contains("reload: refused") && node.log_text().contains("node.limts"),
        "{}",
        node.log_text()
    );
    assert!(node.metric("larder_node_last_reload_success{node=\"n\"} 0"));
    // A value out of range, and a level that does not exist.
    let error =
        node.reload_error(&format!("cache.size = 100000\nlimits.head_timeout = \"0s\"\n{}", node.model()));
    assert!(error.contains("node.toml:7") && error.contains("1ms to 1h"), "{error}");
    let error = node.reload_error(&format!("cache.size = 100000\n{}[log]\nlevel = \"a=b=c\"", node.model()));
    assert!(error.contains("log.level"), "{error}");
    fs::remove_file(node.folder.path().join("node.toml")).unwrap();
    let reply = post(node.admin, "/reload");
    assert_eq!(reply.status, 409);
    assert!(reply.json()["error"].as_str().unwrap().contains("cannot be read"));
    assert!(node.hits("/t1"));
    assert_eq!(node.stats("cache_bytes_max"), 256 << 20);
    let status = node.reload(&format!("cache.size = 100000\n{}", node.model()));
    assert_eq!((&status["refused"], &status["done"], &status["failed"]), (&5.into(), &1.into(), &0.into()));
    assert!(node.metric("larder_node_last_reload_success{node=\"n\"} 1"));
    assert_eq!(node.stats("cache_bytes_max"), 100_000);
}

#[test]
fn keys_that_need_a_restart_are_named_and_the_file_is_not_applied() {
    let node = Node::with_targets("");
    let other = format!(
        "cache = {{ size = 100000, chunk = \"64KiB\" }}\nlimits.uri_max = 16\nreport.cpu = \"process\"\n{}",
        node.model()
    );
    let error = node.reload_error(&other);
    assert!(
        error.contains("node.cache.chunk (line 6), node.report.cpu (line 8): restart the node for these"),
        "{error}"
    );
    assert!(!error.contains("node.limits"), "{error}");
    let long = "/t1?and-more-than-sixteen-bytes";
    assert_eq!((node.stats("cache_bytes_max"), get(node.address, long).status), (256 << 20, 404));
    // A key that was removed from the file is a difference too.
    let text = fs::read_to_string(node.folder.path().join("node.toml")).unwrap();
    let moved = text.replace("name = \"n\"\n", "").replace(&other, &node.model());
    fs::write(node.folder.path().join("node.toml"), moved.replace("[admin]\nlisten = \"127.0.0.1:0\"\n", ""))
        .unwrap();
    let error = post(node.admin, "/reload").json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("admin.listen, node.name: restart the node for these"), "{error}");
    node.reload(&other.replace(", chunk = \"64KiB\"", "").replace("report.cpu = \"process\"", ""));
    assert_eq!((node.stats("cache_bytes_max"), get(node.address, long).status), (100_000, 414));
}

#[test]
fn changed_settings_apply_to_later_requests_and_connections() {
    let node = Node::start(root);
    let root = root(node.folder.path());
    let mut old = Client::connect(node.address).unwrap();
    assert_eq!(old.ask("GET", "/a", "").unwrap().status, 200);
    // A balancer announces clients.
    node.reload(&format!("trust.proxy_protocol_from = \"127.0.0.1\"\n{root}"));
    let mut plain = TcpStream::connect(node.address).unwrap();
    plain.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(is_closed(plain), "who has to announce does");
    let mut announced = TcpStream::connect(node.address).unwrap();
    announced.write_all(ANNOUNCED).unwrap();
    assert_eq!(Client::over(announced).ask("GET", "/a", "").unwrap().status, 200);
    assert!(old.ask("GET", "/a", "").unwrap().node_and_hit().1, "one that is open goes on");
    node.reload(&root);
    assert_eq!(get(node.address, "/a").status, 200);
    // The health path and the length limit of targets apply to the next request on every connection.
    node.reload(&format!("health_path = \"/alive\"\nlimits.uri_max = 16\n{root}"));
    for (target, status) in [("/alive", 200), ("/.larder/health", 404), ("/aaaaaaaaaaaaaaaaaaa", 414)] {
        assert_eq!(old.ask("GET", target, "").unwrap().status, status, "{target}");
    }
    // Deadlines apply to new connections.
    node.reload(&format!("limits.idle_timeout = \"200ms\"\n{root}"));
    let mut idle = Client::connect(node.address).unwrap();
    assert_eq!(idle.ask("GET", "/a", "").unwrap().status, 200);
    until("silence ends it", || (node.stats("idle_timeouts") == 1).then_some(()));
    assert_eq!(old.ask("GET", "/a", "").unwrap().status, 200);
    // The length limit of a head.
    node.reload(&format!("limits.head_max = \"8KiB\"\n{root}"));
    let large = format!("X-Large: {}\r\n", "x".repeat(9_000));
    assert_eq!(crate::http::ask(node.address, "GET", "/a", &large).status, 431);
    assert!(node.terminate().success());
}

#[test]
fn a_lower_connection_limit_closes_no_connection() {
    let node = Node::start(root);
    let root = root(node.folder.path());
    let mut open: Vec<Client> = (0..4).map(|_| Client::connect(node.address).unwrap()).collect();
    let all_are_served = |open: &mut Vec<Client>| {
        assert!(open.iter_mut().all(|client| client.ask("GET", "/a", "").unwrap().status == 200));
    };
    all_are_served(&mut open);
    node.reload(&format!("limits.connections_max = 2\n{root}"));
    all_are_served(&mut open);
    assert_eq!(get(node.address, "/a").status, 503);
    for left in [3, 2] {
        open.pop();
        until("it has gone", || (node.stats("connections") == left).then_some(()));
        assert_eq!(get(node.address, "/a").status, 503, "{left} are open");
    }
    open.pop();
    until("it has gone", || (node.stats("connections") == 1).then_some(()));
    assert_eq!(get(node.address, "/a").status, 200);
    until("it has gone", || (node.stats("connections") == 1).then_some(()));
    node.reload(&format!("limits.connections_max = 5\n{root}"));
    open.extend((0..4).map(|_| Client::connect(node.address).unwrap()));
    all_are_served(&mut open);
    assert_eq!(get(node.address, "/a").status, 503);
    // A node that drains waits for all its connections.
    assert!(node.terminate().success());
}

/// Requests that are in progress when a node starts to drain get replies. Reloads meanwhile do not prolong
/// the drain.
#[test]
fn a_reload_while_a_node_ends_changes_nothing() {
    let node = Node::start(root);
    let root = root(node.folder.path());
    fs::write(node.folder.path().join("root/long"), vec![b'x'; 20_000_000]).unwrap();
    let mut slow = TcpStream::connect(node.address).unwrap();
    slow.write_all(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut begun = [0; 1_000];
    slow.read_exact(&mut begun).unwrap();
    node.signal(Signal::TERM);
    until("it takes no more", || TcpStream::connect(node.address).is_err().then_some(()));
    node.write(&format!("limits.connections_max = 1\ncache.size = \"1MB\"\n{root}"));
    (0..5).for_each(|_| node.signal(Signal::HUP));
    let rest = std::io::copy(&mut slow, &mut std::io::sink()).unwrap();
    assert!(begun.len() as u64 + rest > 20_000_000, "{rest}");
    assert!(node.wait_for_exit().success());
}

#[test]
fn new_connections_use_the_new_certificates_and_client_rules() {
    let node = Node::start(|folder| {
        let own = Authority::in_folder(folder, "one").leaf("a.test");
        fs::rename(folder.join("one.ca"), folder.join("first.ca")).unwrap();
        format!("{}tls = {{ listen = \"127.0.0.1:0\", certificates = {own:?} }}\n", root(folder))
    });
    let folder = node.folder.path();
    let first = crate::secured::roots(&fs::read(folder.join("first.ca")).unwrap());
    let elsewhere = folder.join("else");
    fs::create_dir(&elsewhere).unwrap();
    let (other, clients) = (Authority::in_folder(&elsewhere, "two"), Authority::in_folder(folder, "clients"));
    let (renewed, client) = (other.leaf("a.test"), clients.leaf("client.test"));
    let secure = node.secure.unwrap();
    let mut old = Client::over(connect(secure, "a.test", first.clone()).unwrap());
    assert_eq!(old.ask("GET", "/a", "").unwrap().status, 200);
    assert_eq!(get(node.address, "/a").status, 200);
    let handshakes =
        |node: &Node| metric(node.admin, "larder_node_tls_handshakes_total", &["outcome=\"done\""]).unwrap();
    assert_eq!(handshakes(&node), 1);

    let tls = |more: &str| {
        let root = root(folder);
        format!("{root}tls = {{ listen = \"127.0.0.1:0\", certificates = {renewed:?}{more} }}\n")
    };
    node.reload(&tls(", redirect = true"));
    assert!(shown(secure, "a.test", &first).is_err());
    assert!(shown(secure, "a.test", &other.roots()).is_ok());
    let sent = get(node.address, "/a");
    let location = format!("https://localhost:{}/a", secure.port());
    assert_eq!((sent.status, sent.header("location")), (308, Some(&*location)));
    assert_eq!(old.ask("GET", "/a", "").unwrap().status, 200);
    assert_eq!(handshakes(&node), 2, "counts go on");

    node.reload(&tls(&format!(", client_certificates = \"required\", client_ca = {:?}", clients.ca())));
    let ask = |own: Option<&Path>| {
        let tcp = TcpStream::connect(secure).unwrap();
        shake(tcp, "a.test", other.roots(), own).and_then(|stream| Client::over(stream).ask("GET", "/a", ""))
    };
    assert_eq!(ask(Some(&client)).unwrap().status, 200);
    assert!(ask(None).is_err(), "who has none is refused");
    assert_eq!(get(node.address, "/a").status, 200, "nobody is sent on any more");

    // An invalid certificate file changes nothing and is reported.
    fs::write(folder.join("broken.pem"), "nothing").unwrap();
    let broken = tls(", redirect = true")
        .replace(&format!("{renewed:?}"), &format!("{:?}", folder.join("broken.pem")));
    let error = node.reload_error(&broken);
    assert!(
        error.contains("node.toml:7:33: node.tls.certificates") && error.contains("broken.pem"),
        "{error}"
    );
    let status = node.status();
    assert_eq!((&status["failed"], &status["last"]["outcome"]), (&0.into(), &"refused".into()), "{status}");
    assert_eq!((ask(Some(&client)).unwrap().status, get(node.address, "/a").status), (200, 200));
    assert!(node.metric("larder_node_last_reload_success{node=\"n\"} 0"));
    // From now on the new settings control when files are checked.
    node.reload(&tls(", reload = \"1s\""));
    let third = Authority::in_folder(folder, "three");
    fs::copy(third.leaf("a.test"), &renewed).unwrap();
    until("what is renewed is shown", || shown(secure, "a.test", &third.roots()).ok());
    assert_eq!(old.ask("GET", "/a", "").unwrap().status, 200);
}

#[test]
fn peers_use_the_current_memory_size() {
    let cluster = PeerCluster::start(1, "");
    let resize = |node: usize, from: &str, to: &str| {
        let path = cluster.folder.path().join(format!("{}.toml", NAMES[node]));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(&format!("size = \"{from}\""), &format!("size = \"{to}\""))).unwrap();
        let reply = post(cluster.node(node).admin.unwrap(), "/reload");
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
    };
    let hits = |node: usize| cluster.get(node, "/large").node_and_hit().1;
    // A file larger than 1/64 of the memory is not stored.
    assert!(!hits(0) && !hits(0));
    (0..NAMES.len()).for_each(|node| resize(node, "2MB", "16MB"));
    assert!(!hits(0) && hits(0));
    cluster.await_known(1, 1);
    for _ in 0..2 {
        // A file that is too large to be shared is served by the node where the second request arrives.
        let reply = cluster.get(1, "/large");
        assert_eq!(status(&reply), "a; hit, b; fwd=uri-miss; fwd-status=200; detail=lateral");
    }
    resize(0, "16MB", "50KB");
    cluster.await_known(1, 0);
    assert!(!hits(1) && hits(1), "it is kept there");
}

#[test]
fn a_reload_changes_the_log_level() {
    let node = Node::start(|folder| format!("{}[log]\nlevel = \"warn\"\n", root(folder)));
    let root = root(node.folder.path());
    assert_eq!(node.log_text(), "");
    node.reload(&format!("{root}[log]\nlevel = \"info\"\n"));
    assert!(
        node.log_text().contains("reload: done") && node.log_text().contains("log.level"),
        "{}",
        node.log_text()
    );
    let said = node.log_text().len();
    node.reload(&format!("{root}[log]\nlevel = \"warn\"\n"));
    node.signal(Signal::HUP);
    until("it is done", || (node.status()["done"] == 3).then_some(()));
    assert_eq!(node.log_text().len(), said, "{}", node.log_text());
}

#[test]
fn without_a_config_file_sighup_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let manifest: PathBuf = manifest(folder.path());
    let node = Process::start(&[
        "node",
        "--name",
        "n",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--manifest",
        manifest.to_str().unwrap(),
        "--disk-speed",
        "200",
    ]);
    let admin = node.admin.unwrap();
    assert!(!get(node.address, "/t1").node_and_hit().1);
    for _ in 0..3 {
        node.signal(Signal::HUP);
        assert!(get(node.address, "/t1").node_and_hit().1);
    }
    let reply = post(admin, "/reload");
    assert_eq!(reply.status, 409);
    assert!(reply.json()["error"].as_str().unwrap().contains("without a config file"));
    let status = get(admin, "/reload").json();
    assert_eq!((&status["refused"], &status["last"]), (&0.into(), &Value::Null), "{status}");
    assert!(get(node.address, "/t1").node_and_hit().1);
    assert!(node.close_stdin().success());
}

#[test]
fn options_override_the_reloaded_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.toml");
    let text = |size: &str| {
        format!(
            "[node]\nlisten = \"127.0.0.1:0\"\n{}cache.size = \"{size}\"\nrevalidate = \"1s\"\n",
            root(folder.path())
        )
    };
    fs::write(&path, text("1MiB")).unwrap();
    let config = path.to_str().unwrap();
    let node = Process::start(&[
        "node",
        "--config",
        config,
        "--cache",
        "3MiB",
        "--name",
        "x",
        "--admin",
        "127.0.0.1:0",
    ]);
    let admin = node.admin.unwrap();
    fs::write(&path, text("2MiB").replace("[node]\n", "[node]\nname = \"y\"\n")).unwrap();
    assert_eq!(post(admin, "/reload").status, 200);
    let stats = get(admin, "/stats").json();
    assert_eq!((&stats["cache_bytes_max"], &stats["name"]), (&(3 << 20).into(), &"x".into()));
}

/// The node reads its config from a pipe and gets a signal while it waits for the pipe.
#[test]
fn a_signal_while_the_config_is_read_ends_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("node.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text = format!("[node]\nlisten = \"127.0.0.1:0\"\n{}", root(folder.path()));
    let mut child = Command::new(LARDER)
        .args(["node", "--ready-line", "--exit-with-stdin", "--config"])
        .arg(&pipe)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The open returns once the node has opened the pipe. The reload after the signal finds a file.
    let mut config = File::create(&pipe).unwrap();
    let file = folder.path().join("file");
    fs::write(&file, &text).unwrap();
    fs::rename(&file, &pipe).unwrap();
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    config.write_all(text.as_bytes()).unwrap();
    drop(config);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listen"), "'{line}'");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
