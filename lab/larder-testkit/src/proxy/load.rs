//! Clients that request targets of a proxy.

use super::client::{Client, Reply, get};
use crate::wait::eventually;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The number of concurrent clients; each has a connection, and Linux spreads them over the workers of a proxy.
pub const CLIENTS: usize = 8;

/// Returns the path of a target.
pub fn path(target: usize) -> String {
    format!("/object/{target}")
}

/// Requests each of the targets once, from all clients. Returns the port of the node of each target.
///
/// # Panics
/// If a request fails.
pub fn placements(port: u16, targets: usize) -> BTreeMap<usize, u16> {
    let ask = |client: usize| {
        let mut connection = Client::connect(port).expect("a connection");
        let own = (0..targets).filter(|target| target % CLIENTS == client);
        let node = |target: usize| {
            let reply = connection.get(&path(target)).expect("a reply");
            assert_eq!(reply.status, 200, "{}", reply.text());
            (target, reply.node.expect("a node"))
        };
        own.map(node).collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|client| scope.spawn(move || ask(client))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    })
}

/// The connections of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Each client keeps its connection as long as the proxy does.
    Kept,
    /// Each request has a connection of its own. A proxy that replaces its workers closes idle connections, which may cross with
    /// a request.
    Single,
}

/// Clients that send requests until they are told to stop.
#[derive(Debug, Default)]
pub struct Load {
    stop: AtomicBool,
    served: AtomicU64,
    failed: AtomicU64,
}

impl Load {
    /// Runs `steps` while the clients send requests. No request may fail.
    ///
    /// # Panics
    /// If a request fails.
    pub fn during(port: u16, targets: usize, connections: Connections, steps: impl FnOnce(&Self)) {
        let failed = Self::count_failed(port, targets, connections, steps);
        assert_eq!(failed, 0, "no request fails");
    }

    /// Runs `steps` while the clients send requests. Returns the number of requests that have failed.
    ///
    /// # Panics
    /// If a client cannot connect.
    pub fn count_failed(
        port: u16,
        targets: usize,
        connections: Connections,
        steps: impl FnOnce(&Self),
    ) -> u64 {
        let load = Self::default();
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let load = &load;
                scope.spawn(move || load.ask(port, targets, connections, client));
            }
            // The clients end also if a step panics.
            let _stop = Stop(&load);
            steps(&load);
        });
        load.failed.into_inner()
    }

    fn ask(&self, port: u16, targets: usize, connections: Connections, first: usize) {
        let mut connection = None;
        let mut target = first;
        while !self.stop.load(Ordering::Acquire) {
            target = (target + CLIENTS + 1) % targets;
            let reply = match connections {
                Connections::Single => get(port, &path(target)),
                Connections::Kept => Self::ask_kept(&mut connection, port, target),
            };
            match reply {
                Ok(reply) if reply.status == 200 => {
                    self.served.fetch_add(1, Ordering::AcqRel);
                }
                other => {
                    connection = None;
                    self.failed.fetch_add(1, Ordering::AcqRel);
                    eprintln!("request failed: {:?}", other.map(|reply| (reply.status, reply.text())));
                }
            }
        }
    }

    fn ask_kept(kept: &mut Option<Client>, port: u16, target: usize) -> io::Result<Reply> {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Client::connect(port)?,
        };
        let reply = connection.get(&path(target))?;
        if !reply.is_last {
            *kept = Some(connection);
        }
        Ok(reply)
    }

    /// Waits until so many requests more have been served.
    pub fn go_on(&self, requests: u64) {
        let until = self.served.load(Ordering::Acquire) + requests;
        eventually("requests are served", || (self.served.load(Ordering::Acquire) >= until).then_some(()));
    }
}

/// Stops the clients of a load.
struct Stop<'load>(&'load Load);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
    }
}
