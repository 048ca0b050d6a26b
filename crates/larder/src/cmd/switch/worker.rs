//! A worker: does all the work of a switch, on listeners that its master has bound.
//!
//! It comes up in two steps. *Prepared*, it has read the config, found its nodes and opened its log, and could serve; the
//! forwarding plane, of which there is one, is still the predecessor's. At the word *go* it takes the plane and what the
//! predecessor has learned, and serves. The word *retire* ends it when its clients have gone. It ends at once when its
//! master does, however that happens.

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

use super::args::{NO_SECTION, SwitchArgs, choose};
use super::desk::Desk;
use super::link::{self, FromWorker, Link, PROTOCOL, Packet, Start, ToWorker, read_blob};
use super::role::{beside, keepers};
use super::status::ReloadStatus;
use crate::acme;
use crate::admin::SwitchAdmin;
use crate::cmd::{logging, serve};
use crate::config::{Config, SwitchRole, Written};
use crate::outcome::{self, usage};
use crate::roster::{InheritedNode, NodeSources, RosterManager};

/// Longest wait for answers of the admin interface under way at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Ends the process: 1 if the master is no more.
const ORPHANED: i32 = 1;

/// What a worker has begun with.
struct Begun {
    start: Start,
    config: String,
    listeners: Vec<std::net::TcpListener>,
    admin: Option<std::net::TcpListener>,
    before: Vec<InheritedNode>,
}

pub(crate) fn run(args: &SwitchArgs) -> anyhow::Result<()> {
    // Before anything can be waited for. The link's end says so too, if the master has gone already.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot be tied to the master")?;
    // By the link to the running binary it would be called "exe".
    let _ = rustix::thread::set_name(c"larder");
    let end = io::stdin().as_fd().try_clone_to_owned()?;
    let Some(begun) = begin(&end)? else { std::process::exit(ORPHANED) };
    if let Err(error) = work(args, begun, end.try_clone()?) {
        let code = outcome::code(&error);
        let failed = FromWorker::Failed { error: format!("{error:#}"), code };
        // The master says it; only where it cannot be told is it said here.
        if link::send_on(end.as_fd(), &failed, &[]).is_err() {
            return Err(error);
        }
        std::process::exit(code.into());
    }
    Ok(())
}

/// The first message and its files.
fn begin(end: &OwnedFd) -> anyhow::Result<Option<Begun>> {
    let Some((word, files)) = link::recv_blocking::<ToWorker>(end.as_fd()).context("the master")? else {
        return Ok(None);
    };
    let ToWorker::Start(start) = word else {
        return Err(usage("a worker is started by its master, with everything it needs"));
    };
    anyhow::ensure!(start.protocol == PROTOCOL, "the master is of another version");
    let mut files = files.into_iter();
    let mut file = || files.next().context("the master has sent too few files");
    let config = String::from_utf8(read_blob(file()?)?)?;
    let listeners = (0..start.listeners).map(|_| file().map(Into::into)).collect::<Result<_, _>>()?;
    let admin = if start.admin.is_some() { Some(file()?.into()) } else { None };
    let before = if start.takes_over { nodes_of(file()?) } else { Vec::new() };
    Ok(Some(Begun { start: *start, config, listeners, admin, before }))
}

/// The nodes of the process before. One of another version may say it in other words; then they begin as the config says.
fn nodes_of(file: OwnedFd) -> Vec<InheritedNode> {
    let read = read_blob(file).map_err(anyhow::Error::from);
    let nodes = read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    nodes.unwrap_or_else(|error| {
        tracing::warn!(%error, "node states: unreadable, nodes start as the config says");
        Vec::new()
    })
}

fn work(args: &SwitchArgs, begun: Begun, end: OwnedFd) -> anyhow::Result<()> {
    let mut written = Written::parse(&begun.start.origin, &begun.config)?;
    args.lay_over(&mut written)?;
    choose(&mut written, &begun.start.status.policies)?;
    let config = written.validate()?;
    logging::start(&config.log)?;
    serve::raise_open_files();
    for warning in written.warnings(&config) {
        tracing::warn!("{warning}");
    }
    let Config { switch: Some(mut role), .. } = config else {
        return Err(usage(NO_SECTION));
    };
    name_records(&mut role, begun.start.status.counts.generation);
    let effective = written.shown()?;
    let runtime = serve::runtime(role.threads)?;
    let done = runtime.block_on(serve_until_told(begun, role, effective, end));
    // What is blocked in a thread, such as in a look at a name, does not hold the end up.
    runtime.shutdown_timeout(Duration::from_millis(100));
    done
}

