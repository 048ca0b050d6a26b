//! `larder demo --handoff`: shows the gain if nodes reply to clients directly.
//!
//! Hosts are network namespaces that a bridge connects. The switch, the nodes and their agents are this
//! executable, each on a host of its own. The same requests use each mechanism in turn. Then the packets of
//! one more connection are captured. At the end everything is removed.

mod cluster;
mod cpu_usage;
mod hosts;
mod packets;
pub(crate) mod result;
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

use self::cluster::{HandoffCluster, Server};
use self::result::{HandoffReport, HandoffRow, SCHEMA};
use super::plan::Plan;

/// Length of the warm-up of a run.
const WARM_UP: Duration = Duration::from_millis(1_500);
/// Size of the object whose connection is captured, bytes. Its reply takes several packets.
const SHOWN_BYTES: u64 = 10_000;
/// Largest object, bytes. Larger objects of a log are truncated, because a run takes only seconds.
const OBJECT_BYTES_MAX: u64 = 16 << 20;

/// Settings of the demo.
#[derive(Clone, Debug)]
pub(crate) struct HandoffSetup {
    pub(crate) nodes: usize,
    pub(crate) clients: u32,
    pub(crate) cache_bytes: u64,
    pub(crate) seed: u64,
    /// Length of the measured part of each run.
    pub(crate) measured: Duration,
}

/// Handle that ends a demo early.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    requested: Arc<AtomicBool>,
    /// Stops the running load.
    pub(crate) load: larder_load::StopHandle,
}

impl Interrupt {
    pub(crate) fn request(&self) {
        self.requested.store(true, Ordering::Release);
        self.load.stop();
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.requested.load(Ordering::Acquire) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// The requests of the demo, and files with the sizes of their targets.
pub(crate) struct Content {
    root: PathBuf,
    targets: Arc<[String]>,
    sizes: Arc<[u64]>,
    order: Arc<[u32]>,
}

/// Path of the object whose connection is captured.
const SHOWN: &str = "/shown";

impl Content {
    /// Creates a sparse file for each target, because only sizes matter.
    fn create(plan: &Plan, root: &Path) -> anyhow::Result<Self> {
        let sizes: Vec<u64> = plan.sizes.iter().map(|size| (*size).min(OBJECT_BYTES_MAX)).collect();
        let mut targets = Vec::with_capacity(sizes.len());
        for (number, size) in sizes.iter().enumerate() {
            let folder = root.join((number % 64).to_string());
            if number < 64 {
                fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            }
            create_sparse_file(&folder.join(number.to_string()), *size)?;
            targets.push(format!("/{}/{number}", number % 64));
        }
        create_sparse_file(&root.join(&SHOWN[1..]), SHOWN_BYTES)?;
        Ok(Self {
            root: root.to_owned(),
            targets: targets.into(),
            sizes: sizes.into(),
            order: Arc::clone(&plan.order),
        })
    }
}

fn create_sparse_file(path: &Path, size: u64) -> anyhow::Result<()> {
    let made = fs::File::create(path).and_then(|file| file.set_len(size));
    made.with_context(|| format!("cannot create {}", path.display()))
}

/// Runs the demo. `say` receives progress messages.
pub(crate) fn run(
    setup: &HandoffSetup,
    plan: &Plan,
    interrupt: &Interrupt,
    say: &dyn Fn(&str),
) -> anyhow::Result<HandoffReport> {
    let best = best_mechanism()?;
    leftovers::sweep(&[cluster::NAME_PREFIX]);
    say("creating hosts in network namespaces");
    let spec = TopologySpec { nodes: setup.nodes, ..TopologySpec::default() };
    let topology = Topology::new(&spec).context("cannot create the hosts")?;
    let folder = tempfile::tempdir().context("cannot create a temporary directory")?;
    let root = folder.path().join("files");
    let content = Content::create(plan, &root)?;
    let mut cluster = HandoffCluster::new(&topology, folder.path(), setup)?;
    let mut rows: Vec<HandoffRow> = Vec::new();
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
        counted: cluster.describe_accounting(),
        rows,
        left_out,
    })
}

/// Returns the best handoff mechanism that this machine supports in network namespaces.
///
/// # Errors
/// Returns an error that names what is missing, if the machine supports no handoff.
fn best_mechanism() -> anyhow::Result<Mechanism> {
    const MORE: &str = "`larder doctor` lists the requirements of handoff with remedies; `larder demo` without --handoff has no requirements";
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
            bail!("this machine cannot hand off connections: a {role} lacks {}. {MORE}", lacks.join(", "));
        }
        best = best.max(report.best());
    }
    Ok(best)
}

/// Returns the combinations to run, and the reasons for those that are left out.
fn cases(best: Mechanism) -> (Vec<(&'static str, Server)>, Vec<String>) {
    let mut cases = vec![("relay", Server::Larder), ("repair", Server::Larder)];
    let mut left_out = Vec::new();
    if best != Mechanism::Cookie {
        left_out.push("cookie: this kernel lacks features that `larder doctor` lists".to_owned());
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
