//! Golden test: one small simulation of every policy. The results are kept in `experiments/golden/`. A
//! changed decision of a policy, or a changed time of the simulator, shows here.
//!
//! All policies serve the same requests (classes and sizes, no times) on the same nodes. One node is slow and
//! one has little memory. Nodes report, report what they cache, fail, return, join, leave and change their
//! weight, and the routing table is refreshed. `LARDER_GOLDEN=write cargo test -p larder-sim --test golden`
//! writes the files; review the difference.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::class::ServiceClass;
use larder_core::dispatch::Settings;
use larder_core::policy::{CostSettings, PolicySettings};
use larder_core::{Bytes, PolicyKind, TargetId, Weight};
use larder_sim::cost::Lard98;
use larder_sim::tables::{compute_initial_table, needs_table};
use larder_sim::{
    Arrivals, CacheChoice, Costs, NodeChange, Outcome, RunHistory, Scenario, ScheduledChange, SimNode,
    Workload, simulate_with_history,
};
use larder_sim::{TableRefresh, measure_ward_costs};
use larder_trace::synth::{Recipe, generate};

const REQUESTS: u64 = 24_000;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/golden")
}

/// Creates a workload of 2,000 targets with Zipf popularity. Of ten targets one has class DB, two CB and one
/// DCB, which take processor time.
fn workload() -> Workload {
    let trace = generate(&Recipe::zipf(2_000, REQUESTS, 0.9), 7, 1.0).expect("the recipe is possible");
    let mut workload = Workload { times: Vec::new(), ..Workload::from_trace(&trace) };
    for (item, number) in workload.items.iter_mut().zip(0_u64..) {
        (item.class, item.cpu_ns) = match number % 10 {
            3 => (ServiceClass::Db, 1_000_000),
            5 | 6 => (ServiceClass::Cb, 4_000_000),
            8 => (ServiceClass::Dcb, 5_000_000),
            _ => (ServiceClass::N, 0),
        };
        item.cacheable = item.class != ServiceClass::Dcb;
    }
    workload
}

fn scenario(policy: PolicyKind, workload: &Workload) -> Scenario {
    let memory = Bytes(workload.bytes() / 12);
    let mut nodes = vec![SimNode::with_cache(memory); 7];
    nodes[1].cpu_speed = 0.5;
    nodes[3].cache = Bytes(memory.get() / 4);
    let costs = Costs::Lard98(Lard98::default());
    let ward_costs = measure_ward_costs(&costs, workload.bytes() / workload.items.len() as u64)
        .expect("the model is valid");
    let table = needs_table(policy).then(|| {
        compute_initial_table(workload, workload.requests.len() / 4, &nodes[..6], &ward_costs)
            .expect("there is memory")
            .into()
    });
    let settings = Settings {
        policy,
        t_low: 6,
        t_high: 15,
        // The costs are as small as the thresholds, so that loads have an effect here.
        policies: PolicySettings {
            cost: CostSettings { idle: 6, overload: 26, ..CostSettings::default() },
            ..PolicySettings::default()
        },
        replication_decay: Duration::from_secs(2),
        join_targets_per_s: 200,
        join_warm_targets: 300,
        t_gat: Duration::from_secs(1),
        table,
        ..Settings::default()
    };
    let planned =
        |percent: u64, node, change| ScheduledChange { after: REQUESTS * percent / 100, node, change };
    Scenario {
        nodes,
        cache: CacheChoice::Kind(CacheKind::Gds),
        arrivals: Arrivals::Closed { clients: 60 },
        costs,
        warmup: REQUESTS as usize / 10,
        report_every: Some(Duration::from_millis(200)),
        refresh: Some(TableRefresh::new(Duration::from_secs(5), ward_costs)),
        changes: vec![
            planned(40, 2, NodeChange::Down),
            planned(48, 2, NodeChange::Up),
            planned(56, 6, NodeChange::Join),
            planned(64, 0, NodeChange::Reweigh(Weight::from_milli(2_500).expect("in range"))),
            planned(72, 5, NodeChange::Drain),
            planned(78, 5, NodeChange::Restart),
            planned(86, 4, NodeChange::Leave),
        ],
        ..Scenario::lard98(7, settings)
    }
}

