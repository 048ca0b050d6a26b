//! Settings of an HTTP origin.

use super::origin_tls::OriginTls;
use super::range::{ConfigError, ensure};
use crate::http::fields::CONDITIONS;
use crate::http::hop::HOP_BY_HOP;
use crate::signing::{SIGNATURE, SigningKeys};
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode, Uri};
use larder_http::h1::FIELDS_MAX;
use std::time::Duration;

/// Most backup origins.
const BACKUPS_MAX: usize = 16;

/// An HTTP origin behind a node.
#[derive(Clone, Debug)]
pub struct OriginConfig {
    /// The origin's address: `http://host`, `https://host`, or either with a port, without a path.
    pub url: Uri,
    /// TLS to the origin; set if and only if the URL says `https`.
    pub tls: Option<OriginTls>,
    /// Backup origins with the same contents. Default `None`. Stored replies are named by the first origin.
    pub failover: Option<Failover>,
    /// The `Host` that the origin is sent.
    pub host: HostHeader,
    /// Header fields that each request to the origin has. They replace those of clients. Fields of
    /// [`is_reserved`] are not allowed.
    pub fields: HeaderMap,
    /// Keys that sign requests to the origin; a client's signature is replaced. Not together with a field
    /// `Authorization`, and only with the origin's own `Host`. Default `None`.
    pub sign: Option<SigningKeys>,
    /// Time to connect; 504 beyond. 1 ms to 1 h, default 5 s.
    pub connect_timeout: Duration,
    /// Time from a request to the head of the reply; 504 beyond. 1 ms to 1 h, default 60 s.
    pub head_timeout: Duration,
    /// Time without a byte of a reply's body; then the reply is aborted. It also limits the time in which the
    /// origin takes no byte of a request; 504 beyond. 1 ms to 1 h, default 60 s.
    pub body_timeout: Duration,
    /// Time without a byte of a request's body from its client; 408 beyond. 1 ms to 1 h, default 60 s.
    pub request_body_timeout: Duration,
    /// Minimum rate in bytes per second, over the time that each side may be silent. It applies to a client
    /// that sends a request's body, and to the origin that takes it and sends a reply. The outcomes are those
    /// of silence. Up to 1 GiB, default 500; 0: any rate.
    pub body_rate_min: u64,
    /// Time that a reply to one client may be slower than `body_rate_min`, such as a stream of events; then the
    /// reply is aborted. `body_timeout` to 1 day, default 1 h.
    pub stream_timeout: Duration,
    /// Concurrent requests to the origin: its slots. 1 to 1,000,000, default 1,024.
    pub requests_max: usize,
    /// Percentage of the slots that one client may hold, at least one slot. Further requests of the client
    /// wait; 429 if the wait is too long. 1 to 100, default 10; 100: no share.
    pub client_share: u8,
    /// Length of the IPv4 prefix that counts as one client, in bits. 8 to 32, default 32.
    pub prefix_v4: u8,
    /// Length of the IPv6 prefix that counts as one client, in bits. 16 to 128, default 64.
    pub prefix_v6: u8,
    /// Requests that wait for a slot; the client's share applies to them too. Beyond it 503, or 429 if slots
    /// are free. Up to 1,000,000, default 1,024.
    pub queue_max: usize,
    /// Time that a request waits for a slot; then the outcomes of `queue_max` apply. 1 ms to 1 h, default 1 s.
    pub queue_timeout: Duration,
    /// WebSocket connections through the node; 503 beyond, or 429 for a client beyond its share of them. Up to
    /// 1,000,000, default 8,000; 0: none, and `Upgrade` is removed.
    pub tunnels_max: usize,
    /// Time without a byte on a WebSocket connection; then it is closed. 1 ms to 7 days, default 1 h.
    pub tunnel_idle_timeout: Duration,
    /// Whether clients can force a request to the origin although a fresh reply is stored. Default
    /// [`ClientNoCache::Honour`].
    pub client_no_cache: ClientNoCache,
    /// Idle connections to the origin that are kept. Up to 10,000, default 128.
    pub idle_max: usize,
    /// Time for which an idle connection is kept. 1 ms to 1 day, default 30 s.
    pub idle_timeout: Duration,
    /// Bytes of a reply's head; 502 beyond. 8 KiB to 1 MiB, default 64 KiB.
    pub head_bytes_max: usize,
    /// Header fields of a reply; 502 beyond. 8 to 256, default 200.
    pub headers_max: usize,
    /// Whether a range that missed triggers a fetch of the whole target, so that the next range is a hit.
    /// Default true.
    pub range_fill: bool,
    /// Stored variants of one target, for different request headers (`Vary`); the oldest is dropped beyond. 1
    /// to 64, default 8.
    pub variants_max: usize,
    /// Lifetime of replies 404 and 410 that state none. Up to 1 day, default zero: they are not stored.
    pub negative: Duration,
    /// Time that a stale reply may be used if the origin fails and the reply states no time (`stale-if-error`,
    /// RFC 5861 section 4). Up to 30 days, default zero.
    pub stale_if_error: Duration,
}

