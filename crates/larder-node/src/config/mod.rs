//! The settings of a node. Settings do not depend on the code that uses them.
//!
//! Every field has a default except the name and the store. [`NodeConfig::check`] returns the first value that
//! is out of range. [`crate::Node::new`] calls it, so a running node has a valid configuration.

mod model;
mod origin;
mod origin_tls;
mod range;
mod report;
mod store;

pub use model::{ModelConfig, Preload, ProgramConfig};
pub use origin::{ClientNoCache, Failover, HostHeader, OriginConfig, is_reserved};
pub use origin_tls::OriginTls;
pub use range::ConfigError;
pub use report::{CpuScope, ReportConfig};
pub use store::StoreConfig;

use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_edge::access::AccessLogConfig;
use larder_edge::{AddressRange, EntryRules, TlsConfig, Tokens};
use larder_http::h1::FIELDS_MAX;
use larder_spans::TracerConfig;
use range::{RANGES_MAX, ensure};
use std::time::Duration;

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The node's name in `Cache-Status`, metrics and logs. 1 to 200 printable ASCII characters.
    pub name: String,
    /// The memory cache.
    pub cache: CacheConfig,
    /// The source of contents.
    pub store: StoreConfig,
    /// Limits on clients and reads.
    pub limits: Limits,
    /// Time for which a stored file is served before its size and modification time are checked. Zero checks at
    /// every use. Default 2 s, at most 1 day. A modelled store never changes and is never checked.
    pub revalidate: Duration,
    /// Path that answers 200 `ok`, and 503 while the node drains. Default `/.larder/health`; `None` disables
    /// it.
    pub health_path: Option<String>,
    /// Path that answers [`crate::NodeStats`] as JSON, to senders that may ask for reports. Default `None`.
    pub stats_path: Option<String>,
    /// The reports for switches.
    pub report: ReportConfig,
    /// The exporter of trace spans. Default `None`: requests are not traced.
    pub traces: Option<TracerConfig>,
    /// Tokens that permit a purge. Default `None`: every purge is forbidden.
    pub purge: Option<Tokens>,
    /// The access log. Default `None`: there is none.
    pub access_log: Option<AccessLogConfig>,
    /// TLS for clients. Default `None`: there is none.
    pub tls: Option<TlsConfig>,
    /// Addresses of balancers that announce each connection's client with the PROXY protocol; none by default.
    /// At most 1,024.
    pub announcers: Vec<AddressRange>,
    /// Rules for the header fields of requests that enter. Default: no relay is trusted. At most 1,024 trusted
    /// relays.
    pub entry: EntryRules,
    /// Serving threads. Default 0: one for each core.
    pub threads: usize,
}

/// The memory cache of a node.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Replacement policy. Default Greedy-Dual-Size.
    pub kind: CacheKind,
    /// Size of the cache. Default 256 MiB; 0 stores nothing. An object is charged its length, at least 512
    /// bytes, which is about the size of its bookkeeping.
    pub bytes: Bytes,
    /// Larger objects are served but not stored. Default: no limit.
    pub object_max: Bytes,
    /// Objects above this length are read, stored and evicted in chunks of it. A multiple of 4 KiB from 4 KiB
    /// to 64 MiB. Default 1 MiB.
    pub chunk: Bytes,
}

/// The limits of a node, each with its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent client connections; a further one gets 503 and is closed. 1 to 1,000,000, default 10,000.
    pub connections_max: u32,
    /// Bytes of a request's head; 431 beyond. 8 KiB to 1 MiB, default 32 KiB.
    pub head_bytes_max: usize,
    /// Bytes of a request's path and query; 414 beyond. 16 to 64,000, default 8,192.
    pub uri_bytes_max: usize,
    /// Header fields of a request; 431 beyond. 8 to 256, default 100.
    pub headers_max: usize,
    /// Time from a head's first byte (or the connection's start) to its last byte; then the connection is
    /// closed. 1 ms to 1 h, default 10 s.
    pub head_timeout: Duration,
    /// Time that a kept-alive connection may be idle; then it is closed. 1 ms to 1 day, default 75 s.
    pub idle_timeout: Duration,
    /// Time that a client may take no bytes of a reply; then the connection is closed, or the request if it
    /// uses HTTP/2. 1 ms to 1 h, default 30 s.
    pub write_timeout: Duration,
    /// Time for replies in progress at shutdown; then they are aborted. Up to 1 h, default 30 s.
    pub drain_timeout: Duration,
    /// Reads of the store that run or wait; a request that needs a further read gets 503 with Retry-After. 1 to
    /// 1,000,000, default 4,096.
    pub reads_max: usize,
    /// Concurrent reads of a directory; the others wait. 1 to 400, default 64. A modelled disk serves one read
    /// at a time.
    pub reads_at_once: usize,
    /// Memory for replies to HTTP/2 clients: 128 KiB for each request beyond the first of its connection.
    /// Requests beyond it wait. Up to 1 TiB, default 128 MiB.
    pub http2_bytes_max: usize,
}

