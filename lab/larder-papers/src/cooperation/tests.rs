//! Tests of the builtins on small clusters, and of their errors.

use super::*;
use std::path::Path;

const PARAMS: &str = "recipe = 'forth-like'\nfiles = 2000\nrequests = 6000\nmemory_mb = 8\nwindow = 20\n\
                      servers = ['trad', 'press']\nover = 'nodes'\nvalues = [1, 3]\nmodelled = true";

fn plan(text: &str) -> Result<Box<dyn Plan>, String> {
    PRESS_CLUSTER.plan(&text.parse().unwrap())
}

#[test]
fn each_line_has_a_sample_at_each_x_with_every_metric() {
    let plan = plan(PARAMS).unwrap();
    let traces = Traces::new(Path::new("nowhere"));
    let samples: Vec<Sample> = (0..plan.jobs()).flat_map(|job| plan.run(job, &traces).unwrap()).collect();
    assert_eq!(plan.lines(), ["trad", "press", "non-port m", "port m", "trad m"]);
    for line in plan.lines() {
        let of = samples.iter().filter(|sample| sample.line == line);
        assert_eq!(of.map(|sample| sample.x).collect::<Vec<_>>(), [1.0, 3.0], "{line}");
    }
    let press = samples.iter().find(|sample| sample.line == "press" && sample.x == 3.0).unwrap();
    let metrics: Vec<&str> = press.values.keys().map(String::as_str).collect();
    let mut known = metrics::names();
    known.sort_unstable();
    assert_eq!(metrics, known);
    assert!(press.values["forwarded"] > 0.2);
}

#[test]
fn variants_are_lines() {
    let plan = plan(&format!("{PARAMS}\nvariants = [{{}}, {{ name = 'slow', network = 'slow' }}]")).unwrap();
    assert_eq!(plan.lines()[..4], ["trad", "press", "trad, slow", "press, slow"]);
    let keys: std::collections::BTreeSet<String> = (0..plan.jobs()).map(|job| plan.key(job)).collect();
    assert_eq!(keys.len(), plan.jobs());
}

#[test]
fn wrong_parameters_are_named() {
    for (from, to, complaint) in [
        ("'press'", "'pres'", "servers"),
        ("files = 2000", "files = 200000", "files: must be at most"),
        ("memory_mb = 8", "memory_mb = 0", "memory_mb: must be above 0"),
        ("window = 20", "window = 0", "window: must be"),
        ("window = 20", "windows = 1", "windows"),
        ("values = [1, 3]", "values = [3, 1]", "values: must rise"),
        ("over = 'nodes'", "", "needs over and values"),
        ("modelled = true", "variants = [{}, {}]", "two lines 'trad'"),
    ] {
        let error = plan(&PARAMS.replace(from, to)).err().unwrap_or_default();
        assert!(error.contains(complaint), "{to}: {error}");
    }
}

fn ward(text: &str) -> Result<Box<dyn Plan>, String> {
    WARD_CLUSTER.plan(&text.parse().unwrap())
}

const SMALL: &str = "files = 700\nrequests = 20000\nconnections = 16\nservers = ['rr', 'part', 'ward', 'card', 'switch']\n\
                     over = 'nodes'\nvalues = [1, 4]";

#[test]
fn a_ward_cluster_computes_and_uses_its_table() {
    let plan = ward(SMALL).unwrap();
    let traces = Traces::new(Path::new("nowhere"));
    let samples: Vec<Sample> = (0..plan.jobs()).flat_map(|job| plan.run(job, &traces).unwrap()).collect();
    let of = |line: &str, x: f64, metric: &str| {
        let sample = samples.iter().find(|sample| sample.line == line && sample.x == x).unwrap();
        sample.values[metric]
    };
    assert_eq!((of("ward", 4.0, "tables"), of("part", 4.0, "core_targets")), (1.0, 0.0));
    assert!(of("ward", 4.0, "core_targets") > 5.0 && of("ward", 4.0, "table_spread_s") > 0.0);
    assert_eq!((of("ward", 4.0, "why_early"), of("rr", 4.0, "local")), (0.0, 1.0));
    assert!(of("part", 4.0, "local") < 0.4 && of("ward", 4.0, "local") > 0.5);
    assert!(of("card", 4.0, "asks") > 0.5 && of("card", 4.0, "answer_mean_s") > 0.0);
    assert_eq!((of("card", 1.0, "asks"), of("switch", 4.0, "local")), (0.0, 1.0));
}

#[test]
fn wrong_parameters_of_a_ward_cluster_are_named() {
    for (more, complaint) in [
        ("forward_us = -1", "forward_us: must be 0 to 1,000,000"),
        ("memory_share = 1.5", "memory_share: must be 0 to 1"),
        ("unnamed = 'there'", "unnamed"),
        ("moving = 'carry'", "moving"),
        ("patience_ms = 0", "patience_ms"),
    ] {
        let error = ward(&format!("{SMALL}\n{more}")).err().unwrap_or_default();
        assert!(error.contains(complaint), "{more}: {error}");
    }
}

#[test]
fn a_variant_may_have_servers_of_its_own() {
    let variants = "variants = [{}, { name = 'dear', servers = ['switch'], switch_us = 300 }]";
    let plan = ward(&format!("{SMALL}\n{variants}")).unwrap();
    assert_eq!(plan.lines()[4..], ["switch", "switch, dear"]);
    let none = ward(&format!("{SMALL}\n{}", variants.replace("'switch'", ""))).err();
    assert!(none.is_some_and(|error| error.starts_with("servers: must be 1 to")));
}

const DAYS: &str =
    "recipe = 'hp-like'\nfiles = 700\nrequests = 50000\nconnections = 16\nrefresh_s = 1\nover_nodes = [4]";

#[test]
fn days_are_served_with_tables_of_both_days() {
    let plan = WardDays.plan(&DAYS.parse().unwrap()).unwrap();
    let samples = plan.run(0, &Traces::new(Path::new("nowhere"))).unwrap();
    let lines: Vec<&str> = samples.iter().map(|sample| sample.line.as_str()).collect();
    assert_eq!(lines, plan.lines());
    let tables = |at: usize| samples[at].values["tables"];
    assert_eq!((tables(0), tables(1), tables(3)), (1.0, 1.0, 1.0));
    assert!(tables(2) > 2.0, "{samples:?}");
    assert!(samples[1].values["loss"] < 0.5 && !samples[0].values.contains_key("loss"));
    for wrong in ["over_nodes = []", "over_nodes = [0]", "over_nodes = [4]\nrefresh_s = 0"] {
        let text = DAYS.replace("refresh_s = 1\n", "").replace("over_nodes = [4]", wrong);
        assert!(WardDays.plan(&text.parse().unwrap()).is_err(), "{wrong}");
    }
}
