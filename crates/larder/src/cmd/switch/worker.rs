//! The worker process of a switch, which serves on listeners that the master has bound.
//!
//! A worker starts in two steps. After `prepared` it has read the config, found its nodes and opened its log.
//! The forwarding plane still belongs to its predecessor. At `serve` it takes the plane and the predecessor's
//! snapshot, and serves. After `retire` it ends when its last connection closes. The kernel kills it when its
//! master ends.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use larder_switch::{PreparedSwitch, ShareReloadState, SwitchHandle};
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::args::{NO_SECTION, SwitchArgs, override_policies};
use super::link::{self, FromWorker, Link, PROTOCOL, Packet, ToWorker, WorkerStart, read_memory_file};
use super::reload_client::ReloadClient;
use super::role::{load_secrets, load_tables};
use super::status::ReloadStatus;
use crate::acme;
use crate::admin::SwitchAdmin;
use crate::cmd::{logging, serve};
use crate::config::{Config, SwitchRole, Written};
use crate::outcome::{self, usage};
use crate::roster::{InheritedNode, NodeSources, RosterManager};

/// Longest wait at the end for replies of the admin interface.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(2);

/// Exit code if the master has ended.
const ORPHAN_EXIT_CODE: i32 = 1;

/// The input of a worker: its first message and files.
struct WorkerInput {
    start: WorkerStart,
    config: String,
    listeners: Vec<std::net::TcpListener>,
    admin: Option<std::net::TcpListener>,
    before: Vec<InheritedNode>,
}

pub(crate) fn run(args: &SwitchArgs) -> anyhow::Result<()> {
    // This is set before anything blocks. If the master has ended already, the link is closed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot tie the worker process to the master process")?;
    // Without this, the name would be "exe", because the process was started through the link to the running
    // binary.
    let _ = rustix::thread::set_name(c"larder");
    let end = io::stdin().as_fd().try_clone_to_owned()?;
    let Some(input) = receive_input(&end)? else { std::process::exit(ORPHAN_EXIT_CODE) };
    if let Err(error) = run_worker(args, input, end.try_clone()?) {
        let code = outcome::code(&error);
        let failed = FromWorker::Failed { error: format!("{error:#}"), code };
        // The master reports the error. If the master cannot be reached, the worker reports it.
        if link::send_on(end.as_fd(), &failed, &[]).is_err() {
            return Err(error);
        }
        std::process::exit(code.into());
    }
    Ok(())
}

/// Receives the first message and its files.
fn receive_input(end: &OwnedFd) -> anyhow::Result<Option<WorkerInput>> {
    let Some((message, files)) = link::recv_blocking::<ToWorker>(end.as_fd()).context("the master")? else {
        return Ok(None);
    };
    let ToWorker::Start(start) = message else {
        return Err(usage("a worker process cannot be started by hand: start `larder switch`"));
    };
    anyhow::ensure!(start.protocol == PROTOCOL, "the master process has an incompatible version");
    let mut files = files.into_iter();
    let mut file = || files.next().context("the master process has sent too few files");
    let config = String::from_utf8(read_memory_file(file()?)?)?;
    let listeners = (0..start.listeners).map(|_| file().map(Into::into)).collect::<Result<_, _>>()?;
    let admin = if start.admin.is_some() { Some(file()?.into()) } else { None };
    let before = if start.takes_over { read_nodes(file()?) } else { Vec::new() };
    Ok(Some(WorkerInput { start: *start, config, listeners, admin, before }))
}

/// Reads the nodes of the previous process. If another version wrote them in another format, the nodes start
/// as the config says.
fn read_nodes(file: OwnedFd) -> Vec<InheritedNode> {
    let read = read_memory_file(file).map_err(anyhow::Error::from);
    let nodes = read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    nodes.unwrap_or_else(|error| {
        tracing::warn!(%error, "reload: node states not read, nodes start as configured");
        Vec::new()
    })
}

