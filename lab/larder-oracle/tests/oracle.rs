//! A short version of `cargo xtask acceptance oracle`: 5,000 cases against the built binary.
//!
//! The binary is the one beside this test, which `cargo test --workspace` and `cargo build -p larder` build.

use larder_oracle::origin::{self, CaseRegistry};
use larder_oracle::run::{self, Plan};
use larder_oracle::topology::{Topology, binary};
use larder_oracle::{report, transcript};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Cases of all systems together.
const CASES: u64 = 5_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_gets_a_reply_that_it_may_not_get() {
    let named = std::env::var_os("LARDER").map(std::path::PathBuf::from);
    let larder = binary(named.as_deref()).unwrap();
    let registry = Arc::new(CaseRegistry::new(64));
    let origin = origin::start(Arc::clone(&registry)).await.unwrap();
    let runs = Arc::<AtomicU64>::default();
    let mut outcomes = Vec::new();
    let mut first = 0;
    for topology in Topology::ALL {
        let numbers = first..first + CASES * topology.percent() / 100;
        first = numbers.end;
        let plan = Plan { seed: 1, numbers, runners: 64, grace: Duration::from_millis(15), shown_max: 1 };
        let system = topology.start(&larder, origin).await.unwrap();
        outcomes.push(run::run(&system.target, &registry, &runs, &plan).await);
    }
    for outcome in &outcomes {
        for failure in &outcome.failures {
            println!("{}", transcript::transcript(outcome.topology, &failure.record, &failure.verdict));
        }
    }
    let table = report::table(&outcomes);
    for outcome in &outcomes {
        assert_eq!((outcome.wrong, outcome.idle()), (0, None), "{}\n{table}", outcome.topology);
    }
}
