//! Binary upgrade: the master executes another program under the same process id, and keeps its listeners and
//! workers.
//!
//! The state and the files to keep are sent to a socket pair whose other end is the stdin of the new program.
//! Signals are blocked until the new program watches them.

use std::ffi::{CString, OsString};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::listeners::{BoundListener, ListenAddress, Listeners};
use super::worker_process::WorkerProcess;
use super::{Master, WorkerPlan};
use crate::cmd::switch::args::{ProcessPart, SwitchArgs};
use crate::cmd::switch::link::{self, PROTOCOL, memory_file, read_memory_file};
use crate::cmd::switch::status::ReloadStatus;
use crate::config::{RunAs, Written};

/// Time for the new binary to check the config.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest error text that is read from the new binary, bytes.
const STDERR_BYTES_MAX: usize = 4_000;

/// Output of `--as check` on stdout.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BinaryVersion {
    pub(crate) version: String,
    pub(crate) protocol: u32,
}

/// State that a master passes to the new program. The files are the config's text, stdin, the listeners, the
/// listener of the admin interface, and the ends of the links.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct UpgradeState {
    pub(super) protocol: u32,
    pub(super) origin: String,
    pub(super) since_ns: u64,
    pub(super) status: ReloadStatus,
    pub(super) path: PathBuf,
    clients: Vec<ListenAddress>,
    admin: Option<ListenAddress>,
    /// Process id of the serving worker, if there is one; process ids of the retiring workers.
    current: Option<u32>,
    retiring: Vec<u32>,
    /// `None` if the previous program did not support it.
    #[serde(default)]
    run_as: Option<RunAs>,
}

/// The state and the files of the previous program.
pub(super) struct InheritedState {
    pub(super) state: UpgradeState,
    text: String,
    pub(super) listeners: Listeners,
    pub(super) current: Option<(Pid, OwnedFd)>,
    pub(super) retiring: Vec<(Pid, OwnedFd)>,
}

/// Returns this program's arguments with `--as PART`.
pub(super) fn arguments(part: ProcessPart) -> Vec<OsString> {
    let own = std::env::args_os().skip(1);
    let mut arguments: Vec<OsString> = own.collect();
    // A process that was started with `--as` has the option at the end.
    if arguments.len() >= 2 && arguments[arguments.len() - 2] == "--as" {
        arguments.truncate(arguments.len() - 2);
    }
    arguments.extend(["--as".into(), part.name().into()]);
    arguments
}

/// Returns the signals that are blocked during an upgrade.
fn upgrade_signals() -> SigSet {
    [Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD].into_iter().collect()
}

/// Unblocks the signals after handlers are installed.
pub(super) fn unblock_signals() {
    let _ = upgrade_signals().thread_unblock();
}

