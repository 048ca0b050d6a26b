//! A worker, as its master sees it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, geteuid, kill_process, waitpid};
use tokio::time::timeout;

use super::{Went, exec, failed};
use crate::cmd::switch::args::Part;
use crate::cmd::switch::link::{self, FromWorker, Link, ToWorker};
use crate::cmd::switch::notify::Manager;
use crate::config::RunAs;

/// What a worker has said.
#[derive(Debug)]
pub(super) enum Heard {
    /// A message.
    Word(FromWorker, Vec<OwnedFd>),
    /// It says no more.
    End,
}

/// A process that serves, is to serve, or has served. Killed when dropped, unless it has ended.
#[derive(Debug)]
pub(super) struct Worker {
    pid: Pid,
    link: Link,
    begun: Instant,
    status: Option<WaitStatus>,
    muted: bool,
    /// Questions of its admin interface that wait for a change under way.
    asks: Vec<u64>,
}

impl Worker {
    /// Starts one: the binary that runs here, whatever lies at its path by now.
    pub(super) fn spawn(run_as: Option<RunAs>) -> std::io::Result<Self> {
        let (here, there) = link::pair()?;
        let name = std::env::args_os().next().unwrap_or_else(|| "larder".into());
        let mut command = Command::new("/proc/self/exe");
        if let Some(RunAs { user, group }) = run_as.filter(|run_as| run_as.user != geteuid().as_raw()) {
            // Before it runs a line of its own; further groups go with it.
            command.uid(user).gid(group);
        }
        let child = command
            .arg0(name)
            .args(exec::arguments(Part::Worker))
            .env_remove(Manager::VARIABLE)
            .stdin(Stdio::from(there))
            .spawn()?;
        Self::adopt(Pid::from_child(&child), here)
    }

    /// One that was started before this program.
    pub(super) fn adopt(pid: Pid, end: OwnedFd) -> std::io::Result<Self> {
        Ok(Self {
            pid,
            link: Link::new(end)?,
            begun: Instant::now(),
            status: None,
            muted: false,
            asks: Vec::new(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    pub(super) async fn send(&self, word: &ToWorker, files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        match timeout(Duration::from_secs(5), self.link.send(word, files)).await {
            Ok(sent) => sent,
            Err(_) => Err(std::io::Error::other("the process does not listen")),
        }
    }

    /// The next message. May be dropped while it waits.
    pub(super) async fn hear(&self) -> Heard {
        loop {
            if self.muted {
                return std::future::pending().await;
            }
            match self.link.recv().await {
                Ok(Some((word, files))) => return Heard::Word(word, files),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    tracing::warn!(pid = self.pid(), %error, "a process says something unknown");
                }
                Ok(None) | Err(_) => return Heard::End,
            }
        }
    }

    /// It is not listened to any more.
    pub(super) fn mute(&mut self) {
        self.muted = true;
    }

    /// Asks something of a worker that serves; the files of its answer.
    pub(super) async fn ask(
        &mut self,
        word: &ToWorker,
        within: Duration,
        is_answer: impl Fn(&FromWorker) -> bool,
    ) -> Result<Vec<OwnedFd>, String> {
        self.send(word, &[]).await.map_err(|error| error.to_string())?;
        match self.expect(within, is_answer).await {
            Ok(files) => Ok(files),
            Err(Went::Failed { error, .. } | Went::Refused(error)) => Err(error),
            Err(Went::Done) => Ok(Vec::new()),
        }
    }

    /// Waits for an answer. What is said besides, such as by an admin interface that is asked for another reload meanwhile,
    /// is answered by the same.
    pub(super) async fn expect(
        &mut self,
        within: Duration,
        is_answer: impl Fn(&FromWorker) -> bool,
    ) -> Result<Vec<OwnedFd>, Went> {
        let answered = async {
            loop {
                match self.hear().await {
                    Heard::Word(FromWorker::Failed { error, code }, _) => {
                        return Err(Went::Failed { error, code });
                    }
                    Heard::Word(word, files) if is_answer(&word) => return Ok(files),
                    Heard::Word(FromWorker::Reload { ask, .. }, _) => self.asks.push(ask),
                    Heard::Word(word, _) => tracing::debug!(?word, "a process is before its time"),
                    Heard::End => return Err(failed("the new process has ended")),
                }
            }
        };
        match timeout(within, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(failed(format!("no answer within {} s", within.as_secs()))),
        }
    }

    /// Takes the questions that wait.
    pub(super) fn take_asks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.asks)
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        if self.status.is_none() {
            match waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => self.status = Some(status),
                Ok(None) => {}
                // It is no child of this process, and so is none.
                Err(error) => return Some(error.to_string()),
            }
        }
        let status = self.status?;
        Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (_, Some(signal)) => format!("signal {signal}"),
            _ => "unknown".to_owned(),
        })
    }

    /// The exit code of one that has ended.
    pub(super) fn code(&self) -> i32 {
        self.status.and_then(WaitStatus::exit_status).unwrap_or(1)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.ended().is_none() && kill_process(self.pid, Signal::KILL).is_ok() {
            // A moment.
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}
