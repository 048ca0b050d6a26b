//! Purges as operators specify them: by URL, by URL prefix, or by tag.

use std::fmt::{self, Write as _};

/// Maximum length of a URL or prefix, in bytes.
const URL_BYTES_MAX: usize = 8_192;
/// Maximum length of a tag, in bytes.
const TAG_BYTES_MAX: usize = 1_024;

/// Path at which a node accepts purges from switches, on its own address for requests.
pub const PURGE_PATH: &str = "/.larder/purge";
/// Field of a request for [`PURGE_PATH`] that contains the purge in its `Display` form.
pub const PURGE_FIELD: &str = "larder-purge";

/// The objects that a purge removes from memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Everything stored for one URL.
    Url(Location),
    /// Everything stored for URLs with this prefix.
    Prefix(Location),
    /// Everything with this tag in `Cache-Tag` or `Surrogate-Key`.
    Tag(Box<str>),
}

/// A URL without its scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    text: Box<str>,
    /// In lower case, without the scheme's default port.
    host: Box<str>,
    path_at: usize,
}

/// An invalid purge request. The requester's fault; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {right}")]
pub struct PurgeError {
    /// Description of the fault.
    pub what: String,
    /// Description of the correct form.
    pub right: &'static str,
}

impl Purge {
    /// The kinds of purges: the names of their parameters.
    pub const KINDS: [&str; 3] = ["url", "prefix", "tag"];

    /// Parses the parameters of a purge request. `value` returns the value of one of [`Self::KINDS`], if present.
    ///
    /// # Errors
    /// Not exactly one of them is present, or its value is invalid.
    pub fn from_parameters(mut value: impl FnMut(&str) -> Option<String>) -> Result<Self, PurgeError> {
        let mut named = Self::KINDS.iter().filter_map(|kind| Some((*kind, value(kind)?)));
        let right = "write one of url=URL, prefix=URL, tag=TAG, percent-encoded";
        let Some((kind, text)) = named.next() else {
            return Err(PurgeError { what: "the request names no objects".to_owned(), right });
        };
        if named.next().is_some() {
            return Err(PurgeError { what: "a purge takes only one parameter".to_owned(), right });
        }
        Self::new(kind, &text)
    }

    /// Makes a purge of this kind, one of [`Self::KINDS`].
    ///
    /// # Errors
    /// The text is not a URL with a host, or not a tag.
    pub fn new(kind: &str, text: &str) -> Result<Self, PurgeError> {
        match kind {
            "url" => Location::new(text).map(Self::Url),
            "prefix" => Location::new(text).map(Self::Prefix),
            _ => tag(text).map(Self::Tag),
        }
    }

    /// Parses the `Display` form.
    ///
    /// # Errors
    /// The text is not a purge.
    pub fn parse(text: &str) -> Result<Self, PurgeError> {
        let mut kinds = Self::KINDS.iter();
        let named = text.split_once(' ').filter(|(kind, _)| kinds.any(|known| known == kind));
        let right = "write 'url URL', 'prefix URL' or 'tag TAG'";
        let (kind, text) = named.ok_or(PurgeError { what: "not a purge".to_owned(), right })?;
        Self::new(kind, text)
    }

    /// Returns its kind and its text.
    pub fn kind_and_text(&self) -> (&'static str, &str) {
        match self {
            Self::Url(url) => ("url", &url.text),
            Self::Prefix(url) => ("prefix", &url.text),
            Self::Tag(tag) => ("tag", tag),
        }
    }

    /// Returns the query of a request for this purge.
    pub fn query(&self) -> String {
        let (kind, text) = self.kind_and_text();
        let mut query = format!("{kind}=");
        for byte in text.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
                query.push(char::from(byte));
            } else {
                // Writing to a string cannot fail.
                let _ = write!(query, "%{byte:02X}");
            }
        }
        query
    }
}

impl fmt::Display for Purge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = self.kind_and_text();
        write!(f, "{kind} {text}")
    }
}

