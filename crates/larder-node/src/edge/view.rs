//! The TLS state of a node, for the admin interface and the metrics.

use crate::metric_table::{Row, Topic, definitions, describe, encode_rows, encode_text};
use larder_edge::{CertificateStatus, Metric, MetricKind, Tls, TlsHandshakeOutcome};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;
use std::fmt;

/// The possible outcomes of a handshake at a node, whose certificates all come from files.
const OUTCOMES: [TlsHandshakeOutcome; 3] =
    [TlsHandshakeOutcome::Done, TlsHandshakeOutcome::Failed, TlsHandshakeOutcome::TimedOut];

/// The TLS state of a node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TlsView {
    /// The certificates in force.
    pub certificates: Vec<CertificateStatus>,
    /// The reason why the certificates in force differ from the files, if they do.
    pub trouble: Option<String>,
    /// The node's name.
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    handshakes: [u64; OUTCOMES.len()],
}

impl TlsView {
    pub(super) fn of(tls: &Tls, name: &str) -> Self {
        let (certificates, trouble) = tls.status();
        Self {
            certificates,
            trouble,
            name: name.to_owned(),
            handshakes: OUTCOMES.map(|how| tls.handshake_count(how)),
        }
    }

    /// Returns the definitions of the metrics.
    pub(crate) fn metrics() -> Vec<Metric> {
        [HANDSHAKES, NOT_AFTER].into_iter().chain(definitions(ROWS)).collect()
    }

    /// Returns the metrics in the Prometheus text format.
    pub(crate) fn metrics_text(&self) -> String {
        encode_text(&[("node", &self.name)], self.clone())
    }
}

const TOPIC: Topic = Topic { name: "Node: TLS" };

const HANDSHAKES: Metric = TOPIC.labelled(
    MetricKind::Counter,
    "larder_node_tls_handshakes_total",
    &["outcome"],
    "TLS handshakes, by outcome (done, failed, timed_out)",
);
const NOT_AFTER: Metric = TOPIC.labelled(
    MetricKind::Gauge,
    "larder_node_tls_certificate_not_after_seconds",
    &["file"],
    "Expiry of a certificate in use, in seconds since 1970",
);
const ROWS: &[Row<TlsView>] = &[TOPIC.gauge(
    "larder_node_tls_certificates_stale",
    "1 if the certificate files are invalid and older certificates are in use, otherwise 0",
    |view| u64::from(view.trouble.is_some()),
)];

impl Collector for TlsView {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut handshakes = describe(&mut encoder, &HANDSHAKES)?;
        for (how, count) in OUTCOMES.iter().zip(self.handshakes) {
            ConstCounter::new(count).encode(handshakes.encode_family(&[("outcome", how.name())])?)?;
        }
        let mut ends = describe(&mut encoder, &NOT_AFTER)?;
        for certificate in &self.certificates {
            let labels = [("file", certificate.file.as_str())];
            ConstGauge::new(certificate.not_after).encode(ends.encode_family(&labels)?)?;
        }
        encode_rows(ROWS, self, &mut encoder)
    }
}
