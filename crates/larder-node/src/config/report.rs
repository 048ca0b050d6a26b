//! Settings of the reports for switches.

use super::range::{ConfigError, RANGES_MAX, ensure};
use larder_edge::{AddressRange, AddressRanges};
use larder_peers::ClusterSecrets;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// The reports of load and cache changes for switches.
///
/// Both paths are answered only to switches that connect directly to the node. They must prove `secret`;
/// without a secret, their address must be in `from` or a trusted relay. Every other request gets 404: on a
/// handed-off connection, on a connection that a balancer has announced, and if a gateway has relayed it (it
/// carries `Via`, `Forwarded` or `X-Forwarded-For`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportConfig {
    /// Addresses that may ask, besides the trusted relays. Default: the addresses of this host. At most 1,024.
    pub from: AddressRanges,
    /// Secrets of which a switch proves one with each request. Default `None`: addresses decide.
    pub secret: Option<ClusterSecrets>,
    /// Path of the load counters. Default `/.larder/load`; `None` disables it.
    pub load_path: Option<String>,
    /// Path of the stream of cache events. Default `/.larder/events`; `None` disables it.
    pub events_path: Option<String>,
    /// Concurrent streams of cache events; a further one gets 503. 0 to 64, default 8.
    pub subscribers_max: usize,
    /// Cache events that wait for one subscriber. A subscriber that lags further behind is cut and must start
    /// again. 16 to 1,048,576, default 16,384 (24 bytes each).
    pub backlog_max: usize,
    /// Interval between two heartbeats on an event stream. 100 ms to 1 min, default 2 s.
    pub heartbeat: Duration,
    /// The processor time that counts as the node's, if none is modelled. Default [`CpuScope::Machine`].
    pub cpu: CpuScope,
}

/// The processor time that counts as the node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuScope {
    /// The time of the machine, over all its processors: right if a node has a machine to itself.
    #[default]
    Machine,
    /// The time of the node's process, on one processor: right if several nodes share a machine.
    Process,
}

impl CpuScope {
    /// All scopes.
    pub const ALL: [Self; 2] = [Self::Machine, Self::Process];

    /// Returns the scope's name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Process => "process",
        }
    }
}

impl Default for ReportConfig {
    fn default() -> Self {
        Self {
            from: AddressRanges(loopback().into_iter().flatten().collect()),
            secret: None,
            load_path: Some("/.larder/load".to_owned()),
            events_path: Some("/.larder/events".to_owned()),
            subscribers_max: 8,
            backlog_max: 16_384,
            heartbeat: Duration::from_secs(2),
            cpu: CpuScope::default(),
        }
    }
}

impl ReportConfig {
    /// Returns whether the path is one of the reports.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.load_path.as_deref() == Some(path) || self.events_path.as_deref() == Some(path)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let paths = [(&self.load_path, "report.load_path"), (&self.events_path, "report.events_path")];
        for (path, field) in paths {
            let absolute = path.as_deref().is_none_or(|path| path.starts_with('/'));
            ensure(absolute, field, "a path that starts with '/'")?;
        }
        let differ = self.load_path.is_none() || self.load_path != self.events_path;
        ensure(differ, "report.events_path", "another path than report.load_path")?;
        ensure(self.from.0.len() <= RANGES_MAX, "report.from", "at most 1,024")?;
        ensure(self.subscribers_max <= 64, "report.subscribers_max", "0 to 64")?;
        ensure((16..=1 << 20).contains(&self.backlog_max), "report.backlog_max", "16 to 1,048,576")?;
        let beat = (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&self.heartbeat);
        ensure(beat, "report.heartbeat", "100 ms to 1 min")
    }
}

/// Returns the addresses of this host itself.
fn loopback() -> [Option<AddressRange>; 2] {
    [
        AddressRange::new(Ipv4Addr::new(127, 0, 0, 0).into(), 8),
        AddressRange::new(Ipv6Addr::LOCALHOST.into(), 128),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        assert_eq!(ReportConfig::default().check(), Ok(()));
        type Mutation = fn(&mut ReportConfig);
        let cases: [(&str, Mutation); 6] = [
            ("report.load_path", |c| c.load_path = Some("load".to_owned())),
            ("report.events_path", |c| c.events_path = Some(String::new())),
            ("report.events_path", |c| c.events_path.clone_from(&c.load_path)),
            ("report.subscribers_max", |c| c.subscribers_max = 65),
            ("report.backlog_max", |c| c.backlog_max = 0),
            ("report.heartbeat", |c| c.heartbeat = Duration::ZERO),
        ];
        for (field, mutate) in cases {
            let mut config = ReportConfig::default();
            mutate(&mut config);
            assert_eq!(config.check().map_err(|error| error.field), Err(field));
        }
    }
}
