//! A switch in front of inference servers: placement by prefix, streams, failing servers, and errors in the form of
//! OpenAI's API.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use larder_testkit::http::{header, read_head};
use larder_testkit::{PATIENCE, eventually, free_port};
use serde_json::{Value, json};

use crate::http::{Reply, ask, get, metric};
use crate::origin::Origin;
use crate::process::Process;

const COMPLETIONS: &str = "/v1/chat/completions";

/// Starts a switch with a route for prompts. Nodes stay up, so that each request meets its server, and are not polled unless
/// `prompts` says so.
fn switch(folder: &Path, nodes: &[(&str, SocketAddr)], prompts: &str) -> Process {
    let nodes: Vec<String> = nodes
        .iter()
        .map(|(name, address)| format!("{{ name = \"{name}\", address = \"{address}\" }}"))
        .collect();
    let config = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [{}]\npolicy = \"rr\"\n\
         [[switch.routes]]\nname = \"llm\"\npath = \"/v1/*\"\nprompts = {{ {prompts} }}\n\
         [switch.health]\ninterval = \"1h\"\npassive_fall = 0\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        nodes.join(", ")
    );
    let path = folder.join("larder.toml");
    let polls = if prompts.contains("metrics_period") { "" } else { "metrics_period = \"0s\", " };
    std::fs::write(&path, config.replace("prompts = { ", &format!("prompts = {{ {polls}"))).unwrap();
    Process::start(&["switch", "--config", path.to_str().unwrap()])
}

/// Sends a body, which is followed by white space.
pub fn post(address: SocketAddr, body: &str) -> Reply {
    let length = body.len() + 2;
    ask(
        address,
        "POST",
        COMPLETIONS,
        &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"),
    )
}

pub fn chat(messages: &[Value]) -> String {
    json!({ "model": "m", "messages": messages }).to_string()
}

pub fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

/// Returns a text of `kilobytes` that no other seed has.
pub fn text(seed: &str, kilobytes: usize) -> String {
    let mut text = String::new();
    while text.len() < kilobytes << 10 {
        write!(text, "{seed} {} ", text.len()).unwrap();
    }
    text
}

fn error_code(reply: &Reply) -> String {
    assert_eq!(reply.header("content-type"), Some("application/json"), "{}", reply.head);
    let error = &reply.json()["error"];
    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
    assert_eq!(error["code"], reply.header("x-larder-error").unwrap());
    error["code"].as_str().unwrap().to_owned()
}

#[test]
fn the_turns_of_a_conversation_go_to_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let servers = ["a", "b", "c"].map(|name| Origin::start(name, ""));
    let nodes = servers.each_ref().map(|server| (&*server.name, server.address));
    let switch = switch(folder.path(), &nodes, "");
    let mut conversations: Vec<Vec<Value>> =
        (0..9).map(|user| vec![message("user", &text(&format!("user {user}"), 8))]).collect();
    let mut homes: Vec<BTreeSet<String>> = vec![BTreeSet::new(); conversations.len()];
    for turn in 0..4 {
        for (messages, homes) in conversations.iter_mut().zip(&mut homes) {
            let sent = chat(messages);
            let reply = post(switch.address, &sent);
            let echoed = String::from_utf8(reply.body.clone()).unwrap();
            assert!(
                reply.status == 200 && echoed.contains(&sent),
                "the body arrives as it was sent: {}",
                reply.head
            );
            homes.insert(reply.header("x-origin").unwrap().to_owned());
            messages.push(message("assistant", &text(&format!("turn {turn}"), 3)));
            messages.push(message("user", "and then?"));
        }
    }
    assert!(homes.iter().all(|homes| homes.len() == 1), "{homes:?}");
    let mut per_server = BTreeMap::new();
    for home in homes.iter().flatten() {
        *per_server.entry(home).or_insert(0) += 1;
    }
    assert!(per_server.values().eq(&[3; 3]), "conversations are shared out: {per_server:?}");
    let tokens = |expected: &str| {
        metric(switch.admin.unwrap(), "larder_switch_prompt_tokens_total", &["route=\"llm\"", expected])
            .unwrap()
    };
    let (cached, missing) = (tokens("expected=\"cached\""), tokens("expected=\"missing\""));
    // Turns of 8, 11, 14 and 17 KiB: 33 of 50 KiB were in the turn before, less the part of a block at its end.
    assert!((0.55..0.70).contains(&(cached as f64 / (cached + missing) as f64)), "{cached} {missing}");
    assert_eq!(metric(switch.admin.unwrap(), "larder_switch_prompts_total", &[]), Some(36));
    eventually("all bodies are released", || {
        (metric(switch.admin.unwrap(), "larder_switch_prompt_body_bytes", &[]) == Some(0)).then_some(())
    });
}

