//! Sticky sessions: a client returns to the node that keeps its session.
//!
//! A session is identified by a cookie or by a part of the request. The cookie names the node by a keyed hash of its
//! name (96 bits of HMAC-SHA256, RFC 2104). It reveals nothing about the cluster, and stays valid after a restart and
//! at another switch with the same secret. For a part of the request, such as a user id in a header, the node is
//! chosen by highest random weight (rendezvous hashing) among the nodes that take requests, and the client gets no
//! cookie.
//!
//! The dispatcher decides whether a node takes its sticky clients ([`larder_core::dispatch::RequestAffinity`]).

use super::error::EditError;
use super::fields::field_name;
use larder_core::NodeId;
use larder_core::rules::{Head, KeyTemplate};
use larder_edge::Fields;
use std::fmt::{self, Write as _};
use std::time::Duration;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Key without a configured secret: a client that guesses a node's name can verify the guess.
const OPEN_KEY: &[u8] = b"larder: sticky cookies without a secret";

/// Maximum age of a cookie that clients accept (RFC 6265bis). Seconds.
const MAX_AGE_S: u64 = 400 * 86_400;

/// Cross-site behaviour of a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// Sent only when a link is followed.
    #[default]
    Lax,
    /// Never sent.
    Strict,
    /// Always sent; such a cookie is `Secure`.
    None,
}

/// Identification of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StickyBy {
    /// A cookie of the switch.
    Cookie(StickyCookie),
    /// A part of the request.
    Key(StickyKey),
}

/// Sticky sessions of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// Identification of a session.
    pub by: StickyBy,
    /// Time for which a draining node keeps clients with cookies. Default 10 minutes.
    pub drain: Duration,
}

/// A cookie that names a node.
#[derive(Clone, PartialEq, Eq)]
pub struct StickyCookie {
    pub(crate) name: Box<str>,
    /// Attributes after the token in `Set-Cookie`.
    pub(crate) attributes: Box<str>,
    pub(crate) secure: bool,
    renewed: bool,
    pub(crate) secret: Box<[u8]>,
}

impl fmt::Debug for StickyCookie {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StickyCookie({}{})", self.name, self.attributes)
    }
}

impl StickyCookie {
    /// Creates a cookie for this path and below. With a `max_age` the client keeps it this long after each reply,
    /// otherwise until it is closed. Without a `secret`, a client that guesses a node's name can verify the guess.
    ///
    /// # Errors
    /// The name or the path is invalid, or `max_age` is out of range.
    pub fn new(
        name: &str,
        path: &str,
        same_site: SameSite,
        max_age: Option<Duration>,
        secret: Option<&[u8]>,
    ) -> Result<Self, EditError> {
        if field_name(name).is_err() || name.len() > 64 {
            let what = format!("'{}' is not a cookie name", name.escape_debug());
            return Err(EditError::new(what, "1 to 64 letters, digits and !#$%&'*+-.^_`|~").at("cookie"));
        }
        let fits =
            path.starts_with('/') && path.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && byte != b';');
        if !fits {
            let what = format!("'{}' is not a cookie path", path.escape_debug());
            return Err(EditError::new(what, "it begins with '/', and holds no space or ';'").at("path"));
        }
        let mut attributes = format!("; Path={path}; HttpOnly");
        if let Some(age) = max_age {
            if !(1..=MAX_AGE_S).contains(&age.as_secs()) {
                let what = format!("{} s is out of range", age.as_secs());
                return Err(EditError::new(what, "1s to 400d").at("max_age"));
            }
            let _ = write!(attributes, "; Max-Age={}", age.as_secs());
        }
        attributes += match same_site {
            SameSite::Lax => "; SameSite=Lax",
            SameSite::Strict => "; SameSite=Strict",
            SameSite::None => "; SameSite=None",
        };
        Ok(Self {
            name: name.into(),
            attributes: attributes.into(),
            secure: same_site == SameSite::None,
            renewed: max_age.is_some(),
            secret: secret.unwrap_or(OPEN_KEY).into(),
        })
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether each reply sets the cookie again.
    pub(crate) const fn renewed(&self) -> bool {
        self.renewed
    }
}

/// A part of the request that identifies a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StickyKey {
    template: KeyTemplate,
    /// Key of a request without any of the parts.
    nothing: Vec<u8>,
}

impl StickyKey {
    /// Creates a key from a template. A request without any of its parts has no session.
    pub fn new(template: KeyTemplate) -> Self {
        let mut nothing = Vec::new();
        template.render(&Head::new(b"", b"", b"", &()), &mut nothing);
        Self { template, nothing }
    }

    /// Returns the session of a request.
    pub(crate) fn session(&self, head: &Head<'_>) -> Option<u64> {
        let mut key = Vec::new();
        self.template.render(head, &mut key);
        (key != self.nothing).then(|| xxh3_64(&key))
    }
}

