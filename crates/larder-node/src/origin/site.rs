//! Names of pages in the cache. A page is named by the target URI of its requests (RFC 9111 section 2), as the
//! origin is told it. An origin that is told another scheme or host may reply with other links, or with a
//! redirect.

use http::HeaderMap;
use http::header::{self, HeaderName};
use larder_edge::URL_FIELDS;
use std::borrow::Cow;

const SCHEME: HeaderName = HeaderName::from_static("x-forwarded-proto");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const SCHEMES: [&[u8]; 2] = [b"http", b"https"];

/// Scheme and host of a target URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    scheme: Cow<'static, [u8]>,
    host: String,
    others: Vec<u8>,
}

impl Site {
    /// Creates the site of an admitted request. `host` is the host that the origin is sent, in lower case.
    pub(super) fn new(headers: &HeaderMap, host: String) -> Self {
        let stated = headers.get(&SCHEME).map_or(SCHEMES[0], |value| value.as_bytes());
        let usual = SCHEMES.into_iter().find(|scheme| scheme.eq_ignore_ascii_case(stated));
        let scheme = usual.map_or_else(|| stated.to_ascii_lowercase().into(), Cow::Borrowed);
        let others = other_fields(headers, (&scheme, &host), None);
        Self { scheme, host, others }
    }

    /// Returns the host that the origin is sent.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Returns the name of the page with this path and query. No part can contain the separator byte, so
    /// different sites and targets have different names.
    pub(super) fn page(&self, target: &str) -> Vec<u8> {
        [&self.scheme[..], self.host.as_bytes(), &self.others, target.as_bytes()].join(&b'\0')
    }