/// All conversations begin with the same instructions, and a turn has a few hundred bytes.
#[test]
fn short_turns_stay_with_their_conversation() {
    let folder = tempfile::tempdir().unwrap();
    let servers = ["a", "b", "c"].map(|name| Origin::start(name, ""));
    let nodes = servers.each_ref().map(|server| (&*server.name, server.address));
    let switch = switch(folder.path(), &nodes, "");
    let instructions = message("system", "You are a helpful assistant. ");
    let short = |seed: &str| text(seed, 1)[..500].to_owned();
    let mut homes: Vec<Vec<String>> = vec![Vec::new(); 6];
    let mut conversations: Vec<Vec<Value>> = (0..6)
        .map(|user| vec![instructions.clone(), message("user", &short(&format!("user {user}")))])
        .collect();
    for turn in 0..4 {
        for (user, messages) in conversations.iter_mut().enumerate() {
            let reply = post(switch.address, &chat(messages));
            homes[user].push(reply.header("x-origin").unwrap().to_owned());
            messages.push(message("assistant", &short(&format!("reply {user} {turn}"))));
            messages.push(message("user", "and then?"));
        }
    }
    assert!(homes.iter().all(|homes| homes.iter().all(|home| *home == homes[0])), "{homes:?}");
    let used: BTreeSet<&String> = homes.iter().flatten().collect();
    assert_eq!(used.len(), 3, "{homes:?}");
}

#[test]
fn requests_without_a_prompt_follow_the_policy_of_the_route() {
    let folder = tempfile::tempdir().unwrap();
    let servers = ["a", "b"].map(|name| Origin::start(name, ""));
    let nodes = servers.each_ref().map(|server| (&*server.name, server.address));
    let switch = switch(folder.path(), &nodes, "");
    let homes: BTreeSet<String> =
        (0..2).map(|_| get(switch.address, "/v1/models").header("x-origin").unwrap().to_owned()).collect();
    assert_eq!(homes.len(), 2, "in turn");
    // The switch cannot read this body, and relays it.
    let coded =
        ask(switch.address, "POST", COMPLETIONS, "Content-Encoding: zstd\r\nContent-Length: 4\r\n\r\nab");
    assert_eq!(coded.status, 200, "{}", coded.head);
    assert_eq!(metric(switch.admin.unwrap(), "larder_switch_prompts_total", &[]), Some(0));
}

#[test]
fn errors_have_the_form_of_the_api() {
    let folder = tempfile::tempdir().unwrap();
    let server = Origin::start("a", "");
    let switch = switch(folder.path(), &[("a", server.address)], "body_max = \"64KiB\", memory = \"128KiB\"");
    for (body, status, code) in [
        ("no json".to_owned(), 400, "no_prompt"),
        ("{\"model\": \"m\"}".to_owned(), 400, "no_prompt"),
        ("[]".to_owned(), 400, "no_prompt"),
        (chat(&[message("user", &text("long", 65))]), 413, "body_too_large"),
    ] {
        let reply = post(switch.address, &body);
        assert_eq!((reply.status, &*error_code(&reply)), (status, code), "{body:.60}");
    }
    let chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\n{]\r\n0\r\n";
    let reply = ask(switch.address, "POST", COMPLETIONS, chunked);
    let error = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(reply.status == 400 && error.starts_with("the body is not a JSON object: "), "{error}");
    assert!(server.requests.lock().unwrap().is_empty(), "no server sees such requests");

    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let switch = self::switch(folder.path(), &[("a", nobody)], "");
    let reply = post(switch.address, &chat(&[message("user", "hello")]));
    assert_eq!((reply.status, &*error_code(&reply)), (502, "connect_failed"));
}

