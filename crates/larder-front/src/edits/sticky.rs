//! Sticky sessions: a client comes back to the node that keeps something for it.
//!
//! By a cookie that names the node: a keyed hash of the node's name (HMAC-SHA256, RFC 2104, 96 bits of it), so that it says
//! nothing of the cluster, and means the same after a restart and at another switch that has the same secret. Or by any
//! part of the request, such as a user's id in a header: then the node is the one with the highest random weight
//! (rendezvous) among those that take requests, and nothing is told to the client.
//!
//! Who may go where is the dispatcher's to say ([`larder_core::dispatch::Tie`]); this makes wishes of requests.

use super::error::EditError;
use super::fields::field_name;
use larder_core::NodeId;
use larder_core::rules::{Head, KeyTemplate};
use larder_edge::Fields;
use std::fmt::{self, Write as _};
use std::time::Duration;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The key where no secret is given: whoever guesses a node's name can then check the guess.
const OPEN_KEY: &[u8] = b"larder: sticky cookies without a secret";

/// The longest time that a cookie may be kept, which is the longest that clients keep one (RFC 6265bis). Seconds.
const MAX_AGE_S: u64 = 400 * 86_400;

/// When a cookie is sent along with requests from other sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// Where a link was followed.
    #[default]
    Lax,
    /// Never.
    Strict,
    /// Always; such a cookie is `Secure`.
    None,
}

/// What a session is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StickyBy {
    /// A cookie of the switch's own.
    Cookie(StickyCookie),
    /// Something that requests bring.
    Key(StickyKey),
}

/// Sticky sessions of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// What a session is known by.
    pub by: StickyBy,
    /// How long a node that drains keeps its clients, if they are known by cookie. Default 10 minutes.
    pub drain: Duration,
}

/// A cookie that names a node.
#[derive(Clone, PartialEq, Eq)]
pub struct StickyCookie {
    pub(crate) name: Box<str>,
    /// What follows the token in `Set-Cookie`.
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
    /// A cookie for requests of this path and below. With a `max_age` the client keeps it so long after each reply, else
    /// until it is closed. Without a `secret` tokens can be checked by whoever guesses a node's name.
    ///
    /// # Errors
    /// The name is none of a cookie, the path is none, or `max_age` is out of range.
    pub fn new(
        name: &str,
        path: &str,
        same_site: SameSite,
        max_age: Option<Duration>,
        secret: Option<&[u8]>,
    ) -> Result<Self, EditError> {
        if field_name(name).is_err() || name.len() > 64 {
            let what = format!("'{}' is no name of a cookie", name.escape_debug());
            return Err(EditError::new(what, "1 to 64 letters, digits and !#$%&'*+-.^_`|~"));
        }
        let fits =
            path.starts_with('/') && path.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && byte != b';');
        if !fits {
            let what = format!("'{}' is no path of a cookie", path.escape_debug());
            return Err(EditError::new(what, "it begins with '/', and holds no space or ';'"));
        }
        let mut attributes = format!("; Path={path}; HttpOnly");
        if let Some(age) = max_age {
            if !(1..=MAX_AGE_S).contains(&age.as_secs()) {
                return Err(EditError::new(
                    format!("max_age of {} s is out of range", age.as_secs()),
                    "1s to 400d",
                ));
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

    /// Whether the client must hear of it with each reply.
    pub(crate) const fn renewed(&self) -> bool {
        self.renewed
    }
}

/// A part of the request that stands for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StickyKey {
    template: KeyTemplate,
    /// What comes of a request that brings nothing of it.
    nothing: Vec<u8>,
}

impl StickyKey {
    /// Sessions are known by what this template makes of a request. Where that is nothing, there is none.
    pub fn new(template: KeyTemplate) -> Self {
        let mut nothing = Vec::new();
        template.render(&Head::new(b"", b"", b"", &()), &mut nothing);
        Self { template, nothing }
    }

    /// The session that a request belongs to.
    pub(crate) fn session(&self, head: &Head<'_>) -> Option<u64> {
        let mut key = Vec::new();
        self.template.render(head, &mut key);
        (key != self.nothing).then(|| xxh3_64(&key))
    }
}

/// The node of a session: that with the highest random weight (Thaler and Ravishankar 1998), of nodes by name and weight.
pub(crate) fn rendezvous<'n>(
    session: u64,
    nodes: impl Iterator<Item = (NodeId, &'n str, u32)>,
) -> Option<NodeId> {
    let scored = nodes.map(|(node, name, weight_milli)| {
        // In (0, 1): the score is the time of the first event of a process of that rate.
        let chance = (xxh3_64_with_seed(name.as_bytes(), session) >> 11) as f64 + 0.5;
        (-(chance / (1_u64 << 53) as f64).ln() / f64::from(weight_milli.max(1)), node)
    });
    scored.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, node)| node)
}

/// The pairs of all cookies of a header.
fn pairs(fields: &impl Fields) -> impl Iterator<Item = &[u8]> {
    fields.each("Cookie").flat_map(pairs_of)
}

/// Those of one field.
fn pairs_of(field: &[u8]) -> impl Iterator<Item = &[u8]> {
    field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii)
}

/// The value of the first cookie of this name, in one field.
pub(crate) fn cookie_of<'f>(field: &'f [u8], name: &str) -> Option<&'f [u8]> {
    value_of(pairs_of(field), name)
}

fn value_of<'h>(mut pairs: impl Iterator<Item = &'h [u8]>, name: &str) -> Option<&'h [u8]> {
    pairs.find(|pair| is_of(pair, name)).map(|pair| &pair[name.len() + 1..])
}

fn is_of(pair: &[u8], name: &str) -> bool {
    pair.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// The value of the first cookie of this name.
pub(crate) fn cookie<'h>(fields: &'h impl Fields, name: &str) -> Option<&'h [u8]> {
    value_of(pairs(fields), name)
}

/// The other cookies, in one field; `None` if there is no other.
pub(crate) fn other_cookies(fields: &impl Fields, name: &str) -> Option<Vec<u8>> {
    let others: Vec<&[u8]> = pairs(fields).filter(|pair| !pair.is_empty() && !is_of(pair, name)).collect();
    Some(others.join(&b"; "[..])).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;

    #[test]
    fn a_cookie_needs_a_name_a_path_and_an_age_that_clients_keep() {
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
    fn a_cookie_is_taken_out_of_the_others() {
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
    fn who_brings_nothing_has_no_session() {
        let key = StickyKey::new("u={header:x-user}".parse().expect("a template"));
        assert_eq!(key.session(&Head::get(b"h", b"/")), None);
        let headers = vec![("X-User", "ann")];
        assert!(key.session(&Head::new(b"GET", b"h", b"/", &headers)).is_some());
    }
}