/// Backup origins, and the rules for using them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// The URLs of the backups, in order, in the form of the first origin's URL. At most 16.
    pub urls: Vec<Uri>,
    /// Statuses that count as a failure of the origin. None by default.
    pub statuses: Vec<StatusCode>,
    /// Time for which a failed origin is not used; it doubles with each further failure. 1 ms to 1 h, default 1
    /// s.
    pub pause: Duration,
    /// The longest such time. `pause` to 1 day, default 1 min.
    pub pause_max: Duration,
}

impl Failover {
    /// Creates the default settings for these backups.
    pub fn new(urls: Vec<Uri>) -> Self {
        Self { urls, statuses: Vec::new(), pause: Duration::from_secs(1), pause_max: Duration::from_secs(60) }
    }
}

/// The `Host` header that an origin is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostHeader {
    /// The client's. Replies for different hosts are then stored separately.
    Client,
    /// The origin's own, from its URL.
    Origin,
}

/// Returns whether a field may not be one of [`OriginConfig::fields`]. Such a field belongs to one connection
/// or one message, or selects a part of a reply, which depends on the stored reply.
pub fn is_reserved(name: &HeaderName) -> bool {
    const MESSAGE_FIELDS: [HeaderName; 5] =
        [header::HOST, header::CONTENT_LENGTH, header::EXPECT, header::VIA, header::MAX_FORWARDS];
    [&HOP_BY_HOP[..], &CONDITIONS, &MESSAGE_FIELDS].concat().contains(name)
}

/// Effect of a client's `no-cache`, `no-store`, `max-age`, `min-fresh` and `Pragma` on the use of stored
/// replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientNoCache {
    /// The directives count (RFC 9111 section 5.2.1).
    Honour,
    /// The directives are ignored, as that section allows. No client can force a request to the origin while a
    /// fresh reply is stored.
    Ignore,
}

impl OriginConfig {
    /// Creates the default settings for the origin at `url`.
    pub fn new(url: Uri) -> Self {
        Self {
            url,
            tls: None,
            failover: None,
            host: HostHeader::Client,
            fields: HeaderMap::new(),
            sign: None,
            connect_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
            request_body_timeout: Duration::from_secs(60),
            body_rate_min: 500,
            stream_timeout: Duration::from_secs(3_600),
            requests_max: 1_024,
            client_share: 10,
            prefix_v4: 32,
            prefix_v6: 64,
            queue_max: 1_024,
            queue_timeout: Duration::from_secs(1),
            tunnels_max: 8_000,
            tunnel_idle_timeout: Duration::from_secs(3_600),
            client_no_cache: ClientNoCache::Honour,
            idle_max: 128,
            idle_timeout: Duration::from_secs(30),
            head_bytes_max: 64 << 10,
            headers_max: 200,
            range_fill: true,
            variants_max: 8,
            negative: Duration::ZERO,
            stale_if_error: Duration::ZERO,
        }
    }

