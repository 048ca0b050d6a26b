//! Upgrade: the master becomes another program under the same process id, and keeps its listeners and its workers.
//!
//! What is to be kept, files included, is sent to a socket whose other end the program finds as its stdin. Signals are held
//! back from before until the program watches them.

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

use super::listeners::{Addressed, Bound, Listeners};
use super::staff::Worker;
use super::{Master, Plan};
use crate::cmd::switch::args::{Part, SwitchArgs};
use crate::cmd::switch::link::{self, PROTOCOL, blob, read_blob};
use crate::cmd::switch::status::ReloadStatus;
use crate::config::{RunAs, Written};

/// Time for another binary to look at the config.
const CHECK: Duration = Duration::from_secs(15);
/// Longest text that is taken from it, bytes.
const SAID_BYTES_MAX: usize = 4_000;

/// What `--as check` says on stdout.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Checked {
    pub(crate) version: String,
    pub(crate) protocol: u32,
}

/// What a master keeps when it becomes another program. Files: the config's text, stdin, the listeners, the admin
/// interface's, the ends of the links.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) protocol: u32,
    pub(super) origin: String,
    pub(super) since_ns: u64,
    pub(super) status: ReloadStatus,
    pub(super) path: PathBuf,
    clients: Vec<Addressed>,
    admin: Option<Addressed>,
    /// Process ids: of the worker that serves, if there is one, and of those that retire.
    current: Option<u32>,
    retiring: Vec<u32>,
    /// None of a program that knew of no such thing.
    #[serde(default)]
    run_as: Option<RunAs>,
}

/// The same, taken up.
pub(super) struct Kept {
    pub(super) state: State,
    text: String,
    pub(super) listeners: Listeners,
    pub(super) current: Option<(Pid, OwnedFd)>,
    pub(super) retiring: Vec<(Pid, OwnedFd)>,
}

/// This program's arguments, for another part of it.
pub(super) fn arguments(part: Part) -> Vec<OsString> {
    let own = std::env::args_os().skip(1);
    let mut arguments: Vec<OsString> = own.collect();
    // Those that were started as a part have it at the end.
    if arguments.len() >= 2 && arguments[arguments.len() - 2] == "--as" {
        arguments.truncate(arguments.len() - 2);
    }
    arguments.extend(["--as".into(), part.name().into()]);
    arguments
}

/// The signals that are held back.
fn held_back() -> SigSet {
    [Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGTERM, Signal::SIGINT, Signal::SIGCHLD].into_iter().collect()
}

/// Signals come again, once they are watched.
pub(super) fn unblock() {
    let _ = held_back().thread_unblock();
}