/// A client must not hold memory by sending its body slowly, or without end.
#[test]
fn the_body_of_a_completion_has_a_time_limit() {
    let folder = tempfile::tempdir().unwrap();
    let server = Origin::start("a", "");
    let switch = switch(folder.path(), &[("a", server.address)], "body_timeout = \"50ms\"");
    let silent = ask(switch.address, "POST", COMPLETIONS, "Content-Length: 9\r\n\r\n{");
    assert_eq!((silent.status, &*error_code(&silent)), (408, "body_timeout"));
    assert_eq!(silent.json()["error"]["message"], "the body did not arrive within 50ms");

    let mut endless = TcpStream::connect(switch.address).unwrap();
    endless.set_write_timeout(Some(PATIENCE)).unwrap();
    write!(endless, "POST {COMPLETIONS} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    while endless.write_all(b"1\r\n \r\n").is_ok() {}
    let failures =
        || metric(switch.admin.unwrap(), "larder_switch_failures_total", &["error=\"body_timeout\""]);
    eventually("both are counted", || (failures() == Some(2)).then_some(()));
    assert!(server.requests.lock().unwrap().is_empty(), "no server sees such requests");
}

/// An inference server whose replies are streams. The test says when each event is sent.
struct Streamer {
    address: SocketAddr,
    /// Passes an event to a waiting reply.
    release: Sender<String>,
    /// The requests that have arrived.
    arrived: Receiver<String>,
}

impl Streamer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (release, events) = channel();
        let (tell, arrived) = channel();
        let events = Arc::new(Mutex::new(events));
        std::thread::spawn(move || {
            while let Ok((tcp, _)) = listener.accept() {
                let (events, tell) = (events.clone(), tell.clone());
                // The switch checks the health of the server on connections of its own.
                std::thread::spawn(move || stream_reply(tcp, &events, &tell));
            }
        });
        Self { address, release, arrived }
    }
}

/// Reads a request, and replies with each event that the test releases, until it releases an empty one.
fn stream_reply(tcp: TcpStream, events: &Mutex<Receiver<String>>, tell: &Sender<String>) {
    let mut tcp = BufReader::new(tcp);
    let Ok(head) = read_head(&mut tcp) else { return };
    let Some(length) = header(&head, "content-length") else { return };
    let mut body = vec![0; length.parse().unwrap()];
    tcp.read_exact(&mut body).unwrap();
    tell.send(String::from_utf8(body).unwrap()).unwrap();
    let tcp = tcp.get_mut();
    tcp.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    )
    .unwrap();
    for event in events.lock().unwrap().iter() {
        write!(tcp, "{:x}\r\n{event}\r\n", event.len()).unwrap();
        if event.is_empty() {
            return;
        }
    }
}

#[test]
fn events_of_a_stream_are_relayed_as_they_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let server = Streamer::start();
    let switch = switch(folder.path(), &[("a", server.address)], "");
    let body = json!({ "model": "m", "stream": true, "messages": [message("user", "hello")] }).to_string();
    let mut client = BufReader::new(TcpStream::connect(switch.address).unwrap());
    client.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        client.get_mut(),
        "POST {COMPLETIONS} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    assert_eq!(server.arrived.recv().unwrap(), body);
    assert!(read_head(&mut client).unwrap().contains("text/event-stream"));
    for number in 0..3 {
        // The server sends the next event only after the client has read this one.
        let event = format!("data: {{\"token\": {number}}}\n\n");
        server.release.send(event.clone()).unwrap();
        let mut lines = String::new();
        // The line end of a chunk comes with the next chunk.
        while !lines.ends_with("\n\n") {
            client.read_line(&mut lines).unwrap();
        }
        assert!(lines.contains(&event), "{lines:?}");
    }
    server.release.send(String::new()).unwrap();
    let mut end = String::new();
    while !end.ends_with("0\r\n\r\n") {
        assert_ne!(client.read_line(&mut end).unwrap(), 0, "{end:?}");
    }
}

