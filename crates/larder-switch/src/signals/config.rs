//! Configuration of signals from nodes.

use super::counters::APPS;
use crate::config_error::{ConfigError, range, span};
use core::fmt;
use core::str::FromStr;
use larder_peers::ClusterSecrets;
use std::time::Duration;

/// Source of load reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SignalSource {
    /// No source: policies that use reports work without them.
    Off,
    /// Larder nodes: `GET /.larder/load` at the node's own address.
    Larder,
    /// Prometheus' node_exporter beside each node: `GET :9100/metrics` at the node's host.
    NodeExporter,
    /// ORCA headers of the nodes' replies.
    Orca,
}

impl SignalSource {
    /// Every source.
    pub const ALL: [Self; 4] = [Self::Off, Self::Larder, Self::NodeExporter, Self::Orca];

    /// Returns the name used in the config.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Larder => "larder",
            Self::NodeExporter => "node-exporter",
            Self::Orca => "orca",
        }
    }
}

impl fmt::Display for SignalSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: the name is not a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown signal source '{0}': use off, larder, node-exporter or orca")]
pub struct UnknownSource(String);

impl FromStr for SignalSource {
    type Err = UnknownSource;

    fn from_str(name: &str) -> Result<Self, UnknownSource> {
        let found = Self::ALL.into_iter().find(|source| source.name() == name);
        found.ok_or_else(|| UnknownSource(name.chars().take(40).collect()))
    }
}

/// Configuration of signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalsConfig {
    /// Source of load reports. Default `None`: [`SignalSource::Larder`] if a policy in use needs reports, otherwise
    /// [`SignalSource::Off`].
    pub source: Option<SignalSource>,
    /// Secrets of the cluster; a larder node gets the proof of the first. Default `None`: nodes check addresses.
    pub secret: Option<ClusterSecrets>,
    /// Time between two reports of a node. 10 ms to 1 h; default 200 ms, as in HACC (section 5.1). The first poll is
    /// at a random moment of the first period (at most 1 s), so that nodes are not polled in step.
    pub period: Duration,
    /// Timeout of a poll, from its start to the last byte. 1 ms to 1 min; default 1 s. Outcome: no report, `timeout`.
    pub timeout: Duration,
    /// Age at which a node's last report counts as missing. 10 ms to 24 h, and at least the period; default 2 s.
    /// Outcome: the node has no report until the next one, which is logged.
    pub missing_after: Duration,
    /// Path and query of the page. Default `None`: the source's own, `/.larder/load`, or `/metrics` with the
    /// collectors needed. Not for ORCA.
    pub path: Option<String>,
    /// Port of the page at each node's host. Default `None`: the node's own, or 9100 for node_exporter. Not for ORCA.
    pub port: Option<u16>,
    /// Names of up to 4 application counters, which become the signals `app1` to `app4`. The documentation of each
    /// source says what a name means.
    pub counters: Vec<String>,
    /// For node_exporter: names of up to 64 disks that count, such as `sda`. Default: all disks that have ever
    /// worked.
    pub disks: Vec<String>,
    /// Maximum size of a page. Bytes; 1 KiB to 64 MiB; default 4 MiB. Outcome: no report, `body_too_large`.
    pub body_max: usize,
    /// Cache signals.
    pub cache: CacheSignalsConfig,
}

/// Configuration of cache signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSignalsConfig {
    /// Whether the nodes' event streams are followed. Default `None`: only if a policy in use mirrors caches.
    /// `Cache-Status` of replies is used for nodes without a stream.
    pub follow: Option<bool>,
    /// Path of the stream at the node's own address. Default `/.larder/events`.
    pub path: String,
    /// Silence after which a stream counts as dead. 200 ms to 1 h; default 10 s, five heartbeats of a larder node.
    pub silence: Duration,
    /// Longest pause between two connection attempts. The pause starts at 100 ms and doubles. 100 ms to 1 h; default
    /// 5 s.
    pub retry_max: Duration,
    /// Number of tracked targets per node, which a new snapshot is compared with. 1 to 100,000,000; default 1,048,576
    /// (about 20 bytes each, twice that during a snapshot). Outcome beyond: changes are passed on, but a target that
    /// left while the stream was down is not noticed, `untracked`.
    pub targets_max: usize,
}

