//! `larder sim prompts` and `larder plan prompts`: tables, JSON, and errors for invalid arguments.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use larder_core::chain::ChainPolicyKind;
use serde_json::Value;

use crate::process::LARDER;

fn larder_sim_prompts(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(["sim", "prompts"]).args(arguments).output().unwrap()
}

fn prompts(trace: &Path, arguments: &[&str]) -> Output {
    larder_sim_prompts(&[&[trace.to_str().unwrap()], arguments].concat())
}

/// Writes a trace of ten conversations of four turns, and a malformed line. A turn adds two blocks, and turns are a minute apart.
fn trace(folder: &Path) -> PathBuf {
    let mut text = String::from("{}\n");
    for (turn, user) in (0..4_u64).flat_map(|turn| (0..10_u64).map(move |user| (turn, user))) {
        let blocks: Vec<u64> = (0..2 * (turn + 1)).map(|at| user * 100 + at).collect();
        let (ms, tokens) = (turn * 60_000 + user * 1_000, blocks.len() * 512);
        writeln!(
            text,
            r#"{{"timestamp": {ms}, "input_length": {tokens}, "output_length": 20, "hash_ids": {blocks:?}}}"#
        )
        .unwrap();
    }
    let path = folder.join("prompts.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn every_policy_is_compared_for_every_number_of_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path());
    let output = prompts(&path, &["--nodes", "2,3", "--json"]);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{talk}");
    assert!(talk.contains("1 line left out; the first: line 1"), "{talk}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "larder/prompts/1");
    let comparisons = document["comparisons"].as_array().unwrap();
    assert_eq!(comparisons.iter().map(|one| &one["nodes"]).collect::<Vec<_>>(), [2, 3]);
    for comparison in comparisons {
        // Of 2 + 4 + 6 + 8 blocks, a turn finds those of the turn before.
        assert_eq!(comparison["reuse_unlimited"]["tokens"], 0.6);
        let policies = comparison["policies"].as_array().unwrap();
        let names: Vec<&str> = policies.iter().map(|one| one["policy"].as_str().unwrap()).collect();
        assert_eq!(names, ChainPolicyKind::ALL.map(ChainPolicyKind::name));
        assert!(policies.iter().all(|one| one["finished"] == 40), "{policies:?}");
        assert_eq!(policies.last().unwrap()["token_hit_ratio"], 0.6, "{policies:?}");
    }
    let output = prompts(&path, &["--policies", "lard-prefix"]);
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("hits without a limit of memory: 60.0 % of the tokens"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("lard-prefix ") && line.contains("60.0 %")), "{table}");
}

#[test]
fn generated_agents_need_no_trace() {
    let run = |seed| {
        let arguments =
            ["--agents", "0.5", "--seed", seed, "--limit", "300", "--policies", "lard-prefix", "--json"];
        let output = larder_sim_prompts(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let document = run("1");
    assert_eq!(document["comparisons"][0]["policies"][0]["finished"], 300);
    assert_eq!(document, run("1"));
    assert_ne!(document, run("2"));
    let talk = larder_sim_prompts(&["--agents", "0"]).stderr;
    assert!(String::from_utf8_lossy(&talk).contains("--agents 0 is out of range"));
    let talk = larder_sim_prompts(&[]).stderr;
    assert!(String::from_utf8_lossy(&talk).contains("TRACE"));
}

#[test]
fn bad_arguments_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path());
    for (arguments, complaint) in [
        (&["--policies", "lard-r"][..], "unknown policy of chains 'lard-r': use one of rr, least-load"),
        (&["--policies", "rr,rr"], "--policies names 'rr' twice"),
        (&["--nodes", "0"], "1..=1024"),
        (&["--speed", "0"], "--speed 0 is out of range"),
        (&["--engine", "gpt"], "unknown engine 'gpt': use one of llama3-8b-a100"),
        (&["--memory", "0"], "1.."),
        (&["--agents", "1"], "cannot be used with"),
    ] {
        let output = prompts(&path, arguments);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && talk.contains(complaint), "{arguments:?}: {talk}");
    }
    let other = folder.path().join("access.log");
    std::fs::write(&other, "GET / HTTP/1.1\n").unwrap();
    let output = prompts(&other, &[]);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && talk.contains("none of 1 lines is a prompt"), "{talk}");
}

