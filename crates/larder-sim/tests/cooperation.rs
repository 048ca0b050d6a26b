//! Golden test: one small simulation of every kind of cooperative server, and of the switch. The results are
//! kept in `experiments/golden/cooperation/`. A changed decision of the peers' protocol, or a changed time of
//! their simulator, shows here. `LARDER_GOLDEN=write cargo test -p larder-sim --test cooperation` writes the
//! files; review the difference.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder_core::Bytes;
use larder_sim::Workload;
use larder_sim::cooperation::{CooperationOutcome, CooperativeCluster, ServerKind, cooperate};
use larder_trace::synth::{Recipe, generate};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/golden/cooperation")
}

/// Simulates 2,000 targets with Zipf popularity on six nodes with an eighth of the targets' bytes each. The
/// settings make all kinds of messages occur.
fn outcome(server: ServerKind) -> CooperationOutcome {
    let trace = generate(&Recipe::zipf(2_000, 24_000, 0.9), 7, 1.0).expect("the recipe is possible");
    let workload = Workload::from_trace(&trace);
    let mut cluster = CooperativeCluster::new(server, 6, Bytes(workload.bytes() / 8));
    cluster.protocol.overload = 50;
    cluster.protocol.sharing.window = 200;
    // Several tables are made during the run.
    cluster.ward.settings.first_requests = 800;
    cluster.ward.settings.refresh = Some(Duration::from_secs(2));
    cooperate(&workload, &cluster).expect("a good cluster")
}

fn text(server: ServerKind, outcome: &CooperationOutcome) -> String {
    let mut text = format!("# {}: recipe in crates/larder-sim/tests/cooperation.rs\n", server.name());
    let mut line = |key: &str, value: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{key} = {value}");
    };
    line("requests", outcome.requests.to_string());
    for (key, value) in [
        ("seconds", outcome.seconds),
        ("throughput", outcome.throughput),
        ("hit_rate_local", outcome.hit_rate_local),
        ("hit_rate", outcome.hit_rate),
        ("forwarded_share", outcome.forwarded_share),
        ("load_broadcasts", outcome.load_broadcasts),
        ("cache_broadcasts", outcome.cache_broadcasts),
        ("cache_changes", outcome.cache_changes),
        ("messages", outcome.messages),
        ("message_bytes", outcome.message_bytes),
        ("relayed_bytes", outcome.relayed_bytes),
        ("disk_reads", outcome.disk_reads),
        ("sharing", outcome.sharing),
        ("imbalance", outcome.imbalance),
        ("state_bytes", outcome.state_bytes),
        ("cpu", outcome.busy.cpu),
        ("disk", outcome.busy.disk),
        ("delay_mean_ms", outcome.delay.mean_s * 1e3),
    ] {
        line(key, format!("{value:.6}"));
    }
    if matches!(server, ServerKind::Card | ServerKind::Ward | ServerKind::Part) {
        for (key, value) in [
            ("asks", outcome.asks),
            ("batch", outcome.batch),
            ("answer_mean_ms", outcome.answer.mean_s * 1e3),
            ("answer_p99_ms", outcome.answer.p99_s * 1e3),
            ("talk", outcome.busy.talk),
            ("dispatcher", outcome.busy.dispatcher),
            ("state_bytes_most", outcome.state_bytes_most),
            ("tables", outcome.tables.made as f64),
            ("table_targets", outcome.tables.targets as f64),
            ("core_targets", outcome.tables.core_targets as f64),
            ("table_spread_ms", outcome.tables.spread_s * 1e3),
            ("table_bytes", outcome.table_bytes),
            ("count_bytes", outcome.count_bytes),
        ] {
            line(key, format!("{value:.6}"));
        }
    }
    for (why, count) in &outcome.reasons {
        line(&format!("reasons.{why}"), count.to_string());
    }
    text
}

#[test]
fn every_server_gives_the_stored_outcome() {
    let folder = folder();
    let writes = std::env::var("LARDER_GOLDEN").is_ok_and(|value| value == "write");
    let mut differing = Vec::new();
    for server in ServerKind::ALL {
        let path = folder.join(format!("{}.txt", server.name()));
        let ours = text(server, &outcome(server));
        if writes {
            std::fs::create_dir_all(&folder).expect("the folder can be made");
            std::fs::write(&path, ours).expect("the file can be written");
        } else if std::fs::read_to_string(&path).ok().as_deref() != Some(&*ours) {
            differing.push(format!("{}:\n{ours}", path.display()));
        }
    }
    let hint = "LARDER_GOLDEN=write cargo test -p larder-sim --test cooperation";
    assert!(differing.is_empty(), "not as kept; if that is right, `{hint}`\n{}", differing.join("\n"));
}
