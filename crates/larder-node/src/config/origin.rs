//! Settings of an HTTP origin.

use super::origin_tls::OriginTls;
use super::range::{ConfigError, ensure};
use crate::http::fields::CONDITIONS;
use crate::http::hop::HOP_BY_HOP;
use crate::signing::{SIGNATURE, Signing};
use http::header::{self, HeaderName};
use http::{HeaderMap, StatusCode, Uri};
use larder_http::h1::FIELDS_MAX;
use std::time::Duration;

/// Most origins besides the first.
const BACKUPS_MAX: usize = 16;

/// An HTTP origin that a node stands before.
#[derive(Clone, Debug)]
pub struct OriginConfig {
    /// The origin's address: `http://host`, `https://host` or either with a port, without a path.
    pub url: Uri,
    /// TLS to it, if and only if the URL says `https`.
    pub tls: Option<OriginTls>,
    /// Origins with the same contents, for when it fails. Default `None`. What is stored is named by the first one.
    pub failover: Option<Failover>,
    /// Which `Host` it is sent.
    pub host: HostHeader,
    /// Header fields that each request to it has; they replace those of clients. Not those of [`is_reserved`].
    pub fields: HeaderMap,
    /// Keys that requests to it are signed with; a client's signature is replaced. Not beside a field `Authorization`, and only with
    /// its own `Host`. Default `None`.
    pub sign: Option<Signing>,
    /// Time to a connection; 504 after it. 1 ms to 1 h, default 5 s.
    pub connect_timeout: Duration,
    /// Time from a request to the head of the reply; 504 after it. 1 ms to 1 h, default 60 s.
    pub head_timeout: Duration,
    /// Time without a byte of a reply's body; the reply is broken off after it. Also time in which the origin takes no byte of a
    /// request; 504 after it. 1 ms to 1 h, default 60 s.
    pub body_timeout: Duration,
    /// Time without a byte of a request's body from its client; 408 after it. 1 ms to 1 h, default 60 s.
    pub request_body_timeout: Duration,
    /// Bytes a second that a client sends of a request's body, and that the origin takes of it and sends of a reply, over the
    /// time that each may be silent. Outcomes as for silence. Up to 1 GiB, default 500; 0: any.
    pub body_rate_min: u64,
    /// Time that a reply which is passed on to one client may be slower than `body_rate_min`, such as a stream of events; the
    /// reply is broken off after it. `body_timeout` to 1 day, default 1 h.
    pub stream_timeout: Duration,
    /// Requests to it at one time: its slots. 1 to 1,000,000, default 1,024.
    pub requests_max: usize,
    /// Percent of the slots that one client may hold, at least one slot. Further requests of the client wait; 429 if that takes too
    /// long. 1 to 100, default 10; 100: no share.
    pub client_share: u8,
    /// Leading bits of an address of IPv4 that are one client's. 8 to 32, default 32.
    pub prefix_v4: u8,
    /// Leading bits of an address of IPv6 that are one client's. 16 to 128, default 64.
    pub prefix_v6: u8,
    /// Requests that wait for a slot, of which one client may have its share; 503 beyond, or 429 if slots are free. Up to 1,000,000,
    /// default 1,024.
    pub queue_max: usize,
    /// Time that a request waits for a slot; then as for `queue_max`. 1 ms to 1 h, default 1 s.
    pub queue_timeout: Duration,
    /// WebSocket connections through the node; 503 beyond, or 429 for a client beyond its share of them. Up to 1,000,000, default
    /// 8,000; 0: none, and `Upgrade` is removed.
    pub tunnels_max: usize,
    /// Time without a byte on such a connection, after which it is closed. 1 ms to 7 days, default 1 h.
    pub tunnel_idle_timeout: Duration,
    /// Whether clients can have the origin asked although a fresh reply is stored. Default [`ClientNoCache::Honour`].
    pub client_no_cache: ClientNoCache,
    /// Idle connections kept to it. Up to 10,000, default 128.
    pub idle_max: usize,
    /// Time an idle connection is kept. 1 ms to 1 day, default 30 s.
    pub idle_timeout: Duration,
    /// Bytes of a reply's head; 502 beyond. 8 KiB to 1 MiB, default 64 KiB.
    pub head_bytes_max: usize,
    /// Header fields of a reply; 502 beyond. 8 to 256, default 200.
    pub headers_max: usize,
    /// Whether the whole of a target is fetched after a range of it that was not stored, so that the next range is. Default true.
    pub range_fill: bool,
    /// Replies to one target that are kept beside each other for different request headers (`Vary`); the oldest goes
    /// beyond. 1 to 64, default 8.
    pub variants_max: usize,
    /// Lifetime of replies 404 and 410 that state none. Up to 1 day, default zero: they are not kept.
    pub negative: Duration,
    /// Time a stale reply may stand in for an origin that fails, where the reply states none. Up to 30 days, default
    /// zero.
    pub stale_if_error: Duration,
}