    /// Returns the names of the page with this path and query for every scheme, in whichever field a relay
    /// states it. `headers` is the header that the site was created from.
    pub(super) fn pages(&self, headers: &HeaderMap, target: &str) -> Vec<Vec<u8>> {
        let mut names = vec![self.page(target)];
        for scheme in SCHEMES {
            for forwarded in SCHEMES {
                let others = other_fields(headers, (scheme, &self.host), Some(forwarded));
                let name = Self { scheme: scheme.into(), host: self.host.clone(), others }.page(target);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }
}

/// Returns every scheme and host in the fields of a request, with field, line and element, because applications
/// use different ones. Returns none of them if all equal `scheme` and `host`. Other fields that describe the
/// URL follow. Only a trusted relay can state other values. `swapped` replaces each scheme in `Forwarded`.
fn other_fields(headers: &HeaderMap, (scheme, host): (&[u8], &str), swapped: Option<&[u8]>) -> Vec<u8> {
    let (mut values, mut differs) = (Vec::new(), false);
    let mut add = |field: &str, (line, element): (usize, usize), value: &[u8], known: &[u8]| {
        differs |= !known.eq_ignore_ascii_case(value);
        values.extend(format!("{field} {line} {element} ").bytes());
        values.extend(value.iter().map(u8::to_ascii_lowercase));
        values.push(b'\n');
    };
    for (line, value) in headers.get_all(&SCHEME).iter().enumerate().skip(1) {
        add("scheme", (line, 0), value.as_bytes(), scheme);
    }
    for (line, value) in headers.get_all(&HOST).iter().enumerate() {
        add("host", (line, 0), value.as_bytes(), host.as_bytes());
    }
    for (line, value) in headers.get_all(header::FORWARDED).iter().enumerate() {
        let field = value.as_bytes();
        let is_open = |piece: &[u8]| piece.iter().filter(|byte| **byte == b'"').count() % 2 != 0;
        if field.contains(&b'\\') || field.split(|byte| matches!(byte, b';' | b',')).any(is_open) {
            // A separator may be part of a quoted string.
            add("forwarded", (line, 0), field, b"");
            continue;
        }
        for (element, pairs) in field.split(|byte| *byte == b',').enumerate() {
            for pair in pairs.split(|byte| *byte == b';') {
                let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { continue };
                let (name, value) = (pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii());
                let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
                let value = quoted.unwrap_or(value);
                if name.eq_ignore_ascii_case(b"proto") {
                    add("forwarded proto", (line, element), swapped.unwrap_or(value), scheme);
                } else if name.eq_ignore_ascii_case(b"host") {
                    add("forwarded host", (line, element), value, host.as_bytes());
                }
            }
        }
    }
    let mut others = if differs { values } else { Vec::new() };
    for name in URL_FIELDS {
        for value in headers.get_all(name) {
            let value = value.as_bytes();
            let value = if swapped.is_some() { of_scheme(value, scheme) } else { value };
            others.extend([name.as_bytes(), b" ", value, b"\n"].concat());
        }
    }
    others
}

/// Returns the value for `scheme` in place of a value that is a scheme or its default port; other values are
/// unchanged.
fn of_scheme<'v>(value: &'v [u8], scheme: &'v [u8]) -> &'v [u8] {
    match value {
        b"http" | b"https" => scheme,
        b"80" | b"443" if scheme == SCHEMES[0] => b"80",
        b"80" | b"443" => b"443",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn site(fields: &[(&'static str, &'static str)]) -> Site {
        Site::new(&map(fields), "a.example".to_owned())
    }

    fn page(fields: &[(&'static str, &'static str)]) -> Vec<u8> {
        site(fields).page("/x")
    }

    /// No two of these are the same for every application.
    #[test]
    fn pages_of_other_sites_have_other_names() {
        let (own, proto, host) = ("x-forwarded-host", "x-forwarded-proto", "b.example");
        let fields = [
            vec![],
            vec![(proto, "https")],
            vec![(proto, "http"), (proto, "https")],
            vec![(proto, "https"), (proto, "http")],
            vec![(own, host)],
            vec![(own, "c.example")],
            vec![(own, "a.example"), (own, host)],
            vec![(own, host), (own, "a.example")],
            vec![(own, "a.example"), ("forwarded", "host=b.example")],
            vec![("forwarded", "for=192.0.2.1, for=192.0.2.2; Host=\"b.example\"")],
            vec![("forwarded", "for=192.0.2.1;proto=https")],
            vec![("forwarded", "proto=http, proto=https")],
            vec![("forwarded", "proto=https, proto=http")],
            vec![("forwarded", "proto=http"), ("forwarded", "proto=https")],
            vec![("x-forwarded-prefix", "/a")],
            vec![("x-forwarded-prefix", "/b")],
            vec![("x-forwarded-port", "443")],
            vec![("x-original-url", "/a")],
            vec![("forwarded", "host=b.example;proto=https")],
            vec![("forwarded", "host=\"b.example;proto=https\"")],
            vec![("forwarded", "host=\"b.example;for=x\"")],
            vec![("forwarded", "host=\"b.example\\\";for=\\\"x\"")],
        ];
        for (at, one) in fields.iter().enumerate() {
            for other in &fields[at + 1..] {
                assert_ne!(page(one), page(other), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn equivalent_forwarding_fields_give_one_name() {
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

    /// A relay may state the scheme in either field.
    #[test]
    fn an_unsafe_request_invalidates_the_page_of_every_scheme() {
        let same = |fields: [(&'static str, &'static str); 3]| {
            let of = |at: usize| [fields[at]];
            for changed in 0..3 {
                let pages = site(&of(changed)).pages(&map(&of(changed)), "/x");
                for read in [0, 1, changed] {
                    assert!(pages.contains(&site(&of(read)).page("/x")), "{changed} {read} {fields:?}");
                }
            }
        };
        same(["http", "https", "other"].map(|scheme| ("x-forwarded-proto", scheme)));
        same(["for=a;proto=http", "for=b;proto=https", "for=c;proto=other"].map(|text| ("forwarded", text)));
        let [http, https] = [("http", "80"), ("https", "443")]
            .map(|(scheme, port)| [("x-forwarded-proto", scheme), ("x-forwarded-port", port)]);
        for (changed, read) in [(http, https), (https, http)] {
            assert!(site(&changed).pages(&map(&changed), "/x").contains(&site(&read).page("/x")), "{read:?}");
        }
        let foreign = [("x-forwarded-host", "b.example")];
        assert!(!site(&foreign).pages(&map(&foreign), "/x").contains(&page(&[])));
    }
}
