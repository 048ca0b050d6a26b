//! What a network of peers is told at its start. [`PeersConfig::check`] names the first value out of range.

use crate::name::Name;
use crate::secret::ClusterSecrets;
use crate::seeds::Seed;
use std::net::SocketAddr;
use std::time::Duration;

/// Everything a member is told at its start.
#[derive(Clone, Debug)]
pub struct PeersConfig {
    /// Its name; no other member may have it.
    pub name: Name,
    /// Where it listens, TCP for links and UDP for membership. Port 0 takes any that is free for both.
    pub listen: SocketAddr,
    /// Where others reach it. Default `None`: at `listen`, which has to be an address then, not all of them. Port 0
    /// stands for that of `listen`.
    pub advertise: Option<SocketAddr>,
    /// Whom to ask first. None: it waits to be asked.
    pub seeds: Vec<Seed>,
    /// The secrets that the members share. [`crate::Network::set_secrets`] replaces them.
    pub secrets: ClusterSecrets,
    /// Membership.
    pub gossip: GossipConfig,
    /// Connections.
    pub links: LinksConfig,
    /// Messages.
    pub control: ControlConfig,
}

/// Membership: SWIM (Das, Gupta and Motivala, DSN 2002) with suspicion. With the defaults a member that dies is gone for
/// all others after 2.5 s to 3.5 s.
#[derive(Clone, Copy, Debug)]
pub struct GossipConfig {
    /// Between two probes of a member, chosen in turn. Default 500 ms; 20 ms to 10 s.
    pub probe_period: Duration,
    /// How long a probed member may take before others are asked to probe it. Default 150 ms; 5 ms to half of
    /// `probe_period`.
    pub probe_timeout: Duration,
    /// How long a suspected member has to object. Default 2 s; `probe_period` to 1 min.
    pub suspicion: Duration,
    /// Between two tellings of news to three members. Default 200 ms; 10 ms to 10 s.
    pub gossip_period: Duration,
    /// Between two attempts to find others, while alone: the seeds and the members lost. Default 1 s; 10 ms to 1 min.
    pub seek_alone: Duration,
    /// The same, while there are others. A partition that ends is noticed after about so long. Default 10 s; 10 ms
    /// to 1 h.
    pub seek: Duration,
    /// Between two resolutions of the seeds' names while alone. Default 10 s; 10 ms to 1 h.
    pub resolve_alone: Duration,
    /// The same, while there are others. Default 1 min; 10 ms to 1 day.
    pub resolve: Duration,
    /// How long a member that has gone is remembered, and looked for. Default 1 h; 10 s to 7 days.
    pub remember: Duration,
    /// Most members known, those remembered counted. Beyond it datagrams that name others are refused. Default 4,096;
    /// 2 to 60,000.
    pub known_max: usize,
}

/// Connections between members.
#[derive(Clone, Copy, Debug)]
pub struct LinksConfig {
    /// From the start of a connection to the end of both handshakes. Default 2 s; 10 ms to 1 min.
    pub connect_timeout: Duration,
    /// Most data connections to one member; a further one is made when the streams of the others are used up. Default
    /// 2; 1 to 16.
    pub connections_max: usize,
    /// Most requests under way on one data connection. Default 256; 1 to 4,096. Together with `window_bytes` it bounds
    /// what slow clients make this member keep: 64 MiB a connection with the defaults.
    pub streams_max: u32,
    /// Credit of one stream: what a service node sends before the client has taken any of it. Default 256 KiB; 64 KiB
    /// to 4 MiB, and no more than 2 GiB for all streams of a connection.
    pub window_bytes: u32,
    /// Most bytes of a request's or reply's head. Default 64 KiB; 4 KiB to 1 MiB.
    pub head_bytes_max: u32,
    /// Between two pings of a data connection when nothing else comes. Default 1 s; 10 ms to 1 min.
    pub ping: Duration,
    /// How long a ping may take. A connection whose other side has vanished ends after `ping` and this. Default 3 s;
    /// 10 ms to 1 min.
    pub ping_timeout: Duration,
    /// Most connections accepted at one time, of both kinds. Further ones are closed. Default 4,096; 2 to 100,000.
    pub accepted_max: u32,
    /// How long requests under way may take when this member leaves. Default 10 s; at most 1 h.
    pub drain_timeout: Duration,
}

/// Control links.
#[derive(Clone, Copy, Debug)]
pub struct ControlConfig {
    /// Most messages waiting for one member. At this limit, and at `queue_bytes_max`, the link is dropped and made
    /// anew, so that both sides start afresh. Default 8,192; 1 to 1,000,000.
    pub queue_max: usize,
    /// Most bytes of messages waiting for one member. Default 8 MiB; 64 KiB to 1 GiB.
    pub queue_bytes_max: usize,
    /// Between two signs of life where there is nothing to say. Default 1 s; 10 ms to 1 min.
    pub sign: Duration,
    /// A link on which nothing has come for so long is dropped. Default 4 s; more than `sign`, at most 10 min.
    pub silence: Duration,
    /// Before the first attempt to connect again; doubles with each failure. Default 100 ms; 1 ms to 10 s.
    pub retry_min: Duration,
    /// The longest time between two attempts. Default 2 s; `retry_min` to 1 min.
    pub retry_max: Duration,
    /// Events that may wait for the network's user. Beyond it links are not read. Default 4,096; 16 to 1,000,000.
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
            sign: Duration::from_secs(1),
            silence: Duration::from_secs(4),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(2),
            events_max: 4_096,
        }
    }
}

