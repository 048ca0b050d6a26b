//! Small HTTP nodes and clients in the test's own process, scripted down to the byte.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "a module shared by several test binaries")]

use larder_core::{NodeSpec, Settings};
use larder_switch::{HealthConfig, NodeEntry, Switch, SwitchConfig, SwitchHandle};
pub use larder_testkit::http::header;
use larder_testkit::http::{status, take_head};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// Longer than anything here takes, short enough to fail a hanging test.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Behaviour of a test node.
pub enum Act {
    /// Writes these bytes and keeps the connection.
    Reply(Vec<u8>),
    /// Writes these bytes and closes.
    ReplyAndClose(Vec<u8>),
    /// Closes without a byte.
    Close,
    /// Never answers.
    Hang,
    /// Waits for a permit, then writes.
    Gated(Vec<u8>),
    /// Writes, waits for a permit, then resets the connection.
    ReplyAndReset(Vec<u8>),
    /// Writes the first, and then the second for each permit until the connection is gone.
    Drip(Vec<u8>, Vec<u8>),
    /// Writes these bytes, then sends back whatever comes.
    Echo(Vec<u8>),
}

type Script = Arc<dyn Fn(&str) -> Act + Send + Sync>;

/// A node that can be killed and brought back on its port.
pub struct Node {
    pub name: String,
    pub address: SocketAddr,
    /// Requests as received, header only.
    pub seen: Arc<Mutex<Vec<String>>>,
    pub accepted: Arc<AtomicUsize>,
    pub gate: Arc<Semaphore>,
    script: Script,
    task: Option<JoinHandle<()>>,
}

/// A reply of 200 with this body, and with the node's name in `Cache-Status`.
pub fn ok(name: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nCache-Status: {name}; hit\r\n\r\n{body}")
        .into_bytes()
}

impl Node {
    /// A node that says its name.
    pub async fn named(name: &str) -> Self {
        let own = name.to_owned();
        Self::scripted(name, move |_| Act::Reply(ok(&own, &own))).await
    }

    pub async fn scripted(name: &str, script: impl Fn(&str) -> Act + Send + Sync + 'static) -> Self {
        let mut node = Self {
            name: name.to_owned(),
            address: ([127, 0, 0, 1], 0).into(),
            seen: Arc::default(),
            accepted: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            script: Arc::new(script),
            task: None,
        };
        node.start();
        node
    }

    /// Listens, on the same port as before if there was one.
    pub fn start(&mut self) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("reuse");
        socket.bind(self.address).expect("binds");
        let listener = socket.listen(128).expect("listens");
        self.address = listener.local_addr().expect("an address");
        let (seen, script, accepted) = (self.seen.clone(), self.script.clone(), self.accepted.clone());
        let gate = self.gate.clone();
        self.task = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(tcp, seen.clone(), script.clone(), gate.clone()));
            }
        }));
    }

    /// Closes the listener and all connections, as a killed process does.
    pub async fn kill(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }

    pub fn entry(&self) -> NodeEntry {
        NodeEntry::new(NodeSpec::named(&self.name), self.address.to_string())
    }

    pub fn requests(&self) -> usize {
        self.seen.lock().expect("unpoisoned").len()
    }

    pub fn last(&self) -> String {
        self.seen.lock().expect("unpoisoned").last().cloned().unwrap_or_default()
    }
}

