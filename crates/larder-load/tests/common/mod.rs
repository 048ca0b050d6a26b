//! A server on loopback whose behaviour, correct or not, a handler determines.
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(clippy::unwrap_used, reason = "a server that fails is a test that fails")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_load::{LoadError, Plan, Progress, Report};

/// Use of the connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Keep,
    Close,
    Reset,
}

/// A request, as passed to a handler.
#[derive(Debug)]
pub(crate) struct ReceivedRequest<'a> {
    pub(crate) method: &'a str,
    pub(crate) target: &'a str,
    pub(crate) head: &'a str,
    /// Number of earlier requests on this connection.
    pub(crate) nth: u64,
}

/// Counts of a server.
#[derive(Debug, Default)]
pub(crate) struct ServerCounts {
    /// Targets in order of arrival.
    pub(crate) targets: Mutex<Vec<String>>,
    /// Connections that carried at least one byte.
    pub(crate) connections: AtomicU64,
    open: AtomicU64,
    /// Maximum number of concurrent requests.
    pub(crate) busy_max: AtomicU64,
    busy: AtomicU64,
}

/// A running server. Its threads end with the process.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) notes: Arc<ServerCounts>,
}

impl Server {
    pub(crate) fn start(
        handle: impl Fn(&ReceivedRequest<'_>, &mut TcpStream) -> Next + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let notes = Arc::new(ServerCounts::default());
        let handle = Arc::new(handle);
        let shared = Arc::clone(&notes);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (notes, handle) = (Arc::clone(&shared), Arc::clone(&handle));
                std::thread::spawn(move || serve(stream, &notes, &*handle));
            }
        });
        Self { address, notes }
    }

    /// Starts a server that replies with this body to all requests.
    pub(crate) fn plain(body: &'static str) -> Self {
        Self::start(move |_, stream| reply(stream, "200 OK", "", body.as_bytes()))
    }

    pub(crate) fn plan(&self, targets: &[&str], requests: u64) -> Plan {
        let names: Arc<[String]> = targets.iter().map(|target| (*target).to_owned()).collect();
        let order: Arc<[u32]> = (0..targets.len() as u32).collect();
        let mut plan = Plan::new(self.address, "test", names, order);
        plan.arrivals = larder_load::Arrivals::Closed { clients: 1 };
        plan.requests = Some(requests);
        plan.warmup_requests = 0;
        plan.timeout = Duration::from_secs(20);
        plan
    }

    pub(crate) fn targets(&self) -> Vec<String> {
        self.notes.targets.lock().unwrap().clone()
    }
}

/// Sends a complete reply with a length.
pub(crate) fn reply(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> Next {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    send(stream, &[head.as_bytes(), body].concat())
}

/// Sends raw bytes. Errors are ignored, because the client may have left.
pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) -> Next {
    match stream.write_all(bytes) {
        Ok(()) => Next::Keep,
        Err(_) => Next::Close,
    }
}

fn serve(
    mut stream: TcpStream,
    notes: &ServerCounts,
    handle: &dyn Fn(&ReceivedRequest<'_>, &mut TcpStream) -> Next,
) {
    stream.set_nodelay(true).unwrap();
    let mut pending = Vec::new();
    for nth in 0.. {
        let Some(head) = read_head(&mut stream, &mut pending) else { return };
        if nth == 0 {
            notes.connections.fetch_add(1, Ordering::SeqCst);
        }
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        notes.targets.lock().unwrap().push(target.to_owned());
        let busy = notes.busy.fetch_add(1, Ordering::SeqCst) + 1;
        notes.busy_max.fetch_max(busy, Ordering::SeqCst);
        // Counted before the reply is sent, because the client may send its next request at once.
        let then = {
            let _done = Done(&notes.busy);
            handle(&ReceivedRequest { method, target, head: &head, nth }, &mut stream)
        };
        match then {
            Next::Keep => {}
            Next::Close => return drop(stream.shutdown(Shutdown::Both)),
            Next::Reset => {
                // Closing with a zero linger sends a reset.
                let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
                return;
            }
        }
    }
}

struct Done<'a>(&'a AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn read_head(stream: &mut TcpStream, pending: &mut Vec<u8>) -> Option<String> {
    let mut piece = [0; 4_096];
    loop {
        if let Some(head) = larder_testkit::http::take_head(pending) {
            return Some(head);
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(len) => pending.extend_from_slice(&piece[..len]),
        }
    }
}

/// Runs a plan on its own runtime.
pub(crate) fn try_run(plan: Plan, progress: &(dyn Fn(Progress) + Sync)) -> Result<Report, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(larder_load::run(plan, progress))
}

pub(crate) fn run(plan: Plan) -> Report {
    try_run(plan, &|_| ()).unwrap()
}