/// A value that is out of its range. The operator's to mend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct ConfigError {
    /// The field, as its path in [`PeersConfig`].
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl PeersConfig {
    /// A member of this name, listening here, with every default.
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

    /// Says which value is out of its range.
    ///
    /// # Errors
    /// The first one that is.
    pub fn check(&self) -> Result<(), ConfigError> {
        let reached = self.advertise.unwrap_or(self.listen).ip();
        if reached.is_unspecified() || reached.is_multicast() {
            let problem = format!("others cannot reach {reached}; say which address they should use");
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
        time("gossip.probe_period", probe_period, ms(20), ms(10_000))?;
        time("gossip.probe_timeout", probe_timeout, ms(5), probe_period / 2)?;
        time("gossip.suspicion", suspicion, probe_period, ms(60_000))?;
        time("gossip.gossip_period", self.gossip_period, ms(10), ms(10_000))?;
        time("gossip.seek_alone", self.seek_alone, ms(10), ms(60_000))?;
        time("gossip.seek", self.seek, ms(10), ms(3_600_000))?;
        time("gossip.resolve_alone", self.resolve_alone, ms(10), ms(3_600_000))?;
        time("gossip.resolve", self.resolve, ms(10), ms(86_400_000))?;
        time("gossip.remember", self.remember, ms(10_000), ms(7 * 86_400_000))?;
        number("gossip.known_max", self.known_max, 2, 60_000)
    }
}

impl LinksConfig {
    fn check(&self) -> Result<(), ConfigError> {
        time("links.connect_timeout", self.connect_timeout, ms(10), ms(60_000))?;
        number("links.connections_max", self.connections_max, 1, 16)?;
        number("links.streams_max", self.streams_max as usize, 1, 4_096)?;
        number("links.window_bytes", self.window_bytes as usize, 64 << 10, 4 << 20)?;
        let windows = u64::from(self.streams_max) * u64::from(self.window_bytes);
        if windows > u64::from(u32::MAX >> 1) {
            let problem = format!("{windows} bytes for all streams of a connection are more than 2 GiB");
            return Err(ConfigError { field: "links.window_bytes", problem });
        }
        number("links.head_bytes_max", self.head_bytes_max as usize, 4 << 10, 1 << 20)?;
        time("links.ping", self.ping, ms(10), ms(60_000))?;
        time("links.ping_timeout", self.ping_timeout, ms(10), ms(60_000))?;
        number("links.accepted_max", self.accepted_max as usize, 2, 100_000)?;
        time("links.drain_timeout", self.drain_timeout, ms(0), ms(3_600_000))
    }

    /// Credit of a connection: enough for all its streams, so that none waits for another's reader.
    pub(crate) fn connection_window_bytes(&self) -> u32 {
        self.streams_max.saturating_mul(self.window_bytes)
    }
}

impl ControlConfig {
    fn check(&self) -> Result<(), ConfigError> {
        number("control.queue_max", self.queue_max, 1, 1_000_000)?;
        number("control.queue_bytes_max", self.queue_bytes_max, 64 << 10, 1 << 30)?;
        time("control.sign", self.sign, ms(10), ms(60_000))?;
        time("control.silence", self.silence, self.sign + ms(1), ms(600_000))?;
        time("control.retry_min", self.retry_min, ms(1), ms(10_000))?;
        time("control.retry_max", self.retry_max, self.retry_min, ms(60_000))?;
        number("control.events_max", self.events_max, 16, 1_000_000)
    }

    /// Time before attempt number `attempt` (from 0) to connect again, less up to a quarter by `chance`, so that members
    /// do not knock all at once.
    pub(crate) fn retry(&self, attempt: u32, chance: u8) -> Duration {
        let full = self.retry_min.saturating_mul(1 << attempt.min(20)).min(self.retry_max);
        full - full * u32::from(chance) / (4 * 256)
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn time(field: &'static str, value: Duration, min: Duration, max: Duration) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(ConfigError { field, problem: format!("{value:?} is not between {min:?} and {max:?}") })
}

fn number(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), ConfigError> {
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
    fn defaults_are_sound_and_an_address_is_needed() {
        assert_eq!(config("127.0.0.1:0").check(), Ok(()));
        let mut everywhere = config("0.0.0.0:7900");
        assert_eq!(everywhere.check().expect_err("no address").field, "advertise");
        everywhere.advertise = Some("10.0.0.1:7900".parse().expect("an address"));
        assert_eq!(everywhere.check(), Ok(()));
    }

    #[test]
    fn each_value_out_of_range_is_named() {
        let said = |change: fn(&mut PeersConfig)| {
            let mut config = config("127.0.0.1:0");
            change(&mut config);
            config.check().expect_err("out of range").to_string()
        };
        assert!(said(|config| config.gossip.probe_timeout = ms(251)).starts_with("gossip.probe_timeout"));
        assert!(said(|config| config.gossip.suspicion = ms(499)).contains("between 500ms and 60s"));
        assert!(said(|config| config.links.streams_max = 0).starts_with("links.streams_max"));
        let windows = said(|config| (config.links.streams_max, config.links.window_bytes) = (4_096, 1 << 20));
        assert!(windows.contains("2 GiB"), "{windows}");
        assert!(said(|config| config.control.silence = ms(1_000)).starts_with("control.silence"));
    }

    #[test]
    fn attempts_become_rarer() {
        let control = ControlConfig::default();
        let waits: Vec<u128> = (0..7).map(|attempt| control.retry(attempt, 0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert!(control.retry(u32::MAX, 255) >= control.retry_max * 3 / 4);
    }
}
