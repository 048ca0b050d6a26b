//! Check that the example dashboard and the alert rules use existing metrics and labels.

use larder_core::policy::Reason;
use larder_edge::{Metric, MetricKind};
use larder_switch::METRICS;

use crate::none;
use crate::repo::text;

/// Labels that Prometheus adds, those of buckets, and those of all metrics of a node.
const ADDED: [&str; 5] = ["job", "instance", "le", "node", "store"];

/// Returns every metric that a text names, with the text in braces after it.
fn uses(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("larder_") {
        let rest = &text[at..];
        let end = rest
            .find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'))
            .unwrap_or(rest.len());
        let braces = rest[end..]
            .strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .map_or("", |(inside, _)| inside);
        found.push((&rest[..end], braces));
    }
    found
}

fn wrong(file: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let metrics: Vec<Metric> = METRICS.iter().copied().chain(larder_node::metrics()).collect();
    for (name, braces) in uses(text) {
        let known = metrics.iter().find(|metric| {
            let parts = ["_bucket", "_sum", "_count"];
            let part = parts.iter().any(|part| name.strip_suffix(part) == Some(metric.name));
            if metric.kind == MetricKind::Histogram { part } else { metric.name == name }
        });
        let Some(metric) = known else {
            problems.push(format!("{file}: there is no metric {name}"));
            continue;
        };
        for condition in braces.split(',').filter(|condition| !condition.is_empty()) {
            let label = condition.split(['=', '!']).next().unwrap_or_default().trim();
            let is_added = ADDED.contains(&label) && (label != "node" || !name.starts_with("larder_switch_"));
            if !is_added && !metric.labels.contains(&label) {
                problems.push(format!("{file}: {name} has no label {label}"));
            }
        }
    }
    problems
}

#[test]
fn dashboards_and_alerts_use_existing_metrics() {
    let dashboard = text("examples/grafana.json");
    let json: serde_json::Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
    let panels = json["panels"].as_array().expect("it has panels");
    let exprs: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten())
        .map(|target| target["expr"].as_str().expect("a query"))
        .collect();
    assert!(exprs.len() >= 20 && exprs.iter().all(|expr| !uses(expr).is_empty()), "{exprs:?}");
    let rules = text("examples/alerts.yml");
    assert!(uses(&rules).len() >= 12);
    let plain = dashboard.replace("\\\"", "\"");
    none(&[wrong("examples/grafana.json", &plain), wrong("examples/alerts.yml", &rules)].concat());
    for reason in ["migrate", "replicate"] {
        assert!(Reason::ALL.iter().any(|known| known.name() == reason), "{reason}");
    }
}

#[test]
fn unknown_metrics_are_noticed() {
    assert!(wrong("f", "rate(larder_switch_requests_total{class=\"5xx\",job=\"a\"}[5m])").is_empty());
    assert!(wrong("f", "larder_switch_request_seconds_bucket{le=\"1\"}").is_empty());
    for bad in
        ["larder_switch_request_seconds", "larder_node_reqests_total", "larder_switch_queued{node=\"a\"}"]
    {
        assert_eq!(wrong("f", bad).len(), 1, "{bad}");
    }
}
