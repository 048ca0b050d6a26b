//! Purges as operators name them: by URL, by the beginning of URLs, or by tag.

use std::fmt::{self, Write as _};

/// The longest URL or prefix. Bytes.
const URL_BYTES_MAX: usize = 8_192;
/// The longest tag. Bytes.
const TAG_BYTES_MAX: usize = 1_024;

/// Path at which a node takes purges of switches, on its own address for requests.
pub const PURGE_PATH: &str = "/.larder/purge";
/// Field of a request for [`PURGE_PATH`] that names the purge, as it is displayed.
pub const PURGE_FIELD: &str = "larder-purge";

/// The objects that a purge removes from memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// All that is kept of one URL.
    Url(Location),
    /// All that is kept of URLs that begin so.
    Prefix(Location),
    /// All that has this tag in `Cache-Tag` or `Surrogate-Key`.
    Tag(Box<str>),
}

/// A URL without its scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    text: Box<str>,
    /// In lower case, without the scheme's usual port.
    host: Box<str>,
    path_at: usize,
}

/// A purge that makes no sense. Fault of who asks for it; trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {right}")]
pub struct BadPurge {
    /// The fault.
    pub what: String,
    /// The remedy.
    pub right: &'static str,
}

impl Purge {
    /// The kinds of purges, as the parameters that name them.
    pub const KINDS: [&str; 3] = ["url", "prefix", "tag"];

    /// Reads the parameters of a request for a purge: the value that each of [`Self::KINDS`] has, if it has any.
    ///
    /// # Errors
    /// Not exactly one of them has a value, or it makes no sense.
    pub fn of_parameters(mut value: impl FnMut(&str) -> Option<String>) -> Result<Self, BadPurge> {
        let mut named = Self::KINDS.iter().filter_map(|kind| Some((*kind, value(kind)?)));
        let right = "write one of url=URL, prefix=URL, tag=TAG, percent-encoded";
        let Some((kind, text)) = named.next() else {
            return Err(BadPurge { what: "the request names no objects".to_owned(), right });
        };
        if named.next().is_some() {
            return Err(BadPurge { what: "a purge names one thing".to_owned(), right });
        }
        Self::new(kind, &text)
    }

    /// The purge of this kind, one of [`Self::KINDS`].
    ///
    /// # Errors
    /// The text is no URL with a host, or no tag.
    pub fn new(kind: &str, text: &str) -> Result<Self, BadPurge> {
        match kind {
            "url" => Location::new(text).map(Self::Url),
            "prefix" => Location::new(text).map(Self::Prefix),
            _ => tag(text).map(Self::Tag),
        }
    }

    /// Reads what is displayed.
    ///
    /// # Errors
    /// It is no purge.
    pub fn of_displayed(text: &str) -> Result<Self, BadPurge> {
        let mut kinds = Self::KINDS.iter();
        let named = text.split_once(' ').filter(|(kind, _)| kinds.any(|known| known == kind));
        let right = "write 'url URL', 'prefix URL' or 'tag TAG'";
        let (kind, text) = named.ok_or(BadPurge { what: "this is no purge".to_owned(), right })?;
        Self::new(kind, text)
    }

    /// Its kind and its text.
    pub fn named(&self) -> (&'static str, &str) {
        match self {
            Self::Url(url) => ("url", &url.text),
            Self::Prefix(url) => ("prefix", &url.text),
            Self::Tag(tag) => ("tag", tag),
        }
    }

    /// The query of a request for it.
    pub fn query(&self) -> String {
        let (kind, text) = self.named();
        let mut query = format!("{kind}=");
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
                query.push(char::from(byte));
            } else {
                // Writing to a string does not fail.
                let _ = write!(query, "%{byte:02X}");
            }
        }
        query
    }
}

impl fmt::Display for Purge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = self.named();
        write!(f, "{kind} {text}")
    }
}