impl Location {
    fn new(text: &str) -> Result<Self, PurgeError> {
        let right = "write an absolute URL, such as https://www.example.org/a?b=c";
        let bad = |what: &str| PurgeError { what: what.to_owned(), right };
        if text.len() > URL_BYTES_MAX {
            return Err(PurgeError {
                what: format!("a URL of {} bytes", text.len()),
                right: "at most 8,192 bytes",
            });
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let right = "percent-encode other characters than printable ASCII, as clients do";
            return Err(PurgeError { what: "invalid characters in the URL".to_owned(), right });
        }
        if text.contains('#') {
            return Err(PurgeError {
                what: "clients do not send the part after '#'".to_owned(),
                right: "omit it",
            });
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad("no scheme"))?;
        if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
            return Err(bad("the scheme is not http or https"));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let host = &rest[..end];
        if host.is_empty() || host.contains('@') || host.parse::<http::uri::Authority>().is_err() {
            return Err(bad("no host"));
        }
        let slash = if rest[end..].starts_with('/') { "" } else { "/" };
        let text = format!("{scheme}://{host}{slash}{}", &rest[end..]);
        let path_at = scheme.len() + 3 + host.len();
        Ok(Self { text: text.into(), host: without_default_port(host).to_ascii_lowercase().into(), path_at })
    }

    /// Checks whether a request's host is this one. Default ports are ignored.
    pub fn is_host(&self, host: &str) -> bool {
        self.host.eq_ignore_ascii_case(without_default_port(host))
    }

    /// Returns path and query.
    pub fn target(&self) -> &str {
        &self.text[self.path_at..]
    }
}

/// Removes a default port from a host.
fn without_default_port(host: &str) -> &str {
    host.strip_suffix(":80").or_else(|| host.strip_suffix(":443")).unwrap_or(host)
}

fn tag(text: &str) -> Result<Box<str>, PurgeError> {
    let right = "write one tag of printable ASCII without space and comma, at most 1,024 bytes";
    let good = |byte: u8| byte.is_ascii_graphic() && byte != b',';
    if text.is_empty() || text.len() > TAG_BYTES_MAX || !text.bytes().all(good) {
        return Err(PurgeError { what: "invalid tag".to_owned(), right });
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        for (text, shown, host, target) in [
            ("http://A.example/x?y=1", "http://A.example/x?y=1", "a.example", "/x?y=1"),
            ("https://a.example:443", "https://a.example:443/", "a.example:80", "/"),
            ("http://a.example:8080?q", "http://a.example:8080/?q", "A.example:8080", "/?q"),
            ("HTTP://[2001:db8::1]:80/", "HTTP://[2001:db8::1]:80/", "[2001:db8::1]", "/"),
        ] {
            let purge = Purge::new("url", text).expect(text);
            assert_eq!(purge.kind_and_text(), ("url", shown));
            let Purge::Url(url) = purge else { panic!("{purge}") };
            assert!(url.is_host(host), "{text}");
            assert_eq!(url.target(), target);
            assert!(!url.is_host("b.example") && !url.is_host("a.example:81"), "{text}");
        }
    }

    #[test]
    fn invalid_purges_are_refused() {
        for (kind, text, what) in [
            ("url", "/a", "no scheme"),
            ("url", "ftp://a/b", "the scheme is not http or https"),
            ("url", "http:///b", "no host"),
            ("prefix", "http://u@a/", "no host"),
            ("prefix", "http://a/b#c", "'#'"),
            ("url", "http://a/b c", "invalid characters in the URL"),
            ("url", "http://a/\u{fc}", "invalid characters in the URL"),
            ("url", &format!("http://a/{}", "x".repeat(URL_BYTES_MAX)), "bytes"),
            ("tag", "", "invalid tag"),
            ("tag", "a,b", "invalid tag"),
            ("tag", "a b", "invalid tag"),
            ("tag", &"x".repeat(TAG_BYTES_MAX + 1), "invalid tag"),
        ] {
            let error = Purge::new(kind, text).expect_err(text);
            assert!(error.what.contains(what) && !error.right.is_empty(), "{error}");
        }
        let of = |given: &[(&str, &str)]| {
            let value =
                |kind: &str| given.iter().find(|(name, _)| *name == kind).map(|(_, text)| (*text).to_owned());
            Purge::from_parameters(value)
        };
        assert_eq!(of(&[("tag", "x")]), Ok(Purge::Tag("x".into())));
        assert!(of(&[]).is_err_and(|error| error.what == "the request names no objects"));
        assert!(
            of(&[("tag", "x"), ("url", "http://a/")])
                .is_err_and(|error| error.what.contains("only one parameter"))
        );
    }

    #[test]
    fn query_and_display_round_trip() {
        let purge = Purge::new("prefix", "https://a.example/x?y=1&z=%20+").expect("a prefix");
        assert_eq!(purge.query(), "prefix=https://a.example/x%3Fy%3D1%26z%3D%2520%2B");
        assert_eq!(Purge::new("tag", "a=b").expect("a tag").query(), "tag=a%3Db");
        assert_eq!(Purge::parse(&purge.to_string()), Ok(purge));
        assert!(Purge::parse("all").is_err() && Purge::parse("all http://a/").is_err());
    }
}
