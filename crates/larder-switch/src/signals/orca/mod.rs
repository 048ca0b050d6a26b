//! ORCA load reports in reply headers: `endpoint-load-metrics` and `endpoint-load-metrics-bin`.
//!
//! ```text
//! endpoint-load-metrics: TEXT cpu_utilization=0.3,mem_utilization=0.8,named_metrics.sessions=12
//! endpoint-load-metrics: JSON {"cpu_utilization":0.3,"named_metrics":{"sessions":12}}
//! endpoint-load-metrics: BIN <base64 of an xds.data.orca.v3.OrcaLoadReport>
//! endpoint-load-metrics-bin: <the same>
//! ```
//! Sources: gRPC proposals A51 (the report) and A64 (its use), `xds/data/orca/v3/orca_load_report.proto`, and the
//! formats that Envoy accepts. Older writers omit the word TEXT and separate by `:`; both are accepted. If both
//! headers are present, the binary one is used. Reports in trailers and gRPC's out-of-band service are not supported.
//!
//! | signal | from | unit |
//! |---|---|---|
//! | CPU | `cpu_utilization`, else `application_utilization` | share; above 1 counts as 1 |
//! | memory | `mem_utilization` | share |
//! | disk | `utilization.disk` | share |
//! | counters of the application | `named_metrics.<name>`, `utilization.<name>`, `application_utilization`, `rps_fractional`, `eps`, as they are | |
//!
//! In the binary format, 0 cannot be told from absent (protobuf 3): both are missing. A report is refused as a whole
//! if a value is malformed, not finite or given twice. Processes, queue, paging and service times are not part of
//! ORCA. A report describes the node at the moment of its reply. At most one report per node and period is used, the
//! first of the period, to keep the cost low.

mod binary;
mod json;
mod text;

use super::counters::{APPS, count, permille};
use super::failure::SignalFailure;
use http::header::HeaderName;
use larder_core::nodes::LoadReport;
use larder_edge::Lookup;

/// Header whose value names its format.
pub(super) const HEADER: HeaderName = HeaderName::from_static("endpoint-load-metrics");
/// Header in binary format.
pub(super) const HEADER_BIN: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Maximum size of a header value. Bytes.
const VALUE_MAX: usize = 8 << 10;
/// Maximum number of named values in a report.
const NAMED_MAX: usize = 256;

/// The used part of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct OrcaReport {
    cpu: Option<f64>,
    memory: Option<f64>,
    /// All other values by full name.
    named: Vec<(String, f64)>,
}

impl OrcaReport {
    /// Adds a field under its full name, such as `named_metrics.sessions`.
    fn put(&mut self, name: &str, value: f64) -> Result<(), SignalFailure> {
        if !value.is_finite() {
            return Err(SignalFailure::Malformed);
        }
        let slot = match name {
            "cpu_utilization" => &mut self.cpu,
            "mem_utilization" => &mut self.memory,
            _ => {
                let known = self.named.iter().any(|(other, _)| other == name);
                if known || self.named.len() >= NAMED_MAX {
                    return Err(SignalFailure::Malformed);
                }
                self.named.push((name.to_owned(), value));
                return Ok(());
            }
        };
        slot.replace(value).map_or(Ok(()), |_| Err(SignalFailure::Malformed))
    }

    fn named(&self, name: &str) -> Option<f64> {
        self.named.iter().find(|(other, _)| other == name).map(|(_, value)| *value)
    }

    /// Returns the load report. `counters` are the wanted names, with or without the prefix `named_metrics.`.
    pub(super) fn report(&self, counters: &[String]) -> LoadReport {
        let mut app = [None; APPS];
        for (slot, name) in app.iter_mut().zip(counters) {
            let value = self.named(name).or_else(|| self.named(&format!("named_metrics.{name}")));
            *slot = value.and_then(|value| count(value * 1e3));
        }
        let cpu = self.cpu.or_else(|| self.named("application_utilization"));
        LoadReport {
            cpu_permille: cpu.and_then(permille),
            memory_permille: self.memory.and_then(permille),
            disk_permille: self.named("utilization.disk").and_then(permille),
            app,
            ..LoadReport::default()
        }
    }
}

/// Whether a reply has a report.
pub(super) fn has_report(fields: &impl Lookup) -> bool {
    [HEADER, HEADER_BIN].iter().any(|name| fields.first(name.as_str()).is_some())
}

/// Parses the report of a reply.
pub(super) fn read(fields: &impl Lookup) -> Result<OrcaReport, SignalFailure> {
    match (fields.first(HEADER_BIN.as_str()), fields.first(HEADER.as_str())) {
        (Some(value), _) => read_bin(value),
        (None, Some(value)) => read_value(value),
        (None, None) => Err(SignalFailure::Malformed),
    }
}

