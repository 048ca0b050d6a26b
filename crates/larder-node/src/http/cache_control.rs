//! The `Cache-Control` header (RFC 9111 section 5.2, RFC 5861) of requests and replies.
//!
//! Names are read without regard to case, values with or without quotes. A number too large is the largest; what is
//! no number counts as 0, which makes a reply stale; of two different values the smaller one counts (RFC 9111
//! section 4.2.1 leaves it to the cache). `no-cache` and `private` with a list of fields count as if they had none,
//! which errs towards not reusing. Unknown directives are passed over.

use http::HeaderMap;
use http::header;

/// Largest number of seconds that counts: 68 years, as RFC 9111 section 1.2.2 has it.
const SECONDS_MAX: u64 = 1 << 31;

/// What a `Cache-Control` header says; times in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Directives {
    pub(crate) no_store: bool,
    pub(crate) no_cache: bool,
    pub(crate) private: bool,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) max_age: Option<u64>,
    pub(crate) s_maxage: Option<u64>,
    pub(crate) min_fresh: Option<u64>,
    /// `SECONDS_MAX` if it stands without a value: however stale.
    pub(crate) max_stale: Option<u64>,
    pub(crate) stale_while_revalidate: Option<u64>,
    pub(crate) stale_if_error: Option<u64>,
}

impl Directives {
    /// What the headers of a reply say.
    pub(crate) fn of_reply(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for value in headers.get_all(header::CACHE_CONTROL) {
            found.read(value.as_bytes());
        }
        found
    }

    /// What the headers of a request say. `Pragma: no-cache` counts where there is no `Cache-Control`.
    pub(crate) fn of_request(headers: &HeaderMap) -> Self {
        if headers.contains_key(header::CACHE_CONTROL) {
            return Self::of_reply(headers);
        }
        let pragma = headers.get(header::PRAGMA).map(|value| value.as_bytes().to_ascii_lowercase());
        let no_cache = pragma.is_some_and(|text| text.windows(8).any(|part| part == b"no-cache"));
        Self { no_cache, ..Self::default() }
    }

    fn read(&mut self, text: &[u8]) {
        for item in Items(text) {
            let (name, value) = match item.iter().position(|&b| b == b'=') {
                Some(at) => (item[..at].trim_ascii(), Some(item[at + 1..].trim_ascii())),
                None => (item, None),
            };
            let least = |slot: &mut Option<u64>| {
                let new = value.map_or(0, seconds);
                *slot = Some(slot.map_or(new, |old| old.min(new)));
            };
            match name.to_ascii_lowercase().as_slice() {
                b"no-store" => self.no_store = true,
                b"no-cache" => self.no_cache = true,
                b"private" => self.private = true,
                b"public" => self.public = true,
                b"must-revalidate" => self.must_revalidate = true,
                b"proxy-revalidate" => self.proxy_revalidate = true,
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
}

/// A number of seconds; what is none is 0.
pub(crate) fn seconds(text: &[u8]) -> u64 {
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    let add = |sum: u64, b: &u8| sum.saturating_mul(10).saturating_add(u64::from(b - b'0'));
    text.iter().fold(0, add).min(SECONDS_MAX)
}

/// The members of a list, which commas part unless they stand between quotes.
pub(crate) struct Items<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Items<'a> {
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
    use http::HeaderValue;
    use proptest::prelude::*;

    fn reply(values: &[&str]) -> Directives {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CACHE_CONTROL, HeaderValue::from_str(value).unwrap());
        }
        Directives::of_reply(&headers)
    }

    #[test]
    fn directives_are_read_whatever_their_form() {
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
    fn pragma_counts_where_nothing_else_is_said() {
        let mut headers = HeaderMap::new();
        headers.insert(header::PRAGMA, HeaderValue::from_static("No-Cache"));
        assert!(Directives::of_request(&headers).no_cache);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=5"));
        assert!(!Directives::of_request(&headers).no_cache);
    }

    proptest! {
        #[test]
        fn foreign_values_are_taken(value in prop::collection::vec(any::<u8>(), 0..80)) {
            Directives::default().read(&value);
        }
    }
}
