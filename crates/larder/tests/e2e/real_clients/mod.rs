//! Programs of other projects as clients of a switch and a node, and as servers behind them.
//!
//! The clients of the other tests are part of this project. These tests show that common programs get every
//! byte. `scripts/setup.sh test` installs the programs; a test whose program is missing is skipped.

mod aria2;
mod curl;
mod git;
mod grpc;
mod images;
mod websocket;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use larder_testkit::{Authority, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::process::Process;

/// Host name of the certificates.
const HOST: &str = "localhost";
/// Time limit of a client. Seconds. A passing test needs a few.
const CLIENT_S: &str = "120";
/// Environment variables that would make a client use a proxy of the machine.
const PROXIES: [&str; 6] =
    ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// A switch with a plain and a TLS listener, and a node or a foreign server behind it.
struct Chain {
    folder: TempDir,
    /// `None` if the switch stands directly before a foreign server.
    node: Option<Process>,
    switch: Process,
}

impl Chain {
    /// Starts a switch before a node with these lines in its `[node]` section and after it.
    fn before_node(lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let leaf = Authority::in_folder(folder.path(), "authority").leaf(HOST);
        let text = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n[node.tls]\nlisten = \"127.0.0.1:0\"\ncertificates = {leaf:?}\n\
             [node]\nname = \"n\"\nlisten = \"127.0.0.1:0\"\n{lines}\n"
        );
        let node = start("node", &folder, &text);
        let switch = start_switch(&folder, &leaf, &format!("\"{}\"", node.address));
        Self { folder, node: Some(node), switch }
    }

    /// Starts a switch directly before a foreign server, an entry of `nodes`.
    fn before_server(entry: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let leaf = Authority::in_folder(folder.path(), "authority").leaf(HOST);
        let switch = start_switch(&folder, &leaf, entry);
        Self { folder, node: None, switch }
    }

    fn plain_url(&self) -> String {
        format!("http://{}", self.switch.address)
    }

    fn tls_port(&self) -> u16 {
        self.switch.further[0].port()
    }

    /// Returns the certificate of the authority that issued the switch's and the node's certificates.
    fn ca(&self) -> PathBuf {
        self.folder.path().join("authority.ca")
    }

    fn node(&self) -> &Process {
        self.node.as_ref().unwrap()
    }
}

fn start_switch(folder: &TempDir, leaf: &Path, entry: &str) -> Process {
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nh2c = true\nnodes = [{entry}]\n\
         [switch.tls]\nlisten = \"127.0.0.1:0\"\ncertificates = {leaf:?}\n[admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    start("switch", folder, &text)
}

fn start(role: &str, folder: &TempDir, text: &str) -> Process {
    let config = folder.path().join(format!("{role}.toml"));
    fs::write(&config, text).unwrap();
    Process::start(&[role, "--config", config.to_str().unwrap()])
}

/// A foreign server. Drop sends SIGTERM, so that it can end its own processes.
struct Server(Child);

impl Server {
    /// Starts the server and waits until it accepts connections.
    fn start(command: &mut Command, address: SocketAddr) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self(child);
        eventually(format!("{command:?} accepts connections at {address}"), || {
            assert_eq!(server.0.try_wait().unwrap(), None, "{command:?} ended");
            TcpStream::connect(address).ok()
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Returns a command that uses no proxy and ends after [`CLIENT_S`] at the latest.
fn client(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", CLIENT_S]).arg(program);
    for name in PROXIES {
        command.env_remove(name);
    }
    command
}

/// Runs a client that must succeed, and returns its stdout and stderr.
fn run(command: &mut Command) -> (String, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?} failed with {}\n{out}\n{err}", output.status);
    (out, err)
}

/// Returns pseudo-random bytes that depend only on the seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state ^ (state >> 29)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(length);
    bytes
}