async fn serve(mut tcp: TcpStream, seen: Arc<Mutex<Vec<String>>>, script: Script, gate: Arc<Semaphore>) {
    let mut buffer = Vec::new();
    loop {
        let Some(head) = read_head(&mut tcp, &mut buffer).await else { return };
        let length: usize = header(&head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        let chunked = header(&head, "transfer-encoding").is_some();
        // The scripts' clients send no trailers, so that the last chunk is the end.
        let end = |buffer: &[u8]| match chunked {
            true => buffer.windows(5).position(|window| window == b"0\r\n\r\n").map(|at| at + 5),
            false => (buffer.len() >= length).then_some(length),
        };
        while end(&buffer).is_none() {
            if tcp.read_buf(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
        }
        buffer.drain(..end(&buffer).unwrap_or(0));
        seen.lock().expect("unpoisoned").push(head.clone());
        let (bytes, close) = match script(&head) {
            Act::Reply(bytes) => (bytes, false),
            Act::ReplyAndClose(bytes) => (bytes, true),
            Act::Close => return,
            Act::Hang => std::future::pending().await,
            Act::Gated(bytes) => {
                gate.acquire().await.expect("open").forget();
                (bytes, false)
            }
            Act::Drip(head, piece) => {
                let mut next = head;
                while tcp.write_all(&next).await.is_ok() {
                    gate.acquire().await.expect("open").forget();
                    next.clone_from(&piece);
                }
                return;
            }
            Act::Echo(bytes) => {
                let _ = tcp.write_all(&bytes).await;
                let (mut from, mut to) = tcp.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                return;
            }
            Act::ReplyAndReset(bytes) => {
                let _ = tcp.write_all(&bytes).await;
                gate.acquire().await.expect("open").forget();
                tcp.set_zero_linger().expect("a socket");
                return;
            }
        };
        if tcp.write_all(&bytes).await.is_err() || close {
            return;
        }
    }
}

async fn read_head(tcp: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(head) = take_head(buffer) {
            return Some(head);
        }
        if tcp.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

/// A switch that runs.
pub struct Running {
    pub handle: SwitchHandle,
    pub address: SocketAddr,
    /// The second address, if there is one.
    pub secure: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    pub task: JoinHandle<std::io::Result<()>>,
}

/// A config over these nodes without active checks, and with passive ones off.
pub fn config(nodes: &[&Node]) -> SwitchConfig {
    let entries = nodes.iter().map(|node| node.entry()).collect();
    let mut config = SwitchConfig::new(vec![([127, 0, 0, 1], 0).into()], entries);
    config.health = HealthConfig { active: None, passive_fall: 0, ..HealthConfig::default() };
    config.settings = Settings::default();
    config.threads = 2;
    config
}

impl Running {
    pub fn start(config: SwitchConfig) -> Self {
        let switch = Switch::bind(config).expect("binds");
        let (handle, address) = (switch.handle(), switch.addresses()[0]);
        let secure = switch.addresses().get(1).copied();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(switch.run(async {
            let _ = stopped.await;
        }));
        Self { handle, address, secure, stop: Some(stop), task }
    }

    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    pub async fn client(&self) -> Client {
        Client::new(TcpStream::connect(self.address).await.expect("connects"))
    }

    pub fn loads(&self) -> Vec<u32> {
        self.handle.nodes().iter().map(|node| node.load).collect()
    }

    /// Waits until nothing is held any more: the point every test must come back to.
    pub async fn settles(&self) {
        eventually("all load is given back", || {
            let status = self.handle.status();
            status.outstanding == 0 && status.queued == 0 && self.loads().iter().all(|load| *load == 0)
        })
        .await;
    }

    /// The value of a metric line that begins with this text.
    pub fn metric(&self, line: &str) -> f64 {
        let text = self.handle.metrics_text();
        let found = text.lines().find_map(|candidate| candidate.strip_prefix(line)?.trim().parse().ok());
        found.expect(line)
    }
}

/// Waits until a condition holds.
pub async fn eventually(event: &str, mut holds: impl FnMut() -> bool) {
    larder_testkit::eventually_async(event, || holds().then_some(())).await;
}

/// A client connection.
pub struct Client {
    pub tcp: TcpStream,
    buffer: Vec<u8>,
}

/// A reply as received.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn field(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

impl Client {
    pub fn new(tcp: TcpStream) -> Self {
        Self { tcp, buffer: Vec::new() }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.tcp.write_all(bytes.as_ref()).await.expect("sends");
    }

    /// A reply; `None` if the connection closed before it was complete.
    pub async fn try_reply(&mut self) -> Option<Reply> {
        tokio::time::timeout(PATIENCE, self.read_reply(true)).await.expect("a reply in time")
    }

    pub async fn reply(&mut self) -> Reply {
        self.try_reply().await.expect("a complete reply")
    }

    async fn read_reply(&mut self, with_body: bool) -> Option<Reply> {
        let head = read_head(&mut self.tcp, &mut self.buffer).await?;
        let status = status(&head).expect("a status");
        let length = header(&head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        let length = if with_body { length } else { 0 };
        while self.buffer.len() < length {
            if self.tcp.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
        Some(Reply { status, head, body: self.buffer.drain(..length).collect() })
    }

    /// Bytes read beyond the last reply.
    pub fn take_buffered(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    /// The reply to a HEAD: no body follows.
    pub async fn head_reply(&mut self) -> Reply {
        tokio::time::timeout(PATIENCE, self.read_reply(false)).await.expect("in time").expect("a header")
    }

    pub async fn get(&mut self, target: &str) -> Reply {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        self.reply().await
    }

    /// Whether the peer closes without sending more.
    pub async fn closes(&mut self) -> bool {
        let mut byte = [0; 1];
        let read = tokio::time::timeout(PATIENCE, self.tcp.read(&mut byte)).await.expect("closes in time");
        self.buffer.is_empty() && matches!(read, Ok(0) | Err(_))
    }
}
