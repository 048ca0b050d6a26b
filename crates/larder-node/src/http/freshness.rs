//! May a reply be kept, for how long is it fresh, and may it be used for a request (RFC 9111 sections 3 and 4, RFC
//! 5861), by a cache that many share.
//!
//! ```text
//! kept:      GET, a final status we know, no no-store or private, no Vary: *, no Set-Cookie, and with Authorization
//!            in the request only if public, s-maxage or must-revalidate allows; and it has a lifetime
//!            left, a validator, or leave to be used stale
//! lifetime = s-maxage, else max-age, else Expires - Date, else by heuristic
//! age      = max(received - Date, Age) + time since received
//! fresh      while lifetime > age
//! ```
//!
//! Heuristic: a tenth of the time between Last-Modified and Date, at most a day, for the statuses of RFC 9110
//! section 15.1; for 404 and 410 without any information a time that the operator sets. What has a validator and no
//! lifetime is kept and asked about at each use. A reply with `Set-Cookie` is never kept, which the RFC would allow:
//! cookies are a client's, and origins that forget to say so are common.

use super::cache_control::{self, Directives};
use http::header::{self, HeaderName};
use http::{HeaderMap, Method, StatusCode};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest lifetime by heuristic: a day, in seconds.
const HEURISTIC_MAX: u64 = 86_400;
/// A tenth of the time since the last change.
const HEURISTIC_DIVISOR: u64 = 10;

/// Why a reply is not kept; a word of `detail` in `Cache-Status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unkept {
    NoStore,
    Private,
    SetCookie,
    VaryAll,
    /// It depends on more fields than are compared.
    VaryMany,
    Status,
    Undated,
    TooLong,
    /// The request's `no-store`.
    AskedNoStore,
    Authorization,
    /// There is no room set aside for it now.
    MemoryFull,
}

impl Unkept {
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

    /// Whether the reply is the cause, and not the request or this node: then others can expect the same.
    pub(crate) const fn is_the_replys(self) -> bool {
        !matches!(self, Self::AskedNoStore | Self::Authorization | Self::MemoryFull)
    }
}

/// What is kept with a reply to judge it later. Times in seconds, but for the moment it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freshness {
    lifetime: u64,
    age: u64,
    /// The node's clock in ms when it was received, or last found valid.
    received_ms: u64,
    no_cache: bool,
    /// Never to be used stale.
    strict: bool,
    while_revalidate: u64,
    if_error: u64,
}

/// What a kept reply is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To be sent as it is.
    Fresh,
    /// To be sent as it is, while a newer one is asked for.
    WhileRevalidating,
    /// Only after the origin has been asked, since it is stale.
    Stale,
    /// Only after the origin has been asked, since the request wants it so.
    Asked,
}

/// What the operator adds to what replies say. Seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Additions {
    /// Lifetime of 404 and 410 that state none.
    pub(crate) negative: u64,
    /// Time a stale reply may stand in for an origin that fails, where the reply states none.
    pub(crate) if_error: u64,
}