impl Location {
    fn new(text: &str) -> Result<Self, BadPurge> {
        let right = "write an absolute URL, such as https://www.example.org/a?b=c";
        let bad = |what: &str| BadPurge { what: what.to_owned(), right };
        if text.len() > URL_BYTES_MAX {
            return Err(BadPurge {
                what: format!("a URL of {} bytes", text.len()),
                right: "at most 8,192 bytes",
            });
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let right = "percent-encode what is not printable ASCII, as clients ask for it";
            return Err(BadPurge { what: "no URL has such characters".to_owned(), right });
        }
        if text.contains('#') {
            return Err(BadPurge {
                what: "clients do not send what follows '#'".to_owned(),
                right: "leave it out",
            });
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("no scheme"))?;
        if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
            return Err(bad("another scheme than http and https"));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let host = &rest[..end];
        if host.is_empty() || host.contains('@') || host.parse::<http::uri::Authority>().is_err() {
            return Err(bad("no host"));
        }
        let slash = if rest[end..].starts_with('/') { "" } else { "/" };
        let text = format!("{scheme}://{host}{slash}{}", &rest[end..]);
        let path_at = scheme.len() + 3 + host.len();
        Ok(Self { text: text.into(), host: bare_host(host).to_ascii_lowercase().into(), path_at })
    }

    /// Whether a host that a request names is this one. The usual ports count as none.
    pub fn is_host(&self, host: &str) -> bool {
        self.host.eq_ignore_ascii_case(bare_host(host))
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.text[self.path_at..]
    }
}

/// A host without a port that goes without saying.
fn bare_host(host: &str) -> &str {
    host.strip_suffix(":80").or_else(|| host.strip_suffix(":443")).unwrap_or(host)
}

fn tag(text: &str) -> Result<Box<str>, BadPurge> {
    let right = "write one tag of printable ASCII without space and comma, at most 1,024 bytes";
    let good = |byte: u8| byte.is_ascii_graphic() && byte != b',';
    if text.is_empty() || text.len() > TAG_BYTES_MAX || !text.bytes().all(good) {
        return Err(BadPurge { what: "this is no tag".to_owned(), right });
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        for (text, shown, host, target) in [
            ("http://A.example/x?y=1", "http://A.example/x?y=1", "a.example", "/x?y=1"),
            ("https://a.example:443", "https://a.example:443/", "a.example:80", "/"),
            ("http://a.example:8080?q", "http://a.example:8080/?q", "A.example:8080", "/?q"),
            ("HTTP://[2001:db8::1]:80/", "HTTP://[2001:db8::1]:80/", "[2001:db8::1]", "/"),
        ] {
            let purge = Purge::new("url", text).expect(text);
            assert_eq!(purge.named(), ("url", shown));
            let Purge::Url(url) = purge else { panic!("{purge}") };
            assert!(url.is_host(host), "{text}");
            assert_eq!(url.target(), target);
            assert!(!url.is_host("b.example") && !url.is_host("a.example:81"), "{text}");
        }
    }

    #[test]
    fn a_purge_that_makes_no_sense_is_refused() {
        for (kind, text, what) in [
            ("url", "/a", "no scheme"),
            ("url", "ftp://a/b", "another scheme"),
            ("url", "http:///b", "no host"),
            ("prefix", "http://u@a/", "no host"),
            ("prefix", "http://a/b#c", "'#'"),
            ("url", "http://a/b c", "such characters"),
            ("url", "http://a/\u{fc}", "such characters"),
            ("url", &format!("http://a/{}", "x".repeat(URL_BYTES_MAX)), "bytes"),
            ("tag", "", "no tag"),
            ("tag", "a,b", "no tag"),
            ("tag", "a b", "no tag"),
            ("tag", &"x".repeat(TAG_BYTES_MAX + 1), "no tag"),
        ] {
            let error = Purge::new(kind, text).expect_err(text);
            assert!(error.what.contains(what) && !error.right.is_empty(), "{error}");
        }
        let of = |given: &[(&str, &str)]| {
            let value =
                |kind: &str| given.iter().find(|(name, _)| *name == kind).map(|(_, text)| (*text).to_owned());
            Purge::of_parameters(value)
        };
        assert_eq!(of(&[("tag", "x")]), Ok(Purge::Tag("x".into())));
        assert!(of(&[]).is_err_and(|error| error.what == "the request names no objects"));
        assert!(
            of(&[("tag", "x"), ("url", "http://a/")]).is_err_and(|error| error.what.contains("one thing"))
        );
    }

    #[test]
    fn a_query_says_the_same() {
        let purge = Purge::new("prefix", "https://a.example/x?y=1&z=%20+").expect("a prefix");
        assert_eq!(purge.query(), "prefix=https://a.example/x%3Fy%3D1%26z%3D%2520%2B");
        assert_eq!(Purge::new("tag", "a=b").expect("a tag").query(), "tag=a%3Db");
        assert_eq!(Purge::of_displayed(&purge.to_string()), Ok(purge));
        assert!(Purge::of_displayed("all").is_err() && Purge::of_displayed("all http://a/").is_err());
    }
}