fn run_worker(args: &SwitchArgs, input: WorkerInput, end: OwnedFd) -> anyhow::Result<()> {
    let mut written = Written::parse(&input.start.origin, &input.config)?;
    args.apply_options(&mut written)?;
    override_policies(&mut written, &input.start.status.policies)?;
    let config = written.validate()?;
    logging::start(&config.log)?;
    serve::raise_open_files();
    for warning in written.warnings(&config) {
        tracing::warn!(%warning, "config: accepted with a warning");
    }
    let Config { switch: Some(mut role), .. } = config else {
        return Err(usage(NO_SECTION));
    };
    rename_records(&mut role, input.start.status.counts.generation);
    let effective = written.shown()?;
    let runtime = serve::runtime(role.threads)?;
    let done = runtime.block_on(serve_until_end(input, role, effective, end));
    // Threads that block, as in a name lookup, do not delay the end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

/// Appends the generation to the names of record files, so that each process has its own files.
fn rename_records(role: &mut SwitchRole, generation: u64) {
    let Some(record) = role.switch.record.as_mut().filter(|_| generation > 1) else { return };
    for file in std::iter::once(&mut record.file).chain(record.log.as_mut()) {
        let mut name = std::mem::take(file).into_os_string();
        name.push(format!(".{generation}"));
        *file = name.into();
    }
}

async fn serve_until_end(
    input: WorkerInput,
    mut role: SwitchRole,
    effective: serde_json::Value,
    end: OwnedFd,
) -> anyhow::Result<()> {
    let WorkerInput { start, listeners, admin, before, .. } = input;
    ignore_signals()?;
    let link = Arc::new(Link::new(end)?);
    let (sender, mut messages) = mpsc::unbounded_channel();
    tokio::spawn(receive_messages(link.clone(), sender));
    let tables = load_tables(&mut role)?;
    load_secrets(&mut role)?;
    let nodes = std::mem::take(&mut role.switch.nodes);
    let sources = NodeSources::read_all(nodes, &role.discover, role.follow, before).await?;
    role.switch.nodes = sources.nodes();
    let prepared = PreparedSwitch::with_listeners(role.switch, listeners, start_time(start.since_ns));
    let prepared = prepared.context("the switch cannot start")?;
    link.send(&FromWorker::Prepared, &[]).await?;

    let files = loop {
        match messages.recv().await {
            Some((ToWorker::Serve, files)) => break files,
            Some((ToWorker::Drain, _)) | None => return Ok(()),
            Some(_) => {}
        }
    };
    let switch = prepared.open().context("the switch cannot start")?;
    let (handle, listen) = (switch.handle(), switch.addresses().to_vec());
    handle.set_reloads(start.status.counts);
    let roster = sources.start_manager(handle.clone());
    restore_state(&handle, &roster, files);
    for table in &tables {
        tokio::spawn(table.clone().watch(handle.clone()));
    }
    let status = ReloadStatus { worker_pid: std::process::id(), ..start.status };
    let reload_client = Arc::new(ReloadClient::new(link.clone(), status));
    let acme = role.acme.map(|role| acme::CertificateManager::new(role, handle.clone()));
    let ordering = acme.as_ref().map(acme::CertificateManager::start).transpose()?;
    let admin_service = SwitchAdmin::with_reload_client(
        handle.clone(),
        effective,
        tables,
        roster.clone(),
        reload_client.clone(),
    );
    let admin_service = admin_service.with_acme(acme);
    let mut admin = AdminInterface {
        listener: admin,
        admin_service: Arc::new(admin_service),
        running: None,
        ending: Vec::new(),
    };
    admin.start()?;
    let (drain, shutdown) = serve::Shutdown::manual();
    let served = tokio::spawn(switch.run(shutdown.requested()));
    tracing::info!(generation = reload_client.status().counts.generation, ?listen, "switch: ready");
    link.send(&FromWorker::Ready, &[]).await?;
    let mut worker =
        Worker { link, handle, roster, reload_client, admin, drain, ordering, plane_released: false };
    let message_loop = async {
        while let Some((message, _)) = messages.recv().await {
            worker.handle_message(message).await;
        }
        std::process::exit(ORPHAN_EXIT_CODE)
    };
    tokio::select! {
        served = served => served.context("the switch")?.context("the switch")?,
        () = message_loop => {}
    }
    worker.admin.stop().await;
    Ok(())
}

/// Ignores signals, because the master handles them. A signal to the process group arrives here too.
fn ignore_signals() -> anyhow::Result<()> {
    for kind in [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ] {
        let mut signal = signal(kind).context("cannot watch signals")?;
        tokio::spawn(async move { while signal.recv().await.is_some() {} });
    }
    Ok(())
}

/// Receives messages of the master and queues them. Ends the process when the link closes.
async fn receive_messages(link: Arc<Link>, sender: mpsc::UnboundedSender<Packet<ToWorker>>) {
    loop {
        match link.recv().await {
            Ok(Some(packet)) => drop(sender.send(packet)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "master process: unknown message ignored");
            }
            Ok(None) | Err(_) => std::process::exit(ORPHAN_EXIT_CODE),
        }
    }
}

/// Returns the start time of the first worker.
fn start_time(since_ns: u64) -> Instant {
    let ago = Duration::from_nanos(link::monotonic_ns().saturating_sub(since_ns));
    Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
}

/// Restores the state of the previous process.
fn restore_state(switch: &SwitchHandle, roster: &RosterManager, files: Vec<OwnedFd>) {
    let mut files = files.into_iter();
    let (Some(nodes), Some(snapshot)) = (files.next(), files.next()) else { return };
    roster.restore_node_states(&read_nodes(nodes));
    if let Some(shares) = files.next() {
        restore_shares(switch, shares);
    }
    let read = read_memory_file(snapshot).map_err(anyhow::Error::from);
    match read.and_then(|bytes| Ok(switch.load_snapshot(&bytes)?)) {
        Ok(targets) => tracing::info!(targets, "dispatcher state: taken over from the previous worker"),
        Err(error) => {
            tracing::warn!(%error, "dispatcher state: unusable, targets are placed anew");
        }
    }
}