/// Origins that stand in for the first one, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failover {
    /// Their URLs, in order, of the same form as the first one's. At most 16.
    pub urls: Vec<Uri>,
    /// Statuses by which an origin says that it has failed. None by default.
    pub statuses: Vec<StatusCode>,
    /// Time for which an origin is left after a failure; doubles with each further one. 1 ms to 1 h, default 1 s.
    pub pause: Duration,
    /// The longest such time. `pause` to 1 day, default 1 min.
    pub pause_max: Duration,
}

impl Failover {
    /// The defaults for these origins.
    pub fn new(urls: Vec<Uri>) -> Self {
        Self { urls, statuses: Vec::new(), pause: Duration::from_secs(1), pause_max: Duration::from_secs(60) }
    }
}

/// Which `Host` header an origin is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostHeader {
    /// The client's. Hosts are then cached apart.
    Client,
    /// The origin's own, from its URL.
    Origin,
}

/// Whether a field cannot be one of [`OriginConfig::fields`]: it belongs to one connection or one message, or says which part
/// of a reply is wanted, which depends on what is stored.
pub fn is_reserved(name: &HeaderName) -> bool {
    const OF_A_MESSAGE: [HeaderName; 5] =
        [header::HOST, header::CONTENT_LENGTH, header::EXPECT, header::VIA, header::MAX_FORWARDS];
    [&HOP_BY_HOP[..], &CONDITIONS, &OF_A_MESSAGE].concat().contains(name)
}

/// Effect of a client's `no-cache`, `no-store`, `max-age`, `min-fresh` and `Pragma` on the use of stored replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientNoCache {
    /// They count, as RFC 9111 section 5.2.1 has it.
    Honour,
    /// They do not, as that section allows: no client can have the origin asked for what is stored and fresh.
    Ignore,
}

impl OriginConfig {
    /// The defaults for the origin at `url`.
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

    /// Whether every value is in its range.
    ///
    /// # Errors
    /// The first value that is not.
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
        // A store finds the bucket by Host.
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
        // The connections of HTTP/2 are kept by the origin's name, which their requests then have.
        ensure(
            !tls.http2 || self.host == HostHeader::Origin,
            "origin.tls.http2",
            "false, or host = \"origin\" beside it: HTTP/2 to an origin is for the host in its url",
        )
    }

    fn check_failover(&self) -> Result<(), ConfigError> {
        let Some(failover) = &self.failover else { return Ok(()) };
        let alike = |url: &Uri| is_plain(url) && url.scheme() == self.url.scheme();
        let urls = &failover.urls;
        ensure(
            (1..=BACKUPS_MAX).contains(&urls.len()) && urls.iter().all(alike),
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

/// Whether a URL has a host, and neither a user nor a path.
fn is_plain(url: &Uri) -> bool {
    url.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && url.path_and_query().is_none_or(|path| path == "/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        type Spoil = fn(&mut OriginConfig);
        let cases: [(&str, Spoil); 14] = [
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
        for (field, spoil) in cases {
            let mut config = config.clone();
            spoil(&mut config);
            assert_eq!(config.check().map_err(|error| error.field), Err(field));
        }
    }
}