impl NodeConfig {
    /// Creates the default settings of a node called `name` in front of `store`.
    pub fn new(name: impl Into<String>, store: StoreConfig) -> Self {
        Self {
            name: name.into(),
            cache: CacheConfig::default(),
            store,
            limits: Limits::default(),
            revalidate: Duration::from_secs(2),
            health_path: Some("/.larder/health".to_owned()),
            stats_path: None,
            report: ReportConfig::default(),
            traces: None,
            access_log: None,
            purge: None,
            tls: None,
            announcers: Vec::new(),
            entry: EntryRules::default(),
            threads: 0,
        }
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// Returns the first value that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let printable = self.name.bytes().all(|b| (0x20..0x7F).contains(&b));
        ensure(
            (1..=200).contains(&self.name.len()) && printable,
            "name",
            "1 to 200 printable ASCII characters",
        )?;
        let chunk = self.cache.chunk.0;
        let chunk_fits = chunk.is_multiple_of(4_096) && (4_096..=64 << 20).contains(&chunk);
        ensure(chunk_fits, "cache.chunk", "a multiple of 4 KiB from 4 KiB to 64 MiB")?;
        ensure(self.revalidate <= Duration::from_secs(86_400), "revalidate", "at most 1 day")?;
        for (path, field) in [(&self.health_path, "health_path"), (&self.stats_path, "stats_path")] {
            let absolute = path.as_deref().is_none_or(|path| path.starts_with('/'));
            ensure(absolute, field, "a path that starts with '/'")?;
        }
        match &self.store {
            StoreConfig::Directory { .. } => {}
            StoreConfig::Model(model) => model.check()?,
            StoreConfig::Origin(origin) => origin.check()?,
        }
        if let Some(tls) = &self.tls {
            tls.validate()?;
        }
        ensure(self.announcers.len() <= RANGES_MAX, "proxy_protocol_from", "at most 1,024")?;
        ensure(self.entry.trusted_relays.0.len() <= RANGES_MAX, "trusted_relays", "at most 1,024")?;
        self.report.check()?;
        self.limits.check()
    }
}

impl Limits {
    fn check(&self) -> Result<(), ConfigError> {
        let hour = Duration::from_secs(3_600);
        let timeout = |value: Duration, most: Duration| value >= Duration::from_millis(1) && value <= most;
        let in_1_to_million = |n: usize| (1..=1_000_000).contains(&n);
        ensure(in_1_to_million(self.connections_max as usize), "limits.connections_max", "1 to 1,000,000")?;
        ensure((8_192..=1 << 20).contains(&self.head_bytes_max), "limits.head_bytes_max", "8 KiB to 1 MiB")?;
        ensure((16..=64_000).contains(&self.uri_bytes_max), "limits.uri_bytes_max", "16 to 64,000")?;
        ensure((8..=FIELDS_MAX).contains(&self.headers_max), "limits.headers_max", "8 to 256")?;
        ensure(timeout(self.head_timeout, hour), "limits.head_timeout", "1 ms to 1 h")?;
        ensure(timeout(self.idle_timeout, hour * 24), "limits.idle_timeout", "1 ms to 1 day")?;
        ensure(timeout(self.write_timeout, hour), "limits.write_timeout", "1 ms to 1 h")?;
        ensure(self.drain_timeout <= hour, "limits.drain_timeout", "at most 1 h")?;
        ensure(in_1_to_million(self.reads_max), "limits.reads_max", "1 to 1,000,000")?;
        ensure(self.http2_bytes_max <= 1 << 40, "limits.http2_bytes_max", "at most 1 TiB")?;
        ensure((1..=400).contains(&self.reads_at_once), "limits.reads_at_once", "1 to 400")
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            kind: CacheKind::Gds,
            bytes: Bytes::mib(256),
            object_max: Bytes(u64::MAX),
            chunk: Bytes::mib(1),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            head_bytes_max: 32 << 10,
            uri_bytes_max: 8_192,
            headers_max: 100,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            write_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(30),
            reads_max: 4_096,
            reads_at_once: 64,
            http2_bytes_max: 128 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::cost::DiskModel;

    fn config() -> NodeConfig {
        NodeConfig::new("a", StoreConfig::Directory { root: "/".into(), bypass_page_cache: false })
    }

    #[test]
    fn the_defaults_are_in_range() {
        assert_eq!(config().check(), Ok(()));
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Mutation = fn(&mut NodeConfig);
        let cases: [(&str, Mutation); 6] = [
            ("name", |c| c.name = "line\nbreak".to_owned()),
            ("cache.chunk", |c| c.cache.chunk = Bytes(5_000)),
            ("health_path", |c| c.health_path = Some("health".to_owned())),
            ("limits.connections_max", |c| c.limits.connections_max = 0),
            ("limits.head_timeout", |c| c.limits.head_timeout = Duration::ZERO),
            ("disk.speed", |c| {
                let disk = DiskModel { speed: f64::NAN, ..DiskModel::default() };
                c.store = StoreConfig::Model(ModelConfig { disk, ..ModelConfig::new("m") });
            }),
        ];
        for (field, mutate) in cases {
            let mut config = config();
            mutate(&mut config);
            assert_eq!(config.check().map_err(|error| error.field), Err(field));
        }
    }
}
