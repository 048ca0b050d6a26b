//! Purges by the admin interface of a node, by that of a switch, and by the command line.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use larder_testkit::{free_port, write_secret};
use serde_json::Value;

use crate::http::{Reply, ask, get, metrics, post};
use crate::origin::Origin;
use crate::process::{LARDER, Process};

const TOKEN: &str = "a-token-of-the-operator";
const TAGGED: &str = "Cache-Control: max-age=1000\r\nCache-Tag: shop, all\r\n";

fn token(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    write_secret(&path, text);
    path
}

/// Starts a node before an origin. `more` are keys of `[node]`.
fn node(folder: &Path, name: &str, origin: &Origin, more: &str) -> Process {
    let config = folder.join(format!("{name}.toml"));
    let text = format!(
        "[node]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\n{more}\n[node.origin]\nurl = \"http://{}\"\nhost = \"client\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n",
        origin.address
    );
    fs::write(&config, text).unwrap();
    Process::start(&["node", "--config", config.to_str().unwrap()])
}

fn switch(folder: &Path, nodes: &[(&str, SocketAddr)], more: &str) -> Process {
    let config = folder.join("switch.toml");
    let entry =
        |(name, address): &(&str, SocketAddr)| format!("{{ name = \"{name}\", address = \"{address}\" }}");
    let nodes = nodes.iter().map(entry).collect::<Vec<_>>().join(", ");
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [{nodes}]\n{more}\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    fs::write(&config, text).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap()])
}

fn purge(admin: SocketAddr, query: &str, token: &str) -> Reply {
    ask(admin, "POST", &format!("/purge?{query}"), &format!("Authorization: Bearer {token}\r\n"))
}

fn hits(address: SocketAddr, target: &str) -> bool {
    get(address, target).node_and_hit().1
}

fn larder(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(arguments).output().unwrap()
}

#[test]
fn a_node_purges_for_clients_with_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", TAGGED);
    let file = token(folder.path(), "token", TOKEN);
    let guarded = node(folder.path(), "a", &origin, &format!("purge_token = {file:?}"));
    let admin = guarded.admin.unwrap();
    assert!(!hits(guarded.address, "/x") && hits(guarded.address, "/x"));
    for (query, shown, status, error) in [
        ("url=http://localhost/x", "another-token-of-16", 401, "missing or wrong purge token"),
        ("", TOKEN, 400, "the request names no objects"),
        ("url=/x", TOKEN, 400, "no scheme"),
        ("url=http://a/&tag=b", TOKEN, 400, "a purge takes only one parameter"),
    ] {
        let reply = purge(admin, query, shown);
        let problem = reply.json();
        assert_eq!(reply.status, status, "{problem}");
        assert!(
            problem["error"].as_str().unwrap().contains(error) && problem["hint"].is_string(),
            "{problem}"
        );
    }
    assert_eq!((post(admin, "/purge?tag=x").status, get(admin, "/purge").status), (401, 405));
    assert!(hits(guarded.address, "/x"));
    for query in ["url=http://localhost/x", "prefix=http://localhost/", "tag=shop"] {
        let reply = purge(admin, query, TOKEN);
        assert_eq!((reply.status, reply.json()["removed"].as_u64()), (200, Some(1)), "{query}");
        assert!(!hits(guarded.address, "/x") && hits(guarded.address, "/x"));
    }
    let stats = get(admin, "/stats").json();
    assert_eq!((stats["purges"].as_u64(), stats["purges_denied"].as_u64()), (Some(3), Some(2)), "{stats}");

    let open = node(folder.path(), "b", &origin, "");
    let reply = purge(open.admin.unwrap(), "tag=shop", TOKEN);
    let problem = reply.json();
    assert_eq!(reply.status, 403, "{problem}");
    assert!(problem["error"].as_str().unwrap().contains("no purge token"), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("node.purge_token"), "{problem}");
}

