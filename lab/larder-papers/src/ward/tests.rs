//! Tests of the builtins on small logs, and of their errors.

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
    // On one node all three strategies are equal: everything is local.
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
fn invalid_plans_are_refused_early() {
    let workload = |inside: &str| {
        let text =
            format!("workload = {{ {inside} }}\nmemory_share = 0.05\nforward_us = 276.0\nover_nodes = [4]");
        plan(&Clusters, &text).map(|_| ()).err().unwrap_or_default()
    };
    assert_eq!(workload("recipe = \"hp-hours-like\""), "");
    assert!(workload("recipe = \"hp-hour-like\"").contains("hp-hour-like"));
    for (inside, key) in [
        ("recipe = \"hp-hours-like\", scale = 0.0", "'scale'"),
        ("recipe = \"hp-hours-like\", scale = nan", "'scale'"),
        ("recipe = \"hp-hours-like\", requests = 0", "'requests'"),
        ("recipe = \"hp-hours-like\", seed = -1", "seed"),
        ("recipe = \"hp-hours-like\", trace = \"x\"", "exactly one of"),
        ("trace = \"x\", scale = 0.5", "'scale'"),
    ] {
        let message = workload(inside);
        assert!(message.starts_with("workload") && message.contains(key), "{inside}: {message}");
    }
    let core = |lists: &str| {
        let plan = plan(&Core, &format!("{SMALL}over_nodes = [4]\n{lists}"));
        plan.map(|_| ()).err().unwrap_or_default()
    };
    assert_eq!(core("over_forward_us = [276.0]\nover_core = [1.0]"), "");
    assert!(core("over_forward_us = []\nover_core = [1.0]").starts_with("over_forward_us: "));
    assert!(core("over_forward_us = [-1.0]\nover_core = [1.0]").starts_with("over_forward_us: "));
    assert!(core("over_forward_us = [276.0]\nover_core = [nan]").starts_with("over_core: "));
    let many = vec!["1"; VALUES_MAX + 1].join(", ");
    let window =
        plan(&StrategySweep, &format!("{SMALL}nodes = 4\nover_forward_us = [1.0]\nover_window = [{many}]"));
    let localities = "nodes = 4\nover_forward_us = [1.0]\nover_locality = [0.1, 1.0]";
    let locality = plan(&StrategySweep, &format!("{SMALL}{localities}"));
    assert!(locality.is_err_and(|message| message.starts_with("workload: 'locality' must be 0 to below 1")));
    let none = plan(&StrategySweep, &format!("{SMALL}nodes = 4\nover_forward_us = [1.0]"));
    assert!(none.is_err_and(|message| message.contains("exactly one of")));
    let shuffled = "nodes = 4\nover_forward_us = [1.0]\nover_shuffled = [false, true]";
    let recipe = plan(&StrategySweep, &format!("{SMALL}{shuffled}"));
    assert!(recipe.is_err_and(|message| message.contains("'shuffled' is for a trace")));
    assert!(window.is_err_and(|message| message.starts_with("over_window: must be 1 to 64 numbers")));
}

#[test]
fn equal_runs_of_two_sweeps_have_separate_keys() {
    let lists = ["over_window = [1024]", "over_memory = [0.05]"];
    let keys = lists.map(|list| {
        let text = format!("{SMALL}nodes = 4\nover_forward_us = [276.0]\n{list}");
        plan(&StrategySweep, &text).expect("a plan").key(0)
    });
    assert_ne!(keys[0], keys[1]);
}

#[test]
fn round_robin_ignores_window_and_price() {
    let text = format!("{SMALL}nodes = 4\nover_forward_us = [276.0, 138.0]\nover_window = [1, 64]");
    let plan = plan(&StrategySweep, &text).expect("a plan");
    let traces = Traces::new(Path::new("/nowhere"));
    let samples: Vec<Sample> =
        (0..plan.jobs()).flat_map(|job| plan.run(job, &traces).expect("runs")).collect();
    assert_eq!((plan.jobs(), samples.len(), plan.lines().len()), (4, 12, 6));
    let of = |name: &str| {
        let found = samples.iter().filter(|sample| sample.line.starts_with(name));
        found.map(|sample| sample.values["speedup"]).collect::<Vec<_>>()
    };
    let (rr, ward) = (of("RR"), of("WARD"));
    assert!(rr.iter().all(|speedup| *speedup == rr[0]), "{rr:?}");
    assert!(ward[2] > ward[0] && ward[1] > ward[0], "a longer line, a cheaper handoff: {ward:?}");
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
