//! Inference servers that are killed, restarted and added while clients send completions. No request is lost.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use larder_testkit::eventually;
use larder_testkit::http::{header, read_head};
use serde_json::Value;

use crate::process::Process;
use crate::prompts_live::{chat, message, post, text};

const CLIENTS: usize = 16;
/// Requests that wait for their replies at any time; fewer than there are clients.
const HELD: usize = 8;

/// Holds each request until others have come after it, so that every server always has requests without a reply.
#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<Sender<()>>>,
    is_open: AtomicBool,
}

impl Queue {
    fn hold(&self) {
        let (release, released) = channel();
        {
            let mut waiting = self.waiting.lock().unwrap();
            waiting.push_back(release);
            let most = if self.is_open.load(SeqCst) { 0 } else { HELD };
            while waiting.len() > most {
                // The sender is dropped, which wakes the receiver.
                drop(waiting.pop_front());
            }
        }
        let _ = released.recv();
    }

    /// Releases all requests, and holds no more.
    fn open(&self) {
        self.is_open.store(true, SeqCst);
        self.waiting.lock().unwrap().clear();
    }
}

/// A server that can be killed, with all its connections.
struct Server {
    address: SocketAddr,
    is_dead: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    accepts: JoinHandle<()>,
}

impl Server {
    fn start(address: SocketAddr, queue: &Arc<Queue>) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let (is_dead, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let connections = Arc::<Mutex<Vec<TcpStream>>>::default();
        let shared = (queue.clone(), is_dead.clone(), served.clone(), connections.clone());
        let accepts = std::thread::spawn(move || {
            let (queue, is_dead, served, connections) = shared;
            while let Ok((tcp, _)) = listener.accept() {
                if is_dead.load(SeqCst) {
                    return;
                }
                connections.lock().unwrap().push(tcp.try_clone().unwrap());
                let (queue, is_dead, served) = (queue.clone(), is_dead.clone(), served.clone());
                std::thread::spawn(move || serve(tcp, &queue, &is_dead, &served));
            }
        });
        Self { address, is_dead, served, connections, accepts }
    }

    fn served(&self) -> usize {
        self.served.load(SeqCst)
    }

    /// Ends all connections and frees the address.
    fn kill(self) -> SocketAddr {
        self.is_dead.store(true, SeqCst);
        drop(TcpStream::connect(self.address));
        self.accepts.join().unwrap();
        for connection in self.connections.lock().unwrap().drain(..) {
            // The switch may have closed it before.
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.address
    }
}

/// Serves a connection until it breaks. A check of health has no body, and does not wait.
fn serve(tcp: TcpStream, queue: &Queue, is_dead: &AtomicBool, served: &AtomicUsize) {
    let mut tcp = BufReader::new(tcp);
    while let Ok(head) = read_head(&mut tcp) {
        if let Some(length) = header(&head, "content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            if tcp.read_exact(&mut body).is_err() {
                return;
            }
            queue.hold();
            if is_dead.load(SeqCst) {
                return;
            }
            served.fetch_add(1, SeqCst);
        }
        if head.is_empty()
            || tcp.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").is_err()
        {
            return;
        }
    }
}

fn list(folder: &Path, servers: &[&Server]) {
    let addresses: Vec<String> = servers.iter().map(|server| format!("\"{}\"", server.address)).collect();
    std::fs::write(folder.join("new"), format!("nodes = [{}]\n", addresses.join(", "))).unwrap();
    std::fs::rename(folder.join("new"), folder.join("nodes.toml")).unwrap();
}

fn switch(folder: &Path) -> Process {
    let config = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\n[[switch.discover]]\nfile = {:?}\nperiod = \"100ms\"\n\
         [[switch.routes]]\nname = \"llm\"\npath = \"/v1/*\"\nprompts = {{}}\n\
         [switch.health]\ninterval = \"50ms\"\n[switch.retries]\nshare = 1.0\n[admin]\nlisten = \"127.0.0.1:0\"\n",
        folder.join("nodes.toml")
    );
    let path = folder.join("larder.toml");
    std::fs::write(&path, config).unwrap();
    Process::start(&["switch", "--config", path.to_str().unwrap()])
}

/// Sends the turns of conversations until `is_over`. Returns the number of replies, and the first other than 200.
fn converse(client: usize, switch: SocketAddr, is_over: &AtomicBool) -> (usize, Option<String>) {
    let mut replies = 0;
    loop {
        let mut messages: Vec<Value> = Vec::new();
        for turn in 0..4 {
            if is_over.load(SeqCst) {
                return (replies, None);
            }
            messages.push(message("user", &text(&format!("client {client} turn {turn} of {replies}"), 2)));
            let reply = post(switch, &chat(&messages));
            if reply.status != 200 {
                return (replies, Some(format!("{}{}", reply.head, String::from_utf8_lossy(&reply.body))));
            }
            replies += 1;
        }
    }
}

#[test]
fn no_completion_is_lost_while_servers_are_killed_restarted_and_added() {
    let folder = tempfile::tempdir().unwrap();
    let queue = Arc::<Queue>::default();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let [first, second, third] = [(); 3].map(|()| Server::start(any, &queue));
    list(folder.path(), &[&first, &second, &third]);
    let switch = switch(folder.path());
    let address = switch.address;
    let is_over = Arc::<AtomicBool>::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let is_over = is_over.clone();
            std::thread::spawn(move || converse(client, address, &is_over))
        })
        .collect();
    let serves = |server: &Server, more: usize| {
        let before = server.served();
        eventually("the server has completed requests", || (server.served() >= before + more).then_some(()));
    };
    serves(&first, 40);
    let freed = first.kill();
    serves(&second, 40);
    let restarted = Server::start(freed, &queue);
    serves(&restarted, 20);
    let added = Server::start(any, &queue);
    list(folder.path(), &[&restarted, &second, &third, &added]);
    serves(&added, 20);
    third.kill();
    serves(&second, 40);
    is_over.store(true, SeqCst);
    queue.open();
    let ends: Vec<(usize, Option<String>)> =
        clients.into_iter().map(|client| client.join().unwrap()).collect();
    let lost: Vec<&String> = ends.iter().filter_map(|(_, lost)| lost.as_ref()).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(ends.iter().map(|(replies, _)| replies).sum::<usize>() > 200);
}