impl Freshness {
    /// Judges a reply received at `now` on the wall clock and `now_ms` on the node's. `request` are the headers of
    /// the GET that brought it.
    pub(crate) fn of_reply(
        request: &HeaderMap,
        (status, reply): (StatusCode, &HeaderMap),
        now: SystemTime,
        now_ms: u64,
        additions: Additions,
    ) -> Result<Self, Unkept> {
        let (asked, said) = (Directives::of_request(request), Directives::of_reply(reply));
        let varies =
            |value: &http::HeaderValue| cache_control::Items(value.as_bytes()).any(|item| item == b"*");
        let shared = said.public || said.s_maxage.is_some() || said.must_revalidate;
        // What the reply says comes first: it holds for other requests too.
        let unkept = if said.no_store {
            Some(Unkept::NoStore)
        } else if said.private {
            Some(Unkept::Private)
        } else if reply.contains_key(header::SET_COOKIE) {
            Some(Unkept::SetCookie)
        } else if reply.get_all(header::VARY).iter().any(varies) {
            Some(Unkept::VaryAll)
        } else if asked.no_store {
            Some(Unkept::AskedNoStore)
        } else if request.contains_key(header::AUTHORIZATION) && !shared {
            Some(Unkept::Authorization)
        } else {
            None
        };
        if let Some(unkept) = unkept {
            return Err(unkept);
        }
        let now = unix(now);
        let date = date(reply, &header::DATE).unwrap_or(now);
        let lifetime = lifetime(status, reply, &said, date, additions)?;
        let stated = reply.get(header::AGE).map_or(0, |value| cache_control::seconds(value.as_bytes()));
        let age = stated.max(now.saturating_sub(date));
        let strict =
            said.must_revalidate || said.proxy_revalidate || said.s_maxage.is_some() || said.no_cache;
        let while_revalidate = said.stale_while_revalidate.unwrap_or(0);
        let if_error = said.stale_if_error.unwrap_or(additions.if_error);
        let validated = reply.contains_key(header::ETAG) || reply.contains_key(header::LAST_MODIFIED);
        if lifetime <= age && !validated && while_revalidate == 0 && if_error == 0 {
            return Err(Unkept::Undated);
        }
        let no_cache = said.no_cache;
        Ok(Self { lifetime, age, received_ms: now_ms, no_cache, strict, while_revalidate, if_error })
    }

    /// Its age in seconds.
    pub(crate) fn age(&self, now_ms: u64) -> u64 {
        self.age + now_ms.saturating_sub(self.received_ms) / 1_000
    }

    /// Seconds it stays fresh; negative, how long it has been stale.
    pub(crate) fn time_to_live(&self, now_ms: u64) -> i64 {
        self.lifetime as i64 - self.age(now_ms) as i64
    }

    /// What it is good for.
    pub(crate) fn judge(&self, now_ms: u64, asked: &Directives) -> Use {
        if asked.no_cache || asked.no_store {
            return Use::Asked;
        }
        let (age, left) = (self.age(now_ms), self.time_to_live(now_ms));
        if self.no_cache {
            return Use::Stale;
        }
        if asked.max_age.is_some_and(|most| age > most)
            || asked.min_fresh.is_some_and(|least| left < least as i64)
        {
            return if left > 0 { Use::Asked } else { Use::Stale };
        }
        if left > 0 {
            return Use::Fresh;
        }
        let stale = left.unsigned_abs();
        if self.strict {
            return Use::Stale;
        }
        if asked.max_stale.is_some_and(|most| stale <= most) {
            return Use::Fresh;
        }
        if stale < self.while_revalidate { Use::WhileRevalidating } else { Use::Stale }
    }

    /// Whether it may stand in for an origin that fails.
    pub(crate) fn stands_in(&self, now_ms: u64, asked: &Directives) -> bool {
        let stale = self.time_to_live(now_ms).min(0).unsigned_abs();
        // A request's stale-if-error is a client's consent; the reply's strictness is not the client's to waive.
        !self.strict && stale < self.if_error.max(asked.stale_if_error.unwrap_or(0))
    }
}

fn lifetime(
    status: StatusCode,
    reply: &HeaderMap,
    said: &Directives,
    date: u64,
    additions: Additions,
) -> Result<u64, Unkept> {
    // 206 and 304 are not whole replies; of the others, a cache must know what it keeps.
    let known =
        matches!(status.as_u16(), 200 | 203 | 204 | 300..=303 | 307 | 308 | 400..=451 | 500 | 501..=505);
    if !known {
        return Err(Unkept::Status);
    }
    if let Some(stated) = said.s_maxage.or(said.max_age) {
        return Ok(stated);
    }
    if let Some(expires) = reply.get(header::EXPIRES) {
        // A date that is none is in the past.
        let at = expires.to_str().ok().and_then(|text| httpdate::parse_http_date(text).ok()).map_or(0, unix);
        return Ok(at.saturating_sub(date));
    }
    let by_heuristic =
        matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501);
    if !by_heuristic && !said.public {
        return Err(Unkept::Undated);
    }
    if let Some(modified) = self::date(reply, &header::LAST_MODIFIED) {
        return Ok((date.saturating_sub(modified) / HEURISTIC_DIVISOR).min(HEURISTIC_MAX));
    }
    match status.as_u16() {
        404 | 410 if additions.negative > 0 => Ok(additions.negative),
        200 | 203 if reply.contains_key(header::ETAG) => Ok(0),
        _ => Err(Unkept::Undated),
    }
}

