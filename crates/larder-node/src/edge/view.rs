//! The TLS state of a node, for the admin interface and the metrics.

use larder_edge::{CertificateStatus, Tls, TlsHandshakeOutcome};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
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

    /// Returns the metrics in the Prometheus text format, with the prefix `larder_node_tls_`.
    pub(crate) fn metrics_text(&self) -> String {
        let labels = [("node".into(), self.name.clone().into())];
        let mut registry = Registry::with_prefix_and_labels("larder_node_tls", labels.into_iter());
        registry.register_collector(Box::new(self.clone()));
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

impl Collector for TlsView {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Handshakes that have ended, by how";
        let mut handshakes = encoder.encode_descriptor("handshakes", help, None, MetricType::Counter)?;
        for (how, count) in OUTCOMES.iter().zip(self.handshakes) {
            ConstCounter::new(count).encode(handshakes.encode_family(&[("outcome", how.name())])?)?;
        }
        let help = "When a certificate in force ends, seconds since 1970";
        let name = "certificate_not_after_seconds";
        let mut ends = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for certificate in &self.certificates {
            let labels = [("file", certificate.file.as_str())];
            ConstGauge::new(certificate.not_after).encode(ends.encode_family(&labels)?)?;
        }
        let help = "1 if the certificates in force are not those of the files, which make no sense";
        let stale = ConstGauge::new(u64::from(self.trouble.is_some()));
        stale.encode(encoder.encode_descriptor("certificates_stale", help, None, MetricType::Gauge)?)
    }
}
