//! Spans as OpenTelemetry's collector takes them: an `ExportTraceServiceRequest` in JSON (OTLP 1, section OTLP/HTTP; ids in
//! hexadecimal, 64-bit numbers as texts).

use crate::span::{Span, Value};
use serde_json::{Value as Json, json};

/// The request's body.
pub(crate) fn request(service: &str, instance: &str, spans: &[Span]) -> Vec<u8> {
    let resource = [
        ("service.name", Value::from(service)),
        ("service.instance.id", instance.into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
    ];
    let attributes: Vec<Json> = resource.iter().map(|(name, value)| attribute(name, value)).collect();
    let spans: Vec<Json> = spans.iter().map(span).collect();
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": attributes },
        "scopeSpans": [{ "scope": { "name": "larder" }, "spans": spans }],
    }]});
    body.to_string().into_bytes()
}

fn span(span: &Span) -> Json {
    let mut json = json!({
        "traceId": span.trace.to_string(),
        "spanId": span.id.to_string(),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": span.began_ns.to_string(),
        "endTimeUnixNano": span.ended_ns.to_string(),
        "attributes": span.attributes.iter().map(|(name, value)| attribute(name, value)).collect::<Vec<_>>(),
        // 2: an error.
        "status": match &span.error {
            Some(message) => json!({ "code": 2, "message": message }),
            None => json!({}),
        },
    });
    if let Some(parent) = span.parent {
        json["parentSpanId"] = parent.to_string().into();
    }
    json
}

fn attribute(name: &str, value: &Value) -> Json {
    let value = match value {
        Value::Text(text) => json!({ "stringValue": text }),
        Value::Whole(number) => json!({ "intValue": number.to_string() }),
    };
    json!({ "key": name, "value": value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{SpanId, TraceId};
    use crate::span::{Kind, Open};

    #[test]
    fn a_span_is_written_as_the_collector_wants_it() {
        let mut open = Open::new((TraceId(0xab), SpanId(1), Some(SpanId(2))), "request", Kind::Server, 1_500);
        open.set("http.response.status_code", 502_u16);
        open.set("larder.node", "a\"b");
        open.fail("connect_refused");
        let body = request("larder", "edge-1", &[open.end(1_200)]);
        let json: Json = serde_json::from_slice(&body).expect("it is JSON");
        let resource = &json["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "larder");
        let span = &resource["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "000000000000000000000000000000ab");
        assert_eq!(
            (&span["spanId"], &span["parentSpanId"]),
            (&"0000000000000001".into(), &"0000000000000002".into())
        );
        assert_eq!((&span["kind"], &span["startTimeUnixNano"]), (&2.into(), &"1500".into()));
        assert_eq!(span["endTimeUnixNano"], "1500", "a clock that was set back makes no negative time");
        assert_eq!(span["attributes"][0]["value"]["intValue"], "502");
        assert_eq!(span["attributes"][1]["value"]["stringValue"], "a\"b");
        assert_eq!(
            (&span["status"]["code"], &span["status"]["message"]),
            (&2.into(), &"connect_refused".into())
        );
    }
}
