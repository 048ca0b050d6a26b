//! The hosts' processes for one run after another, and what they cost.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use larder_handoff::channel::identity::{Identity, PublicKey};
use larder_kernel::netns::{Capture, Host, Topology};
use larder_load::{Arrivals, Report, Reuse};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::hosts::{Left, Process, admin, await_channels};
use super::packets::{self, Kind, Name, Trace};
use super::result::Row;
use super::spent::{self, Receivers};
use super::{Content, Interrupt, SHOWN, SHOWN_BYTES, Setup, WARM_UP};
use crate::cmd::handoff;

/// Before the number of this process: what it leaves in the kernel if it is killed is found by these names.
pub(super) const NAMES: &str = "larder-demo-";
const SERVICE_PORT: u16 = 80;
const CONTROL_PORT: u16 = 7946;
/// Longest wait for a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Frames of the shown connection, at most.
const FRAMES_MAX: usize = 1_000;
/// The shown connection is over when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(200);
/// Processors that a mask of receiving queues names, at most.
const MASKED_MAX: usize = 32;

/// What serves on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Larder,
    Nginx,
}

impl Server {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Larder => "larder",
            Self::Nginx => "nginx",
        }
    }
}

/// Processor time up to some moment.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    front_process: Duration,
    front_receive: Duration,
    all: Duration,
}

/// The hosts, and who receives for them.
pub(super) struct Cluster<'t> {
    topology: &'t Topology,
    folder: &'t Path,
    setup: &'t Setup,
    /// `None` where the kernel's receiving cannot be told apart.
    front: Option<Receivers>,
    others: Vec<Receivers>,
    /// The processor that is the front-end's, on a machine with several.
    processor: Option<usize>,
    switch_key: PublicKey,
    node_keys: Vec<PublicKey>,
}

impl<'t> Cluster<'t> {
    pub(super) fn new(topology: &'t Topology, folder: &'t Path, setup: &'t Setup) -> anyhow::Result<Self> {
        let front = Receivers::of(&topology.front().namespace);
        let hosts = topology.nodes.iter().chain(&topology.clients).map(|host| &host.namespace);
        let others = hosts.chain([&topology.hub]).filter_map(Receivers::of).collect();
        let key = |name: String| -> anyhow::Result<PublicKey> {
            let identity = Identity::generate()?;
            identity.save(&folder.join(name))?;
            Ok(identity.public())
        };
        let mut cluster = Self {
            topology,
            folder,
            setup,
            front,
            others,
            processor: None,
            switch_key: key("switch.key".to_owned())?,
            node_keys: (0..setup.nodes)
                .map(|n| key(format!("node{n}.key")))
                .collect::<anyhow::Result<_>>()?,
        };
        cluster.set_apart();
        Ok(cluster)
    }