fn restore_shares(switch: &SwitchHandle, file: OwnedFd) {
    let read = read_memory_file(file).map_err(anyhow::Error::from);
    match read.and_then(|bytes| Ok(serde_json::from_slice::<Vec<ShareReloadState>>(&bytes)?)) {
        Ok(before) => {
            for error in switch.restore_shares(&before) {
                tracing::warn!(%error, "route: share not kept, the configured share applies");
            }
        }
        Err(error) => {
            tracing::warn!(%error, "route: shares not read, the configured shares apply");
        }
    }
}

/// The admin interface, which pauses while another worker starts.
struct AdminInterface {
    listener: Option<std::net::TcpListener>,
    admin_service: Arc<SwitchAdmin>,
    running: Option<(watch::Sender<bool>, JoinHandle<()>)>,
    /// Tasks of servers that accept no more connections and complete their replies.
    ending: Vec<JoinHandle<()>>,
}

impl AdminInterface {
    fn start(&mut self) -> anyhow::Result<()> {
        let Some(listener) = self.listener.as_ref().filter(|_| self.running.is_none()) else {
            return Ok(());
        };
        let (stop, stopped) = serve::Shutdown::manual();
        let (_, task) = serve::start_admin_on(listener.try_clone()?, self.admin_service.clone(), stopped)?;
        self.running = Some((stop, task));
        Ok(())
    }

    /// Stops accepting connections. Pending requests are answered.
    fn pause(&mut self) {
        if let Some((stop, task)) = self.running.take() {
            stop.send_replace(true);
            self.ending.push(task);
        }
    }

    /// Waits until all requests are answered, including the request for the reload, or until a timeout.
    async fn stop(mut self) {
        self.pause();
        let all = async {
            for task in self.ending {
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, all).await;
    }
}

/// A serving worker.
struct Worker {
    link: Arc<Link>,
    handle: SwitchHandle,
    roster: Arc<RosterManager>,
    reload_client: Arc<ReloadClient>,
    admin: AdminInterface,
    drain: watch::Sender<bool>,
    /// Orders certificates, if ACME is configured.
    ordering: Option<acme::ManagerGuard>,
    /// Whether the worker has released the forwarding plane.
    plane_released: bool,
}

impl Worker {
    async fn handle_message(&mut self, message: ToWorker) {
        let result = match message {
            ToWorker::SendNodeStates => self.send_node_states().await,
            ToWorker::Yield => self.hand_over().await,
            ToWorker::Resume => {
                if self.plane_released {
                    tracing::warn!(
                        "forwarding plane: released, connections are relayed until the next reload"
                    );
                }
                self.handle.resume();
                self.admin.start()
            }
            ToWorker::Retire => {
                self.stop_ordering();
                drop(self.admin.listener.take());
                self.handle.retire();
                Ok(())
            }
            ToWorker::Drain => {
                self.stop_ordering();
                self.drain.send_replace(true);
                Ok(())
            }
            ToWorker::Status { status, requests } => {
                self.handle.set_reloads(status.counts);
                self.reload_client.record_result(*status, &requests);
                Ok(())
            }
            ToWorker::Start(_) | ToWorker::Serve => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "master process: reply not sent");
        }
    }

    /// Stops ordering certificates. The next process continues a pending order.
    fn stop_ordering(&mut self) {
        drop(self.ordering.take());
    }

    async fn send_node_states(&self) -> anyhow::Result<()> {
        let nodes = link::memory_file(&serde_json::to_vec(&self.roster.export_nodes())?)?;
        Ok(self.link.send(&FromWorker::NodeStates, &[nodes.as_fd()]).await?)
    }

    /// Hands over to the new worker. The admin interface pauses first, so that later changes cannot be lost.
    async fn hand_over(&mut self) -> anyhow::Result<()> {
        self.admin.pause();
        let (handle, roster) = (self.handle.clone(), self.roster.clone());
        let files = tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
            let plane_released = handle.release_plane();
            let nodes = link::memory_file(&serde_json::to_vec(&roster.export_nodes())?)?;
            let shares = link::memory_file(&serde_json::to_vec(&handle.shares())?)?;
            Ok((plane_released, [nodes, link::memory_file(&handle.snapshot())?, shares]))
        });
        let (plane_released, files) = files.await.context("the switch")??;
        self.plane_released |= plane_released;
        Ok(self.link.send(&FromWorker::HandedOver, &files.each_ref().map(AsFd::as_fd)).await?)
    }
}