/// A record is one process's: those after the first get its number, so that none is written over.
fn name_records(role: &mut SwitchRole, generation: u64) {
    let Some(record) = role.switch.record.as_mut().filter(|_| generation > 1) else { return };
    for file in std::iter::once(&mut record.file).chain(record.log.as_mut()) {
        let mut name = std::mem::take(file).into_os_string();
        name.push(format!(".{generation}"));
        *file = name.into();
    }
}

async fn serve_until_told(
    begun: Begun,
    mut role: SwitchRole,
    effective: serde_json::Value,
    end: OwnedFd,
) -> anyhow::Result<()> {
    let Begun { start, listeners, admin, before, .. } = begun;
    leave_signals_to_the_master()?;
    let link = Arc::new(Link::new(end)?);
    let (heard, mut words) = mpsc::unbounded_channel();
    tokio::spawn(hear(link.clone(), heard));
    let tables = keepers(&mut role)?;
    beside(&mut role)?;
    let nodes = std::mem::take(&mut role.switch.nodes);
    let sources = NodeSources::read_all(nodes, &role.discover, role.follow, before).await?;
    role.switch.nodes = sources.nodes();
    let prepared = PreparedSwitch::with_listeners(role.switch, listeners, since(start.since_ns));
    let prepared = prepared.context("the switch cannot start")?;
    link.send(&FromWorker::Prepared, &[]).await?;

    let files = loop {
        match words.recv().await {
            Some((ToWorker::Go, files)) => break files,
            Some((ToWorker::Drain, _)) | None => return Ok(()),
            Some(_) => {}
        }
    };
    let switch = prepared.open().context("the switch cannot start")?;
    let (handle, listen) = (switch.handle(), switch.addresses().to_vec());
    handle.set_reloads(start.status.counts);
    let roster = sources.start_manager(handle.clone());
    take_over(&handle, &roster, files);
    for keeper in &tables {
        tokio::spawn(keeper.clone().watch(handle.clone()));
    }
    let status = ReloadStatus { worker_pid: std::process::id(), ..start.status };
    let desk = Arc::new(Desk::new(link.clone(), status));
    let acme = role.acme.map(|role| acme::CertificateManager::new(role, handle.clone()));
    let ordering = acme.as_ref().map(acme::CertificateManager::start).transpose()?;
    let surface = SwitchAdmin::with_desk(handle.clone(), effective, tables, roster.clone(), desk.clone());
    let surface = surface.with_acme(acme);
    let mut admin = Admin { listener: admin, surface: Arc::new(surface), running: None, ending: Vec::new() };
    admin.start()?;
    let (drain, shutdown) = serve::Shutdown::by_hand();
    let served = tokio::spawn(switch.run(shutdown.requested()));
    tracing::info!(generation = desk.status().counts.generation, ?listen, "switch: ready");
    link.send(&FromWorker::Ready, &[]).await?;
    let mut worker = Worker { link, handle, roster, desk, admin, drain, ordering, gone: false };
    let obey = async {
        while let Some((word, _)) = words.recv().await {
            worker.obey(word).await;
        }
        std::process::exit(ORPHANED)
    };
    tokio::select! {
        served = served => served.context("the switch")?.context("the switch")?,
        () = obey => {}
    }
    worker.admin.stop().await;
    Ok(())
}

