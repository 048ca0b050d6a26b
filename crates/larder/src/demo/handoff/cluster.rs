//! The processes on all hosts during one run after another, with their processor time.

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

use super::cpu_usage::{self, Receivers};
use super::hosts::{KernelLeftover, Process, await_channels, query_admin};
use super::packets::{self, HostKind, PacketHost, PacketTrace};
use super::result::HandoffRow;
use super::{Content, HandoffSetup, Interrupt, SHOWN, SHOWN_BYTES, WARM_UP};
use crate::cmd::handoff;

/// Prefix of names in the kernel, followed by this process's id. Leftovers of a killed demo are found by this
/// prefix.
pub(super) const NAME_PREFIX: &str = "larder-demo-";
const SERVICE_PORT: u16 = 80;
const CONTROL_PORT: u16 = 7946;
/// Longest wait for a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Most frames of the captured connection.
const FRAMES_MAX: usize = 1_000;
/// The capture ends after this time without a frame.
const QUIET_TIME: Duration = Duration::from_millis(200);
/// Highest number of processors in a mask of receive queues.
const MASK_PROCESSORS_MAX: usize = 32;

/// The server on the nodes.
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

/// Processor time since the start.
#[derive(Clone, Copy, Debug, Default)]
struct CpuUsage {
    front_process: Duration,
    front_receive: Duration,
    all: Duration,
}

/// The processes on the hosts, and the kernel threads that receive packets for them.
pub(super) struct HandoffCluster<'t> {
    topology: &'t Topology,
    folder: &'t Path,
    setup: &'t HandoffSetup,
    /// `None` if the kernel's receive time of the switch cannot be measured.
    front: Option<Receivers>,
    others: Vec<Receivers>,
    /// The processor reserved for the switch, on a machine with several.
    processor: Option<usize>,
    switch_key: PublicKey,
    node_keys: Vec<PublicKey>,
}

impl<'t> HandoffCluster<'t> {
    pub(super) fn new(
        topology: &'t Topology,
        folder: &'t Path,
        setup: &'t HandoffSetup,
    ) -> anyhow::Result<Self> {
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
        cluster.reserve_processor();
        Ok(cluster)
    }