    /// Checks that every value is in its range.
    ///
    /// # Errors
    /// Returns the first value that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(86_400));
        let timeout = |value: Duration, most: Duration| value >= Duration::from_millis(1) && value <= most;
        let url = &self.url;
        let scheme = matches!(url.scheme_str(), Some("http" | "https"));
        let plain = is_plain(url);
        ensure(
            scheme && plain,
            "origin.url",
            "\"http://host:port\" or \"https://host:port\", without a path",
        )?;
        self.check_tls()?;
        self.check_failover()?;
        ensure(timeout(self.connect_timeout, hour), "origin.connect_timeout", "1 ms to 1 h")?;
        ensure(timeout(self.head_timeout, hour), "origin.head_timeout", "1 ms to 1 h")?;
        ensure(timeout(self.body_timeout, hour), "origin.body_timeout", "1 ms to 1 h")?;
        ensure(timeout(self.request_body_timeout, hour), "origin.request_body_timeout", "1 ms to 1 h")?;
        ensure(self.body_rate_min <= 1 << 30, "origin.body_rate_min", "at most 1 GiB")?;
        let stream = self.body_timeout..=day;
        ensure(stream.contains(&self.stream_timeout), "origin.stream_timeout", "body_timeout to 1 day")?;
        ensure(!self.fields.keys().any(is_reserved), "origin.headers", "fields that a request may be given")?;
        let twice = self.sign.is_some() && SIGNATURE.iter().any(|name| self.fields.contains_key(name));
        ensure(!twice, "origin.headers", "not the fields of a signature, which origin.sign makes")?;
        // An S3 store finds the bucket by `Host`.
        ensure(
            self.sign.is_none() || self.host == HostHeader::Origin,
            "origin.sign",
            "host = \"origin\" beside it: clients must not choose the host of signed requests",
        )?;
        self.check_sharing()?;
        ensure(self.idle_max <= 10_000, "origin.idle_max", "at most 10,000")?;
        ensure(timeout(self.idle_timeout, day), "origin.idle_timeout", "1 ms to 1 day")?;
        ensure((8_192..=1 << 20).contains(&self.head_bytes_max), "origin.head_bytes_max", "8 KiB to 1 MiB")?;
        ensure((8..=FIELDS_MAX).contains(&self.headers_max), "origin.headers_max", "8 to 256")?;
        ensure((1..=64).contains(&self.variants_max), "origin.variants_max", "1 to 64")?;
        ensure(self.negative <= day, "origin.negative", "at most 1 day")?;
        ensure(self.stale_if_error <= day * 30, "origin.stale_if_error", "at most 30 days")
    }

    fn check_tls(&self) -> Result<(), ConfigError> {
        let https = self.url.scheme_str() == Some("https");
        ensure(self.tls.is_some() == https, "origin.tls", "TLS if and only if the url is https://")?;
        let Some(tls) = &self.tls else { return Ok(()) };
        let deadline = Duration::from_millis(1)..=Duration::from_secs(3_600);
        ensure(deadline.contains(&tls.handshake_timeout), "origin.tls.handshake_timeout", "1 ms to 1 h")?;
        // Connections of HTTP/2 are pooled by the origin's name, which their requests then have.
        ensure(
            !tls.http2 || self.host == HostHeader::Origin,
            "origin.tls.http2",
            "false, or host = \"origin\" beside it: HTTP/2 to an origin is for the host in its url",
        )
    }

    fn check_failover(&self) -> Result<(), ConfigError> {
        let Some(failover) = &self.failover else { return Ok(()) };
        let is_compatible = |url: &Uri| is_plain(url) && url.scheme() == self.url.scheme();
        let urls = &failover.urls;
        ensure(
            (1..=BACKUPS_MAX).contains(&urls.len()) && urls.iter().all(is_compatible),
            "origin.failover.urls",
            "1 to 16 URLs with the scheme of the origin's, without a path",
        )?;
        let errors = failover.statuses.iter().all(StatusCode::is_server_error);
        ensure(errors, "origin.failover.statuses", "statuses 500 to 599")?;
        let pause = Duration::from_millis(1)..=Duration::from_secs(3_600);
        ensure(pause.contains(&failover.pause), "origin.failover.pause", "1 ms to 1 h")?;
        let longest = failover.pause..=Duration::from_secs(86_400);
        ensure(longest.contains(&failover.pause_max), "origin.failover.pause_max", "pause to 1 day")
    }

    fn check_sharing(&self) -> Result<(), ConfigError> {
        ensure((1..=1_000_000).contains(&self.requests_max), "origin.requests_max", "1 to 1,000,000")?;
        ensure((1..=100).contains(&self.client_share), "origin.client_share", "1 to 100 percent")?;
        ensure((8..=32).contains(&self.prefix_v4), "origin.prefix_v4", "8 to 32")?;
        ensure((16..=128).contains(&self.prefix_v6), "origin.prefix_v6", "16 to 128")?;
        ensure(self.queue_max <= 1_000_000, "origin.queue_max", "at most 1,000,000")?;
        let wait = Duration::from_millis(1)..=Duration::from_secs(3_600);
        ensure(wait.contains(&self.queue_timeout), "origin.queue_timeout", "1 ms to 1 h")?;
        ensure(self.tunnels_max <= 1_000_000, "origin.tunnels_max", "at most 1,000,000")?;
        let idle = Duration::from_millis(1)..=Duration::from_secs(7 * 86_400);
        ensure(idle.contains(&self.tunnel_idle_timeout), "origin.tunnel_idle_timeout", "1 ms to 7 days")
    }
}

/// Returns whether a URL has a host, and neither a user nor a path.
fn is_plain(url: &Uri) -> bool {
    url.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && url.path_and_query().is_none_or(|path| path == "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        type Mutation = fn(&mut OriginConfig);
        let cases: [(&str, Mutation); 14] = [
            ("origin.tls", |c| c.url = Uri::from_static("https://a")),
            ("origin.url", |c| c.url = Uri::from_static("ftp://a")),
            ("origin.url", |c| c.url = Uri::from_static("http://a/b")),
            ("origin.url", |c| c.url = Uri::from_static("http://me@a")),
            ("origin.url", |c| c.url = Uri::from_static("/a")),
            ("origin.head_timeout", |c| c.head_timeout = Duration::ZERO),
            ("origin.variants_max", |c| c.variants_max = 0),
            ("origin.client_share", |c| c.client_share = 0),
            ("origin.prefix_v6", |c| c.prefix_v6 = 129),
            ("origin.queue_timeout", |c| c.queue_timeout = Duration::ZERO),
            ("origin.tunnels_max", |c| c.tunnels_max = 1_000_001),
            ("origin.tunnel_idle_timeout", |c| c.tunnel_idle_timeout = Duration::ZERO),
            ("origin.stream_timeout", |c| c.stream_timeout = Duration::from_secs(59)),
            ("origin.head_bytes_max", |c| c.head_bytes_max = 1),
        ];
        let config = OriginConfig::new(Uri::from_static("http://127.0.0.1:8080"));
        assert_eq!(config.check(), Ok(()));
        for (field, mutate) in cases {
            let mut config = config.clone();
            mutate(&mut config);
            assert_eq!(config.check().map_err(|error| error.field), Err(field));
        }
    }
}