/// Parses a value of `endpoint-load-metrics`.
pub(super) fn read_value(value: &[u8]) -> Result<OrcaReport, SignalFailure> {
    if value.len() > VALUE_MAX {
        return Err(SignalFailure::LineTooLong);
    }
    let value = std::str::from_utf8(value).map_err(|_| SignalFailure::Malformed)?.trim();
    match value.split_once(' ') {
        Some(("TEXT", text)) => text::read(text),
        Some(("JSON", json)) => json::read(json),
        Some(("BIN", base64)) => binary::read(base64.trim()),
        _ => text::read(value),
    }
}

/// Parses a value of `endpoint-load-metrics-bin`.
pub(super) fn read_bin(value: &[u8]) -> Result<OrcaReport, SignalFailure> {
    if value.len() > VALUE_MAX {
        return Err(SignalFailure::LineTooLong);
    }
    binary::read(std::str::from_utf8(value).map_err(|_| SignalFailure::Malformed)?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use proptest::prelude::*;

    /// `cpu_utilization: 0.25 mem_utilization: 0.5 utilization{disk: 0.75} named_metrics{n: 3}
    /// application_utilization: 0.8`, as protoc encodes it.
    const BIN: &str = "CQAAAAAAANA/EQAAAAAAAOA/Kg8KBGRpc2sRAAAAAAAA6D9CDAoBbhEAAAAAAAAIQEmamZmZmZnpPw==";

    fn expected() -> LoadReport {
        LoadReport {
            cpu_permille: Some(250),
            memory_permille: Some(500),
            disk_permille: Some(750),
            app: [Some(3_000), Some(800), None, None],
            ..LoadReport::default()
        }
    }

    fn report(value: &str) -> Result<LoadReport, SignalFailure> {
        let counters = ["n".to_owned(), "application_utilization".to_owned(), "other".to_owned()];
        read_value(value.as_bytes()).map(|orca| orca.report(&counters))
    }

    #[test]
    fn all_formats_agree() {
        let text = "cpu_utilization=0.25,mem_utilization=0.5, utilization.disk=0.75,named_metrics.n=3,application_utilization=0.8";
        let json = r#"{"cpu_utilization":0.25,"memUtilization":0.5,"utilization":{"disk":0.75},"named_metrics":{"n":3},
            "application_utilization":0.8,"rps":"17","unknown":{"a":[1]}}"#;
        for value in [
            format!("TEXT {text}"),
            text.to_owned(),
            text.replace('=', ":"),
            format!("JSON {json}"),
            format!("BIN {BIN}"),
            format!("BIN {}", BIN.trim_end_matches('=')),
        ] {
            assert_eq!(report(&value), Ok(expected()), "{value}");
        }
        let orca = read_bin(BIN.as_bytes()).expect("well formed");
        assert_eq!(orca.report(&["named_metrics.n".to_owned()]).app[0], Some(3_000));
    }

    #[test]
    fn the_binary_header_counts_if_both_are_there() {
        let mut headers = HeaderMap::new();
        assert!(!has_report(&headers));
        headers.insert(HEADER, "TEXT cpu_utilization=1".parse().expect("a value"));
        assert!(has_report(&headers));
        assert_eq!(read(&headers).expect("text").report(&[]).cpu_permille, Some(1_000));
        headers.insert(HEADER_BIN, BIN.parse().expect("a value"));
        assert_eq!(read(&headers).expect("binary").report(&[]).cpu_permille, Some(250));
    }

    #[test]
    fn malformed_reports_are_refused() {
        for value in [
            "",
            "TEXT",
            "TEXT cpu_utilization",
            "TEXT =1",
            "TEXT cpu_utilization=",
            "TEXT cpu_utilization=NaN",
            "TEXT cpu_utilization=inf",
            "TEXT cpu_utilization=1,cpu_utilization=1",
            "TEXT named_metrics.=1",
            "JSON {",
            "JSON []",
            "JSON {\"cpu_utilization\":\"NaN\"}",
            "JSON {\"named_metrics\":{\"\":1}}",
            "BIN !",
            "BIN CQAA",
            "GRPC 1",
        ] {
            assert_eq!(read_value(value.as_bytes()), Err(SignalFailure::Malformed), "{value}");
        }
        let long = format!("TEXT {}", "named_metrics.a=1,".repeat(1_000));
        assert_eq!(read_value(long.as_bytes()), Err(SignalFailure::LineTooLong));
        let many: String = (0..NAMED_MAX + 1).map(|n| format!("eps.{n}=1,")).collect();
        assert_eq!(read_value(many.trim_end_matches(',').as_bytes()), Err(SignalFailure::Malformed));
    }

    #[test]
    fn values_out_of_range_are_capped_or_missing() {
        let low = report("TEXT cpu_utilization=-0.1,mem_utilization=7,named_metrics.n=-1").expect("numbers");
        let expected = LoadReport { memory_permille: Some(1_000), ..LoadReport::default() };
        assert_eq!(low, expected);
        let application = report("TEXT application_utilization=0.8").expect("a number");
        assert_eq!(application.cpu_permille, Some(800), "in place of the CPU's");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(value in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_value(&value);
            let _ = read_bin(&value);
        }
    }
}