    /// Gives the front-end a processor of its own, if there are several, and keeps the hub's soft interrupts off it: what
    /// interrupts a process is charged to it.
    fn set_apart(&mut self) {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(MASKED_MAX));
        if processors < 2 {
            return;
        }
        let own = processors - 1;
        let mask = (u32::MAX >> (32 - processors)) & !(1 << own);
        let script = format!(
            "for queue in /sys/class/net/*/queues/rx-*/rps_cpus; do echo {mask:x} >$queue || exit 1; done"
        );
        let hub = self.topology.hub.name();
        let done =
            std::process::Command::new("ip").args(["netns", "exec", hub, "sh", "-c", &script]).status();
        if done.is_ok_and(|status| status.success()) {
            self.processor = Some(own);
            for thread in self.front.iter().flat_map(Receivers::ids) {
                self.bind(thread);
            }
        }
    }

    /// Binds threads to the front-end's processor. Where that is not allowed the figures are a little less exact.
    fn bind(&self, id: u32) {
        let Some(processor) = self.processor else { return };
        let mut set = CpuSet::new();
        set.set(processor);
        let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return };
        let ids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
        for thread in ids.filter_map(rustix::process::Pid::from_raw) {
            let _ = sched_setaffinity(Some(thread), &set);
        }
    }

    /// How processor time is counted here, in words.
    pub(super) fn counted(&self) -> String {
        let front = match self.front {
            Some(_) => {
                "front us: processor time of the switch's process and of the kernel threads that receive for its interface \
                 (threaded NAPI: XDP, TCP and IP of what comes in)"
            }
            None => {
                "front us: processor time of the switch's process alone: the kernel's receiving cannot be told apart here"
            }
        };
        let processor = self.processor.map_or("", |_| ", on a processor of its own");
        format!("{front}{processor}, by request. all us: the same of all hosts, clients included")
    }

    fn service(&self) -> SocketAddr {
        (self.topology.vip4, SERVICE_PORT).into()
    }

    /// Starts everything, asks, counts, shows one connection, ends everything.
    pub(super) fn measure(
        &mut self,
        setting: &str,
        server: Server,
        content: &Content,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Row> {
        let mut processes = Vec::new();
        for number in 0..self.topology.nodes.len() {
            self.start_node(number, server, &content.root, &mut processes)?;
        }
        let switch = self.start_switch(setting)?;
        self.bind(switch.id());
        if setting != "relay" {
            await_channels(&self.topology.front().namespace, self.topology.nodes.len())?;
        }
        let before = self.spent(&switch, &processes);
        let load = self.load(content, interrupt)?;
        let after = self.spent(&switch, &processes);
        let delivered = self.delivered()?;
        let trace = self.show()?;
        // The switch goes first: it takes its leave of the nodes.
        drop(switch);
        drop(processes);
        Ok(row(setting, server, &load, (before, after), self.front.is_some(), delivered, trace))
    }

    fn start_node(
        &self,
        number: usize,
        server: Server,
        root: &Path,
        processes: &mut Vec<Process<'t>>,
    ) -> anyhow::Result<()> {
        let host = &self.topology.nodes[number];
        let handoff = format!(
            "listen = \"{}:{CONTROL_PORT}\"\nidentity = \"{}\"\nswitches = [\"{}\"]\ninterface = \"eth0\"\n\
             services = [\"{}\"]\n",
            host.v4,
            self.path(&format!("node{number}.key")).display(),
            self.switch_key,
            self.service(),
        );
        let name = format!("{NAMES}{}-n{number}", std::process::id());
        let config = self.path(&format!("node{number}.toml"));
        let (role, text) = match server {
            Server::Larder => {
                let text = format!(
                    "[node]\nname = \"{name}\"\nlisten = \"0.0.0.0:{SERVICE_PORT}\"\nroot = \"{}\"\ncache.size = {}\n\
                     [node.handoff]\n{handoff}",
                    root.display(),
                    self.setup.cache_bytes,
                );
                ("node", text)
            }
            Server::Nginx => {
                let listen = [self.service(), (host.v4, SERVICE_PORT).into()];
                let folder = self.path(&format!("nginx{number}"));
                processes.push(Process::nginx(&host.namespace, &listen, root, &folder)?);
                ("agent", format!("[agent]\nname = \"{name}\"\n{handoff}"))
            }
        };
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let left = Left::Guard(handoff::instance(&name));
        processes.push(Process::role(&host.namespace, role, &config, left)?);
        Ok(())
    }

    fn start_switch(&self, setting: &str) -> anyhow::Result<Process<'t>> {
        let mut nodes = String::new();
        for (number, (host, key)) in self.topology.nodes.iter().zip(&self.node_keys).enumerate() {
            let at = host.v4;
            // Writing to a text does not fail.
            let _ = write!(
                nodes,
                "{{ name = \"node{number}\", address = \"{at}:{SERVICE_PORT}\", \
                 handoff = {{ control = \"{at}:{CONTROL_PORT}\", key = \"{key}\" }} }}, "
            );
        }
        let plane = format!("{NAMES}{}", std::process::id());
        // No checks: they would stand among the packets shown.
        let text = format!(
            "[switch]\nlisten = \"{}\"\nnodes = [{nodes}]\npolicy = \"lard-r\"\npolicies.seed = {}\n\
             [switch.health]\ncheck = \"off\"\n[switch.timeouts]\ndrain = \"1s\"\n\
             [switch.handoff]\nmechanism = \"{setting}\"\nname = \"{plane}\"\ninterface = \"eth0\"\nidentity = \"{}\"\n\
             repair_min = 0\n[admin]\nlisten = \"127.0.0.1:9900\"\n",
            self.service(),
            self.setup.seed,
            self.path("switch.key").display(),
        );
        let config = self.path("switch.toml");
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        Process::role(&self.topology.front().namespace, "switch", &config, Left::Plane(plane))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Processor time up to now.
    fn spent(&self, switch: &Process<'_>, others: &[Process<'_>]) -> Spent {
        let front_process = spent::with_children(switch.id());
        let front_receive = self.front.as_ref().map_or(Duration::ZERO, Receivers::time);
        let received: Duration = self.others.iter().map(Receivers::time).sum();
        let served: Duration = others.iter().map(|process| spent::with_children(process.id())).sum();
        let own = spent::process(std::process::id());
        Spent { front_process, front_receive, all: front_process + front_receive + received + served + own }
    }

    /// The clients, on their host.
    fn load(&self, content: &Content, interrupt: &Interrupt) -> anyhow::Result<Report> {
        let plan = larder_load::Plan {
            arrivals: Arrivals::Closed { clients: self.setup.clients },
            duration: Some(WARM_UP + self.setup.measured),
            warmup_requests: 0,
            warmup_time: WARM_UP,
            timeout: REQUEST_TIMEOUT,
            expected_sizes: Some(std::sync::Arc::clone(&content.sizes)),
            reuse: Reuse::PerRequest,
            stop: interrupt.load.clone(),
            ..larder_load::Plan::new(
                self.service(),
                super::super::HOST,
                std::sync::Arc::clone(&content.targets),
                std::sync::Arc::clone(&content.order),
            )
        };
        let work = || -> anyhow::Result<Report> {
            // Threads that a thread makes are in its namespace.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(larder_load::run(plan, &|_| {})).context("the load generator failed")
        };
        let report = self.topology.client().namespace.run(work)??;
        if report.finished == 0 {
            bail!("no request was answered");
        }
        Ok(report)
    }

    /// Shares of connections by mechanism and reason, as the switch counts them.
    fn delivered(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let counts = deliveries(&admin(&self.topology.front().namespace, "/metrics")?);
        let total: f64 = counts.values().sum();
        if total == 0.0 {
            // A switch that hands nothing over counts nothing.
            return Ok([("relay/configured".to_owned(), 1.0)].into());
        }
        Ok(counts.into_iter().map(|(name, count)| (name, count / total)).collect())
    }

    /// One more connection, and what the hub sees of it.
    fn show(&self) -> anyhow::Result<Trace> {
        let mut capture = Capture::open(&self.topology.hub)?;
        let service = self.service();
        // Packets are timed when they are read.
        let (asked, frames) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| capture.read(FRAMES_MAX, QUIET));
            let asked = self.topology.client().namespace.run(move || ask(service));
            (asked, reader.join())
        });
        let (port, length) = asked?.context("the shown connection failed")?;
        if length < SHOWN_BYTES as usize {
            bail!("the shown connection got {length} bytes of {SHOWN_BYTES}");
        }
        let frames = frames.map_err(|_| anyhow::anyhow!("the reader of packets panicked"))??;
        Ok(packets::trace(&frames, &self.names(), port))
    }

    fn names(&self) -> Vec<Name> {
        let name = |name: String, host: &Host, kind| Name { name, mac: host.mac, kind };
        let topology = self.topology;
        let nodes = topology.nodes.iter().enumerate();
        let mut names: Vec<Name> =
            nodes.map(|(i, host)| name(format!("node{i}"), host, Kind::Node)).collect();
        names.push(name("switch".to_owned(), topology.front(), Kind::Front));
        names.push(name("client".to_owned(), topology.client(), Kind::Client));
        names
    }
}