/// Formats the kept result: values, and a digest of the node and the hit of each request.
fn text(policy: PolicyKind, outcome: &Outcome, history: &RunHistory) -> String {
    let mut bytes = Vec::with_capacity(history.requests.len() * 7);
    for seen in &history.requests {
        bytes.extend_from_slice(&seen.item.to_le_bytes());
        bytes.extend_from_slice(&seen.node.to_le_bytes());
        bytes.push(u8::from(seen.hit));
    }
    let mut text = format!("# {policy}: {}\n", policy.summary());
    text += "# Recipe: crates/larder-sim/tests/golden.rs, which says how to write this file.\n";
    let mut line = |key: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key} = {value}");
    };
    line("requests", outcome.requests.to_string());
    line("refused", outcome.refused.to_string());
    line("throughput", format!("{:.3}", outcome.throughput));
    line("hit_ratio", format!("{:.5}", 1.0 - outcome.miss_ratio));
    line("bytes_read", outcome.bytes_read.to_string());
    line("delay_p50_ms", format!("{:.3}", outcome.delay.p50_s * 1e3));
    line("delay_p99_ms", format!("{:.3}", outcome.delay.p99_s * 1e3));
    line("imbalance", format!("{:.4}", outcome.imbalance));
    let nodes: Vec<String> = outcome.nodes.iter().map(|node| node.requests.to_string()).collect();
    line("node_requests", format!("[{}]", nodes.join(", ")));
    for (reason, count) in &outcome.reasons {
        line(&format!("reasons.{reason}"), count.to_string());
    }
    line("decisions", format!("\"{}\"", TargetId::of(&bytes)));
    text
}

fn simulated(policy: PolicyKind, workload: &Workload) -> String {
    let scenario = scenario(policy, workload);
    let (outcome, history) =
        simulate_with_history(workload, &scenario).unwrap_or_else(|error| unreachable!("{policy}: {error}"));
    assert_eq!(history.changed_at.len(), scenario.changes.len(), "{policy}: everything happens");
    text(policy, &outcome, &history)
}

#[test]
fn every_policy_gives_the_stored_outcome() {
    let (workload, folder) = (workload(), folder());
    let writes = std::env::var("LARDER_GOLDEN").is_ok_and(|value| value == "write");
    let mut differing = Vec::new();
    for policy in PolicyKind::ALL {
        let path = folder.join(format!("{policy}.txt"));
        let ours = simulated(policy, &workload);
        if writes {
            std::fs::create_dir_all(&folder).expect("the folder can be made");
            std::fs::write(&path, ours).expect("the file can be written");
        } else if std::fs::read_to_string(&path).ok().as_deref() != Some(&*ours) {
            differing.push(format!("{}:\n{ours}", path.display()));
        }
    }
    let hint = "LARDER_GOLDEN=write cargo test -p larder-sim --test golden";
    assert!(differing.is_empty(), "not as kept; if that is right, `{hint}`\n{}", differing.join("\n"));
}

#[test]
fn no_outcome_is_stored_for_removed_policies() {
    let known: BTreeSet<String> = PolicyKind::ALL.iter().map(|policy| format!("{policy}.txt")).collect();
    for file in std::fs::read_dir(folder()).expect("the folder is there") {
        let name = file.expect("it can be read").file_name().to_string_lossy().into_owned();
        assert!(
            known.contains(&name) || name == "README.md" || name == "cooperation",
            "{name} belongs to no policy"
        );
    }
}

#[test]
fn the_run_repeats_exactly_and_covers_its_features() {
    let workload = workload();
    for policy in [PolicyKind::LardR, PolicyKind::Hacc, PolicyKind::Ward] {
        assert_eq!(simulated(policy, &workload), simulated(policy, &workload), "{policy}");
    }
    for (policy, reason) in
        [(PolicyKind::LardR, "replicate"), (PolicyKind::Ward, "owner"), (PolicyKind::LbGc, "oldest")]
    {
        let text = simulated(policy, &workload);
        assert!(text.contains(&format!("reasons.{reason} = ")), "{policy} has no '{reason}':\n{text}");
    }
}
