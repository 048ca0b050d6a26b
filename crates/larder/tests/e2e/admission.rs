//! Admission limit of a switch, and its behaviour at the limit.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::http::{Reply, get};
use crate::process::{LARDER, Process, until};

/// A node that answers no request before `BlockedNode::release`.
#[derive(Default)]
struct BlockedNode {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    released: bool,
}

impl BlockedNode {
    fn start() -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(Self::default());
        let node = held.clone();
        thread::spawn(move || {
            while let Ok((tcp, _)) = listener.accept() {
                let node = node.clone();
                thread::spawn(move || node.serve(tcp));
            }
        });
        (held, address)
    }

    /// Serves one request. Health checks connect and send none.
    fn serve(&self, mut tcp: TcpStream) {
        if larder_testkit::http::read_head(&mut tcp).is_err() {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.arrived += 1;
        drop(self.released.wait_while(state, |state| !state.released).unwrap());
        let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    }

    fn await_arrived(&self, requests: usize) {
        until(format!("{requests} requests are at the node"), || {
            (self.state.lock().unwrap().arrived == requests).then_some(())
        });
    }

    fn release(&self) {
        self.state.lock().unwrap().released = true;
        self.released.notify_all();
    }
}

/// Starts a switch before one node, with config and log in `folder`. `more` are keys of `[switch]`.
fn switch(folder: &Path, node: SocketAddr, more: &str) -> Process {
    let config = folder.join("larder.toml");
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"{node}\"]\n{more}\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    fs::write(&config, text).unwrap();
    Process::start_with_log(&["switch", "--config", config.to_str().unwrap()], &folder.join("log"))
}

fn ask(switch: SocketAddr, requests: usize) -> Vec<JoinHandle<Reply>> {
    (0..requests).map(|i| thread::spawn(move || get(switch, &format!("/{i}")))).collect()
}

#[test]
fn sixty_slow_requests_to_a_single_node_are_admitted_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (held, node) = BlockedNode::start();
    let switch = switch(folder.path(), node, "");
    let replies = ask(switch.address, 60);
    held.await_arrived(60);

    // The limit in force equals the output of `check`.
    let status = get(switch.admin.unwrap(), "/status").json();
    assert_eq!((&status["outstanding"], &status["queued"]), (&60.into(), &0.into()), "{status}");
    let config = folder.path().join("larder.toml");
    let checked = Command::new(LARDER).arg("check").arg(config).output().unwrap();
    let checked = String::from_utf8(checked.stdout).unwrap();
    let admits = format!("admits {} concurrent requests;", status["admission_limit"]);
    assert!(checked.contains(&admits), "{admits}\n{checked}");

    held.release();
    assert!(replies.into_iter().all(|reply| reply.join().unwrap().status == 200));
    assert_eq!(fs::read_to_string(folder.path().join("log")).unwrap(), "");
}

#[test]
fn a_limit_that_is_reached_is_logged_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let (held, node) = BlockedNode::start();
    let switch =
        switch(folder.path(), node, "admission = { limit = 2, queue_max = 1, queue_timeout = \"1m\" }");
    let mut replies = ask(switch.address, 2);
    held.await_arrived(2);
    replies.extend(ask(switch.address, 1));
    let admin = switch.admin.unwrap();
    until("a request waits", || (get(admin, "/status").json()["queued"] == 1).then_some(()));
    assert_eq!(get(switch.address, "/refused").status, 503);

    held.release();
    assert!(replies.into_iter().all(|reply| reply.join().unwrap().status == 200));
    assert!(switch.terminate().success());
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let wanted = [
        &["limit reached, requests wait", "limit=2", "key=\"switch.admission.limit\""][..],
        &["queue full", "queue_max=1", "keys=\"switch.admission.limit, switch.admission.queue_max\""],
    ];
    for words in wanted {
        let said = lines.iter().filter(|line| words.iter().all(|word| line.contains(word))).count();
        assert_eq!(said, 1, "{words:?}\n{log}");
    }
}