    /// Reserves a processor for the switch, if there are several, and keeps the hub's soft interrupts off it.
    /// The kernel charges interrupts to the interrupted process.
    fn reserve_processor(&mut self) {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(MASK_PROCESSORS_MAX));
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
                self.pin(thread);
            }
        }
    }

    /// Pins threads to the switch's processor. If this is not permitted, the figures are slightly less
    /// accurate.
    fn pin(&self, id: u32) {
        let Some(processor) = self.processor else { return };
        let mut set = CpuSet::new();
        set.set(processor);
        let Ok(tasks) = fs::read_dir(format!("/proc/{id}/task")) else { return };
        let ids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
        for thread in ids.filter_map(rustix::process::Pid::from_raw) {
            let _ = sched_setaffinity(Some(thread), &set);
        }
    }

    /// Describes how processor time is measured.
    pub(super) fn describe_accounting(&self) -> String {
        let front = match self.front {
            Some(_) => {
                "front us: CPU time per request of the switch's process and of the kernel threads that receive on its interface \
                 (threaded NAPI: XDP, TCP and IP of received packets)"
            }
            None => {
                "front us: CPU time per request of the switch's process only, because the receive work of the kernel is not visible here"
            }
        };
        let processor = self.processor.map_or("", |_| "; the switch has its own processor");
        format!("{front}{processor}. all us: CPU time per request of all hosts, including clients")
    }

    fn service(&self) -> SocketAddr {
        (self.topology.vip4, SERVICE_PORT).into()
    }

    /// Starts all processes, runs the load, captures one connection, and ends all processes.
    pub(super) fn measure(
        &mut self,
        setting: &str,
        server: Server,
        content: &Content,
        interrupt: &Interrupt,
    ) -> anyhow::Result<HandoffRow> {
        let mut processes = Vec::new();
        for number in 0..self.topology.nodes.len() {
            self.start_node(number, server, &content.root, &mut processes)?;
        }
        let switch = self.start_switch(setting)?;
        self.pin(switch.id());
        if setting != "relay" {
            await_channels(&self.topology.front().namespace, self.topology.nodes.len())?;
        }
        let before = self.cpu_usage(&switch, &processes);
        let load = self.run_load(content, interrupt)?;
        let after = self.cpu_usage(&switch, &processes);
        let delivered = self.delivery_shares()?;
        let trace = self.capture_connection()?;
        // The switch ends first, because it signs off from the nodes.
        drop(switch);
        drop(processes);
        Ok(build_row(setting, server, &load, (before, after), self.front.is_some(), delivered, trace))
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
        let name = format!("{NAME_PREFIX}{}-n{number}", std::process::id());
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
                processes.push(Process::start_nginx(&host.namespace, &listen, root, &folder)?);
                ("agent", format!("[agent]\nname = \"{name}\"\n{handoff}"))
            }
        };
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let left = KernelLeftover::Guard(handoff::instance_name(&name));
        processes.push(Process::start_role(&host.namespace, role, &config, left)?);
        Ok(())
    }

    fn start_switch(&self, setting: &str) -> anyhow::Result<Process<'t>> {
        let mut nodes = String::new();
        for (number, (host, key)) in self.topology.nodes.iter().zip(&self.node_keys).enumerate() {
            let at = host.v4;
            // Writing to a `String` cannot fail.
            let _ = write!(
                nodes,
                "{{ name = \"node{number}\", address = \"{at}:{SERVICE_PORT}\", \
                 handoff = {{ control = \"{at}:{CONTROL_PORT}\", key = \"{key}\" }} }}, "
            );
        }
        let plane = format!("{NAME_PREFIX}{}", std::process::id());
        // Health checks are off, because they would appear in the captured packets.
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
        Process::start_role(&self.topology.front().namespace, "switch", &config, KernelLeftover::Plane(plane))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the processor time since the start.
    fn cpu_usage(&self, switch: &Process<'_>, others: &[Process<'_>]) -> CpuUsage {
        let front_process = cpu_usage::of_process_tree(switch.id());
        let front_receive = self.front.as_ref().map_or(Duration::ZERO, Receivers::time);
        let received: Duration = self.others.iter().map(Receivers::time).sum();
        let served: Duration = others.iter().map(|process| cpu_usage::of_process_tree(process.id())).sum();
        let own = cpu_usage::cpu_time(std::process::id());
        CpuUsage {
            front_process,
            front_receive,
            all: front_process + front_receive + received + served + own,
        }
    }

    /// Runs the load generator on the client host.
    fn run_load(&self, content: &Content, interrupt: &Interrupt) -> anyhow::Result<Report> {
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
            // Threads inherit the namespace of the thread that creates them.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(larder_load::run(plan, &|_| {})).context("the load generator failed")
        };
        let report = self.topology.client().namespace.run(work)??;
        if report.finished == 0 {
            bail!("no request was answered");
        }
        Ok(report)
    }

    /// Returns the shares of connections by mechanism and reason, from the switch's metrics.
    fn delivery_shares(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let counts = parse_deliveries(&query_admin(&self.topology.front().namespace, "/metrics")?);
        let total: f64 = counts.values().sum();
        if total == 0.0 {
            // A switch that hands off nothing has no such metric.
            return Ok([("relay/configured".to_owned(), 1.0)].into());
        }
        Ok(counts.into_iter().map(|(name, count)| (name, count / total)).collect())
    }

    /// Opens one more connection, and captures its packets at the hub.
    fn capture_connection(&self) -> anyhow::Result<PacketTrace> {
        let mut capture = Capture::open(&self.topology.hub)?;
        let service = self.service();
        // Packets get their timestamp when they are read, so a thread reads them immediately.
        let (fetched, frames) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| capture.read(FRAMES_MAX, QUIET_TIME));
            let fetched = self.topology.client().namespace.run(move || fetch_shown(service));
            (fetched, reader.join())
        });
        let (port, length) = fetched?.context("the shown connection failed")?;
        if length < SHOWN_BYTES as usize {
            bail!("the shown connection got {length} bytes of {SHOWN_BYTES}");
        }
        let frames = frames.map_err(|_| anyhow::anyhow!("the reader of packets panicked"))??;
        Ok(packets::build_trace(&frames, &self.names(), port))
    }

    fn names(&self) -> Vec<PacketHost> {
        let name = |name: String, host: &Host, kind| PacketHost { name, mac: host.mac, kind };
        let topology = self.topology;
        let nodes = topology.nodes.iter().enumerate();
        let mut names: Vec<PacketHost> =
            nodes.map(|(i, host)| name(format!("node{i}"), host, HostKind::Node)).collect();
        names.push(name("switch".to_owned(), topology.front(), HostKind::Front));
        names.push(name("client".to_owned(), topology.client(), HostKind::Client));
        names
    }
}

/// Requests the captured object. Returns the client's port and the number of reply bytes.
fn fetch_shown(service: SocketAddr) -> std::io::Result<(u16, usize)> {
    let mut stream = TcpStream::connect(service)?;
    let local = stream.local_addr().unwrap_or_else(|_| (Ipv4Addr::UNSPECIFIED, 0).into());
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let request =
        format!("GET {SHOWN} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", super::super::HOST);
    // The request is one packet.
    stream.write_all(request.as_bytes())?;
    let mut reply = Vec::new();
    stream.take(SHOWN_BYTES * 4).read_to_end(&mut reply)?;
    Ok((local.port(), reply.len()))
}

/// Parses the connections by mechanism and reason from a page of metrics.
fn parse_deliveries(page: &str) -> BTreeMap<String, f64> {
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

fn build_row(
    setting: &str,
    server: Server,
    load: &Report,
    (before, after): (CpuUsage, CpuUsage),
    receive_known: bool,
    delivered: BTreeMap<String, f64>,
    trace: PacketTrace,
) -> HandoffRow {
    let per_request = |now: Duration, then: Duration| {
        now.saturating_sub(then).as_secs_f64() * 1e6 / load.finished.max(1) as f64
    };
    let receive = per_request(after.front_receive, before.front_receive);
    HandoffRow {
        setting: setting.to_owned(),
        server: server.name().to_owned(),
        requests_per_s: load.requests_per_s,
        front_us: per_request(after.front_process, before.front_process) + receive,
        front_receive_us: receive_known.then_some(receive),
        total_us: per_request(after.all, before.all),
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
        assert_eq!(parse_deliveries(page), expected.into());
    }
}
