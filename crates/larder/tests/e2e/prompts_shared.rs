//! The credits of prompts outlive a switch: other switches know them too, and so does the process after a reload.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use larder_testkit::{eventually, free_port};
use serde_json::Value;

use crate::http::{get, metric};
use crate::origin::Origin;
use crate::process::LARDER;
use crate::prompts_live::{chat, message, post, text};
use crate::reload::Switch;

const CONVERSATIONS: usize = 8;

/// Returns the config lines of a switch with a route for prompts.
fn lines(servers: &[Origin], more: &str) -> String {
    let node =
        |server: &Origin| format!("{{ name = \"{}\", address = \"{}\" }}", server.name, server.address);
    let nodes: Vec<String> = servers.iter().map(node).collect();
    format!(
        "listen = \"127.0.0.1:0\"\npolicy = \"rr\"\nnodes = [{}]\n{more}\
         [[switch.routes]]\nname = \"llm\"\npath = \"/v1/*\"\nprompts = {{}}\n",
        nodes.join(", ")
    )
}

/// Returns the config lines of one of several switches.
fn peer_lines(servers: &[Origin], at: usize, ports: &[u16], secret: &Path) -> String {
    let seeds: Vec<String> = ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let seeds = seeds.join(", ");
    let peers = format!(
        "[switch.switches]\nname = \"s{at}\"\nlisten = \"127.0.0.1:{}\"\nsecret = {secret:?}\nseeds = [{seeds}]\n",
        ports[at]
    );
    lines(servers, &peers)
}

fn credits(switch: &Switch) -> u64 {
    metric(switch.admin, "larder_switch_prompt_credits", &[]).unwrap()
}

/// Sends the next turn of each conversation, and returns their servers.
fn turn(switch: SocketAddr, conversations: &mut [Vec<Value>]) -> Vec<String> {
    let mut homes = Vec::new();
    for (user, messages) in conversations.iter_mut().enumerate() {
        messages.push(message("user", &text(&format!("user {user} turn {}", messages.len()), 4)));
        let reply = post(switch, &chat(messages));
        assert_eq!(reply.status, 200, "{}", reply.head);
        homes.push(reply.header("x-origin").unwrap().to_owned());
    }
    homes
}

#[test]
fn switches_know_each_others_prompts_and_a_new_one_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("switches.key");
    assert!(Command::new(LARDER).args(["keys", "new"]).arg(&secret).status().unwrap().success());
    let servers = ["a", "b", "c"].map(|name| Origin::start(name, ""));
    let ports = [0; 3].map(|_| free_port());
    let start = |at| Switch::start(&peer_lines(&servers, at, &ports, &secret));
    let (first, second) = (start(0), start(1));
    // What a switch sends before it has met another one does not arrive there.
    let until_met = |switches: &[&Switch]| {
        let has_met = |switch: &&Switch| {
            let view = get(switch.admin, "/switches").json();
            let others = view["others"].as_array().unwrap();
            others.len() == switches.len() - 1 && others.iter().all(|other| other["up"] == true)
        };
        eventually("the switches have met", || switches.iter().all(has_met).then_some(()));
    };
    until_met(&[&first, &second]);
    let mut conversations = vec![Vec::new(); CONVERSATIONS];
    let homes = turn(first.address, &mut conversations);
    // A request that seems to wait at a server may send the next turn to another one.
    let until_equal = |one: &Switch, other: &Switch| {
        let requests = |switch: &Switch| metric(switch.admin, "larder_switch_prompt_requests", &[]);
        eventually("both expect the same, and no request", || {
            let is_idle = requests(one) == Some(0) && requests(other) == Some(0);
            (is_idle && credits(one) == credits(other)).then_some(())
        });
    };
    until_equal(&first, &second);
    let exchanged = |switch: &Switch, what| metric(switch.admin, "larder_switch_peer_prompts_total", &[what]);
    let all = Some(CONVERSATIONS as u64);
    assert_eq!((exchanged(&first, "sent"), exchanged(&second, "taken")), (all, all));
    assert_eq!(exchanged(&first, "lost"), Some(0));
    assert_eq!(turn(second.address, &mut conversations), homes);
    until_equal(&first, &second);
    let third = start(2);
    until_met(&[&first, &second, &third]);
    until_equal(&first, &third);
    assert!(metric(third.admin, "larder_switch_credit_pages_asked_total", &[]) >= Some(3), "one per server");
    assert_eq!(turn(third.address, &mut conversations), homes);
}

#[test]
fn a_reload_keeps_what_is_expected() {
    let servers = ["a", "b", "c"].map(|name| Origin::start(name, ""));
    let switch = Switch::start(&lines(&servers, ""));
    let mut conversations = vec![Vec::new(); CONVERSATIONS];
    let homes = turn(switch.address, &mut conversations);
    let before = credits(&switch);
    switch.reload();
    assert_eq!(credits(&switch), before);
    assert_eq!(turn(switch.address, &mut conversations), homes);
}
