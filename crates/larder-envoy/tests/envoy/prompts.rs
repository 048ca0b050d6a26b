//! Completions in front of real Envoys.

use super::{WORKERS, nodes, ports};
use crate::support::config::{Endpoints, Options, bootstrap};
use crate::support::{Envoy, LATEST, VERSIONS, program};
use larder_testkit::proxy::{Client, Reply};
use larder_testkit::{eventually, needs_tool};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const PATH: &str = "/v1/chat/completions";

fn start(program: &Path, ports: &[u16]) -> Envoy {
    let policy = json!({ "prompts": { "server_tokens": 2_000_000, "body_max": "4MiB", "memory": "64MiB" } });
    let options = Options { policy, endpoints: Endpoints::Fixed(ports) };
    Envoy::start(program, WORKERS, |ports, folder| bootstrap(ports, folder, &options))
}

/// Sends a body on a connection of its own, which any worker may take.
fn send(envoy: &Envoy, body: &str) -> Reply {
    let mut client = Client::connect(envoy.port).expect("Envoy listens");
    client.post(PATH, body.as_bytes()).expect("a reply")
}

fn chat(messages: &[Value]) -> String {
    json!({ "model": "m", "messages": messages }).to_string()
}

/// Returns a message of `kilobytes` that no other seed has.
fn message(seed: &str, kilobytes: usize) -> Value {
    let mut text = String::new();
    while text.len() < kilobytes << 10 {
        text += &format!("{seed} {} ", text.len());
    }
    json!({ "role": "user", "content": text })
}

/// Returns a number of the page `/status`.
fn number(envoy: &Envoy, name: &str) -> u64 {
    envoy.larder_page("/status")["clusters"][0]["prompts"][name].as_u64().expect("a number")
}

#[test]
fn the_turns_of_a_conversation_go_to_one_node_in_every_supported_envoy() {
    for version in VERSIONS {
        let Some(program) = program(version) else { return };
        let nodes = nodes(3);
        let envoy = start(&program, &ports(&nodes));
        let mut homes: Vec<BTreeSet<u16>> = vec![BTreeSet::new(); 6];
        let mut conversations: Vec<Vec<Value>> = vec![Vec::new(); 6];
        for turn in 0..3 {
            for (user, messages) in conversations.iter_mut().enumerate() {
                // The last bodies are larger than Envoy's usual limit.
                messages.push(message(&format!("user {user} turn {turn}"), [4, 60, 1_100][turn]));
                let sent = chat(messages);
                let reply = send(&envoy, &sent);
                assert_eq!(reply.status, 200, "{version}: {}", reply.text());
                let arrived = reply.text();
                let (head, body) = arrived.split_once("\r\n\r\n").expect("a head and a body");
                assert_eq!(body.len(), sent.len(), "{version}");
                assert_eq!(body, sent, "{version}: the body arrives as it was sent");
                assert!(!head.contains("x-larder"), "{version}: {head}");
                homes[user].insert(reply.node.expect("a node"));
            }
        }
        assert!(homes.iter().all(|homes| homes.len() == 1), "{version}: {homes:?}");
        assert_eq!(homes.iter().flatten().collect::<BTreeSet<_>>().len(), 3, "{version}: {homes:?}");

        let too_long = chat(&[message("long", 4_097)]);
        for (body, status, code) in [("no json", 400, "no_prompt"), (&too_long, 413, "body_too_large")] {
            let reply = send(&envoy, body);
            let error: Value = serde_json::from_slice(&reply.body).expect("JSON");
            assert_eq!((reply.status, &error["error"]["code"]), (status, &json!(code)), "{version}: {error}");
        }
        eventually("the metrics are complete", || (envoy.stat("larder.prompts_read") == 18).then_some(()));
        let stats = ["larder.prompts", "larder.prompts_none", "larder.prompts_too_large"];
        assert_eq!(stats.map(|name| envoy.stat(name)), [18, 1, 1], "{version}");
        let (tokens, credited) =
            (envoy.stat("larder.prompt_tokens"), envoy.stat("larder.prompt_tokens_credited"));
        assert!(credited > 0 && credited < tokens, "{version}: {credited} of {tokens}");
        eventually("every request has ended", || {
            let nodes = envoy.nodes();
            let is_idle = nodes.iter().all(|node| node["load"] == 0);
            (is_idle && number(&envoy, "body_bytes") == 0).then_some(())
        });
    }
}

