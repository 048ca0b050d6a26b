//! Configuration of the network between peers.

use crate::name::Name;
use crate::secret::ClusterSecrets;
use crate::seeds::Seed;
use std::net::SocketAddr;
use std::time::Duration;

/// Configuration of a member.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// The member's name, unique in the cluster.
    pub name: Name,
    /// Listen address: TCP for links, UDP for membership. Port 0 picks a port that is free for both.
    pub listen: SocketAddr,
    /// Address under which other members reach this one. Default `None`: `listen`, which must then be a specific address.
    /// Port 0 means the port of `listen`.
    pub advertise: Option<SocketAddr>,
    /// Addresses at which to look for members. If empty, the member waits until others find it.
    pub seeds: Vec<Seed>,
    /// The secrets that the members share. [`crate::Network::set_secrets`] replaces them.
    pub secrets: ClusterSecrets,
    /// Membership.
    pub gossip: GossipConfig,
    /// Links.
    pub links: LinksConfig,
    /// Control links.
    pub control: ControlConfig,
}

/// Membership: SWIM (Das, Gupta and Motivala, DSN 2002) with suspicion. With the defaults, a member that crashes is
/// declared down after 2.5 s to 3.5 s.
#[derive(Clone, Copy, Debug)]
pub struct GossipConfig {
    /// Period of probes. Each probes one member, in turn. Default 500 ms; 20 ms to 10 s.
    pub probe_period: Duration,
    /// Time to wait for the reply to a probe before other members are asked to probe. Default 150 ms; 5 ms to half of
    /// `probe_period`.
    pub probe_timeout: Duration,
    /// Time that a suspected member has to refute the suspicion. Default 2 s; `probe_period` to 1 min.
    pub suspicion: Duration,
    /// Period of sending updates to three members. Default 200 ms; 10 ms to 10 s.
    pub gossip_period: Duration,
    /// Period of looking for seeds and lost members while no other member is known. Default 1 s; 10 ms to 1 min.
    pub seek_alone: Duration,
    /// The same period while other members are known. It bounds the time to detect that a partition has healed. Default
    /// 10 s; 10 ms to 1 h.
    pub seek: Duration,
    /// Period of resolving the seeds' names while no other member is known. Default 10 s; 10 ms to 1 h.
    pub resolve_alone: Duration,
    /// The same period while other members are known. Default 1 min; 10 ms to 1 day.
    pub resolve: Duration,
    /// Time for which a member that has left is remembered and looked for. Default 1 h; 10 s to 7 days.
    pub remember: Duration,
    /// Maximum number of members, including remembered ones. At the limit, datagrams that name further members are dropped.
    /// Default 4,096; 2 to 60,000.
    pub known_max: usize,
}

/// Links between members.
#[derive(Clone, Copy, Debug)]
pub struct LinksConfig {
    /// Time limit for the TCP connection and both handshakes together. Default 2 s; 10 ms to 1 min.
    pub connect_timeout: Duration,
    /// Maximum data connections to one member. A further one is opened when all streams of the others are in use. Default
    /// 2; 1 to 16.
    pub connections_max: usize,
    /// Maximum requests in flight on one data connection. Default 256; 1 to 4,096. Together with `window_bytes` it bounds the
    /// memory that slow clients cost: 64 MiB for each connection with the defaults.
    pub streams_max: u32,
    /// Flow-control window of a stream: bytes that a service node may send before the client reads. Default 256 KiB; 64 KiB
    /// to 4 MiB, and at most 2 GiB for all streams of a connection.
    pub window_bytes: u32,
    /// Maximum size of a request's or reply's head. Default 64 KiB; 4 KiB to 1 MiB.
    pub head_bytes_max: u32,
    /// Period of pings on a data connection that receives nothing else. Default 1 s; 10 ms to 1 min.
    pub ping: Duration,
    /// Time limit for the reply to a ping. A connection to a dead peer is closed after `ping` plus this time. Default 3 s;
    /// 10 ms to 1 min.
    pub ping_timeout: Duration,
    /// Maximum incoming connections of both kinds. Further ones are closed. Default 4,096; 2 to 100,000.
    pub accepted_max: u32,
    /// Time that requests in flight may take when this member leaves. Default 10 s; at most 1 h.
    pub drain_timeout: Duration,
}