/// Whether a reply that is not kept says that the target is no longer what is kept of it. A refusal is about the request
/// (401, 406, 429), which any client can spoil, and a failure about the origin.
pub(crate) fn tells_of_target(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection() || matches!(status.as_u16(), 404 | 410 | 451)
}

/// Whether a method leaves the target as it is (RFC 9110 section 9.2.1).
pub(crate) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok().map(unix)
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;
    use std::time::Duration;

    const NOW: u64 = 1_000_000_000;

    fn map(fields: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        pairs.collect()
    }

    fn at(seconds: u64) -> String {
        httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn judge(
        request: &[(&'static str, &str)],
        status: u16,
        reply: &[(&'static str, &str)],
    ) -> Result<i64, Unkept> {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let status = StatusCode::from_u16(status).unwrap();
        let additions = Additions { negative: 7, if_error: 0 };
        Freshness::of_reply(&map(request), (status, &map(reply)), now, 0, additions)
            .map(|freshness| freshness.time_to_live(0))
    }

    #[test]
    fn what_is_kept_and_for_how_long() {
        let (date, later, earlier) = (at(NOW - 10), at(NOW + 50), at(NOW - 110));
        let cc = "cache-control";
        for (reply, expected) in [
            (&[(cc, "max-age=60")][..], Ok(60)),
            (&[(cc, "max-age=60, s-maxage=30")], Ok(30)),
            (&[(cc, "max-age=60"), ("age", "20")], Ok(40)),
            (&[(cc, "max-age=60"), ("age", "5"), ("date", &date)], Ok(50)),
            (&[(cc, "max-age=60"), ("expires", &earlier)], Ok(60)),
            (&[("expires", &later), ("date", &date)], Ok(50)),
            (&[("expires", "0"), ("date", &date)], Err(Unkept::Undated)),
            (&[("expires", "0"), ("date", &date), ("etag", "\"a\"")], Ok(-10)),
            (&[("last-modified", &earlier), ("date", &date)], Ok(0)),
            (&[("etag", "\"a\"")], Ok(0)),
            (&[], Err(Unkept::Undated)),
            (&[(cc, "no-store, max-age=60")], Err(Unkept::NoStore)),
            (&[(cc, "private, max-age=60")], Err(Unkept::Private)),
            (&[(cc, "max-age=60"), ("set-cookie", "a=b")], Err(Unkept::SetCookie)),
            (&[(cc, "max-age=60"), ("vary", "accept, *")], Err(Unkept::VaryAll)),
            (&[(cc, "max-age=60"), ("vary", "accept")], Ok(60)),
        ] {
            assert_eq!(judge(&[], 200, reply), expected, "{reply:?}");
        }
        assert_eq!(judge(&[(cc, "no-store")], 200, &[(cc, "max-age=60")]), Err(Unkept::AskedNoStore));
        assert_eq!(judge(&[], 200, &[("last-modified", &at(NOW - 1_000))]), Ok(100));
        assert_eq!(judge(&[], 200, &[("last-modified", &at(5))]), Ok(86_400));
    }

    #[test]
    fn statuses_and_authorization() {
        let cc = "cache-control";
        for (status, reply, expected) in [
            (404, &[][..], Ok(7)),
            (404, &[(cc, "max-age=1")], Ok(1)),
            (410, &[], Ok(7)),
            (302, &[], Err(Unkept::Undated)),
            (302, &[(cc, "max-age=9")], Ok(9)),
            (500, &[], Err(Unkept::Undated)),
            (503, &[(cc, "max-age=9")], Ok(9)),
            (206, &[(cc, "max-age=9")], Err(Unkept::Status)),
            (299, &[(cc, "max-age=9")], Err(Unkept::Status)),
        ] {
            assert_eq!(judge(&[], status, reply), expected, "{status} {reply:?}");
        }
        let signed = [("authorization", "Basic x")];
        for (said, expected) in [
            ("max-age=9", Err(Unkept::Authorization)),
            ("public, max-age=9", Ok(9)),
            ("s-maxage=9", Ok(9)),
            ("must-revalidate, max-age=9", Ok(9)),
        ] {
            assert_eq!(judge(&signed, 200, &[(cc, said)]), expected, "{said}");
        }
    }

    fn kept(said: &str) -> Freshness {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let reply = map(&[("cache-control", said)]);
        Freshness::of_reply(&HeaderMap::new(), (StatusCode::OK, &reply), now, 0, Additions::default())
            .unwrap()
    }

    #[test]
    fn what_a_kept_reply_is_good_for() {
        for (said, asked, age, expected) in [
            ("max-age=60", "", 59, Use::Fresh),
            ("max-age=60", "", 60, Use::Stale),
            ("max-age=60", "no-cache", 1, Use::Asked),
            ("max-age=60", "max-age=30", 30, Use::Fresh),
            ("max-age=60", "max-age=30", 31, Use::Asked),
            ("max-age=60", "max-age=0", 0, Use::Fresh),
            ("max-age=60", "max-age=0", 1, Use::Asked),
            ("max-age=60", "min-fresh=10", 50, Use::Fresh),
            ("max-age=60", "min-fresh=10", 51, Use::Asked),
            ("max-age=60", "max-stale=10", 70, Use::Fresh),
            ("max-age=60", "max-stale=10", 71, Use::Stale),
            ("max-age=60", "max-stale", 9_000, Use::Fresh),
            ("max-age=60, must-revalidate", "max-stale", 60, Use::Stale),
            ("s-maxage=60", "max-stale", 60, Use::Stale),
            ("max-age=60, no-cache", "", 0, Use::Stale),
            ("max-age=60, stale-while-revalidate=5", "", 64, Use::WhileRevalidating),
            ("max-age=60, stale-while-revalidate=5", "", 65, Use::Stale),
            ("max-age=60, stale-while-revalidate=5, proxy-revalidate", "", 61, Use::Stale),
        ] {
            let request = if asked.is_empty() { HeaderMap::new() } else { map(&[("cache-control", asked)]) };
            let found = kept(said).judge(age * 1_000, &Directives::of_request(&request));
            assert_eq!(found, expected, "{said} | {asked} | {age}");
        }
    }

    #[test]
    fn a_stale_reply_stands_in_within_its_time() {
        let asked = Directives::default();
        let reply = kept("max-age=60, stale-if-error=30");
        assert!(reply.stands_in(89_999, &asked) && !reply.stands_in(90_000, &asked));
        assert!(!kept("max-age=60, stale-if-error=30, must-revalidate").stands_in(61_000, &asked));
        assert!(!kept("max-age=60").stands_in(61_000, &asked));
        let consents = Directives { stale_if_error: Some(10), ..asked };
        assert!(kept("max-age=60").stands_in(69_000, &consents));
    }

    proptest! {
        #[test]
        fn a_reply_is_never_fresher_later(lifetime in 1..200_u64, a in 0..400_000_u64, more in 0..400_000_u64) {
            let reply = kept(&format!("max-age={lifetime}"));
            let asked = Directives::default();
            prop_assert!(reply.time_to_live(a + more) <= reply.time_to_live(a));
            if reply.judge(a + more, &asked) == Use::Fresh {
                prop_assert_eq!(reply.judge(a, &asked), Use::Fresh);
            }
        }
    }
}
