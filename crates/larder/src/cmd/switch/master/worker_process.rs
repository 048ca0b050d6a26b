//! A worker process, as the master controls it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, geteuid, kill_process, waitpid};
use tokio::time::timeout;

use super::{ChangeResult, exec, failed};
use crate::cmd::switch::args::ProcessPart;
use crate::cmd::switch::link::{self, FromWorker, Link, ToWorker};
use crate::cmd::switch::notify::ServiceManager;
use crate::config::RunAs;

/// An event of a worker.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// A message with its files.
    Message(FromWorker, Vec<OwnedFd>),
    /// The link has closed.
    End,
}

/// A worker process. It is killed when dropped, unless it has ended.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pid: Pid,
    link: Link,
    start_time: Instant,
    status: Option<WaitStatus>,
    muted: bool,
    /// Reload requests of its admin interface that the change under way will answer.
    requests: Vec<u64>,
}

impl WorkerProcess {
    /// Starts a worker from the running binary, even if the file at its path has changed.
    pub(super) fn spawn(run_as: Option<RunAs>) -> std::io::Result<Self> {
        let (here, there) = link::socket_pair()?;
        let name = std::env::args_os().next().unwrap_or_else(|| "larder".into());
        let mut command = Command::new("/proc/self/exe");
        if let Some(RunAs { user, group }) = run_as.filter(|run_as| run_as.user != geteuid().as_raw()) {
            // The user is changed before exec. Supplementary groups are dropped.
            command.uid(user).gid(group);
        }
        let child = command
            .arg0(name)
            .args(exec::arguments(ProcessPart::Worker))
            .env_remove(ServiceManager::VARIABLE)
            .stdin(Stdio::from(there))
            .spawn()?;
        Self::adopt(Pid::from_child(&child), here)
    }

    /// Adopts a worker that the previous program started.
    pub(super) fn adopt(pid: Pid, end: OwnedFd) -> std::io::Result<Self> {
        Ok(Self {
            pid,
            link: Link::new(end)?,
            start_time: Instant::now(),
            status: None,
            muted: false,
            requests: Vec::new(),
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    pub(super) fn age(&self) -> Duration {
        self.start_time.elapsed()
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    pub(super) async fn send(&self, message: &ToWorker, files: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        match timeout(Duration::from_secs(5), self.link.send(message, files)).await {
            Ok(sent) => sent,
            Err(_) => Err(std::io::Error::other("the worker process does not answer")),
        }
    }

    /// Waits for the next event. The future is cancel-safe.
    pub(super) async fn next_event(&self) -> WorkerEvent {
        loop {
            if self.muted {
                return std::future::pending().await;
            }
            match self.link.recv().await {
                Ok(Some((message, files))) => return WorkerEvent::Message(message, files),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    tracing::warn!(pid = self.pid(), %error, "worker process: unknown message ignored");
                }
                Ok(None) | Err(_) => return WorkerEvent::End,
            }
        }
    }

    /// Ignores all further messages.
    pub(super) fn stop_listening(&mut self) {
        self.muted = true;
    }

    /// Sends a request to a serving worker, and returns the files of its answer.
    pub(super) async fn request(
        &mut self,
        message: &ToWorker,
        within: Duration,
        is_answer: impl Fn(&FromWorker) -> bool,
    ) -> Result<Vec<OwnedFd>, String> {
        self.send(message, &[]).await.map_err(|error| error.to_string())?;
        match self.wait_for(within, is_answer).await {
            Ok(files) => Ok(files),
            Err(ChangeResult::Failed { error, .. } | ChangeResult::Refused(error)) => Err(error),
            Err(ChangeResult::Done) => Ok(Vec::new()),
        }
    }

    /// Waits for an answer. Reload requests that arrive meanwhile are collected, because the change under way
    /// answers them too.
    pub(super) async fn wait_for(
        &mut self,
        within: Duration,
        is_answer: impl Fn(&FromWorker) -> bool,
    ) -> Result<Vec<OwnedFd>, ChangeResult> {
        let answered = async {
            loop {
                match self.next_event().await {
                    WorkerEvent::Message(FromWorker::Failed { error, code }, _) => {
                        return Err(ChangeResult::Failed { error, code });
                    }
                    WorkerEvent::Message(message, files) if is_answer(&message) => return Ok(files),
                    WorkerEvent::Message(FromWorker::Reload { request, .. }, _) => {
                        self.requests.push(request);
                    }
                    WorkerEvent::Message(message, _) => {
                        tracing::debug!(?message, "worker process: message ignored, it came too early");
                    }
                    WorkerEvent::End => return Err(failed("the new worker process has ended")),
                }
            }
        };
        match timeout(within, answered).await {
            Ok(answer) => answer,
            Err(_) => Err(failed(format!("no answer within {} s", within.as_secs()))),
        }
    }

    /// Takes the collected reload requests.
    pub(super) fn take_requests(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.requests)
    }

    /// Returns the exit status as text, if the process has ended.
    pub(super) fn exit_reason(&mut self) -> Option<String> {
        if self.status.is_none() {
            match waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(Some((_, status))) => self.status = Some(status),
                Ok(None) => {}
                // The process is not a child, so its status is unknown.
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

    /// Returns the exit code of a process that has ended.
    pub(super) fn exit_code(&self) -> i32 {
        self.status.and_then(WaitStatus::exit_status).unwrap_or(1)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if self.exit_reason().is_none() && kill_process(self.pid, Signal::KILL).is_ok() {
            // A killed process ends in a moment.
            let _ = waitpid(Some(self.pid), WaitOptions::empty());
        }
    }
}