/// Control links.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    /// Maximum messages queued for one member. At this limit, or at `queue_bytes_max`, the link is closed and reconnected, so
    /// that both sides send their state again. Default 8,192; 1 to 1,000,000.
    pub queue_max: usize,
    /// Maximum bytes of messages queued for one member. Default 8 MiB; 64 KiB to 1 GiB.
    pub queue_bytes_max: usize,
    /// Period of keepalives on an idle link. Default 1 s; 10 ms to 1 min.
    pub keepalive_interval: Duration,
    /// A link that receives nothing for this time is closed. Default 4 s; more than `keepalive_interval`, at most 10 min.
    pub idle_timeout: Duration,
    /// Delay before the first reconnection; doubles with each failure. Default 100 ms; 1 ms to 10 s.
    pub retry_min: Duration,
    /// Maximum delay between two attempts. Default 2 s; `retry_min` to 1 min.
    pub retry_max: Duration,
    /// Maximum events that wait for the caller. At the limit, links are not read. Default 4,096; 16 to 1,000,000.
    pub events_max: usize,
}

impl Default for GossipConfig {
    fn default() -> Self {
        Self {
            probe_period: Duration::from_millis(500),
            probe_timeout: Duration::from_millis(150),
            suspicion: Duration::from_secs(2),
            gossip_period: Duration::from_millis(200),
            seek_alone: Duration::from_secs(1),
            seek: Duration::from_secs(10),
            resolve_alone: Duration::from_secs(10),
            resolve: Duration::from_secs(60),
            remember: Duration::from_secs(3_600),
            known_max: 4_096,
        }
    }
}

impl Default for LinksConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            connections_max: 2,
            streams_max: 256,
            window_bytes: 256 << 10,
            head_bytes_max: 64 << 10,
            ping: Duration::from_secs(1),
            ping_timeout: Duration::from_secs(3),
            accepted_max: 4_096,
            drain_timeout: Duration::from_secs(10),
        }
    }
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            queue_max: 8_192,
            queue_bytes_max: 8 << 20,
            keepalive_interval: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(4),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(2),
            events_max: 4_096,
        }
    }
}

/// A value of the configuration is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// Path of the field in [`PeersConfig`].
    pub field: &'static str,
    /// The problem.
    pub problem: String,
}

impl PeersConfig {
    /// A configuration with defaults for all other fields.
    pub fn new(name: Name, listen: SocketAddr, secrets: impl Into<ClusterSecrets>) -> Self {
        Self {
            name,
            listen,
            advertise: None,
            seeds: Vec::new(),
            secrets: secrets.into(),
            gossip: GossipConfig::default(),
            links: LinksConfig::default(),
            control: ControlConfig::default(),
        }
    }

    /// Checks all values.
    ///
    /// # Errors
    /// Names the first value that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let ip = self.advertise.unwrap_or(self.listen).ip();
        if ip.is_unspecified() || ip.is_multicast() {
            let problem =
                format!("other members cannot connect to {ip}; set the address that they should use");
            return Err(ConfigError { field: "advertise", problem });
        }
        self.gossip.check()?;
        self.links.check()?;
        self.control.check()
    }
}

impl GossipConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let GossipConfig { probe_period, probe_timeout, suspicion, .. } = *self;
        check_duration("gossip.probe_period", probe_period, ms(20), ms(10_000))?;
        check_duration("gossip.probe_timeout", probe_timeout, ms(5), probe_period / 2)?;
        check_duration("gossip.suspicion", suspicion, probe_period, ms(60_000))?;
        check_duration("gossip.gossip_period", self.gossip_period, ms(10), ms(10_000))?;
        check_duration("gossip.seek_alone", self.seek_alone, ms(10), ms(60_000))?;
        check_duration("gossip.seek", self.seek, ms(10), ms(3_600_000))?;
        check_duration("gossip.resolve_alone", self.resolve_alone, ms(10), ms(3_600_000))?;
        check_duration("gossip.resolve", self.resolve, ms(10), ms(86_400_000))?;
        check_duration("gossip.remember", self.remember, ms(10_000), ms(7 * 86_400_000))?;
        check_number("gossip.known_max", self.known_max, 2, 60_000)
    }
}

