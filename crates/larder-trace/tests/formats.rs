//! Tests with a sample of each log format in `tests/logs`. All samples have the same twelve requests and one
//! malformed line. Host names and addresses are those reserved for documentation.

#![expect(clippy::panic, reason = "test code: a panic is a failed test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use larder_trace::{
    Client, Format, Key, LoadOptions, Method, ReadOptions, ReadReport, SizeUnit, Trace, TraceError, read,
};

/// Each sample with its detected format.
const SAMPLES: [(&str, Format); 16] = [
    ("combined.log", Format::Clf),
    ("haproxy.log", Format::Haproxy),
    ("alb.log", Format::Alb),
    ("s3.log", Format::S3),
    ("iis.log", Format::W3c),
    ("cloudfront.log", Format::W3c),
    ("larder.json", Format::Larder),
    ("caddy.json", Format::Caddy),
    ("envoy.json", Format::Envoy),
    ("envoy.log", Format::Envoy),
    ("istio.log", Format::Envoy),
    ("nginx.json", Format::Nginx),
    ("nginx-request.json", Format::Nginx),
    ("nginx-local.json", Format::Nginx),
    ("traefik.json", Format::Traefik),
    ("custom.json", Format::Json),
];

const CUSTOM: &str = "time=at,method=http.verb,path=http.url,status=http.code,bytes=out,client=peer.address";

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs").join(name)
}

fn options(format: Format) -> ReadOptions {
    let json_fields = (format == Format::Json).then(|| CUSTOM.parse().expect("good fields"));
    ReadOptions { json_fields, ..ReadOptions::default() }
}

#[derive(Debug, PartialEq)]
struct Request {
    time_ns: Option<i64>,
    client: String,
    method: Method,
    target: String,
    status: u16,
    body: Option<u64>,
}

fn requests(name: &str, options: &ReadOptions) -> (Vec<Request>, ReadReport) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut found = Vec::new();
    let report = read(
        &sample(name),
        options,
        |record| {
            let (Client::Name(client), Key::Name(target)) = (record.client, record.target) else {
                panic!("{name}: logs have names");
            };
            let (time_ns, method, status, body) = (record.time_ns, record.method, record.status, record.body);
            found.push(Request { time_ns, client: text(client), method, target: text(target), status, body });
            ControlFlow::Continue(())
        },
        &mut |_| (),
    );
    (found, report.unwrap_or_else(|error| panic!("{name}: {error}")))
}

#[test]
fn every_format_gives_the_same_requests() {
    let (expected, _) = requests("combined.log", &ReadOptions::default());
    assert_eq!(expected.len(), 12);
    // date -u -d '2026-03-01 08:00:00' +%s
    assert_eq!(expected[0].time_ns, Some(1_772_352_000_000_000_000));
    assert_eq!((expected[6].target.as_str(), expected[6].body), ("/search?q=a&lang=en", Some(2_048)));
    for (name, format) in SAMPLES {
        let (found, report) = requests(name, &options(format));
        assert_eq!(report.format, format, "{name}");
        assert_eq!(found, expected, "{name}");
        let malformed = if name == "haproxy.log" { 2 } else { 1 };
        assert_eq!(report.malformed, malformed, "{name}: {:?}", report.first_malformed);
    }
}

#[test]
fn every_format_gives_the_same_trace() {
    let load = |name: &str, format| {
        let json_fields = options(format).json_fields;
        Trace::load(&sample(name), &LoadOptions { json_fields, ..LoadOptions::default() }).expect("loads").0
    };
    let expected = load("combined.log", Format::Clf);
    assert_eq!((expected.requests.len(), expected.size_unit), (6, SizeUnit::Bytes));
    for (name, format) in SAMPLES {
        assert_eq!(load(name, format), expected, "{name}");
    }
}

#[test]
fn a_given_format_is_not_detected() {
    let given = |name, format| {
        let options = ReadOptions { format: Some(format), ..ReadOptions::default() };
        read(&sample(name), &options, |_| ControlFlow::Continue(()), &mut |_| ())
    };
    assert_eq!(given("alb.log", Format::Alb).expect("its own format").records, 12);
    assert!(matches!(given("alb.log", Format::S3), Err(TraceError::NothingParsed { .. })));
    assert!(matches!(given("custom.json", Format::Json), Err(TraceError::JsonFields(_))));
    let both = ReadOptions { format: Some(Format::Caddy), ..options(Format::Json) };
    let error = read(&sample("caddy.json"), &both, |_| ControlFlow::Continue(()), &mut |_| ());
    assert!(matches!(error, Err(TraceError::JsonFields(_))));
}

#[test]
fn other_json_needs_fields() {
    let options = ReadOptions::default();
    let error = read(&sample("custom.json"), &options, |_| ControlFlow::Continue(()), &mut |_| ());
    let text = error.expect_err("no known format").to_string();
    for part in ["line 1 ", "(JSON)", "\\\"http\\\"", "clf, haproxy, w3c", "--format", "--json-fields"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_log_without_sizes_has_unknown_sizes() {
    let json_fields = Some("time=at,path=http.url,status=http.code".parse().expect("good fields"));
    let (trace, report) =
        Trace::load(&sample("custom.json"), &LoadOptions { json_fields, ..LoadOptions::default() })
            .expect("loads");
    // Without a method the HEAD request counts too.
    assert_eq!((trace.size_unit, report.replayable), (SizeUnit::Unknown, 7));
}
