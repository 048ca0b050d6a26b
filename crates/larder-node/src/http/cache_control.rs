//! The `Cache-Control` field (RFC 9111 section 5.2, RFC 5861) of requests and replies, and `CDN-Cache-Control`
//! of replies (RFC 9213).
//!
//! In `Cache-Control`, names are compared without regard to case, and values may be quoted. A number that is
//! too large counts as the largest. A value that is not a number counts as 0, which makes a reply stale. Of two
//! different values the smaller one counts (RFC 9111 section 4.2.1 leaves this to the cache). `no-cache` and
//! `private` with a list of fields count as if they had none, which prevents reuse more often than necessary.
//! Unknown directives are ignored.
//!
//! `CDN-Cache-Control` addresses shared caches in front of an origin. If a reply has a valid one that is not
//! empty, it replaces `Cache-Control` and `Expires`. It is a dictionary of structured fields: one syntax error
//! makes the whole field invalid, and then `Cache-Control` counts. A directive with a value of the wrong type
//! counts as its strictest form.

use super::structured::{self, BareItem};
use http::HeaderMap;
use http::header::{self, HeaderName, HeaderValue};

/// Largest number of seconds that counts: 68 years, as RFC 9111 section 1.2.2 has it.
const SECONDS_MAX: u64 = 1 << 31;

const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");

/// Cache directives of a message. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directives {
    /// Whether the directives come from `CDN-Cache-Control`, so that `Expires` does not count.
    pub(crate) targeted: bool,
    pub(crate) no_store: bool,
    pub(crate) no_cache: bool,
    pub(crate) private: bool,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    /// Forbids storage by a cache that does not know the status. `no-store` next to it counts for every status.
    pub(crate) must_understand: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) max_age: Option<u64>,
    pub(crate) s_maxage: Option<u64>,
    pub(crate) min_fresh: Option<u64>,
    /// `SECONDS_MAX` if the directive has no value, which accepts any staleness.
    pub(crate) max_stale: Option<u64>,
    pub(crate) stale_while_revalidate: Option<u64>,
    pub(crate) stale_if_error: Option<u64>,
}

impl Directives {
    /// Returns the directives of a reply.
    pub(crate) fn of_reply(headers: &HeaderMap) -> Self {
        Self::from_cdn_cache_control(headers).unwrap_or_else(|| Self::from_cache_control(headers))
    }

    /// Returns the directives of a request. `Pragma: no-cache` counts if there is no `Cache-Control`.
    pub(crate) fn of_request(headers: &HeaderMap) -> Self {
        if headers.contains_key(header::CACHE_CONTROL) {
            return Self::from_cache_control(headers);
        }
        let pragma = headers.get(header::PRAGMA).map(|value| value.as_bytes().to_ascii_lowercase());
        let no_cache = pragma.is_some_and(|text| text.windows(8).any(|part| part == b"no-cache"));
        Self { no_cache, ..Self::default() }
    }

    /// Returns whether a reply to a request with `Authorization` may be stored for other clients (RFC 9111
    /// section 3.5).
    pub(crate) fn allows_sharing(&self) -> bool {
        self.public || self.s_maxage.is_some() || self.must_revalidate
    }

    /// Returns the directives of `Cache-Control`.
    fn from_cache_control(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for value in headers.get_all(header::CACHE_CONTROL) {
            found.read(value.as_bytes());
        }
        found
    }

    /// Returns the directives of `CDN-Cache-Control`; `None` if the field is missing, empty or invalid.
    fn from_cdn_cache_control(headers: &HeaderMap) -> Option<Self> {
        if !headers.contains_key(CDN_CACHE_CONTROL) {
            return None;
        }
        let lines = headers.get_all(CDN_CACHE_CONTROL).iter();
        let lines: Vec<&[u8]> = lines.map(HeaderValue::as_bytes).collect();
        let joined = lines.join(&b", "[..]);
        let members = structured::parse_dictionary(&joined).filter(|members| !members.is_empty())?;
        let mut found = Self { targeted: true, ..Self::default() };
        for (name, value) in members {
            let seconds = match value {
                BareItem::Boolean(_) => None,
                BareItem::Integer(number) => Some(u64::try_from(number).unwrap_or(0).min(SECONDS_MAX)),
                BareItem::Other => Some(0),
            };
            found.add(name.as_bytes(), seconds);
        }
        Some(found)
    }

    fn read(&mut self, text: &[u8]) {
        for item in ListMembers(text) {
            let (name, value) = match item.iter().position(|&b| b == b'=') {
                Some(at) => (item[..at].trim_ascii(), Some(seconds(item[at + 1..].trim_ascii()))),
                None => (item, None),
            };
            self.add(&name.to_ascii_lowercase(), value);
        }
    }

    /// Adds a directive. `value` is its number of seconds; `None` if it has no value.
    fn add(&mut self, name: &[u8], value: Option<u64>) {
        let least = |slot: &mut Option<u64>| {
            let new = value.unwrap_or(0);
            *slot = Some(slot.map_or(new, |old| old.min(new)));
        };
        match name {
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"private" => self.private = true,
            b"public" => self.public = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => least(&mut self.max_age),
            b"s-maxage" => least(&mut self.s_maxage),
            b"min-fresh" => least(&mut self.min_fresh),
            b"max-stale" if value.is_none() => self.max_stale = Some(SECONDS_MAX),
            b"max-stale" => least(&mut self.max_stale),
            b"stale-while-revalidate" => least(&mut self.stale_while_revalidate),
            b"stale-if-error" => least(&mut self.stale_if_error),
            _ => {}
        }
    }
}

