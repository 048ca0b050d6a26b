//! `[switch.traces]` and `[node.traces]`, checked.

use http::{HeaderName, HeaderValue};
use larder_spans::TracerConfig;

use super::error::Fault;
use super::raw_traces::RawTraces;

/// Where spans go. `role` is the section above, `instance` who sends them.
pub(super) fn traces(raw: &RawTraces, role: &str, instance: &str) -> Result<TracerConfig, Fault> {
    let key = |name: &str| format!("{role}.traces.{name}");
    let hint = "the URL of a collector, by HTTP without TLS: endpoint = \"http://127.0.0.1:4318\"";
    let endpoint = raw.endpoint.parse().map_err(|_| {
        let what = match raw.endpoint.as_str() {
            "" => "missing: where spans go".to_owned(),
            other => format!("'{other}' is no such URL"),
        };
        Fault::new(key("endpoint"), what).hint(hint)
    })?;
    if !(0.0..=1.0).contains(&raw.ratio) {
        return Err(
            Fault::new(key("ratio"), format!("{} is out of range", raw.ratio)).hint("0 to 1, such as 0.01")
        );
    }
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
