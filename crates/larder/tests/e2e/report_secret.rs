//! A node that sends reports only to switches that prove a secret.

use larder_peers::{ClusterSecrets, PROOF_FIELD};
use larder_testkit::eventually;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::http::{ask, get, metric, post};
use crate::origin::{Origin, values};
use crate::process::{LARDER, Process};

/// Creates a secret and returns its line.
fn secret(path: &Path) -> String {
    assert!(Command::new(LARDER).args(["keys", "new"]).arg(path).status().unwrap().success());
    fs::read_to_string(path).unwrap()
}

fn write(path: &Path, secrets: &str) {
    fs::write(path, secrets).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

fn start(folder: &Path, role: &str, config: &str) -> Process {
    let path = folder.join(format!("{role}.toml"));
    fs::write(&path, format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n")).unwrap();
    Process::start(&[role, "--config", path.to_str().unwrap()])
}

/// Returns the sum of a counter of the switch over the lines that contain `label`.
fn count(switch: &Process, name: &str, label: &str) -> u64 {
    metric(switch.admin.unwrap(), name, &[label]).unwrap_or(0)
}

#[test]
fn only_a_switch_that_proves_the_secret_gets_reports() {
    let folder = tempfile::tempdir().unwrap();
    let [of_node, of_switch] = ["node.key", "switch.key"].map(|name| folder.path().join(name));
    let old = secret(&of_node);
    write(&of_switch, &old);
    let node = start(
        folder.path(),
        "node",
        &format!("[node]\nlisten = \"127.0.0.1:0\"\nroot = {:?}\nreport.secret = {of_node:?}", folder.path()),
    );
    let switch = start(
        folder.path(),
        "switch",
        &format!(
            "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"{}\"]\npolicy = \"lb-gc\"\n\
             signals = {{ source = \"larder\", period = \"20ms\", secret = {of_switch:?} }}",
            node.address
        ),
    );
    let reports = || count(&switch, "larder_switch_reports_total", "");
    let go_on = |what: &str| {
        let before = reports();
        eventually(what, || (reports() > before + 1).then_some(()));
    };
    go_on("reports come");
    let streams = || {
        let refused = count(&switch, "larder_switch_signal_failures_total", "cause=\"status\"");
        let live = count(&switch, "larder_switch_cache_events_total", "snapshot");
        (live > 0).then_some(refused)
    };
    assert_eq!(eventually("the stream of cache events is up", streams), 0, "nothing was refused");

    // The address is no proof any more, and neither is another secret.
    let proof = |path: &Path| format!("{PROOF_FIELD}: {}\r\n", ClusterSecrets::load(path).unwrap().proof());
    let (right, other) = (proof(&of_node), folder.path().join("other.key"));
    let new = secret(&other);
    for path in ["/.larder/load", "/.larder/events"] {
        for fields in ["", &proof(&other), &format!("{right}Via: 1.1 gateway\r\n")] {
            assert_eq!(ask(node.address, "GET", path, fields).status, 404, "{path} {fields:?}");
        }
    }
    assert_eq!(ask(node.address, "GET", "/.larder/load", &right).status, 200);
    assert_eq!(get(node.address, "/.larder/health").status, 200);

    let reload = |secrets: &str| {
        write(&of_node, secrets);
        assert_eq!(post(node.admin.unwrap(), "/reload").status, 200);
    };
    reload(&format!("{new}{old}"));
    assert_eq!(ask(node.address, "GET", "/.larder/load", &proof(&other)).status, 200);
    go_on("reports go on by the second secret");
    let mut stream = TcpStream::connect(node.address).unwrap();
    write!(stream, "GET /.larder/events HTTP/1.1\r\nHost: a\r\n{right}\r\n").unwrap();
    let mut status = [0; 15];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
    reload(&new);
    eventually("the switch's secret is refused", || {
        (count(&switch, "larder_switch_signal_failures_total", "cause=\"status\"") > 0).then_some(())
    });
    assert_eq!(ask(node.address, "GET", "/.larder/load", &right).status, 404);
    // The last line of a stream that was open before the reload.
    let last = BufReader::new(stream).lines().map(Result::unwrap).find(|line| line.contains("cut"));
    assert_eq!(last.as_deref(), Some("{\"cut\":\"secret\"}"));
}

/// The proof is valid at every node, so no origin and no foreign server may see it.
#[test]
fn the_proof_reaches_nobody_but_a_larder_node() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("report.key");
    secret(&key);
    let proof = format!("{PROOF_FIELD}: {}\r\n", ClusterSecrets::load(&key).unwrap().proof());
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let node = start(
        folder.path(),
        "node",
        &format!(
            "[node]\nlisten = \"127.0.0.1:0\"\norigin = {{ url = \"http://{}\" }}\n\
             report = {{ secret = {key:?}, load_path = \"off\" }}",
            origin.address
        ),
    );
    assert_eq!(ask(node.address, "GET", "/.larder/load", &proof).status, 200);
    assert_eq!(ask(node.address, "POST", "/x", &proof).status, 200);

    // The switch requests the memory size from this server. The request is unrelated to load reports.
    let server = Origin::start("s", "");
    let _switch = start(
        folder.path(),
        "switch",
        &format!(
            "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"{}\"]\npolicy = \"wrr\"\nshadow.policies = [\"hash\"]\n\
             signals = {{ source = \"node-exporter\", secret = {key:?} }}",
            server.address
        ),
    );
    eventually("the server is asked for the size of its memory", || {
        server.requests.lock().unwrap().iter().any(|seen| seen.contains("/.larder/load")).then_some(())
    });
    for seen in [&origin, &server].map(|server| server.requests.lock().unwrap().clone()) {
        assert!(!seen.is_empty() && seen.iter().all(|seen| values(seen, PROOF_FIELD).is_empty()), "{seen:?}");
    }
}
