//! What an agent's admin interface answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use larder_handoff::channel::server::{HandshakeCounters, HandshakeOutcome};

use super::{Answer, Ask, Surface};

/// Content type of Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

const ROUTES: [&str; 3] = ["/stats", "/metrics", "/healthz"];

/// A running agent, as its admin interface sees it: how switches' attempts to connect ended.
pub(crate) struct AgentSurface {
    outcomes: Arc<HandshakeCounters>,
}

impl AgentSurface {
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

/// The counts of an agent in the Prometheus text format.
pub(super) fn metrics(outcomes: &HandshakeCounters) -> String {
    let name = "larder_agent_control_attempts_total";
    let mut text =
        format!("# HELP {name} Attempts of switches to connect, by outcome.\n# TYPE {name} counter\n");
    for (outcome, count) in attempts(outcomes) {
        // Writing to a text does not fail.
        let _ = writeln!(text, "{name}{{outcome=\"{outcome}\"}} {count}");
    }
    let (name, count) = ("larder_agent_channels_revoked_total", outcomes.revoked());
    let help = "Channels of switches ended because their key was revoked.";
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}");
    text
}

fn attempts(outcomes: &HandshakeCounters) -> BTreeMap<&'static str, u64> {
    HandshakeOutcome::ALL.into_iter().map(|outcome| (outcome.name(), outcomes.count(outcome))).collect()
}

impl Surface for AgentSurface {
    fn answer(&self, ask: &Ask<'_>) -> Answer {
        let answer = match ask.path {
            "/stats" => Answer::json(&self.stats()),
            "/metrics" => Answer::text(METRICS, self.metrics()),
            "/healthz" => Answer::text("text/plain", "ok\n".to_owned()),
            _ => return Answer::no_such_path(&ROUTES),
        };
        if ask.post { Answer::wrong_method("GET, HEAD") } else { answer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_exported_once() {
        let text = AgentSurface::new(Arc::default()).metrics();
        for outcome in HandshakeOutcome::ALL {
            let line = format!("larder_agent_control_attempts_total{{outcome=\"{}\"}} 0\n", outcome.name());
            assert_eq!(text.matches(&line).count(), 1, "{text}");
        }
        assert!(text.ends_with("larder_agent_channels_revoked_total 0\n"), "{text}");
    }
}