#[test]
fn a_switch_purges_at_all_its_nodes_and_names_failures() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", TAGGED);
    let file = token(folder.path(), "token", TOKEN);
    let keys = format!("purge_token = {file:?}");
    let (a, b) = (node(folder.path(), "a", &origin, &keys), node(folder.path(), "b", &origin, &keys));
    let both = switch(folder.path(), &[("a", a.address), ("b", b.address)], &keys);
    for node in [&a, &b] {
        assert!(!hits(node.address, "/x") && hits(node.address, "/x"));
    }
    let reply = purge(both.admin.unwrap(), "url=http://localhost/x", TOKEN);
    let report = reply.json();
    assert_eq!(reply.status, 200, "{report}");
    let expected = |node: &str| serde_json::json!({ "node": node, "done": true, "removed": 1 });
    assert_eq!(report["nodes"], serde_json::json!([expected("a"), expected("b")]));
    assert_eq!((&report["done"], &report["failed"], &report["removed"]), (&2.into(), &0.into(), &2.into()));
    assert!(!hits(a.address, "/x") && !hits(b.address, "/x"));
    assert_eq!(purge(both.admin.unwrap(), "tag=shop", "another-token-of-16").status, 401);

    // One node is down, one has another token, and one is no larder node.
    let gone = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let other = token(folder.path(), "other", "another-token-of-16");
    let c = node(folder.path(), "c", &origin, &format!("purge_token = {other:?}"));
    let nodes = [("a", a.address), ("c", c.address), ("gone", gone), ("o", origin.address)];
    let some = switch(folder.path(), &nodes, &keys);
    let reply = purge(some.admin.unwrap(), "tag=all", TOKEN);
    let report = reply.json();
    assert_eq!((reply.status, &report["done"], &report["failed"]), (502, &1.into(), &3.into()), "{report}");
    let error = |at: usize| report["nodes"][at]["error"].as_str().unwrap_or_default().to_owned();
    assert_eq!((error(0), &report["nodes"][0]["removed"]), (String::new(), &1.into()));
    assert!(error(1).contains("404") && error(1).contains("purge_token"), "{report}");
    assert!(error(2).contains("cannot connect"), "{report}");
    assert!(error(3).contains("not a larder node"), "{report}");
    let metrics = metrics(some.admin.unwrap());
    assert!(metrics.contains("larder_switch_purges_total{outcome=\"failed\"} 1"), "{metrics}");
}

#[test]
fn the_command_line_purges_and_names_failures() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", TAGGED);
    let file = token(folder.path(), "token", TOKEN);
    let keys = format!("purge_token = {file:?}");
    let a = node(folder.path(), "a", &origin, &keys);
    let front = switch(folder.path(), &[("a", a.address)], &keys);
    let (at, of_node) = (front.admin.unwrap().to_string(), a.admin.unwrap().to_string());
    let file = file.to_str().unwrap();
    let run = |more: &[&str]| {
        let output = larder(&[&["purge", "--token", file], more].concat());
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    hits(a.address, "/x");
    let (code, told, talk) = run(&["--admin", &at, "--url", "http://localhost/x"]);
    assert_eq!((code, told.as_str()), (0, "a: 1 removed\n"), "{talk}");
    hits(a.address, "/x");
    let (code, told, _) = run(&["--admin", &of_node, "--tag", "shop", "--json"]);
    let answer: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &answer["removed"]), (0, &1.into()));
    let (code, told, talk) =
        run(&["--admin", &of_node, "--admin", "127.0.0.1:1", "--prefix", "http://localhost/"]);
    assert_eq!(code, 1);
    assert!(
        told.starts_with(&format!("{of_node}: 0 removed\n127.0.0.1:1: "))
            && talk.contains("repeat the purge"),
        "{told}{talk}"
    );
    assert_eq!(run(&["--admin", &at, "--url", "x"]).0, 2);
    assert_eq!(run(&["--admin", &at]).0, 2, "nothing is named");
    assert_eq!(larder(&["purge", "--token", "/none/such", "--tag", "x"]).status.code(), Some(2));
}

/// A token is replaced in a running node.
#[test]
fn a_reload_reads_the_token_anew() {
    let folder = tempfile::tempdir().unwrap();
    let origin = Origin::start("o", TAGGED);
    let file = token(folder.path(), "token", TOKEN);
    let a = node(folder.path(), "a", &origin, &format!("purge_token = {file:?}"));
    let admin = a.admin.unwrap();
    let new = "a-new-token-of-the-operator";
    fs::write(&file, format!("{new}\n{TOKEN}\n")).unwrap();
    assert_eq!(purge(admin, "tag=x", new).status, 401);
    assert_eq!(post(admin, "/reload").status, 200);
    for shown in [TOKEN, new] {
        assert_eq!(purge(admin, "tag=x", shown).status, 200);
    }
    fs::write(&file, "short").unwrap();
    let reply = post(admin, "/reload");
    assert_eq!(reply.status, 409);
    assert!(reply.json()["error"].as_str().unwrap().contains("5 characters"), "{}", reply.json());
    assert_eq!(purge(admin, "tag=x", new).status, 200, "what was in force stays so");
}