/// Asks for the shown object; the client's port, and how many bytes came.
fn ask(service: SocketAddr) -> std::io::Result<(u16, usize)> {
    let mut stream = TcpStream::connect(service)?;
    let local = stream.local_addr().unwrap_or_else(|_| (Ipv4Addr::UNSPECIFIED, 0).into());
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let request =
        format!("GET {SHOWN} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", super::super::HOST);
    // In one packet.
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.take(SHOWN_BYTES * 4).read_to_end(&mut reply)?;
    Ok((local.port(), reply.len()))
}

/// Connections by mechanism and reason in a page of metrics.
fn deliveries(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("larder_switch_deliveries_total{"));
    lines
        .filter_map(|line| {
            let (labels, value) = line.split_once("} ")?;
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\""))?;
                rest.split('"').next()
            };
            Some((format!("{}/{}", label("mechanism")?, label("why")?), value.trim().parse().ok()?))
        })
        .collect()
}

fn row(
    setting: &str,
    server: Server,
    load: &Report,
    (before, after): (Spent, Spent),
    receive_known: bool,
    delivered: BTreeMap<String, f64>,
    trace: Trace,
) -> Row {
    let each = |now: Duration, then: Duration| {
        now.saturating_sub(then).as_secs_f64() * 1e6 / load.finished.max(1) as f64
    };
    let receive = each(after.front_receive, before.front_receive);
    Row {
        setting: setting.to_owned(),
        server: server.name().to_owned(),
        requests_per_s: load.requests_per_s,
        front_us: each(after.front_process, before.front_process) + receive,
        front_receive_us: receive_known.then_some(receive),
        total_us: each(after.all, before.all),
        p50_ms: load.latency.p50_us / 1e3,
        p99_ms: load.latency.p99_us / 1e3,
        hit_ratio: load.cache.hit_ratio,
        delivered,
        errors: load.failed,
        trace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_read_from_metrics() {
        let page = "# TYPE larder_switch_deliveries_total counter\n\
            larder_switch_deliveries_total{mechanism=\"cookie\",why=\"fast\"} 30\n\
            larder_switch_deliveries_total{mechanism=\"relay\",why=\"incomplete\"} 10\nother{a=\"b\"} 1\n\
            larder_switch_deliveries_total{broken 3\n";
        let expected = [("cookie/fast".to_owned(), 30.0), ("relay/incomplete".to_owned(), 10.0)];
        assert_eq!(deliveries(page), expected.into());
    }
}