#[test]
fn completions_leave_a_node_that_refuses_connections() {
    let Some(program) = program(LATEST) else { return };
    let mut nodes = nodes(2);
    let envoy = start(&program, &ports(&nodes));
    let prompt = chat(&[message("turn", 8)]);
    let first = send(&envoy, &prompt).node.expect("a node");
    assert_eq!(send(&envoy, &prompt).node, Some(first));
    assert!(number(&envoy, "credits") > 20);
    for node in nodes.iter_mut().filter(|node| node.port == first) {
        node.kill();
    }
    // Large bodies are sent again, too.
    for kilobytes in [0, 600, 3_000] {
        let body = chat(&[message("turn", 8), message("large", kilobytes)]);
        let reply = send(&envoy, &body);
        assert_eq!(reply.status, 200, "{kilobytes} KiB: {}", reply.text());
        assert_ne!(reply.node, Some(first));
    }
    for _ in 0..10 {
        assert_ne!(send(&envoy, &prompt).node, Some(first));
    }
    let refused = envoy.stat("upstream_cx_connect_fail");
    assert!(
        (1..=2).contains(&refused),
        "after two failures the node is expected to have nothing cached: {refused}"
    );
}

#[test]
fn bodies_in_every_form_are_read_and_passed_on() {
    let (Some(program), Some(curl)) = (program(LATEST), needs_tool("curl", "curl")) else { return };
    let nodes = nodes(1);
    let envoy = start(&program, &ports(&nodes));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("body.json");
    // Larger than Envoy's buffers and than curl's pieces.
    let body = chat(&[message("form", 2_000)]);
    fs::write(&file, &body).expect("written");
    let file = file.to_str().expect("a path in UTF-8");
    let data = format!("@{file}");
    let whole = ["--data-binary", data.as_str()];
    // curl does not know the length of what it reads from stdin.
    let unknown_length = ["--upload-file", "-", "--request", "POST"];
    for (form, options) in [
        ("with a length", [&whole[..], &["--http1.1"]]),
        ("in chunks", [&unknown_length, &["--http1.1"]]),
        ("after 100 Continue", [&whole, &["--http1.1", "--header", "Expect: 100-continue"]]),
        ("over HTTP/2", [&whole, &["--http2-prior-knowledge"]]),
        ("over HTTP/2 without a length", [&unknown_length, &["--http2-prior-knowledge"]]),
    ] {
        let mut command = Command::new(&curl);
        command.args(["--silent", "--show-error", "--max-time", "60"]).args(options.concat());
        command.args(["--header", "Content-Type: application/json"]);
        let output = command
            .arg(format!("http://127.0.0.1:{}{PATH}", envoy.port))
            .stdin(fs::File::open(file).expect("the body"))
            .output()
            .expect("curl runs");
        assert!(output.status.success(), "{form}: {output:?}");
        let reply = String::from_utf8_lossy(&output.stdout);
        let (_, arrived) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{form}: {reply:.200}"));
        assert!(arrived == body, "{form}: {} of {} bytes", arrived.len(), body.len());
    }
    eventually("the metrics are complete", || (envoy.stat("larder.prompts") == 5).then_some(()));
    let (tokens, credited) =
        (envoy.stat("larder.prompt_tokens"), envoy.stat("larder.prompt_tokens_credited"));
    assert_eq!(tokens % 5, 0, "the prompt is the same in every form");
    assert_eq!(credited, 4 * (tokens / 5 - 1), "an engine computes the last token again");
    let none = send(&envoy, "");
    assert_eq!(none.status, 400, "{}", none.text());
}
