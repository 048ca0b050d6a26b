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

/// Starts a switch with a route for prompts.
fn switch(folder: &Path, nodes: &[(&str, SocketAddr)], prompts: &str) -> Process {
    let nodes: Vec<String> = nodes
        .iter()
        .map(|(name, address)| format!("{{ name = \"{name}\", address = \"{address}\" }}"))
        .collect();
    let config = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [{}]\npolicy = \"rr\"\n\
         [[switch.routes]]\nname = \"llm\"\npath = \"/v1/*\"\nprompts = {{ {prompts} }}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n",
        nodes.join(", ")
    );
    let path = folder.join("larder.toml");
    std::fs::write(&path, config).unwrap();
    Process::start(&["switch", "--config", path.to_str().unwrap()])
}

/// Sends a body, which is followed by white space.
fn post(address: SocketAddr, body: &str) -> Reply {
    let length = body.len() + 2;
    ask(
        address,
        "POST",
        COMPLETIONS,
        &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"),
    )
}

fn chat(messages: &[Value]) -> String {
    json!({ "model": "m", "messages": messages }).to_string()
}

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

/// Returns a text of `kilobytes` that no other seed has.
fn text(seed: &str, kilobytes: usize) -> String {
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
        assert_eq!((reply.status, &*error_code(&reply)), (status, code), "{:.60}", body);
    }
    let chunked = "Transfer-Encoding: chunked\r\n\r\n2\r\n{]\r\n0\r\n";
    let reply = ask(switch.address, "POST", COMPLETIONS, chunked);
    let error = reply.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(reply.status == 400 && error.starts_with("the body is no JSON object: "), "{error}");
    assert!(server.requests.lock().unwrap().is_empty(), "no server sees such requests");

    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let switch = self::switch(folder.path(), &[("a", nobody)], "");
    let reply = post(switch.address, &chat(&[message("user", "hello")]));
    assert_eq!((reply.status, &*error_code(&reply)), (502, "connect_failed"));
}

/// An inference server whose replies are streams. The test says when each event is sent.
struct Streamer {
    address: SocketAddr,
    /// Passes one event to each waiting reply.
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

/// A server that reads a request and then ends all connections, as a crash does.
fn crashing_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || drop(read_one_completion(&listener)));
    address
}

/// The prompt is larger than what the relay keeps of other requests.
#[test]
fn a_crash_before_the_reply_loses_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let whole = Origin::start("whole", "");
    let switch = switch(folder.path(), &[("crashing", crashing_server()), ("whole", whole.address)], "");
    let body = chat(&[message("user", &text("long", 300))]);
    for _ in 0..2 {
        let replies: Vec<Reply> = (0..4).map(|_| post(switch.address, &body)).collect();
        assert!(replies.iter().all(|reply| reply.status == 200 && reply.header("x-origin") == Some("whole")));
    }
    let first = whole.requests.lock().unwrap().first().cloned().unwrap();
    assert!(first.contains(&body), "the whole body is sent again");
}

/// Two servers; one takes a conversation and restarts. It has no credit afterwards.
#[test]
fn a_server_that_refuses_connections_loses_its_credit() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served: Arc<Mutex<usize>> = Arc::default();
    let count = served.clone();
    std::thread::spawn(move || {
        // It serves one request, and is gone.
        let mut tcp = read_one_completion(&listener);
        *count.lock().unwrap() += 1;
        tcp.get_mut()
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .unwrap();
    });
    let switch = switch(folder.path(), &[("a", address)], "");
    let credits = || metric(switch.admin.unwrap(), "larder_switch_prompt_credits", &[]);
    let body = chat(&[message("user", &text("long", 16))]);
    assert_eq!(post(switch.address, &body).status, 200);
    assert_eq!((*served.lock().unwrap(), credits()), (1, Some(9)));
    // The thread has ended, and with it the listener.
    eventually("the server is gone", || TcpStream::connect(address).is_err().then_some(()));
    let reply = post(switch.address, &body);
    assert_eq!((reply.status, &*error_code(&reply)), (502, "connect_failed"));
    eventually("its credit is gone", || (credits() == Some(0)).then_some(()));
}