/// Accepts connections until one has a request with a body, and reads that. Checks of health have none.
fn read_one_completion(listener: &TcpListener) -> BufReader<TcpStream> {
    loop {
        let mut tcp = BufReader::new(listener.accept().unwrap().0);
        let Ok(head) = read_head(&mut tcp) else { continue };
        if let Some(length) = header(&head, "content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            tcp.read_exact(&mut body).unwrap();
            return tcp;
        }
    }
}

/// A server that reads a request and then ends all connections, as a crash does. It says when it has read it.
fn crashing_server() -> (SocketAddr, Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        drop(read_one_completion(&listener));
        tell.send(()).unwrap();
    });
    (address, told)
}

/// The prompts are larger than what the relay keeps of other requests.
#[test]
fn a_crash_before_the_reply_loses_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Origin::start("whole", "");
    let (crashing, crashed) = crashing_server();
    let switch = switch(folder.path(), &[("crashing", crashing), ("whole", whole.address)], "");
    let bodies: Vec<String> =
        (0..4).map(|user| chat(&[message("user", &text(&format!("user {user}"), 300))])).collect();
    for body in &bodies {
        let reply = post(switch.address, body);
        assert_eq!((reply.status, reply.header("x-origin")), (200, Some("whole")), "{}", reply.head);
        assert!(String::from_utf8(reply.body).unwrap().contains(body), "the whole body is sent again");
    }
    crashed.try_recv().expect("one of the prompts went to the crashing server first");
    assert!(metric(switch.admin.unwrap(), "larder_switch_retries_total", &["other_node"]) >= Some(1));
}

