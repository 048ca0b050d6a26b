//! The admin interface of an agent.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use larder_edge::{Metric, MetricKind};
use larder_handoff::channel::server::{HandshakeCounters, HandshakeOutcome};

use super::{AdminReply, AdminRequest, AdminService};

/// Content type of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Heading of the metrics in the reference.
const TOPIC: &str = "Control channels of agents and nodes";

const ATTEMPTS: Metric = Metric {
    topic: TOPIC,
    name: "larder_agent_control_attempts_total",
    kind: MetricKind::Counter,
    labels: &["outcome"],
    help: "Attempts of switches to connect, by outcome (accepted, stranger: unknown key, forged, foreign: another protocol, malformed, slow: timeout, displaced, network)",
};
const REVOKED: Metric = Metric {
    topic: TOPIC,
    name: "larder_agent_channels_revoked_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Control channels of switches that were closed because their key was revoked",
};

/// Every metric of an agent, which a node that takes handoffs also has.
#[cfg(test)]
pub(crate) const AGENT_METRICS: [Metric; 2] = [ATTEMPTS, REVOKED];

const ROUTES: [&str; 3] = ["/stats", "/metrics", "/healthz"];

/// A running agent, with the counts of switches' connection attempts by outcome.
pub(crate) struct AgentAdmin {
    outcomes: Arc<HandshakeCounters>,
}

impl AgentAdmin {
    pub(crate) fn new(outcomes: Arc<HandshakeCounters>) -> Self {
        Self { outcomes }
    }

    fn stats(&self) -> serde_json::Value {
        let attempts = attempts(&self.outcomes);
        serde_json::json!({ "control_attempts": attempts, "channels_revoked": self.outcomes.revoked() })
    }

    fn metrics(&self) -> String {
        metrics(&self.outcomes)
    }
}

/// Formats the counts of an agent in the Prometheus text format.
pub(super) fn metrics(outcomes: &HandshakeCounters) -> String {
    let mut text = header(&ATTEMPTS);
    for (outcome, count) in attempts(outcomes) {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{}{{outcome=\"{outcome}\"}} {count}", ATTEMPTS.name);
    }
    text += &header(&REVOKED);
    let _ = writeln!(text, "{} {}", REVOKED.name, outcomes.revoked());
    text
}

fn header(metric: &Metric) -> String {
    let Metric { name, kind, help, .. } = metric;
    format!("# HELP {name} {help}.\n# TYPE {name} {}\n", kind.name())
}

fn attempts(outcomes: &HandshakeCounters) -> BTreeMap<&'static str, u64> {
    HandshakeOutcome::ALL.into_iter().map(|outcome| (outcome.name(), outcomes.count(outcome))).collect()
}

impl AdminService for AgentAdmin {
    fn reply(&self, request: &AdminRequest<'_>) -> AdminReply {
        let reply = match request.path {
            "/stats" => AdminReply::json(&self.stats()),
            "/metrics" => AdminReply::text(METRICS, self.metrics()),
            "/healthz" => AdminReply::text("text/plain", "ok\n".to_owned()),
            _ => return AdminReply::no_such_path(&ROUTES),
        };
        if request.post { AdminReply::wrong_method("GET, HEAD") } else { reply }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_exported_once() {
        let text = AgentAdmin::new(Arc::default()).metrics();
        for outcome in HandshakeOutcome::ALL {
            let line = format!("larder_agent_control_attempts_total{{outcome=\"{}\"}} 0\n", outcome.name());
            assert_eq!(text.matches(&line).count(), 1, "{text}");
        }
        assert!(text.ends_with("larder_agent_channels_revoked_total 0\n"), "{text}");
    }
}