impl Default for SignalsConfig {
    fn default() -> Self {
        Self {
            source: None,
            secret: None,
            period: Duration::from_millis(200),
            timeout: Duration::from_secs(1),
            missing_after: Duration::from_secs(2),
            path: None,
            port: None,
            counters: Vec::new(),
            disks: Vec::new(),
            body_max: 4 << 20,
            cache: CacheSignalsConfig::default(),
        }
    }
}

impl Default for CacheSignalsConfig {
    fn default() -> Self {
        Self {
            follow: None,
            path: "/.larder/events".to_owned(),
            silence: Duration::from_secs(10),
            retry_max: Duration::from_secs(5),
            targets_max: 1 << 20,
        }
    }
}

impl SignalsConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        span("signals.period", self.period, 10, 3_600_000)?;
        span("signals.timeout", self.timeout, 1, 60_000)?;
        let period_ms = u64::try_from(self.period.as_millis()).unwrap_or(u64::MAX);
        span("signals.missing_after", self.missing_after, period_ms.max(10), 86_400_000)?;
        if let Some(page) = &self.path {
            path("signals.path", page)?;
        }
        range("signals.port", self.port.map_or(1, usize::from), 1, 65_535)?;
        names("signals.counters", &self.counters, APPS)?;
        names("signals.disks", &self.disks, 64)?;
        range("signals.body_max", self.body_max, 1 << 10, 64 << 20)?;
        path("signals.cache.path", &self.cache.path)?;
        span("signals.cache.silence", self.cache.silence, 200, 3_600_000)?;
        span("signals.cache.retry_max", self.cache.retry_max, 100, 3_600_000)?;
        range("signals.cache.targets_max", self.cache.targets_max, 1, 100_000_000)
    }
}

fn path(name: &'static str, path: &str) -> Result<(), ConfigError> {
    let readable = path.starts_with('/') && path.parse::<http::uri::PathAndQuery>().is_ok();
    let plain = path.bytes().all(|byte| byte > b' ' && byte < 127);
    if readable && plain { Ok(()) } else { Err(ConfigError::Path(name, path.chars().take(80).collect())) }
}

fn names(name: &'static str, names: &[String], most: usize) -> Result<(), ConfigError> {
    range(name, names.len(), 0, most)?;
    let good = |text: &String| {
        (1..=200).contains(&text.len()) && text.bytes().all(|byte| byte > b' ' && byte != 127)
    };
    match names.iter().find(|text| !good(text)) {
        Some(text) => Err(ConfigError::Name(name, text.chars().take(80).collect())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_each_fault_is_named() {
        assert_eq!(SignalsConfig::default().validate(), Ok(()));
        type Mutation = fn(&mut SignalsConfig);
        let cases: [(&str, Mutation); 12] = [
            ("signals.period", |c| c.period = Duration::from_millis(9)),
            ("signals.timeout", |c| c.timeout = Duration::ZERO),
            ("signals.missing_after", |c| c.missing_after = Duration::from_millis(199)),
            ("signals.path", |c| c.path = Some("metrics".to_owned())),
            ("signals.path", |c| c.path = Some("/a b".to_owned())),
            ("signals.port", |c| c.port = Some(0)),
            ("signals.counters", |c| c.counters = vec!["a".to_owned(); 5]),
            ("signals.counters", |c| c.counters = vec![String::new()]),
            ("signals.disks", |c| c.disks = vec!["s da".to_owned()]),
            ("signals.body_max", |c| c.body_max = 0),
            ("signals.cache.path", |c| c.cache.path = String::new()),
            ("signals.cache.silence", |c| c.cache.silence = Duration::from_secs(7_200)),
        ];
        for (name, mutate) in cases {
            let mut config = SignalsConfig::default();
            mutate(&mut config);
            let error = config.validate().expect_err(name).to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn source_names_round_trip() {
        for source in SignalSource::ALL {
            assert_eq!(source.name().parse(), Ok(source));
        }
        let error = "snmp".parse::<SignalSource>().expect_err("no such source").to_string();
        assert!(error.contains("snmp") && error.contains("node-exporter"), "{error}");
    }
}
