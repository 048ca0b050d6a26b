//! `larder demo --handoff`: what it gains when the node answers the client directly.
//!
//! Hosts are network namespaces, joined by a bridge; the switch, the nodes and their agents are this executable, each on
//! its host as on a machine of its own. The same requests go through every mechanism in turn, then one more connection
//! is shown packet by packet. All of it is gone at the end.

mod cluster;
mod hosts;
mod packets;
pub(crate) mod result;
mod spent;
pub(crate) mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use larder_kernel::leftovers;
use larder_kernel::netns::{Topology, TopologySpec, available, installed};
use larder_kernel::probe::{Facts, Mechanism, Role, Subject, evaluate};

use self::cluster::{Cluster, Server};
use self::result::{HandoffReport, Row, SCHEMA};
use super::plan::Plan;

/// What comes before the measured part of a run.
const WARM_UP: Duration = Duration::from_millis(1_500);
/// Of the object whose connection is shown: some packets of reply. Bytes.
const SHOWN_BYTES: u64 = 10_000;
/// Largest object: larger ones of a log are cut, for a run has seconds. Bytes.
const OBJECT_BYTES_MAX: u64 = 16 << 20;

/// What the demo is to do.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) nodes: usize,
    pub(crate) clients: u32,
    pub(crate) cache_bytes: u64,
    pub(crate) seed: u64,
    /// Length of the measured part of each run.
    pub(crate) measured: Duration,
}

/// Asks a demo to end early.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    /// Ends the load of the moment.
    pub(crate) load: larder_load::StopHandle,
}

impl Interrupt {
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.load.stop();
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.asked.load(Ordering::Acquire) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// The requests of the demo, as files of the right sizes.
pub(crate) struct Content {
    root: PathBuf,
    targets: Arc<[String]>,
    sizes: Arc<[u64]>,
    order: Arc<[u32]>,
}

/// Where the shown connection's object is.
const SHOWN: &str = "/shown";

impl Content {
    /// Makes a file for each target. They have holes instead of bytes: only sizes matter.
    fn make(plan: &Plan, root: &Path) -> anyhow::Result<Self> {
        let sizes: Vec<u64> = plan.sizes.iter().map(|size| (*size).min(OBJECT_BYTES_MAX)).collect();
        let mut targets = Vec::with_capacity(sizes.len());
        for (number, size) in sizes.iter().enumerate() {
            let folder = root.join((number % 64).to_string());
            if number < 64 {
                fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            }
            file(&folder.join(number.to_string()), *size)?;
            targets.push(format!("/{}/{number}", number % 64));
        }
        file(&root.join(&SHOWN[1..]), SHOWN_BYTES)?;
        Ok(Self {
            root: root.to_owned(),
            targets: targets.into(),
            sizes: sizes.into(),
            order: Arc::clone(&plan.order),
        })
    }
}

fn file(path: &Path, size: u64) -> anyhow::Result<()> {
    let made = fs::File::create(path).and_then(|file| file.set_len(size));
    made.with_context(|| format!("cannot make {}", path.display()))
}

/// Runs the demo. `say` is told what goes on.
pub(crate) fn run(
    setup: &Setup,
    plan: &Plan,
    interrupt: &Interrupt,
    say: &dyn Fn(&str),
) -> anyhow::Result<HandoffReport> {
    let best = can_do()?;
    leftovers::sweep(&[cluster::NAMES]);
    say("making hosts in network namespaces");
    let spec = TopologySpec { nodes: setup.nodes, ..TopologySpec::default() };
    let topology = Topology::new(&spec).context("cannot make the hosts")?;
    let folder = tempfile::tempdir().context("cannot make a temporary directory")?;
    let root = folder.path().join("files");
    let content = Content::make(plan, &root)?;
    let mut cluster = Cluster::new(&topology, folder.path(), setup)?;
    let mut rows: Vec<Row> = Vec::new();
    let (cases, left_out) = cases(best);
    for (setting, server) in cases {
        interrupt.check()?;
        say(&format!("{setting}, {} behind it", server.name()));
        let row = cluster
            .measure(setting, server, &content, interrupt)
            .with_context(|| format!("while running {setting} before {}", server.name()))?;
        interrupt.check()?;
        rows.push(row);
    }
    Ok(HandoffReport {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        workload: format!(
            "{}; {} targets of {:.0} bytes on average, as files",
            plan.info.source,
            content.sizes.len(),
            plan.info.reply_bytes_mean
        ),
        nodes: setup.nodes,
        clients: setup.clients,
        cache_bytes: setup.cache_bytes,
        counted: cluster.counted(),
        rows,
        left_out,
    })
}

/// The best mechanism that this machine can do in namespaces of its own.
///
/// # Errors
/// If it cannot hand connections over at all: what is missing, and who tells more.
fn can_do() -> anyhow::Result<Mechanism> {
    const MORE: &str =
        "`larder doctor` says all that handoff needs, and how to get it; `larder demo` needs none of it";
    let tool = || installed("ethtool", "--version", "ethtool");
    available().and_then(|()| tool()).map_err(|error| anyhow::anyhow!("{error}. {MORE}"))?;
    let mut best = Mechanism::Cookie;
    for role in [Role::Switch, Role::Node] {
        let subject =
            Subject { role, interface: None, services: Vec::new(), nodes: Vec::new(), tunnels: false };
        let report = evaluate(&Facts::of_this_host(&subject), &subject);
        if report.best() == Mechanism::Relay {
            let lacks: Vec<&str> =
                report.missing_for(Mechanism::Repair).map(|finding| finding.what.as_str()).collect();
            bail!("connections cannot be handed over here: a {role} lacks {}. {MORE}", lacks.join(", "));
        }
        best = best.max(report.best());
    }
    Ok(best)
}

/// What is run, and what is not.
fn cases(best: Mechanism) -> (Vec<(&'static str, Server)>, Vec<String>) {
    let mut cases = vec![("relay", Server::Larder), ("repair", Server::Larder)];
    let mut left_out = Vec::new();
    if best != Mechanism::Cookie {
        left_out.push("cookie: this kernel lacks what `larder doctor` says".to_owned());
        return (cases, left_out);
    }
    cases.push(("cookie", Server::Larder));
    if installed("nginx", "-v", "nginx").is_ok() {
        cases.extend([("relay", Server::Nginx), ("cookie", Server::Nginx)]);
    } else {
        left_out.push("an unmodified server behind agents: nginx is not installed".to_owned());
    }
    (cases, left_out)
}
