//! Cacheability and freshness: whether a shared cache may store a reply, and whether a request may use it (RFC
//! 9111 sections 3 and 4, RFC 5861).
//!
//! ```text
//! stored:    GET, a final status of a whole reply, no no-store or private, no Vary: *, no Set-Cookie, and with
//!            Authorization in the request only if public, s-maxage or must-revalidate allows; and it has a lifetime
//!            left, a validator, or permission to be used stale
//! lifetime = s-maxage, else max-age, else Expires - Date, else by heuristic
//! age      = max(received - Date, Age + received - sent) + time since received
//! fresh      while lifetime > age
//! ```
//!
//! The directives are those of `CDN-Cache-Control` if it is valid, otherwise those of `Cache-Control`.
//!
//! Heuristic: a tenth of the time between `Last-Modified` and `Date`, at most one day, for the statuses of RFC
//! 9110 section 15.1. For 404 and 410 without any information, the operator sets a time. A reply that has a
//! validator and no lifetime is stored and validated before each use. Two rules are stricter than the RFC,
//! which leaves both to the cache:
//! - A reply with `Set-Cookie` is never stored, because cookies belong to one client, and some origins omit the
//!   directive.
//! - A reply with lifetime 0 is never used stale, because it may be one client's page. Its own
//!   `stale-while-revalidate` and `stale-if-error` do not count. Neither does the consent of a client or of the
//!   operator (`max-stale`, `stale-if-error`).

use super::cache_control::{self, Directives};
use http::header::{self, HeaderName};
use http::{HeaderMap, Method, StatusCode};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest lifetime by heuristic: one day, in seconds.
const HEURISTIC_MAX: u64 = 86_400;
/// Fraction of the time since the last change: a tenth.
const HEURISTIC_DIVISOR: u64 = 10;

/// The reason why a reply is not stored, for the `detail` of `Cache-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UncacheableReason {
    NoStore,
    Private,
    SetCookie,
    VaryAll,
    /// The reply depends on more fields than are compared.
    VaryMany,
    Status,
    Undated,
    TooLong,
    /// The request has `no-store`.
    AskedNoStore,
    Authorization,
    /// No memory can be reserved for the reply now.
    MemoryFull,
}

impl UncacheableReason {
    pub(crate) const fn token(self) -> &'static str {
        match self {
            Self::NoStore | Self::AskedNoStore => "no-store",
            Self::Private => "private",
            Self::Authorization => "authorization",
            Self::SetCookie => "set-cookie",
            Self::VaryAll => "vary-all",
            Self::VaryMany => "vary",
            Self::Status => "status",
            Self::Undated => "no-lifetime",
            Self::TooLong => "object-max",
            Self::MemoryFull => "memory-full",
        }
    }

    /// Returns whether the reply is the cause, and not the request or this node. Then other requests can expect
    /// the same.
    pub(crate) const fn is_from_reply(self) -> bool {
        !matches!(self, Self::AskedNoStore | Self::Authorization | Self::MemoryFull)
    }
}

/// The time at which a reply was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiptTime {
    pub(crate) time: SystemTime,
    /// Milliseconds on the node's clock.
    pub(crate) now_ms: u64,
    /// Seconds between the request and the head of the reply.
    pub(crate) delay: u64,
}

/// The data that judge a stored reply later. Times are in seconds, except `received_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freshness {
    lifetime: u64,
    age: u64,
    /// The node's clock in ms when the reply was received or last validated.
    received_ms: u64,
    no_cache: bool,
    /// Whether the reply must never be used stale.
    strict: bool,
    while_revalidate: u64,
    if_error: u64,
}

/// The permitted use of a stored reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usability {
    /// The reply is sent as it is.
    Fresh,
    /// The reply is sent as it is, while the origin is asked for a newer one.
    WhileRevalidating,
    /// The reply is stale. It is used only after the origin was asked.
    Stale,
    /// The request demands that the origin is asked.
    Requested,
}

/// The operator's defaults for values that replies do not state, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FreshnessDefaults {
    /// Lifetime of replies 404 and 410 that state none.
    pub(crate) negative: u64,
    /// Time that a stale reply may be used if the origin fails and the reply states no time.
    pub(crate) if_error: u64,
}

