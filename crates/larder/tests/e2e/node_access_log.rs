//! The access log of a node: rotation, HTTP/2, and programs that read it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use http::Request;
use http_body_util::Full;
use hyper::body::Bytes;
use larder_testkit::Authority;
use rustix::process::Signal;
use serde_json::Value;

use crate::http::get;
use crate::node_http2::{self, HOST};
use crate::node_reload::Node;
use crate::process::{LARDER, Process, until};

fn larder(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(arguments).output().unwrap()
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn a_moved_file_keeps_its_lines_and_a_new_one_gets_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "hello").unwrap();
    let (log, old) = (folder.path().join("access.log"), folder.path().join("access.log.1"));
    let (root, file) = (folder.path().to_str().unwrap(), log.to_str().unwrap());
    let words = ["node", "--listen", "127.0.0.1:0", "--root", root, "--name", "n", "--access-log", file];
    let node = Process::start(&words);
    get(node.address, "/a");
    until("the line is written", || (lines(&log).len() == 1).then_some(()));
    fs::rename(&log, &old).unwrap();
    node.signal(Signal::HUP);
    let mut asked = 1;
    until("lines go to the new file", || {
        get(node.address, "/a");
        asked += 1;
        (!lines(&log).is_empty()).then_some(())
    });
    assert!(node.terminate().success());
    let all = [lines(&old), lines(&log)].concat();
    assert_eq!(all.len(), asked, "none is lost");
    let line = &all[0];
    assert!(
        line.contains("] \"GET /a HTTP/1.1\" 200 5 \"-\" \"-\" node=n error=- cache=miss fwd=uri-miss "),
        "{line}"
    );
    assert!(all[1].contains(" cache=hit fwd=- detail=- origin=- first_byte_us="), "{}", all[1]);
}

/// Requests some targets. The log has one of both formats.
fn logged(folder: &Path, format: &str) -> std::path::PathBuf {
    let log = folder.join(format!("{format}.log"));
    let node = Node::start(|at| {
        fs::write(at.join("a"), "x".repeat(1_000)).unwrap();
        fs::write(at.join("b"), "x".repeat(2_000)).unwrap();
        format!("root = {at:?}\naccess_log.file = {log:?}\naccess_log.format = \"{format}\"\n")
    });
    for nth in 0..300 {
        get(node.address, if nth % 3 == 0 { "/b" } else { "/a" });
    }
    get(node.address, "/none");
    assert!(node.terminate().success());
    log
}

#[test]
fn trace_and_plan_read_it_like_that_of_a_switch() {
    let folder = tempfile::tempdir().unwrap();
    for (format, called) in [("combined", "clf"), ("json", "larder")] {
        let log = logged(folder.path(), format);
        let log = log.to_str().unwrap();
        let output = larder(&["trace", "stats", log, "--json"]);
        let stats: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{format}: {}", String::from_utf8_lossy(&output.stderr)));
        let text = stats.to_string();
        assert!(output.status.success() && text.contains(called), "{format}: {text}");
        assert!(text.contains("300") && text.contains("\"targets\":2"), "{format}: {text}");
        let small = ["plan", log, "--nodes", "2", "--costs", "lard98", "--seeds", "1", "--json"];
        let plan: Value = serde_json::from_slice(&larder(&small).stdout).unwrap();
        assert_eq!(plan["logs"][0]["replayed"], 300, "{format}");
    }
}

#[test]
fn requests_of_http2_have_a_line_each_but_those_that_are_malformed() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let authority = Authority::in_folder(folder.path(), "ca");
    fs::write(folder.path().join("a"), "hello").unwrap();
    let format = "{method} {target} {version} {status} {body_bytes} {cache} {detail}";
    let keys =
        format!("root = {:?}\naccess_log.file = {log:?}\naccess_log.format = {format:?}", folder.path());
    let node = node_http2::node(folder.path(), &authority, &keys, "");
    let client = node_http2::Client::new(node.address, &authority.roots());
    let ask = |method: &str, target: &str, fields: &[(&str, &str)], body: &'static str| {
        let mut request = Request::builder().method(method).uri(format!("https://{HOST}{target}"));
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let reply =
            client.send(request.body(Full::from(Bytes::from_static(body.as_bytes()))).unwrap()).unwrap();
        let _ = client.rest(reply);
    };
    ask("GET", "/a?x", &[], "");
    ask("GET", "/a", &[], "");
    ask("HEAD", "/a", &[], "");
    ask("GET", "/a", &[("host", "b.test")], "");
    ask("POST", "/a", &[("expect", "100-continue")], "body");
    ask("GET", "/.larder/health", &[], "");
    ask("GET", "/none", &[], "");
    let expected = [
        "GET /a?x HTTP/2.0 200 5 miss -",
        "GET /a HTTP/2.0 200 5 hit -",
        "HEAD /a HTTP/2.0 200 0 hit -",
        "POST /a HTTP/2.0 405 0 - method",
        "GET /none HTTP/2.0 404 10 miss not-found",
    ];
    assert!(node.terminate().success());
    // A line is written after the last part of its reply, which may be after the client's next request.
    let (mut found, mut wanted) = (lines(&log), expected.map(str::to_owned));
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn a_reload_takes_another_log_and_opens_it_anew() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["one", "two"].map(|name| folder.path().join(name));
    let keys = |file: &Path| format!("root = {:?}\naccess_log.file = {file:?}\n", folder.path());
    fs::write(folder.path().join("a"), "hello").unwrap();
    let node = Node::start(|_| keys(&files[0]));
    get(node.address, "/a?1");
    node.reload(&keys(&files[1]));
    get(node.address, "/a?2");
    until("the line is written", || (lines(&files[1]).len() == 1).then_some(()));
    assert_eq!(lines(&files[0]).len(), 1);
    // The log is also reopened if the config is refused.
    let moved = folder.path().join("moved");
    fs::rename(&files[1], &moved).unwrap();
    node.reload_error("root = \"/elsewhere\"\n");
    until("the file is there again", || files[1].exists().then_some(()));
    let error = node.reload_error(&keys(&folder.path().join("none/such")));
    assert!(error.contains("access_log") || error.contains("access log"), "{error}");
    get(node.address, "/a?3");
    assert_eq!(node.stats("access_log_dropped"), 0);
    assert!(node.terminate().success());
    assert_eq!((lines(&moved).len(), lines(&files[1]).len()), (1, 1));
}
