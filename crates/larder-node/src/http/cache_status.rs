//! The `Cache-Status` header (RFC 9211): the cache's part in a reply.
//!
//! ```text
//! a; hit                            served from memory
//! a; fwd=uri-miss; stored           read from the store and stored
//! a; fwd=uri-miss                   read and not stored: too large, or no body needed (HEAD, conditional)
//! a; fwd=uri-miss; collapsed        another request's read served this request too
//! a; fwd=partial; stored            some chunks from memory, some read
//! a; fwd=stale; stored              the file had changed since it was stored
//! a; fwd=uri-miss; fwd-status=404   the store does not have the object
//! a; fwd=bypass; detail=light       the program 'light' generated the reply, which is not stored
//! a; hit; ttl=30                    from memory; the origin's reply is fresh for another 30 s
//! a; fwd=vary-miss; fwd-status=200; stored   the origin was asked, and its reply was stored
//! a; fwd=request; fwd-status=200; detail=no-store   the origin was asked, and its reply was not stored
//! a; fwd=uri-miss; fwd-status=200; detail=lateral   fetched from the node that has the target, and not stored
//! a; detail=...                     answered without the cache and the store
//! ```

use http::HeaderValue;
use std::fmt;

/// The cache's part in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The whole reply came from memory.
    Hit,
    /// The store was asked.
    Forward { reason: ForwardReason, stored: bool, collapsed: bool },
    /// The store was asked and failed; the reply has this status.
    Failed { reason: ForwardReason, status: u16, detail: &'static str },
    /// A stored reply of an origin, which is fresh for `ttl` seconds.
    OriginHit { ttl: i64, detail: Option<&'static str> },
    /// The origin was asked, and sent this status.
    OriginForward {
        reason: ForwardReason,
        status: Option<u16>,
        stored: bool,
        collapsed: bool,
        detail: Option<&'static str>,
    },
    /// Another node was asked, and sent this status.
    Lateral { reason: ForwardReason, status: u16 },
    /// The program of this name generated the reply.
    Program(&'static str),
    /// Neither the cache nor the store was asked, for this reason.
    Local(&'static str),
}

/// The reason why the store was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardReason {
    /// The cache has no entry for the target.
    Miss,
    /// The cache has the target for other request headers only.
    Vary,
    /// The request demands it.
    Request,
    /// The cache has some chunks of the target.
    Partial,
    /// The cache has an older version.
    Stale,
    /// Replies of this kind are not stored.
    Bypass,
    /// Replies to this method are not stored.
    Method,
}

impl ForwardReason {
    const fn token(self) -> &'static str {
        match self {
            Self::Miss => "uri-miss",
            Self::Vary => "vary-miss",
            Self::Request => "request",
            Self::Partial => "partial",
            Self::Stale => "stale",
            Self::Bypass => "bypass",
            Self::Method => "method",
        }
    }
}

/// Formats the header's values for a node's name.
#[derive(Debug)]
pub(crate) struct CacheStatusWriter {
    name: String,
    hit: HeaderValue,
    stored: HeaderValue,
    missed: HeaderValue,
}

impl CacheStatusWriter {
    /// Creates the formatter for a name of printable ASCII.
    pub(crate) fn new(name: &str) -> Self {
        let name = item(name);
        let hit = value(format!("{name}; hit"));
        let stored = value(format!("{name}; fwd=uri-miss; stored"));
        let missed = value(format!("{name}; fwd=uri-miss"));
        Self { name, hit, stored, missed }
    }

    /// Returns the name in the form of the header.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value for an outcome. The frequent values are made once.
    pub(crate) fn format(&self, outcome: Outcome) -> HeaderValue {
        match outcome {
            Outcome::Hit => self.hit.clone(),
            Outcome::Forward { reason: ForwardReason::Miss, stored: true, collapsed: false } => {
                self.stored.clone()
            }
            Outcome::Forward { reason: ForwardReason::Miss, stored: false, collapsed: false } => {
                self.missed.clone()
            }
            Outcome::Forward { reason, stored, collapsed } => {
                let stored = if stored { "; stored" } else { "" };
                let collapsed = if collapsed { "; collapsed" } else { "" };
                value(format!("{}; fwd={}{stored}{collapsed}", self.name, reason.token()))
            }
            Outcome::Failed { reason, status, detail } => {
                value(format!("{}; fwd={}; fwd-status={status}; detail={detail}", self.name, reason.token()))
            }
            Outcome::OriginHit { ttl, detail } => {
                value(format!("{}; hit; ttl={ttl}{}", self.name, Detail(detail)))
            }
            Outcome::OriginForward { reason, status, stored, collapsed, detail } => {
                let status = status.map_or(String::new(), |status| format!("; fwd-status={status}"));
                let stored = if stored { "; stored" } else { "" };
                let collapsed = if collapsed { "; collapsed" } else { "" };
                let (name, reason) = (&self.name, reason.token());
                value(format!("{name}; fwd={reason}{status}{stored}{collapsed}{}", Detail(detail)))
            }
            Outcome::Lateral { reason, status } => {
                value(format!("{}; fwd={}; fwd-status={status}; detail=lateral", self.name, reason.token()))
            }
            Outcome::Program(name) => value(format!("{}; fwd=bypass; detail={name}", self.name)),
            Outcome::Local(detail) => value(format!("{}; detail={detail}", self.name)),
        }
    }
}

struct Detail(Option<&'static str>);

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |detail| write!(f, "; detail={detail}"))
    }
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("larder"))
}

