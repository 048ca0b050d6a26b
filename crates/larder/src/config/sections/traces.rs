//! `[switch.traces]` and `[node.traces]`.

use http::{HeaderName, HeaderValue};
use larder_spans::TracerConfig;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::Texts;

keys! {
    /// `[switch.traces]`, `[node.traces]`.
    table TracesSection;

    /// URL of an OpenTelemetry collector that accepts spans by OTLP/HTTP: "http://HOST:PORT". Add a path if it is not
    /// /v1/traces. Required.
    endpoint: String, example "http://127.0.0.1:4318";
    /// Share of the requests without a traceparent that begin a trace. A request with a traceparent is traced if the
    /// traceparent says so.
    ratio: f64 = 0.01, range "0 to 1";
    /// Whether a request's traceparent decides. With false the ratio decides for all requests, and traces begin here.
    /// Set false if clients are unknown, because each of them could otherwise have all its requests traced.
    parents: bool = true;
    /// Value of service.name at the collector. Unset: "larder-switch" or "larder-node".
    service: Option<String>, example "edge";
    /// Header fields that are sent to the collector, each "name: value", such as an access key.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    headers: Texts, example ["x-api-key: 1234"];
}

/// Validates traces. `role` is the section above, and `instance` the name of the sender.
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
