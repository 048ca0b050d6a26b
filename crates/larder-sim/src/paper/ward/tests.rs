//! The builtins on small logs, and what they refuse.

use std::path::Path;

use super::*;

fn plan(builtin: &dyn Builtin, text: &str) -> Result<Box<dyn Plan>, String> {
    builtin.plan(&text.parse().expect("TOML"))
}

const SMALL: &str = "workload = { recipe = \"hp-hours-like\", scale = 0.01 }\nmemory_share = 0.05\n";

#[test]
fn a_small_cluster_gives_every_metric_and_the_same_twice() {
    let text = format!("{SMALL}forward_us = 276.0\nover_nodes = [1, 4]");
    let plan = plan(&Clusters, &text).expect("a plan");
    let traces = Traces::new(Path::new("/nowhere"));
    let samples: Vec<_> =
        (0..plan.jobs()).map(|job| plan.run(job, &traces).expect("runs").remove(0)).collect();
    assert_eq!(samples.len(), 6);
    for sample in &samples {
        assert!(plan.metrics().iter().all(|metric| sample.values.contains_key(*metric)), "{sample:?}");
    }
    // On one node all three are the same: everything is local.
    assert!(samples[..3].iter().all(|sample| sample.values["speedup"] == 1.0));
    let local = |at: usize| samples[at].values["local_share"];
    assert_eq!(local(3), 1.0);
    assert!(local(4) < 0.5 && local(5) > 0.5, "PART hands over, WARD little: {samples:?}");
    assert_eq!(plan.run(5, &traces).expect("runs")[0], samples[5]);
}

#[test]
fn wrong_parameters_are_named() {
    let error = |text: &str| plan(&Clusters, text).err().unwrap_or_default();
    let good = format!("{SMALL}forward_us = 276.0\n");
    assert!(error(&format!("{good}over_nodes = []")).contains("over_nodes"));
    assert!(error(&format!("{good}over_nodes = [0]")).contains("over_nodes"));
    assert!(error(&good).contains("over_nodes"));
    assert!(error(&format!("{good}over_nodes = [4]\nwindow = 0")).contains("window"));
    assert!(error(&format!("{good}over_nodes = [4]\nwindows = 1")).contains("windows"));
    let share = good.replace("0.05", "1.5");
    assert!(error(&format!("{share}over_nodes = [4]")).contains("memory_share"));
    let none = good.replace("recipe", "receipt");
    assert!(error(&format!("{none}over_nodes = [4]")).contains("receipt"));
}

#[test]
fn a_log_without_days_is_refused_and_a_missing_trace_is_named() {
    let text = format!("{SMALL}forward_us = 276.0\nover_nodes = [4]");
    let traces = Traces::new(Path::new("/nowhere"));
    let found = plan(&Days, &text).expect("a plan").run(0, &traces);
    assert!(matches!(found, Err(PaperError::Builtin(_))), "{found:?}");
    let plan = plan(&Change, "workload = { trace = \"none.clf\" }").expect("a plan");
    assert!(matches!(plan.run(0, &traces), Err(PaperError::NoTrace(_))));
}