/// A server that restarts at its address is asked again, and has no credit.
#[test]
fn a_server_that_breaks_off_or_refuses_loses_its_credit() {
    let folder = tempfile::tempdir().unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listener = TcpListener::bind(address).unwrap();
    let switch = switch(folder.path(), &[("a", address)], "");
    let credits = || metric(switch.admin.unwrap(), "larder_switch_prompt_credits", &[]);
    let body = chat(&[message("user", &text("long", 16))]);
    let serve = |listener: TcpListener, reply: &'static [u8]| {
        std::thread::spawn(move || read_one_completion(&listener).get_mut().write_all(reply).unwrap())
    };
    let served = serve(listener, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert_eq!(post(switch.address, &body).status, 200);
    assert!(credits() > Some(60), "of 16 KiB");
    served.join().unwrap();
    let refused = post(switch.address, &body);
    assert_eq!((refused.status, &*error_code(&refused)), (502, "connect_failed"));
    assert_eq!(credits(), Some(0), "before the client has the error");

    let served =
        serve(TcpListener::bind(address).unwrap(), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart");
    let mut client = TcpStream::connect(switch.address).unwrap();
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
    client.write_all((head + &body).as_bytes()).unwrap();
    let mut reply = Vec::new();
    let _ = client.read_to_end(&mut reply);
    assert!(reply.ends_with(b"part"), "{:?}", String::from_utf8_lossy(&reply));
    served.join().unwrap();
    eventually("the broken reply ends the credit", || (credits() == Some(0)).then_some(()));
}

/// A server that completes every request at once, and has these metrics.
fn measured_server(metrics: &Arc<Mutex<String>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, metrics) = (listener.local_addr().unwrap(), metrics.clone());
    std::thread::spawn(move || {
        while let Ok((tcp, _)) = listener.accept() {
            let metrics = metrics.clone();
            std::thread::spawn(move || {
                let mut tcp = BufReader::new(tcp);
                while let Ok(head) = read_head(&mut tcp) {
                    let mut body =
                        vec![0; header(&head, "content-length").map_or(0, |length| length.parse().unwrap())];
                    if head.is_empty() || tcp.read_exact(&mut body).is_err() {
                        return;
                    }
                    let page = if head.starts_with("GET /metrics ") {
                        metrics.lock().unwrap().clone()
                    } else {
                        "{}".to_owned()
                    };
                    if write!(
                        tcp.get_mut(),
                        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}",
                        page.len()
                    )
                    .is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A server may restart between two requests, and no check notices it. Its metrics show that, and its capacity.
#[test]
fn metrics_of_servers_show_restarts_and_capacities() {
    let folder = tempfile::tempdir().unwrap();
    let page = |start: u32, blocks: u32| {
        format!(
            "vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{blocks}\"}} 1.0\nprocess_start_time_seconds {start}\n"
        )
    };
    let metrics = Arc::new(Mutex::new(page(1, 10_000)));
    let address = measured_server(&metrics);
    let switch = switch(folder.path(), &[("a", address)], "metrics_period = \"100ms\"");
    let credits = || metric(switch.admin.unwrap(), "larder_switch_prompt_credits", &[]).unwrap();
    let capacity = || metric(switch.admin.unwrap(), "larder_switch_prompt_capacity_tokens", &["node=\"a\""]);
    eventually("the capacity is known", || (capacity() == Some(160_000)).then_some(()));
    let long = chat(&[message("user", &text("long", 64))]);
    assert_eq!(post(switch.address, &long).status, 200);
    assert!(credits() > 250, "of 64 KiB");
    *metrics.lock().unwrap() = page(1, 500);
    eventually("a smaller cache has fewer blocks", || (credits() <= 125).then_some(()));
    assert_eq!(capacity(), Some(8_000));
    let short = chat(&[message("user", &text("short", 16))]);
    assert_eq!(post(switch.address, &short).status, 200);
    assert!(credits() > 60);
    *metrics.lock().unwrap() = page(2, 500);
    eventually("the restart ends the credits", || (credits() == 0).then_some(()));
}

/// Sends the head of a completion and a part of its body.
fn send_part(address: SocketAddr, declared: usize, sent: usize) -> TcpStream {
    let mut client = TcpStream::connect(address).unwrap();
    let head = format!("POST {COMPLETIONS} HTTP/1.1\r\nHost: h\r\nContent-Length: {declared}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    client.write_all(&vec![b' '; sent]).unwrap();
    client
}

#[test]
fn bodies_share_a_limit_of_memory_and_return_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = Origin::start("a", "");
    let switch = switch(folder.path(), &[("a", server.address)], "body_max = \"64KiB\", memory = \"64KiB\"");
    let reserved = || metric(switch.admin.unwrap(), "larder_switch_prompt_body_bytes", &[]).unwrap();
    let large = chat(&[message("user", &text("large", 40))]);
    let client = send_part(switch.address, 60 << 10, 40 << 10);
    eventually("the part is read", || (reserved() >= 40 << 10).then_some(()));
    let full = post(switch.address, &large);
    assert_eq!((full.status, &*error_code(&full)), (503, "prompt_memory_full"));
    assert_eq!(full.header("retry-after"), Some("1"));
    drop(client);
    eventually("a client that leaves returns its memory", || (reserved() == 0).then_some(()));
    assert_eq!(post(switch.address, &large).status, 200);
}

#[test]
fn guards_and_early_refusals_apply_to_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let server = Origin::start("a", "");
    let prompts = "}\nguard = { body_max = \"8KiB\" }\n[switch.clients]\nrate_per_s = 1\nburst = 2\n#";
    let switch = switch(folder.path(), &[("a", server.address)], prompts);
    let large = format!("10000\r\n{}\r\n0\r\n", " ".repeat(0x10000));
    let reply =
        ask(switch.address, "POST", COMPLETIONS, &format!("Transfer-Encoding: chunked\r\n\r\n{large}"));
    assert_eq!((reply.status, &*error_code(&reply)), (413, "body_too_large"));
    let limited = eventually("the client is limited", || {
        let reply = post(switch.address, &chat(&[message("user", "hello")]));
        (reply.status == 429).then_some(reply)
    });
    assert_eq!(error_code(&limited), "rate_limited");
    assert!(server.requests.lock().unwrap().iter().all(|request| request.len() < 8 << 10));
}