/// The master decides what a signal means; those to the whole group come here too.
fn leave_signals_to_the_master() -> anyhow::Result<()> {
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

/// Takes what the master says, for whoever is listening at the moment. Its end is the end of the process.
async fn hear(link: Arc<Link>, heard: mpsc::UnboundedSender<Packet<ToWorker>>) {
    loop {
        match link.recv().await {
            Ok(Some(packet)) => drop(heard.send(packet)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(%error, "unknown message from the master process");
            }
            Ok(None) | Err(_) => std::process::exit(ORPHANED),
        }
    }
}

/// The moment from which times count.
fn since(since_ns: u64) -> Instant {
    let ago = Duration::from_nanos(link::monotonic_ns().saturating_sub(since_ns));
    Instant::now().checked_sub(ago).unwrap_or_else(Instant::now)
}

/// Goes on from what the process before has handed over.
fn take_over(switch: &SwitchHandle, roster: &RosterManager, files: Vec<OwnedFd>) {
    let mut files = files.into_iter();
    let (Some(nodes), Some(learned)) = (files.next(), files.next()) else { return };
    roster.restore_node_states(&nodes_of(nodes));
    if let Some(shares) = files.next() {
        restore_shares(switch, shares);
    }
    let read = read_blob(learned).map_err(anyhow::Error::from);
    match read.and_then(|bytes| Ok(switch.load_snapshot(&bytes)?)) {
        Ok(targets) => tracing::info!(targets, "dispatcher state: taken over from the previous worker"),
        Err(error) => {
            tracing::warn!(%error, "dispatcher state: unusable, targets are placed anew");
        }
    }
}

fn restore_shares(switch: &SwitchHandle, file: OwnedFd) {
    let read = read_blob(file).map_err(anyhow::Error::from);
    match read.and_then(|bytes| Ok(serde_json::from_slice::<Vec<ShareReloadState>>(&bytes)?)) {
        Ok(before) => {
            for error in switch.restore_shares(&before) {
                tracing::warn!(%error, "route share: not kept, the config's share applies");
            }
        }
        Err(error) => {
            tracing::warn!(%error, "route shares: unreadable, the config's shares apply");
        }
    }
}

/// The admin interface, which rests while another worker comes up.
struct Admin {
    listener: Option<std::net::TcpListener>,
    surface: Arc<SwitchAdmin>,
    running: Option<(watch::Sender<bool>, JoinHandle<()>)>,
    /// Those that accept no more and have something to answer.
    ending: Vec<JoinHandle<()>>,
}

impl Admin {
    fn start(&mut self) -> anyhow::Result<()> {
        let Some(listener) = self.listener.as_ref().filter(|_| self.running.is_none()) else {
            return Ok(());
        };
        let (stop, stopped) = serve::Shutdown::by_hand();
        let (_, task) = serve::start_admin_on(listener.try_clone()?, self.surface.clone(), stopped)?;
        self.running = Some((stop, task));
        Ok(())
    }

    /// Accepts no more; what has been asked is answered meanwhile.
    fn pause(&mut self) {
        if let Some((stop, task)) = self.running.take() {
            stop.send_replace(true);
            self.ending.push(task);
        }
    }

    /// Ends when all is answered, who asked for the reload among them, or after a while.
    async fn stop(mut self) {
        self.pause();
        let all = async {
            for task in self.ending {
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(LAST_ANSWERS, all).await;
    }
}

/// A worker at work.
struct Worker {
    link: Arc<Link>,
    handle: SwitchHandle,
    roster: Arc<RosterManager>,
    desk: Arc<Desk>,
    admin: Admin,
    drain: watch::Sender<bool>,
    /// Orders certificates, where that is wanted.
    ordering: Option<acme::ManagerGuard>,
    /// It had the forwarding plane, and has no more.
    gone: bool,
}

impl Worker {
    async fn obey(&mut self, word: ToWorker) {
        let said = match word {
            ToWorker::Tell => self.tell().await,
            ToWorker::Yield => self.yield_to_another().await,
            ToWorker::Resume => {
                if self.gone {
                    tracing::warn!(
                        "forwarding plane: released, connections are relayed until the next reload"
                    );
                }
                self.handle.resume();
                self.admin.start()
            }
            ToWorker::Retire => {
                self.order_no_more();
                drop(self.admin.listener.take());
                self.handle.retire();
                Ok(())
            }
            ToWorker::Drain => {
                self.order_no_more();
                self.drain.send_replace(true);
                Ok(())
            }
            ToWorker::Status { status, asks } => {
                self.handle.set_reloads(status.counts);
                self.desk.settle(*status, &asks);
                Ok(())
            }
            ToWorker::Start(_) | ToWorker::Go => Ok(()),
        };
        if let Err(error) = said {
            tracing::error!(%error, "the master cannot be answered");
        }
    }

    /// Certificates are the next process's to order; an order under way is gone on with there.
    fn order_no_more(&mut self) {
        drop(self.ordering.take());
    }

    async fn tell(&self) -> anyhow::Result<()> {
        let nodes = link::blob(&serde_json::to_vec(&self.roster.export_nodes())?)?;
        Ok(self.link.send(&FromWorker::Told, &[nodes.as_fd()]).await?)
    }

    /// From here on the admin interface is asked for nothing that the other would not know of.
    async fn yield_to_another(&mut self) -> anyhow::Result<()> {
        self.admin.pause();
        let (handle, roster) = (self.handle.clone(), self.roster.clone());
        let files = tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
            let gone = handle.release_plane();
            let nodes = link::blob(&serde_json::to_vec(&roster.export_nodes())?)?;
            let shares = link::blob(&serde_json::to_vec(&handle.shares())?)?;
            Ok((gone, [nodes, link::blob(&handle.snapshot())?, shares]))
        });
        let (gone, files) = files.await.context("the switch")??;
        self.gone |= gone;
        Ok(self.link.send(&FromWorker::Yielded, &files.each_ref().map(AsFd::as_fd)).await?)
    }
}