/// Lets the binary at `path` check the current config.
///
/// # Errors
/// Returns the error of the binary, or of its start.
pub(super) async fn check_binary(path: &Path) -> Result<(), String> {
    let run = async || -> anyhow::Result<(bool, Vec<u8>, Vec<u8>)> {
        let (out, err) = (memory_file(b"")?, memory_file(b"")?);
        let mut child = Command::new(path)
            .args(arguments(ProcessPart::Check))
            .stdin(Stdio::null())
            .stdout(Stdio::from(out.try_clone()?))
            .stderr(Stdio::from(err.try_clone()?))
            .spawn()?;
        let end = tokio::time::Instant::now() + CHECK_TIMEOUT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if tokio::time::Instant::now() > end {
                child.kill()?;
                child.wait()?;
                anyhow::bail!("no result within {} s", CHECK_TIMEOUT.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        Ok((status.success(), read_memory_file(out)?, read_memory_file(err)?))
    };
    let what = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let (success, out, err) = run().await.map_err(|error| what(&format!("{error:#}")))?;
    if !success {
        let said = String::from_utf8_lossy(&err[err.len().saturating_sub(STDERR_BYTES_MAX)..]).into_owned();
        return Err(what(&said.trim()));
    }
    let version: BinaryVersion = serde_json::from_slice(&out)
        .map_err(|_| what(&"not a larder binary, or a version without upgrades"))?;
    if version.protocol != PROTOCOL {
        let differs = format!(
            "version {} cannot take over from the running version {}: restart the switch",
            version.version,
            env!("CARGO_PKG_VERSION")
        );
        return Err(what(&differs));
    }
    Ok(())
}

impl Master<'_> {
    /// Executes the program at its path. Returns only on failure, and has changed nothing then.
    pub(super) fn exec(&mut self) -> io::Error {
        let back = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3);
        let failed = self.try_exec();
        unblock_signals();
        if let Ok(stdin) = back {
            let _ = rustix::stdio::dup2_stdin(&stdin);
        }
        failed.err().unwrap_or_else(|| io::Error::other("exec returned"))
    }

    fn try_exec(&mut self) -> io::Result<()> {
        let state = UpgradeState {
            protocol: PROTOCOL,
            origin: self.plan.origin.clone(),
            since_ns: self.since_ns,
            status: self.status.clone(),
            path: self.path.clone(),
            clients: self.listeners.clients.iter().map(|bound| bound.address).collect(),
            admin: self.listeners.admin.as_ref().map(|bound| bound.address),
            current: self.current.as_ref().map(WorkerProcess::pid),
            retiring: self.retiring.iter().map(WorkerProcess::pid).collect(),
            run_as: self.plan.run_as,
        };
        let text = memory_file(self.plan.text.as_bytes())?;
        let stdin = io::stdin();
        let mut files: Vec<BorrowedFd<'_>> = vec![text.as_fd(), stdin.as_fd()];
        files.extend(self.listeners.files());
        let workers = self.current.iter().chain(&self.retiring);
        files.extend(workers.map(|worker| worker.link().as_fd()));
        let (here, there) = link::socket_pair()?;
        link::send_on(here.as_fd(), &state, &files)?;
        let c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::other);
        let program = std::env::args_os().next().unwrap_or_else(|| "larder".into());
        let arguments = std::iter::once(program).chain(arguments(ProcessPart::Successor));
        let arguments = arguments.map(|word| c_string(word.into_vec())).collect::<Result<Vec<_>, _>>()?;
        let variables = std::env::vars_os().map(|(name, value)| {
            let mut both = name.into_vec();
            both.push(b'=');
            both.extend(value.into_vec());
            c_string(both)
        });
        let variables = variables.collect::<Result<Vec<_>, _>>()?;
        let path = c_string(self.path.as_os_str().as_bytes().to_vec())?;
        upgrade_signals().thread_block()?;
        rustix::stdio::dup2_stdin(&there)?;
        Err(nix::unistd::execve(&path, &arguments, &variables)
            .map_or_else(Into::into, |never| match never {}))
    }
}

impl InheritedState {
    /// Receives the state of the previous program.
    ///
    /// # Errors
    /// Returns an error if the state is missing or from an incompatible version. The switch ends then.
    pub(super) fn receive() -> anyhow::Result<Self> {
        let end = io::stdin().as_fd().try_clone_to_owned()?;
        let packet = link::recv_now::<UpgradeState>(end.as_fd())
            .context("cannot read the state of the previous program")?;
        let (state, files) = packet.context("the previous program left no state")?;
        anyhow::ensure!(
            state.protocol == PROTOCOL,
            "the state of the previous program is from an incompatible version"
        );
        let mut files = files.into_iter();
        let mut file = || files.next().context("the state of the previous program has too few files");
        let text = String::from_utf8(read_memory_file(file()?)?)?;
        rustix::stdio::dup2_stdin(file()?)?;
        let mut bound = |address: &ListenAddress| -> anyhow::Result<BoundListener> {
            Ok(BoundListener { address: *address, listener: file()?.into() })
        };
        let clients = state.clients.iter().map(&mut bound).collect::<anyhow::Result<_>>()?;
        let admin = state.admin.as_ref().map(bound).transpose()?;
        let mut worker = |pid: &u32| -> anyhow::Result<(Pid, OwnedFd)> {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw).context("invalid process id")?;
            Ok((pid, file()?))
        };
        let current = state.current.as_ref().map(&mut worker).transpose()?;
        let retiring = state.retiring.iter().map(worker).collect::<anyhow::Result<_>>()?;
        Ok(Self { text, listeners: Listeners { clients, admin }, current, retiring, state })
    }

    /// Returns the log level of the config in force. The file at its path is read later, and may be invalid.
    pub(super) fn log_level(&self, args: &SwitchArgs) -> String {
        let written = Written::parse(&self.state.origin, &self.text).map_err(anyhow::Error::from);
        let level = written.and_then(|mut written| {
            args.apply_options(&mut written)?;
            Ok(written.raw.log.level)
        });
        level.unwrap_or_else(|_| "info".to_owned())
    }

    /// Returns the plan in force.
    pub(super) fn plan(&self) -> WorkerPlan {
        let listen: Vec<SocketAddr> = self.state.clients.iter().map(|address| address.configured).collect();
        WorkerPlan {
            origin: self.state.origin.clone(),
            text: self.text.clone(),
            listen,
            admin: self.state.admin.map(|address| address.configured),
            run_as: self.state.run_as,
        }
    }
}
