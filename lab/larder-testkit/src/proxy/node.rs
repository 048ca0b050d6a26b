//! A node: an HTTP/1.1 server that remembers the paths that it has served.

use crate::http::{header, read_head};
use std::collections::HashSet;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// A node. Its replies say whether it has served the path before (`Cache-Status`), and its port. A request with a body is sent back.
#[derive(Debug)]
pub struct Node {
    /// The port.
    pub port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    known: Mutex<HashSet<String>>,
    connections: Mutex<Vec<TcpStream>>,
    served: AtomicU64,
    stopping: AtomicBool,
}

impl Node {
    /// Starts a node at a free port.
    ///
    /// # Panics
    /// If this machine has no free port.
    pub fn start() -> Self {
        Self::at(0)
    }

    /// Starts a node at a port, where another node may have been before.
    ///
    /// # Panics
    /// If the port is in use.
    pub fn at(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for stream in listener.incoming() {
                    if shared.stopping.load(Ordering::Acquire) {
                        return;
                    }
                    let Ok(stream) = stream else { continue };
                    if let Ok(copy) = stream.try_clone() {
                        shared.connections.lock().expect("a lock").push(copy);
                    }
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || serve(stream, port, &shared));
                }
            }
        });
        Self { port, shared, acceptor: Some(acceptor) }
    }

    /// Returns the number of requests that the node has served.
    pub fn served(&self) -> u64 {
        self.shared.served.load(Ordering::Acquire)
    }

    /// Ends the node as a crash does: the port is closed, and all connections are cut.
    ///
    /// # Panics
    /// If a thread of the node has panicked.
    pub fn kill(&mut self) {
        let Some(acceptor) = self.acceptor.take() else { return };
        self.shared.stopping.store(true, Ordering::Release);
        // A connection wakes the acceptor.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        acceptor.join().expect("the acceptor ends");
        for connection in self.shared.connections.lock().expect("a lock").drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn serve(mut stream: TcpStream, port: u16, shared: &Shared) {
    while let Ok(head) = read_head(&mut stream) {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let is_new = shared.known.lock().expect("a lock").insert(path);
        let found = if is_new { "fwd=uri-miss" } else { "hit" };
        let Ok(sent) = read_body(&mut stream, &head) else { return };
        let body =
            if sent.is_empty() { "x".repeat(1_000).into_bytes() } else { [head.as_bytes(), &sent].concat() };
        let reply = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nCache-Status: node; {found}\r\nNode: {port}\r\n\r\n",
            body.len()
        );
        shared.served.fetch_add(1, Ordering::AcqRel);
        if stream.write_all(reply.as_bytes()).and_then(|()| stream.write_all(&body)).is_err() {
            return;
        }
    }
}

/// Reads the body of a request, which has a length, or chunks without trailers.
fn read_body(stream: &mut TcpStream, head: &str) -> io::Result<Vec<u8>> {
    let length = header(head, "content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    if header(head, "transfer-encoding").is_none() {
        return Ok(body);
    }
    loop {
        let size = read_line(stream)?;
        let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
        let start = body.len();
        body.resize(start + size, 0);
        stream.read_exact(&mut body[start..])?;
        read_line(stream)?;
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Reads a line, and returns it without its end.
fn read_line(stream: &mut TcpStream) -> io::Result<String> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    line.truncate(line.len() - 2);
    String::from_utf8(line).map_err(io::Error::other)
}