/// Returns the node of a session by highest random weight (Thaler and Ravishankar 1998), from nodes with name and
/// weight.
pub(crate) fn rendezvous<'n>(
    session: u64,
    nodes: impl Iterator<Item = (NodeId, &'n str, u32)>,
) -> Option<NodeId> {
    let scored = nodes.map(|(node, name, weight_milli)| {
        // In (0, 1). The score is the time of the first event of a process with the weight as rate.
        let chance = (xxh3_64_with_seed(name.as_bytes(), session) >> 11) as f64 + 0.5;
        (-(chance / (1_u64 << 53) as f64).ln() / f64::from(weight_milli.max(1)), node)
    });
    scored.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, node)| node)
}

/// Returns the cookie pairs of a header.
fn pairs(fields: &impl Fields) -> impl Iterator<Item = &[u8]> {
    fields.each("Cookie").flat_map(pairs_of)
}

/// Returns the cookie pairs of one field.
fn pairs_of(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii)
}

/// Returns the value of the first cookie of this name in one field.
pub(crate) fn cookie_in_field<'f>(field: &'f [u8], name: &str) -> Option<&'f [u8]> {
    find_value(pairs_of(field), name)
}

fn find_value<'h>(mut pairs: impl Iterator<Item = &'h [u8]>, name: &str) -> Option<&'h [u8]> {
    pairs.find(|pair| has_name(pair, name)).map(|pair| &pair[name.len() + 1..])
}

fn has_name(pair: &[u8], name: &str) -> bool {
    pair.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Returns the value of the first cookie of this name.
pub(crate) fn cookie<'h>(fields: &'h impl Fields, name: &str) -> Option<&'h [u8]> {
    find_value(pairs(fields), name)
}

/// Returns the other cookies as one field; `None` if there are none.
pub(crate) fn other_cookies(fields: &impl Fields, name: &str) -> Option<Vec<u8>> {
    let others: Vec<&[u8]> = pairs(fields).filter(|pair| !pair.is_empty() && !has_name(pair, name)).collect();
    Some(others.join(&b"; "[..])).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    #[test]
    fn invalid_cookies_are_refused() {
        for (name, path, age) in [
            ("a b", "/", 1),
            ("", "/", 1),
            ("a", "app", 1),
            ("a", "/;", 1),
            ("a", "/", 0),
            ("a", "/", MAX_AGE_S + 1),
        ] {
            let age = Some(Duration::from_secs(age));
            assert!(StickyCookie::new(name, path, SameSite::Lax, age, None).is_err(), "{name} {path}");
        }
    }

    #[test]
    fn the_switch_cookie_is_removed_from_the_others() {
        let mut headers = HeaderMap::new();
        headers.add("Cookie", b"a=1; srv=x;srv2=y");
        headers.add("Cookie", b"srv=z; b=2");
        assert_eq!(cookie(&headers, "srv"), Some(&b"x"[..]));
        assert_eq!(cookie(&headers, "sr"), None);
        assert_eq!(other_cookies(&headers, "srv"), Some(b"a=1; srv2=y; b=2".to_vec()));
        let mut alone = HeaderMap::new();
        alone.add("Cookie", b"srv=x");
        assert_eq!(other_cookies(&alone, "srv"), None);
    }

    #[test]
    fn sessions_are_spread_by_weight_and_stay_when_others_leave() {
        let all = [(NodeId(0), "a", 1000), (NodeId(1), "b", 1000), (NodeId(2), "c", 2000)];
        let mut counts = [0_u32; 3];
        for session in 0..8000 {
            let session = xxh3_64(&u64::to_le_bytes(session));
            let node = rendezvous(session, all.into_iter()).expect("a node");
            counts[node.index()] += 1;
            let fewer = rendezvous(session, all.into_iter().filter(|(other, ..)| *other != NodeId(0)));
            assert!(node == NodeId(0) || fewer == Some(node));
        }
        // Shares 1/4, 1/4, 1/2; five standard deviations are 194 and 224.
        assert!(counts[0].abs_diff(2000) < 194 && counts[1].abs_diff(2000) < 194, "{counts:?}");
        assert!(counts[2].abs_diff(4000) < 224, "{counts:?}");
        assert_eq!(rendezvous(1, [].into_iter()), None);
    }

    #[test]
    fn requests_without_a_key_have_no_session() {
        let key = StickyKey::new("u={header:x-user}".parse().expect("a template"));
        assert_eq!(key.session(&Head::get(b"h", b"/")), None);
        let headers = vec![("X-User", "ann")];
        assert!(key.session(&Head::new(b"GET", b"h", b"/", &headers)).is_some());
    }
}
