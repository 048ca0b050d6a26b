//! Names of pages in the cache. A page is named by the target URI of its requests (RFC 9111 section 2), as the origin is
//! told it: an origin that is told another scheme or host may reply with other links, or with a redirect.

use http::HeaderMap;
use http::header::{self, HeaderName};
use std::borrow::Cow;

const SCHEME: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const SCHEMES: [&[u8]; 2] = [b"http", b"https"];

/// Scheme and host of a target URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    scheme: Cow<'static, [u8]>,
    host: String,
    /// Schemes and hosts that the request's fields tell beside these two: a trusted relay's, since others are replaced.
    others: Vec<u8>,
}

impl Site {
    /// The site of a request that has entered. `host` is the host that the origin is sent, in lower case.
    pub(super) fn new(headers: &HeaderMap, host: String) -> Self {
        let told = headers.get(&SCHEME).map_or(SCHEMES[0], |value| value.as_bytes());
        let usual = SCHEMES.into_iter().find(|scheme| scheme.eq_ignore_ascii_case(told));
        let scheme = usual.map_or_else(|| told.to_ascii_lowercase().into(), Cow::Borrowed);
        let mut site = Self { scheme, host, others: Vec::new() };
        for value in headers.get_all(&SCHEME).iter().skip(1) {
            site.tell(b"proto", value.as_bytes());
        }
        for value in headers.get_all(&HOST) {
            site.tell(b"host", value.as_bytes());
        }
        for value in headers.get_all(header::FORWARDED) {
            for pair in value.as_bytes().split(|byte| matches!(byte, b';' | b',')) {
                let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { continue };
                let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
                let value = value.strip_prefix(b"\"").unwrap_or(value);
                site.tell(name, value.strip_suffix(b"\"").unwrap_or(value));
            }
        }
        site
    }

    /// Notes a scheme or host unless it is the one that is known.
    fn tell(&mut self, name: &[u8], value: &[u8]) {
        let known = if name.eq_ignore_ascii_case(b"proto") {
            &self.scheme[..]
        } else if name.eq_ignore_ascii_case(b"host") {
            self.host.as_bytes()
        } else {
            return;
        };
        if !known.eq_ignore_ascii_case(value) {
            self.others.extend(name.iter().chain(b"=").chain(value).map(u8::to_ascii_lowercase));
            self.others.push(b'\n');
        }
    }

    /// The host that the origin is sent.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The name of the page with this path and query. No part can contain the byte between the parts, so different
    /// sites and targets have different names.
    pub(super) fn page(&self, target: &str) -> Vec<u8> {
        [&self.scheme[..], self.host.as_bytes(), &self.others, target.as_bytes()].join(&b'\0')
    }

    /// The names of the page with this path and query by any scheme.
    pub(super) fn pages(&self, target: &str) -> Vec<Vec<u8>> {
        let mut names = vec![self.page(target)];
        for scheme in SCHEMES.into_iter().filter(|scheme| *scheme != &*self.scheme) {
            names.push(Self { scheme: scheme.into(), ..self.clone() }.page(target));
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn page(fields: &[(&'static str, &'static str)]) -> Vec<u8> {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Site::new(&fields.collect(), "a.example".to_owned()).page("/x")
    }

    #[test]
    fn pages_of_other_sites_have_other_names() {
        let plain = page(&[]);
        for others in [
            [("x-forwarded-proto", "https")],
            [("x-forwarded-host", "b.example")],
            [("forwarded", "for=192.0.2.1;proto=https")],
            [("forwarded", "for=192.0.2.1, for=192.0.2.2; Host=\"b.example\"")],
        ] {
            assert_ne!(page(&others), plain, "{others:?}");
        }
        assert_ne!(page(&[("x-forwarded-host", "b.example")]), page(&[("x-forwarded-host", "c.example")]));
    }

    #[test]
    fn fields_that_tell_the_same_site_make_no_other_name() {
        let plain = page(&[]);
        for same in [
            [("x-forwarded-proto", "HTTP")],
            [("x-forwarded-host", "A.example")],
            [("forwarded", "for=192.0.2.1;host=a.example;proto=http")],
            [("x-forwarded-for", "192.0.2.1")],
        ] {
            assert_eq!(page(&same), plain, "{same:?}");
        }
    }

    #[test]
    fn a_change_concerns_the_page_by_every_scheme() {
        let site = |scheme| {
            let fields = [(SCHEME, HeaderValue::from_static(scheme))];
            Site::new(&fields.into_iter().collect(), "a.example".to_owned())
        };
        assert_eq!(site("http").pages("/x").len(), 2);
        for scheme in ["http", "https", "other"] {
            let pages = site("other").pages("/x");
            assert!(pages.contains(&site(scheme).page("/x")), "{scheme}");
        }
    }
}