/// Formats the name as a token (RFC 9651), or as a quoted string if it is not a token.
fn item(name: &str) -> String {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*');
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c);
    if starts && name.chars().all(token) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens_or_strings() {
        for (name, expected) in
            [("node-1", "node-1"), ("10.0.0.1:80", "\"10.0.0.1:80\""), ("a b\"c\\", "\"a b\\\"c\\\\\"")]
        {
            assert_eq!(CacheStatusWriter::new(name).format(Outcome::Hit), format!("{expected}; hit"));
        }
    }

    #[test]
    fn outcomes_are_written_as_in_rfc_9211() {
        let cache_status = CacheStatusWriter::new("n");
        let forward = |reason, stored, collapsed| Outcome::Forward { reason, stored, collapsed };
        let pulled = |status, stored, detail| Outcome::OriginForward {
            reason: ForwardReason::Vary,
            status,
            stored,
            collapsed: true,
            detail,
        };
        let failed = Outcome::Failed { reason: ForwardReason::Miss, status: 404, detail: "not-found" };
        for (outcome, text) in [
            (forward(ForwardReason::Miss, true, false), "n; fwd=uri-miss; stored"),
            (forward(ForwardReason::Miss, false, false), "n; fwd=uri-miss"),
            (forward(ForwardReason::Miss, true, true), "n; fwd=uri-miss; stored; collapsed"),
            (forward(ForwardReason::Partial, true, false), "n; fwd=partial; stored"),
            (forward(ForwardReason::Stale, false, false), "n; fwd=stale"),
            (failed, "n; fwd=uri-miss; fwd-status=404; detail=not-found"),
            (
                Outcome::Lateral { reason: ForwardReason::Miss, status: 206 },
                "n; fwd=uri-miss; fwd-status=206; detail=lateral",
            ),
            (Outcome::Local("method"), "n; detail=method"),
            (Outcome::OriginHit { ttl: 5, detail: None }, "n; hit; ttl=5"),
            (Outcome::OriginHit { ttl: -5, detail: Some("x") }, "n; hit; ttl=-5; detail=x"),
            (pulled(Some(304), true, None), "n; fwd=vary-miss; fwd-status=304; stored; collapsed"),
            (pulled(None, false, Some("x")), "n; fwd=vary-miss; collapsed; detail=x"),
        ] {
            assert_eq!(cache_status.format(outcome), text);
        }
    }
}
