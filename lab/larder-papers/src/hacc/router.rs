//! The cost of relaying (section 4.2, figure 3; section 5).

use larder_core::class::ServiceClass;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::PolicyKind;
use larder_core::{Bytes, TargetId};
use serde::Deserialize;

use super::relay;
use crate::PaperError;
use crate::builtin::{Builtin, Plan, params};
use crate::report::Sample;
use crate::traces::Traces;
use larder_sim::cost::{Costs, Hacc99};
use larder_sim::{Arrivals, Item, Outcome, Scenario, SimNode, Workload, simulate};

/// Time per KB of an NT machine that only routes, in us (section 4.2). Its time per packet is not given.
const IP_ROUTER_KIB_US: f64 = 13.2;
/// The number of clients that saturate the router: more than the router and three nodes serve at a time.
const FILLING: u32 = 64;

/// `hacc-router`: the time of a request through the router.
///
/// Lines: `Smart Router`, `IP router`, both again with `store and forward`, and `Domino document`, which has
/// the x of its reply. x: KB of the reply. The node sends a reply while its processor prepares it, so that the
/// slower of processor and line gives the time of a KB; the router adds its measured overhead. With `store and
/// forward`, a whole reply passes processor, line and router one after another. Metrics: `overhead_ms` (the
/// delay of a single request from memory, or from disk for the Domino document, less the delay with a router
/// that takes no time), `overhead_share` (relative to the latter delay), `delay_ms`, `per_s` (requests per
/// second that three nodes serve through it from memory).
#[derive(Debug)]
pub(crate) struct Router;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouterPlan {
    kib: Vec<f64>,
}

const LINES: [&str; 5] = [
    "Smart Router",
    "IP router",
    "Smart Router, store and forward",
    "IP router, store and forward",
    "Domino document",
];

impl Builtin for Router {
    fn name(&self) -> &'static str {
        "hacc-router"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: RouterPlan = params(table)?;
        let good = |kib: &f64| (0.5..=2_048.0).contains(kib);
        if plan.kib.is_empty() || plan.kib.len() > 100 || !plan.kib.iter().all(good) {
            return Err("'kib' must be 1 to 100 numbers from 0.5 to 2,048".to_owned());
        }
        Ok(Box::new(plan))
    }
}

impl Plan for RouterPlan {
    fn lines(&self) -> Vec<String> {
        LINES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["overhead_ms", "overhead_share", "delay_ms", "per_s"]
    }

    fn jobs(&self) -> usize {
        LINES.len()
    }

    fn key(&self, job: usize) -> String {
        format!("{} {:?} {:?}", LINES[job], self.kib, Hacc99::default())
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let smart = Hacc99::default();
        let ip = Hacc99 { router_us: 0.0, router_kib_us: IP_ROUTER_KIB_US, ..smart };
        let file = |kib: f64| Item::file(TargetId(1), (kib * 1_024.0) as u64);
        let line = LINES[job];
        let sample = |x: f64, costs, item| Ok(Sample::new(line, x, values(costs, item)?));
        match job {
            0 => self.kib.iter().map(|kib| sample(*kib, overlap(smart), file(*kib))).collect(),
            1 => self.kib.iter().map(|kib| sample(*kib, overlap(ip), file(*kib))).collect(),
            2 => self.kib.iter().map(|kib| sample(*kib, smart, file(*kib))).collect(),
            3 => self.kib.iter().map(|kib| sample(*kib, ip, file(*kib))).collect(),
            _ => {
                let document = Item {
                    class: ServiceClass::Dcb,
                    cacheable: false,
                    cpu_ns: 30_000_000,
                    ..Item::file(TargetId(1), 96 << 10)
                };
                Ok(vec![sample(smart.reply_bytes as f64 / 1_024.0, overlap(smart), document)?])
            }
        }
    }
}

/// Returns costs of a reply that is sent while the node's processor prepares it.
fn overlap(costs: Hacc99) -> Hacc99 {
    Hacc99 { send_kib_us: costs.send_kib_us.max(costs.line_kib_us), line_kib_us: 0.0, ..costs }
}

fn values(costs: Hacc99, item: Item) -> Result<Vec<(&'static str, f64)>, PaperError> {
    // The node's line is not the router's: at saturation the router's own line counts.
    let defaults = Hacc99::default();
    let saturated =
        relay(Hacc99 { router_us: costs.router_us, router_kib_us: costs.router_kib_us, ..defaults });
    let free = Hacc99 { router_us: 0.0, router_kib_us: 0.0, ..costs };
    let delay_ms = run(costs, item, 1)?.delay.mean_s * 1_000.0;
    let without_ms = run(free, item, 1)?.delay.mean_s * 1_000.0;
    Ok(vec![
        ("overhead_ms", delay_ms - without_ms),
        ("overhead_share", delay_ms / without_ms - 1.0),
        ("delay_ms", delay_ms),
        ("per_s", run(saturated, item, FILLING)?.throughput),
    ])
}

/// Runs `clients` clients that request one item again as soon as they have it.
fn run(costs: Hacc99, item: Item, clients: u32) -> Result<Outcome, PaperError> {
    let settings =
        Settings { policy: PolicyKind::Rr, admission: Admission::Unlimited, ..Settings::default() };
    let requests = 20 * clients as usize;
    let workload = Workload { items: vec![item], requests: vec![0; requests], ..Workload::default() };
    let scenario = Scenario {
        nodes: vec![SimNode::with_cache(Bytes::mib(40)); 3],
        costs: Costs::Hacc99(costs),
        arrivals: Arrivals::Closed { clients },
        // By then the nodes' memories are warm.
        warmup: requests / 4,
        ..Scenario::lard98(1, settings)
    };
    Ok(simulate(&workload, &scenario)?)
}