impl Freshness {
    /// Judges a reply. `request` is the header of the GET that fetched it.
    ///
    /// # Errors
    /// Returns the reason why the reply may not be stored.
    pub(crate) fn of_reply(
        request: &HeaderMap,
        (status, reply): (StatusCode, &HeaderMap),
        received: ReceiptTime,
        defaults: FreshnessDefaults,
    ) -> Result<Self, UncacheableReason> {
        let (requested, stated) = (Directives::of_request(request), Directives::of_reply(reply));
        let varies =
            |value: &http::HeaderValue| cache_control::ListMembers(value.as_bytes()).any(|item| item == b"*");
        // The reply's own reasons come first, because they apply to other requests too.
        let reason = if stated.no_store {
            Some(UncacheableReason::NoStore)
        } else if stated.private {
            Some(UncacheableReason::Private)
        } else if reply.contains_key(header::SET_COOKIE) {
            Some(UncacheableReason::SetCookie)
        } else if reply.get_all(header::VARY).iter().any(varies) {
            Some(UncacheableReason::VaryAll)
        } else if requested.no_store {
            Some(UncacheableReason::AskedNoStore)
        } else if request.contains_key(header::AUTHORIZATION) && !stated.allows_sharing() {
            Some(UncacheableReason::Authorization)
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(reason);
        }
        let date = date(reply, &header::DATE).unwrap_or(unix(received.time));
        let lifetime = lifetime(status, reply, &stated, date, defaults)?;
        let age = initial_age(reply, received);
        let strict =
            stated.must_revalidate || stated.proxy_revalidate || stated.s_maxage.is_some() || stated.no_cache;
        let (while_revalidate, if_error) = match lifetime {
            0 => (0, 0),
            _ => (
                stated.stale_while_revalidate.unwrap_or(0),
                stated.stale_if_error.unwrap_or(defaults.if_error),
            ),
        };
        let validated = reply.contains_key(header::ETAG) || reply.contains_key(header::LAST_MODIFIED);
        if lifetime <= age && !validated && while_revalidate == 0 && if_error == 0 {
            return Err(UncacheableReason::Undated);
        }
        let (received_ms, no_cache) = (received.now_ms, stated.no_cache);
        Ok(Self { lifetime, age, received_ms, no_cache, strict, while_revalidate, if_error })
    }

    /// Returns the same data with the age of a reply that was validated and is not stored.
    pub(crate) fn with_age(self, reply: &HeaderMap, received: ReceiptTime) -> Self {
        Self { age: initial_age(reply, received), received_ms: received.now_ms, ..self }
    }

    /// Returns whether the reply must be validated before each use, however new it is.
    pub(crate) fn is_always_validated(&self) -> bool {
        self.no_cache || self.lifetime == 0
    }

    /// Returns whether the reply may be used without validation for a request without directives.
    pub(crate) fn is_fresh(&self, now_ms: u64) -> bool {
        !self.no_cache && self.time_to_live(now_ms) > 0
    }

    /// Returns whether a request that waited for another request's reply may use that reply. The reply must be
    /// fresh by its own lifetime, and new enough for the request. Consent to stale replies does not count.
    pub(crate) fn may_serve_waiters(&self, now_ms: u64, requested: &Directives) -> bool {
        self.is_fresh(now_ms) && self.usability(now_ms, requested) == Usability::Fresh
    }

    /// Returns the age in seconds (RFC 9111 section 4.2.3).
    pub(crate) fn age(&self, now_ms: u64) -> u64 {
        self.age + now_ms.saturating_sub(self.received_ms) / 1_000
    }

    /// Returns the seconds for which the reply stays fresh; if negative, the time for which it has been stale.
    pub(crate) fn time_to_live(&self, now_ms: u64) -> i64 {
        self.lifetime as i64 - self.age(now_ms) as i64
    }

