//! What a switch's admin interface answers.

use larder_front::SwitchHandle;
use serde_json::Value;

use super::answer::percent_decode;
use super::{Answer, Ask, Surface};

/// Content type of the OpenMetrics text format.
const METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const ROUTES: [&str; 8] = [
    "/status",
    "/nodes",
    "/explain?target=HOST/PATH",
    "/metrics",
    "/config",
    "/healthz",
    "POST /nodes/NAME/drain",
    "POST /nodes/NAME/undrain",
];

/// A running switch, as its admin interface sees it.
pub(crate) struct SwitchSurface {
    switch: SwitchHandle,
    /// The effective config.
    config: Value,
}

impl SwitchSurface {
    pub(crate) fn new(switch: SwitchHandle, config: Value) -> Self {
        Self { switch, config }
    }

    fn explain(&self, ask: &Ask<'_>) -> Answer {
        let hint =
            "ask /explain?target=HOST/PATH, percent-encoded, such as /explain?target=www.example.org/a%3Fb=c";
        let Some(target) = ask.param("target") else {
            return Answer::problem(400, "which target?", hint);
        };
        match split_target(&target) {
            Some((host, path)) => Answer::json(&self.switch.explain(host, &path)),
            None => Answer::problem(400, "this is no target", hint),
        }
    }

    /// `/nodes/NAME/drain` and `/nodes/NAME/undrain`; none for any other path.
    fn change(&self, path: &str, post: bool) -> Option<Answer> {
        let (name, verb) = path.strip_prefix("/nodes/")?.rsplit_once('/')?;
        let drain = match verb {
            "drain" => true,
            "undrain" => false,
            _ => return None,
        };
        if !post {
            return Some(Answer::wrong_method("POST"));
        }
        let name = percent_decode(name);
        let changed = if drain { self.switch.drain(&name) } else { self.switch.undrain(&name) };
        Some(match changed {
            Ok(_) => Answer::json(&self.switch.nodes()),
            Err(error) => Answer::problem(404, &error.to_string(), "GET /nodes lists them"),
        })
    }
}

impl Surface for SwitchSurface {
    fn answer(&self, ask: &Ask<'_>) -> Answer {
        if let Some(answer) = self.change(ask.path, ask.post) {
            return answer;
        }
        let answer = match ask.path {
            "/status" => Answer::json(&self.switch.status()),
            "/nodes" => Answer::json(&self.switch.nodes()),
            "/explain" => self.explain(ask),
            "/metrics" => Answer::text(METRICS, self.switch.metrics_text()),
            "/config" => Answer::json(&self.config),
            "/healthz" => Answer::text("text/plain", "ok\n".to_owned()),
            _ => return Answer::no_such_path(&ROUTES),
        };
        if ask.post { Answer::wrong_method("GET, HEAD") } else { answer }
    }
}

/// `host/path?query`, with or without `http://` before it.
fn split_target(target: &str) -> Option<(&str, String)> {
    let bare = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://")).unwrap_or(target);
    let split = bare.find(['/', '?']).unwrap_or(bare.len());
    let (host, path) = bare.split_at(split);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    (!host.is_empty() && !host.contains(char::is_whitespace)).then_some((host, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_split_into_host_and_path() {
        let split = |text| split_target(text).map(|(host, path)| format!("{host} {path}"));
        assert_eq!(split("www:80/a?b=c").as_deref(), Some("www:80 /a?b=c"));
        assert_eq!(split("http://www").as_deref(), Some("www /"));
        assert_eq!(split("www?b").as_deref(), Some("www /?b"));
        assert_eq!((split("/a"), split(""), split("a b/c")), (None, None, None));
    }
}
