//! Processes of a test cluster.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use larder_kernel::netns::Namespace;
use larder_testkit::within;
use rustix::process::{Pid, Signal, kill_process};

use crate::cluster::PATIENCE;

const LARDER: &str = env!("CARGO_BIN_EXE_larder");

/// A process of the built binary in a namespace. Drop ends it.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts the binary. If `by` is not empty, it is a command that is given the binary and its arguments.
    pub fn start(namespace: &Namespace, by: &[String], args: &[&str], log: PathBuf) -> Self {
        let stderr = fs::File::create(&log).unwrap();
        let mut command = match by {
            [] => Command::new(LARDER),
            [first, others @ ..] => {
                let mut command = Command::new(first);
                command.args(others).arg(LARDER);
                command
            }
        };
        command.args(args).args(["--ready-line"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = namespace.spawn(&mut command).unwrap();
        let mut line = String::new();
        let read = BufReader::new(child.stdout.take().unwrap()).read_line(&mut line);
        let started = Self { child, log };
        assert!(read.is_ok() && line.starts_with('{'), "{args:?} did not start: {line}{}", started.log());
        started
    }

    /// Returns its stderr.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops the process and its children, because a switch's worker has the connections. Returns when no
    /// thread runs.
    pub fn halt(&self) {
        self.signal_all(Signal::STOP);
        let all: Vec<u32> = children(self.child.id()).into_iter().chain([self.child.id()]).collect();
        let halted = within(PATIENCE, || all.iter().all(|id| has_halted(*id)));
        assert!(halted, "{all:?} do not halt\n{}", self.log());
    }

    /// Continues the process after [`Process::halt`].
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, signal: Signal) {
        self.signal(signal);
        for id in children(self.child.id()) {
            if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Sends SIGTERM. Returns `false` if the process has not exited in time.
    pub fn stop(&mut self) -> bool {
        self.signal(Signal::TERM);
        within(PATIENCE, || matches!(self.child.try_wait(), Ok(Some(_))))
    }

    /// Returns its resident memory. Bytes.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    }

    /// Kills the process, and waits until its children have ended: a switch's worker ends shortly after its
    /// master.
    pub fn kill(&mut self) {
        let below = children(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
        let ended = within(PATIENCE, || below.iter().all(|id| has_ended(*id)));
        assert!(ended, "{below:?} outlive their parent\n{}", self.log());
    }
}

/// Returns the IDs of the processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let ids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|id| field(*id, 1).is_some_and(|of| of == parent.to_string())).collect()
}

/// Reports whether a signal has stopped all threads of a process.
fn has_halted(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let mut ids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.all(|thread| field(thread, 0).is_none_or(|state| state == "T"))
}

/// Reports whether all threads of a process have ended and its files are closed. Its parent may not have
/// reaped it yet.
fn has_ended(id: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return true };
    threads.count() <= 1 && field(id, 0).is_none_or(|state| state == "Z")
}

/// Returns a field of `/proc/<id>/stat`, counted from the one after the name. `None` if there is no such
/// process.
fn field(id: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(number).map(str::to_owned)
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.stop() {
            self.kill();
        }
    }
}