    /// Returns the permitted use for a request with these directives.
    pub(crate) fn usability(&self, now_ms: u64, requested: &Directives) -> Usability {
        if requested.no_cache || requested.no_store {
            return Usability::Requested;
        }
        let (age, remaining) = (self.age(now_ms), self.time_to_live(now_ms));
        if self.no_cache {
            return Usability::Stale;
        }
        if requested.max_age.is_some_and(|most| age > most)
            || requested.min_fresh.is_some_and(|least| remaining < least as i64)
        {
            return if remaining > 0 { Usability::Requested } else { Usability::Stale };
        }
        if remaining > 0 {
            return Usability::Fresh;
        }
        let stale = remaining.unsigned_abs();
        if self.strict {
            return Usability::Stale;
        }
        if self.lifetime > 0 && requested.max_stale.is_some_and(|most| stale <= most) {
            return Usability::Fresh;
        }
        if stale < self.while_revalidate { Usability::WhileRevalidating } else { Usability::Stale }
    }

    /// Returns whether the reply may be used if the origin fails (RFC 5861 section 4).
    pub(crate) fn may_serve_on_error(&self, now_ms: u64, requested: &Directives) -> bool {
        let stale = self.time_to_live(now_ms).min(0).unsigned_abs();
        // A client consents for itself only, and may refuse. It cannot waive the demands of the reply.
        let consent = requested.stale_if_error.filter(|_| self.lifetime > 0).unwrap_or(0);
        !self.strict && !requested.no_cache && stale < self.if_error.max(consent)
    }
}

fn lifetime(
    status: StatusCode,
    reply: &HeaderMap,
    stated: &Directives,
    date: u64,
    defaults: FreshnessDefaults,
) -> Result<u64, UncacheableReason> {
    // 206, 226 and 304 are not complete replies. A status that the node does not know needs an explicit
    // lifetime.
    let known =
        matches!(status.as_u16(), 200 | 203 | 204 | 300..=303 | 307 | 308 | 400..=451 | 500 | 501..=505);
    let partial = matches!(status.as_u16(), 206 | 226 | 304) || status.is_informational();
    if partial || !known && stated.must_understand {
        return Err(UncacheableReason::Status);
    }
    if let Some(max_age) = stated.s_maxage.or(stated.max_age) {
        return Ok(max_age);
    }
    if let Some(expires) = reply.get(header::EXPIRES).filter(|_| !stated.targeted) {
        // An invalid date counts as a date in the past.
        let at = expires.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok()).map_or(0, unix);
        return Ok(at.saturating_sub(date));
    }
    if !known {
        return Err(UncacheableReason::Status);
    }
    let by_heuristic =
        matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501);
    if !by_heuristic && !stated.public {
        return Err(UncacheableReason::Undated);
    }
    if let Some(modified) = self::date(reply, &header::LAST_MODIFIED) {
        return Ok((date.saturating_sub(modified) / HEURISTIC_DIVISOR).min(HEURISTIC_MAX));
    }
    match status.as_u16() {
        404 | 410 if defaults.negative > 0 => Ok(defaults.negative),
        200 | 203 if reply.contains_key(header::ETAG) => Ok(0),
        _ => Err(UncacheableReason::Undated),
    }
}

/// Returns whether a reply that is not stored still invalidates the stored one. A refusal concerns the request
/// (401, 406, 429), which any client can spoil. A failure concerns the origin.
pub(crate) fn invalidates_stored(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection() || matches!(status.as_u16(), 404 | 410 | 451)
}

/// Returns whether a method does not change the target (RFC 9110 section 9.2.1).
pub(crate) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// Returns the age of a reply when it was received, in seconds (RFC 9111 section 4.2.3).
fn initial_age(reply: &HeaderMap, received: ReceiptTime) -> u64 {
    let now = unix(received.time);
    let date = date(reply, &header::DATE).unwrap_or(now);
    (stated_age(reply) + received.delay).max(now.saturating_sub(date))
}

/// Returns the age that a reply states: the first member of the first line, or 0 if that is invalid (RFC 9111
/// section 5.1).
fn stated_age(reply: &HeaderMap) -> u64 {
    let first = reply.get(header::AGE).and_then(|value| value.as_bytes().split(|byte| *byte == b',').next());
    first.and_then(|text| cache_control::delta_seconds(text.trim_ascii())).unwrap_or(0)
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok().map(unix)
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
