//! The page of metrics.

use std::fmt::Write as _;

use larder_edge::Metric;

use super::{cell, check};
use crate::admin::AGENT_METRICS;

const PATH: &str = "docs/reference/metrics.md";

const INTRODUCTION: &str = "\
# Metrics

<!-- Generated: LARDER_WRITE=1 cargo test -p larder --lib reference -->

Prometheus reads the metrics of a switch, a node, an agent or a picker at `/metrics` of its [admin interface](admin.md).
[examples/grafana.json](../../examples/grafana.json) is a dashboard for Grafana, and [examples/alerts.yml](../../examples/alerts.yml)
has alert rules.

- Every metric of a node has the label `node`. All except those of reloads, TLS and peers also have `store`.
- Histograms have buckets in seconds.
- Counters begin at 0 in each process. A reload or upgrade of the switch starts a new process.
- If a feature is off, its metrics are 0 or have no line.

## What to watch

| metric | look for |
|---|---|
| `larder_switch_node_load` | uneven load of nodes |
| `larder_switch_decisions_total` | a growing share of `migrate` and `replicate`: nodes are overloaded |
| `larder_switch_cache_outcomes_total` | the hit ratio of nodes that send `Cache-Status` |
| `larder_switch_queued` | values near `admission.queue_max`: the cluster is too small |
| `larder_switch_failures_total` | replies of the switch itself, by [error](replies.md) |
| `larder_switch_last_reload_success`, `larder_node_last_reload_success` | 0: the last reload changed nothing |
";

/// Sentences below the headings of topics.
const NOTES: &[(&str, &str)] = &[
    ("Requests", "Values of `error` are in [replies](replies.md)."),
    ("Decisions", "Values of `reason` are in [policies](policies.md#reasons)."),
    (
        "Handoff",
        "Values of `mechanism`, `why` and `event` are in [handoff](handoff.md): [reasons](handoff.md#reasons) and\n\
         [events](handoff.md#counters).",
    ),
    ("Signals of nodes", "See [signals](signals.md)."),
    ("Peer switches", "See [several switches](../operate/switches.md)."),
    ("Shadow mode", "See [shadow mode](../operate/shadow.md). Without it, these metrics have no line."),
    (
        "Node: peers",
        "A node has these metrics with `[node.peers]`; see [peers](../operate/peers.md). Values of `why` are the\n\
         [reasons](../understand/peers.md#who-serves-a-request).",
    ),
    (
        "Node: later requests on handed-off connections",
        "See [later requests](../operate/node.md#later-requests-on-handed-off-connections).",
    ),
    ("Node: handoff between peers", "A node has these metrics with `node.peers.handoff`."),
    ("Endpoint picker", "See [endpoint picker](../operate/picker.md)."),
    ("Control channels of agents and nodes", "Agents have these metrics, and nodes with `[node.handoff]`."),
];

/// Returns the page.
fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    let metrics: Vec<Metric> = larder_switch::METRICS
        .iter()
        .copied()
        .chain(larder_node::metrics())
        .chain(AGENT_METRICS)
        .chain(larder_picker::METRICS)
        .collect();
    for topic in metrics.chunk_by(|a, b| a.topic == b.topic) {
        let title = topic[0].topic;
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "\n## {title}\n");
        if let Some((_, note)) = NOTES.iter().find(|(name, _)| *name == title) {
            let _ = writeln!(text, "{note}\n");
        }
        text += "| metric | type | labels | meaning |\n|---|---|---|---|\n";
        for Metric { name, kind, labels, help, .. } in topic {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let _ = writeln!(text, "| `{name}` | {} | {} | {} |", kind.name(), labels.join(", "), cell(help));
        }
    }
    text
}

#[test]
fn the_page_has_every_metric() {
    let page = page();
    let titles: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut unique = titles.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), titles.len(), "a topic has two sections: {titles:?}");
    for (title, _) in NOTES {
        assert!(titles.contains(title), "there is no topic '{title}'");
    }
    check(PATH, &page);
}