fn plan(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(["plan", "prompts"]).args(arguments).output().unwrap()
}

/// `larder plan prompts`: nodes, capacity, and whether routing by prefix pays.
#[test]
fn a_plan_says_whether_routing_by_prefix_pays() {
    let agents = ["--agents", "1", "--limit", "1500", "--policies", "least-load,lard-prefix"];
    let output = plan(&agents);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let needed = |policy: &str| -> u16 {
        let row = text.lines().find(|line| line.starts_with(policy)).unwrap_or_else(|| panic!("{text}"));
        row.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let (blind, prefix) = (needed("least-load"), needed("lard-prefix"));
    assert!(prefix < blind, "{text}");
    assert!(text.contains(&format!("Recommended: lard-prefix on {prefix} nodes ")), "{text}");
    assert!(text.contains(&format!("Routing by prefix pays: least-load needs {blind} nodes, ")), "{text}");
    let output = plan(&[&agents[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&document["schema"], &document["best"]),
        (&"larder/prompt-plan/1".into(), &"lard-prefix".into())
    );
    assert_eq!(document["policies"][0]["nodes_needed"], blind);
}

#[test]
fn a_plan_for_prompts_that_share_nothing_names_remedies() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompts.jsonl");
    let line = |at: u64| {
        format!(
            "{{\"timestamp\": {}, \"input_length\": 512, \"output_length\": 5, \"hash_ids\": [{at}]}}\n",
            at * 1_000
        )
    };
    std::fs::write(&path, (0..50).map(line).collect::<String>()).unwrap();
    let path = path.to_str().unwrap();
    let output = plan(&[path]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("reuse: at most 0.0 % of the tokens"), "{text}");
    assert!(text.contains("Routing by prefix does not pay here: "), "{text}");
    let text = plan(&[path, "--policies", "rr,least-load"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("Add lard-prefix to --policies"));
    let text = plan(&[path, "--memory", "512"]).stdout;
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("Prompts that need more memory than a node has: 50."), "{text}");
    let text = plan(&[path, "--goal", "p99=1us"]).stdout;
    assert!(String::from_utf8_lossy(&text).contains("No policy meets the goal with up to 256 nodes."));

    let wrong: [(&[&str], &str); 4] = [
        (&[path, "--goal", "p95=1s"], "write p50=500ms, p90=5s or p99=30s"),
        (&[path, "--nodes", "300"], "300 is not in 1..=256"),
        (&[path, "--limit", "1"], "has no rate"),
        (&[path, "--policies", "rr,rr"], "--policies names 'rr' twice"),
    ];
    for (arguments, part) in wrong {
        let output = plan(arguments);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && talk.contains(part), "{arguments:?}: {talk}");
    }
}

/// A log of OpenAI's API, with conversations that grow.
#[test]
fn a_plan_reads_requests_of_openais_api() {
    let mut log = String::new();
    for at in 0..60 {
        let (user, turn) = (at % 10, at / 10);
        let messages: Vec<Value> = (0..=turn)
            .map(|turn| serde_json::json!({ "role": "user", "content": format!("{user} {turn} ").repeat(2_000) }))
            .collect();
        let line = serde_json::json!({
            "time": at, "body": { "model": "m", "messages": messages }, "usage": { "completion_tokens": 10 },
        });
        log += &format!("{line}\n");
    }
    let folder = tempfile::tempdir().unwrap();
    let chats = folder.path().join("requests.jsonl");
    std::fs::write(&chats, log).unwrap();
    let output = plan(&[chats.to_str().unwrap(), "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["requests"], 60);
    // Of 1 + 2 + .. + 6 messages, a turn finds those before it, but for the last block, which was not full.
    let reuse = document["reuse_unlimited"]["tokens"].as_f64().unwrap();
    assert!((0.6..15.0 / 21.0).contains(&reuse), "{reuse}");
}