impl LinksConfig {
    fn check(&self) -> Result<(), ConfigError> {
        check_duration("links.connect_timeout", self.connect_timeout, ms(10), ms(60_000))?;
        check_number("links.connections_max", self.connections_max, 1, 16)?;
        check_number("links.streams_max", self.streams_max as usize, 1, 4_096)?;
        check_number("links.window_bytes", self.window_bytes as usize, 64 << 10, 4 << 20)?;
        let windows = u64::from(self.streams_max) * u64::from(self.window_bytes);
        if windows > u64::from(u32::MAX >> 1) {
            let problem = format!("{windows} bytes for all streams of a connection are more than 2 GiB");
            return Err(ConfigError { field: "links.window_bytes", problem });
        }
        check_number("links.head_bytes_max", self.head_bytes_max as usize, 4 << 10, 1 << 20)?;
        check_duration("links.ping", self.ping, ms(10), ms(60_000))?;
        check_duration("links.ping_timeout", self.ping_timeout, ms(10), ms(60_000))?;
        check_number("links.accepted_max", self.accepted_max as usize, 2, 100_000)?;
        check_duration("links.drain_timeout", self.drain_timeout, ms(0), ms(3_600_000))
    }

    /// Flow-control window of a connection: the sum of its streams' windows, so that no stream blocks another.
    pub(crate) fn connection_window_bytes(&self) -> u32 {
        self.streams_max.saturating_mul(self.window_bytes)
    }
}

impl ControlConfig {
    fn check(&self) -> Result<(), ConfigError> {
        check_number("control.queue_max", self.queue_max, 1, 1_000_000)?;
        check_number("control.queue_bytes_max", self.queue_bytes_max, 64 << 10, 1 << 30)?;
        check_duration("control.keepalive_interval", self.keepalive_interval, ms(10), ms(60_000))?;
        check_duration(
            "control.idle_timeout",
            self.idle_timeout,
            self.keepalive_interval + ms(1),
            ms(600_000),
        )?;
        check_duration("control.retry_min", self.retry_min, ms(1), ms(10_000))?;
        check_duration("control.retry_max", self.retry_max, self.retry_min, ms(60_000))?;
        check_number("control.events_max", self.events_max, 16, 1_000_000)
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn check_duration(
    field: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError { field, problem: format!("{value:?} is not between {min:?} and {max:?}") })
}

fn check_number(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError { field, problem: format!("{value} is not between {min} and {max}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::ClusterSecret;

    fn config(listen: &str) -> PeersConfig {
        let name = "a".parse().expect("a name");
        PeersConfig::new(name, listen.parse().expect("an address"), ClusterSecret::new([1; 32]))
    }

    #[test]
    fn defaults_are_valid_and_a_specific_address_is_needed() {
        assert_eq!(config("127.0.0.1:0").check(), Ok(()));
        let mut everywhere = config("0.0.0.0:7900");
        assert_eq!(everywhere.check().expect_err("no address").field, "advertise");
        everywhere.advertise = Some("10.0.0.1:7900".parse().expect("an address"));
        assert_eq!(everywhere.check(), Ok(()));
    }

    #[test]
    fn each_value_out_of_range_is_named() {
        let error = |change: fn(&mut PeersConfig)| {
            let mut config = config("127.0.0.1:0");
            change(&mut config);
            config.check().expect_err("out of range").to_string()
        };
        assert!(error(|config| config.gossip.probe_timeout = ms(251)).starts_with("gossip.probe_timeout"));
        assert!(error(|config| config.gossip.suspicion = ms(499)).contains("between 500ms and 60s"));
        assert!(error(|config| config.links.streams_max = 0).starts_with("links.streams_max"));
        let windows =
            error(|config| (config.links.streams_max, config.links.window_bytes) = (4_096, 1 << 20));
        assert!(windows.contains("2 GiB"), "{windows}");
        assert!(error(|config| config.control.idle_timeout = ms(1_000)).starts_with("control.idle_timeout"));
    }
}