/// Lets the binary at `path` look at the config as it is now.
///
/// # Errors
/// What it says, or why it cannot be asked.
pub(super) async fn check(path: &Path) -> Result<(), String> {
    let run = async || -> anyhow::Result<(bool, Vec<u8>, Vec<u8>)> {
        let (out, err) = (blob(b"")?, blob(b"")?);
        let mut child = Command::new(path)
            .args(arguments(Part::Check))
            .stdin(Stdio::null())
            .stdout(Stdio::from(out.try_clone()?))
            .stderr(Stdio::from(err.try_clone()?))
            .spawn()?;
        let end = tokio::time::Instant::now() + CHECK;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if tokio::time::Instant::now() > end {
                child.kill()?;
                child.wait()?;
                anyhow::bail!("it has not ended within {} s", CHECK.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        Ok((status.success(), read_blob(out)?, read_blob(err)?))
    };
    let what = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let (success, out, err) = run().await.map_err(|error| what(&format!("{error:#}")))?;
    if !success {
        let said = String::from_utf8_lossy(&err[err.len().saturating_sub(SAID_BYTES_MAX)..]).into_owned();
        return Err(what(&said.trim()));
    }
    let checked: Checked =
        serde_json::from_slice(&out).map_err(|_| what(&"it is no larder, or one that knows no upgrade"))?;
    if checked.protocol != PROTOCOL {
        let differs = format!(
            "version {} cannot take over from a running {}: stop the switch and start it anew",
            checked.version,
            env!("CARGO_PKG_VERSION")
        );
        return Err(what(&differs));
    }
    Ok(())
}

impl Master<'_> {
    /// Becomes the program at its path. Returns only if that fails; nothing has changed then.
    pub(super) fn exec(&mut self) -> io::Error {
        let back = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3);
        let failed = self.try_exec();
        unblock();
        if let Ok(stdin) = back {
            let _ = rustix::stdio::dup2_stdin(&stdin);
        }
        failed.err().unwrap_or_else(|| io::Error::other("it has returned"))
    }

    fn try_exec(&mut self) -> io::Result<()> {
        let state = State {
            protocol: PROTOCOL,
            origin: self.plan.origin.clone(),
            since_ns: self.since_ns,
            status: self.status.clone(),
            path: self.path.clone(),
            clients: self.listeners.clients.iter().map(|bound| bound.address).collect(),
            admin: self.listeners.admin.as_ref().map(|bound| bound.address),
            current: self.current.as_ref().map(Worker::pid),
            retiring: self.retiring.iter().map(Worker::pid).collect(),
            run_as: self.plan.run_as,
        };
        let text = blob(self.plan.text.as_bytes())?;
        let stdin = io::stdin();
        let mut files: Vec<BorrowedFd<'_>> = vec![text.as_fd(), stdin.as_fd()];
        files.extend(self.listeners.files());
        let workers = self.current.iter().chain(&self.retiring);
        files.extend(workers.map(|worker| worker.link().as_fd()));
        let (here, there) = link::pair()?;
        link::send_on(here.as_fd(), &state, &files)?;
        let c_string = |bytes: Vec<u8>| CString::new(bytes).map_err(io::Error::other);
        let program = std::env::args_os().next().unwrap_or_else(|| "larder".into());
        let arguments = std::iter::once(program).chain(arguments(Part::Successor));
        let arguments = arguments.map(|word| c_string(word.into_vec())).collect::<Result<Vec<_>, _>>()?;
        let variables = std::env::vars_os().map(|(name, value)| {
            let mut both = name.into_vec();
            both.push(b'=');
            both.extend(value.into_vec());
            c_string(both)
        });
        let variables = variables.collect::<Result<Vec<_>, _>>()?;
        let path = c_string(self.path.as_os_str().as_bytes().to_vec())?;
        held_back().thread_block()?;
        rustix::stdio::dup2_stdin(&there)?;
        Err(nix::unistd::execve(&path, &arguments, &variables)
            .map_or_else(Into::into, |never| match never {}))
    }
}

impl Kept {
    /// What the program before has sent.
    ///
    /// # Errors
    /// It is not there, or of another version: the switch ends.
    pub(super) fn take() -> anyhow::Result<Self> {
        let end = io::stdin().as_fd().try_clone_to_owned()?;
        let packet = link::recv_now::<State>(end.as_fd()).context("what the program before has kept")?;
        let (state, files) = packet.context("the program before has kept nothing")?;
        anyhow::ensure!(state.protocol == PROTOCOL, "the program before is of another version");
        let mut files = files.into_iter();
        let mut file = || files.next().context("the program before has kept too few files");
        let text = String::from_utf8(read_blob(file()?)?)?;
        rustix::stdio::dup2_stdin(file()?)?;
        let mut bound = |address: &Addressed| -> anyhow::Result<Bound> {
            Ok(Bound { address: *address, listener: file()?.into() })
        };
        let clients = state.clients.iter().map(&mut bound).collect::<anyhow::Result<_>>()?;
        let admin = state.admin.as_ref().map(bound).transpose()?;
        let mut worker = |pid: &u32| -> anyhow::Result<(Pid, OwnedFd)> {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw).context("a process id")?;
            Ok((pid, file()?))
        };
        let current = state.current.as_ref().map(&mut worker).transpose()?;
        let retiring = state.retiring.iter().map(worker).collect::<anyhow::Result<_>>()?;
        Ok(Self { text, listeners: Listeners { clients, admin }, current, retiring, state })
    }

    /// The log level by the config in force: the one at its path is looked at later, and may be wrong by now.
    pub(super) fn log_level(&self, args: &SwitchArgs) -> String {
        let written = Written::parse(&self.state.origin, &self.text).map_err(anyhow::Error::from);
        let level = written.and_then(|mut written| {
            args.lay_over(&mut written)?;
            Ok(written.raw.log.level)
        });
        level.unwrap_or_else(|_| "info".to_owned())
    }

    /// The plan in force.
    pub(super) fn plan(&self) -> Plan {
        let asked: Vec<SocketAddr> = self.state.clients.iter().map(|address| address.asked).collect();
        Plan {
            origin: self.state.origin.clone(),
            text: self.text.clone(),
            listen: asked,
            admin: self.state.admin.map(|address| address.asked),
            run_as: self.state.run_as,
        }
    }
}
