//! `[switch.traces]` and `[node.traces]`.

use http::{HeaderName, HeaderValue};
use larder_spans::TracerConfig;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::Texts;

keys! {
    /// `[switch.traces]`, `[node.traces]`.
    table TracesSection;

    /// Where an OpenTelemetry collector takes spans by OTLP/HTTP: "http://HOST:PORT", with a path if it is not /v1/traces.
    /// Required.
    endpoint: String, example "http://127.0.0.1:4318";
    /// Share of the requests without a traceparent that begin a trace. Those with one are traced if it says so.
    ratio: f64 = 0.01, range "0 to 1";
    /// Whether a request's traceparent decides. false: the ratio decides for all, and traces begin here; for a switch whose clients
    /// are strangers, since each of them could have all of his requests traced.
    parents: bool = true;
    /// What the collector is told as service.name. Unset: "larder-switch" or "larder-node".
    service: Option<String>, example "edge";
    /// Fields that are sent along, each "name: value", such as a key that the collector asks for.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    headers: Texts, example ["x-api-key: 1234"];
}

/// Where spans go. `role` is the section above, `instance` who sends them.
pub(crate) fn traces(raw: &TracesSection, role: &str, instance: &str) -> Result<TracerConfig, Fault> {
    let key = |name: &str| format!("{role}.traces.{name}");
    let hint = "the URL of a collector, by HTTP without TLS: endpoint = \"http://127.0.0.1:4318\"";
    let endpoint = raw.endpoint.parse().map_err(|_| {
        let what = match raw.endpoint.as_str() {
            "" => "missing: where spans go".to_owned(),
            other => format!("'{other}' is no such URL"),
        };
        Fault::new(key("endpoint"), what).hint(hint)
    })?;
    let headers = (0..).zip(&raw.headers.0).map(|(i, text): (usize, &String)| {
        header(text).ok_or_else(|| {
            Fault::new(format!("{}[{i}]", key("headers")), "is no field").hint("write \"name: value\"")
        })
    });
    Ok(TracerConfig {
        endpoint,
        ratio: raw.ratio,
        parents: raw.parents,
        service: raw.service.clone().unwrap_or_else(|| format!("larder-{role}")),
        instance: instance.to_owned(),
        headers: headers.collect::<Result<_, _>>()?,
    })
}

fn header(text: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = text.split_once(':')?;
    let mut value: HeaderValue = value.trim().parse().ok()?;
    value.set_sensitive(true);
    Some((name.trim().parse().ok()?, value))
}
