//! Encoding of spans for an OpenTelemetry collector: an `ExportTraceServiceRequest` in JSON (OTLP 1, section OTLP/HTTP). Ids
//! are hexadecimal strings, 64-bit numbers decimal strings.

use crate::span::{AttributeValue, Span};
use serde::{Serialize, Serializer};
use std::fmt::Display;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    resource_spans: [ResourceSpans<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans<'a> {
    resource: Resource<'a>,
    scope_spans: [ScopeSpans<'a>; 1],
}

#[derive(Serialize)]
struct Resource<'a> {
    attributes: [Attribute<'a>; 3],
}

#[derive(Serialize)]
struct ScopeSpans<'a> {
    scope: Scope,
    spans: Vec<SpanBody<'a>>,
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SpanBody<'a> {
    #[serde(serialize_with = "text")]
    trace_id: &'a dyn Display,
    #[serde(serialize_with = "text")]
    span_id: &'a dyn Display,
    #[serde(serialize_with = "optional_text", skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<&'a dyn Display>,
    name: &'a str,
    kind: u8,
    #[serde(serialize_with = "text")]
    start_time_unix_nano: &'a dyn Display,
    #[serde(serialize_with = "text")]
    end_time_unix_nano: &'a dyn Display,
    attributes: Vec<Attribute<'a>>,
    status: Status<'a>,
}

#[derive(Serialize)]
struct Attribute<'a> {
    key: &'a str,
    value: AttributeJson<'a>,
}

#[derive(Serialize)]
enum AttributeJson<'a> {
    #[serde(rename = "stringValue")]
    Text(&'a str),
    #[serde(rename = "intValue", serialize_with = "text")]
    Integer(&'a dyn Display),
}

#[derive(Serialize)]
struct Status<'a> {
    /// 2 means an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

fn text<S: Serializer>(value: &dyn Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn optional_text<S: Serializer>(value: &Option<&dyn Display>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

/// Encodes the body of an export request.
pub(crate) fn encode(service: &str, instance: &str, spans: &[Span]) -> Vec<u8> {
    let attribute = |key, text| Attribute { key, value: AttributeJson::Text(text) };
    let resource = Resource {
        attributes: [
            attribute("service.name", service),
            attribute("service.instance.id", instance),
            attribute("service.version", env!("CARGO_PKG_VERSION")),
        ],
    };
    let scope_spans =
        ScopeSpans { scope: Scope { name: "larder" }, spans: spans.iter().map(SpanBody::new).collect() };
    let body = Body { resource_spans: [ResourceSpans { resource, scope_spans: [scope_spans] }] };
    // Strings and integers can always be encoded.
    serde_json::to_vec(&body).unwrap_or_default()
}

impl<'a> SpanBody<'a> {
    fn new(span: &'a Span) -> Self {
        let attribute = |(key, value): &'a (&'static str, AttributeValue)| Attribute {
            key,
            value: match value {
                AttributeValue::Text(text) => AttributeJson::Text(text),
                AttributeValue::Integer(number) => AttributeJson::Integer(number),
            },
        };
        Self {
            trace_id: &span.trace,
            span_id: &span.id,
            parent_span_id: span.parent.as_ref().map(|parent| parent as &dyn Display),
            name: span.name,
            kind: span.kind as u8,
            start_time_unix_nano: &span.started_ns,
            end_time_unix_nano: &span.ended_ns,
            attributes: span.attributes.iter().map(attribute).collect(),
            status: Status { code: span.error.as_ref().map(|_| 2), message: span.error.as_deref() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{SpanId, TraceId};
    use crate::span::{ActiveSpan, SpanKind};
    use serde_json::Value as Json;

    #[test]
    fn a_span_is_encoded_as_otlp_json() {
        let mut open =
            ActiveSpan::new((TraceId(0xab), SpanId(1), Some(SpanId(2))), "request", SpanKind::Server, 1_500);
        open.set("http.response.status_code", 502_u16);
        open.set("larder.node", "a\"b");
        open.fail("connect_refused");
        let body = encode("larder", "edge-1", &[open.end(1_200)]);
        let json: Json = serde_json::from_slice(&body).expect("JSON");
        let resource = &json["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "larder");
        let span = &resource["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "000000000000000000000000000000ab");
        assert_eq!(
            (&span["spanId"], &span["parentSpanId"]),
            (&"0000000000000001".into(), &"0000000000000002".into())
        );
        assert_eq!((&span["kind"], &span["startTimeUnixNano"]), (&2.into(), &"1500".into()));
        assert_eq!(span["endTimeUnixNano"], "1500", "a clock that was set back gives no negative duration");
        assert_eq!(span["attributes"][0]["value"]["intValue"], "502");
        assert_eq!(span["attributes"][1]["value"]["stringValue"], "a\"b");
        assert_eq!(
            (&span["status"]["code"], &span["status"]["message"]),
            (&2.into(), &"connect_refused".into())
        );
    }
}