/// Parses a number of seconds, quoted or not; 0 if the text is not a number.
fn seconds(text: &[u8]) -> u64 {
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
    delta_seconds(text).unwrap_or(0)
}

/// Parses a number of seconds in plain digits (RFC 9111 section 1.2.2).
pub(crate) fn delta_seconds(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, b: &u8| sum.saturating_mul(10).saturating_add(u64::from(b - b'0'));
    Some(text.iter().fold(0, add).min(SECONDS_MAX))
}

/// The members of a comma-separated list. Commas between quotes do not separate members.
pub(crate) struct ListMembers<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for ListMembers<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while !self.0.is_empty() {
            let (mut quoted, mut escaped) = (false, false);
            let end = self.0.iter().position(|&b| {
                match b {
                    _ if escaped => escaped = false,
                    b'\\' if quoted => escaped = true,
                    b'"' => quoted = !quoted,
                    b',' if !quoted => return true,
                    _ => {}
                }
                false
            });
            let end = end.unwrap_or(self.0.len());
            let item = self.0[..end].trim_ascii();
            self.0 = self.0.get(end + 1..).unwrap_or_default();
            if !item.is_empty() {
                return Some(item);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reply(values: &[&str]) -> Directives {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CACHE_CONTROL, HeaderValue::from_str(value).unwrap());
        }
        Directives::of_reply(&headers)
    }

    #[test]
    fn directives_are_parsed_in_every_form() {
        let plain = Directives { public: true, max_age: Some(60), ..Directives::default() };
        for values in [
            &["public, max-age=60"][..],
            &["Public,MAX-AGE = \"60\" ,"],
            &["public", "max-age=60"],
            &[",,public, x=\"a, no-store\\\", b\", max-age=60"],
            &["max-age=90, public, max-age=60"],
        ] {
            assert_eq!(reply(values), plain, "{values:?}");
        }
        assert_eq!(reply(&["max-age=-1"]).max_age, Some(0));
        assert_eq!(reply(&["max-age"]).max_age, Some(0));
        assert_eq!(reply(&["max-age=99999999999999999999999"]).max_age, Some(SECONDS_MAX));
        assert!(reply(&["private=\"set-cookie\""]).private);
        assert!(reply(&["no-cache=\"set-cookie, x\", max-age=5"]).no_cache);
        assert_eq!(reply(&["max-stale"]).max_stale, Some(SECONDS_MAX));
    }

    #[test]
    fn pragma_applies_only_without_cache_control() {
        let mut headers = HeaderMap::new();
        headers.insert(header::PRAGMA, HeaderValue::from_static("No-Cache"));
        assert!(Directives::of_request(&headers).no_cache);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=5"));
        assert!(!Directives::of_request(&headers).no_cache);
    }

    fn targeted(values: &[&'static str], general: &'static str) -> Directives {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CDN_CACHE_CONTROL, HeaderValue::from_static(value));
        }
        headers.append(header::CACHE_CONTROL, HeaderValue::from_static(general));
        Directives::of_reply(&headers)
    }

    #[test]
    fn a_targeted_field_replaces_cache_control_if_it_is_valid() {
        let none = Directives { targeted: true, ..Directives::default() };
        for (values, expected) in [
            (&["max-age=60"][..], Directives { max_age: Some(60), ..none }),
            (&["max-age=1, max-age=60"], Directives { max_age: Some(60), ..none }),
            (&["foo, private", "max-age=5;x=y"], Directives { private: true, max_age: Some(5), ..none }),
            (&["max-age=99999999999"], Directives { max_age: Some(SECONDS_MAX), ..none }),
            // A value of the wrong type counts as the strictest form of its directive.
            (&["max-age=\"60\""], Directives { max_age: Some(0), ..none }),
            (&["max-age=-1"], Directives { max_age: Some(0), ..none }),
            (&["max-age=1.5"], Directives { max_age: Some(0), ..none }),
            (&["no-store=?0, private=\"x\""], Directives { no_store: true, private: true, ..none }),
            (&["foo"], none),
        ] {
            assert_eq!(targeted(values, "no-store, max-age=7"), expected, "{values:?}");
        }
        let general = Directives { max_age: Some(7), ..Directives::default() };
        for values in [
            &[""][..],
            &["MaX-aGe=60"],
            &["max-age =60"],
            &["max-age= 60"],
            &["max-age=60, &&&&&"],
            &["max-age=60,"],
            &["max-age=1234567890123456"],
            &["no-store", "no-store ?"],
        ] {
            assert_eq!(targeted(values, "max-age=7"), general, "{values:?}");
        }
        let mut request = HeaderMap::new();
        request.append(CDN_CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        assert_eq!(Directives::of_request(&request), Directives::default(), "it is a field of replies");
    }

    proptest! {
        #[test]
        fn foreign_values_are_accepted(value in prop::collection::vec(any::<u8>(), 0..80)) {
            Directives::default().read(&value);
        }
    }
}
