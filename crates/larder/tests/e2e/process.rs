//! Processes of the binary under test. Drop kills them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The binary under test.
pub const LARDER: &str = env!("CARGO_BIN_EXE_larder");

/// A process that runs a role.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
    pub admin: Option<SocketAddr>,
    /// Further listen addresses.
    pub further: Vec<SocketAddr>,
}

impl Process {
    /// Starts the process and waits for its ready line.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_as(Command::new(LARDER), arguments)
    }

    /// Starts the process without any capability, even if the tests run as root.
    pub fn start_without_rights(arguments: &[&str]) -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self::start(arguments);
        }
        let mut command = Command::new("setpriv");
        command.args(["--inh-caps=-all", "--bounding-set=-all", LARDER]);
        Self::start_as(command, arguments)
    }

    /// Starts the process with its log in a file.
    pub fn start_with_log(arguments: &[&str], log: &Path) -> Self {
        let mut command = Command::new(LARDER);
        command.stderr(fs::File::create(log).unwrap());
        Self::start_as(command, arguments)
    }

    fn start_as(mut command: Command, arguments: &[&str]) -> Self {
        if wants_default_admin(arguments) {
            command.args(arguments).args(["--admin", "127.0.0.1:0"]);
        } else {
            command.args(arguments);
        }
        let mut child = command
            .args(["--ready-line", "--exit-with-stdin", "--log", "warn", "--threads", "1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|error| {
            panic!("{arguments:?} said '{line}' instead of where it serves: {error}")
        });
        let address = |value: &Value| value.as_str().map(|text| text.parse().unwrap());
        let mut listen = ready["listen"].as_array().unwrap().iter().filter_map(address);
        Self {
            child,
            address: listen.next().unwrap(),
            admin: address(&ready["admin"]),
            further: listen.collect(),
        }
    }

    /// Starts a node with a modelled store that is too fast to affect a test.
    pub fn model_node(name: &str, listen: &str, manifest: &Path) -> Self {
        Self::slow_node(name, listen, manifest, 200.0)
    }

    /// Starts a node with a modelled store, `speed` times as fast as a disk of 1998.
    pub fn slow_node(name: &str, listen: &str, manifest: &Path, speed: f64) -> Self {
        let (manifest, speed) = (manifest.to_str().unwrap(), speed.to_string());
        let model = ["--manifest", manifest, "--disk-speed", &speed];
        Self::start(&[&["node", "--name", name, "--listen", listen], &model[..]].concat())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait_for_exit()
    }

    /// Waits until the process has exited. A second signal would end it without a drain.
    pub fn wait_for_exit(mut self) -> ExitStatus {
        until("the process ends", || self.child.try_wait().unwrap())
    }

    /// Closes stdin and waits for the exit.
    pub fn close_stdin(mut self) -> ExitStatus {
        drop(self.child.stdin.take());
        until("the process ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports whether a switch would use the default address of its admin interface. Only one of the concurrent
/// tests could have it.
fn wants_default_admin(arguments: &[&str]) -> bool {
    let config = arguments.windows(2).find(|pair| pair[0] == "--config").map(|pair| pair[1]);
    let names_admin =
        config.is_some_and(|path| fs::read_to_string(path).is_ok_and(|text| text.contains("admin")));
    arguments[0] == "switch" && !arguments.contains(&"--admin") && !names_admin
}

pub use larder_testkit::eventually as until;

/// Returns the IDs of the processes whose parent is `parent`.
pub fn children(parent: u32) -> Vec<u32> {
    let ids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    ids.filter(|id| parent_of(*id) == Some(parent)).collect()
}

/// `None` if there is no such process, or if it is a zombie.
pub fn parent_of(id: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (state != "Z").then_some(parent)
}
