//! The `Cache-Status` header (RFC 9211): what the node's cache did for a reply.
//!
//! ```text
//! a; hit                            from memory
//! a; fwd=uri-miss; stored           read from the store and kept
//! a; fwd=uri-miss                   read and not kept: too large, or HEAD and conditional requests without a body
//! a; fwd=uri-miss; collapsed        another request's read served this one too
//! a; fwd=partial; stored            some chunks from memory, some read
//! a; fwd=stale; stored              the file had changed since it was kept
//! a; fwd=uri-miss; fwd-status=404   the store does not have it
//! a; fwd=bypass; detail=light       the program 'light' made it; nothing is kept of those
//! a; fwd=method; detail=light       the same for a POST
//! a; hit; ttl=30                    from memory; the origin's reply is fresh for 30 s more
//! a; fwd=vary-miss; fwd-status=200; stored   the origin was asked, and what it sent is kept
//! a; fwd=request; fwd-status=200; detail=no-store   the origin was asked, and what it sent is not kept
//! a; fwd=uri-miss; fwd-status=200; detail=lateral   fetched from the node that has it, and not kept
//! a; detail=...                     answered without asking cache or store
//! ```

use http::HeaderValue;
use std::fmt;

/// What the cache did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything came from memory.
    Hit,
    /// The store was asked.
    Forward { why: Why, stored: bool, collapsed: bool },
    /// The store was asked and gave an error, answered with this status.
    Failed { why: Why, status: u16, detail: &'static str },
    /// A kept reply of an origin, fresh for so many seconds.
    Kept { ttl: i64, detail: Option<&'static str> },
    /// The origin was asked, and sent this status.
    Pulled { why: Why, status: Option<u16>, stored: bool, collapsed: bool, detail: Option<&'static str> },
    /// Another node was asked, and sent this status.
    Lateral { why: Why, status: u16 },
    /// A program made the reply.
    Program { why: Why, name: &'static str },
    /// Neither was asked, for this reason.
    Local(&'static str),
}

/// Why the store was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The cache has nothing of it.
    Miss,
    /// The cache has it for other request headers.
    Vary,
    /// The request wants it so.
    Request,
    /// The cache has some chunks of it.
    Partial,
    /// The cache had an older version.
    Stale,
    /// Nothing of this kind is kept.
    Bypass,
    /// The method is one whose replies are not kept.
    Method,
}

impl Why {
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

/// Makes the header's values for a node's name.
#[derive(Debug)]
pub(crate) struct Speller {
    name: String,
    hit: HeaderValue,
    stored: HeaderValue,
    missed: HeaderValue,
}

impl Speller {
    /// `name` is printable ASCII.
    pub(crate) fn new(name: &str) -> Self {
        let name = item(name);
        let hit = value(format!("{name}; hit"));
        let stored = value(format!("{name}; fwd=uri-miss; stored"));
        let missed = value(format!("{name}; fwd=uri-miss"));
        Self { name, hit, stored, missed }
    }

    /// The name as it stands in the header.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The value for an outcome. The frequent ones are made once.
    pub(crate) fn spell(&self, outcome: Outcome) -> HeaderValue {
        match outcome {
            Outcome::Hit => self.hit.clone(),
            Outcome::Forward { why: Why::Miss, stored: true, collapsed: false } => self.stored.clone(),
            Outcome::Forward { why: Why::Miss, stored: false, collapsed: false } => self.missed.clone(),
            Outcome::Forward { why, stored, collapsed } => {
                let stored = if stored { "; stored" } else { "" };
                let collapsed = if collapsed { "; collapsed" } else { "" };
                value(format!("{}; fwd={}{stored}{collapsed}", self.name, why.token()))
            }
            Outcome::Failed { why, status, detail } => {
                value(format!("{}; fwd={}; fwd-status={status}; detail={detail}", self.name, why.token()))
            }
            Outcome::Kept { ttl, detail } => {
                value(format!("{}; hit; ttl={ttl}{}", self.name, Detail(detail)))
            }
            Outcome::Pulled { why, status, stored, collapsed, detail } => {
                let status = status.map_or(String::new(), |status| format!("; fwd-status={status}"));
                let stored = if stored { "; stored" } else { "" };
                let collapsed = if collapsed { "; collapsed" } else { "" };
                let (name, why) = (&self.name, why.token());
                value(format!("{name}; fwd={why}{status}{stored}{collapsed}{}", Detail(detail)))
            }
            Outcome::Lateral { why, status } => {
                value(format!("{}; fwd={}; fwd-status={status}; detail=lateral", self.name, why.token()))
            }
            Outcome::Program { why, name } => {
                value(format!("{}; fwd={}; detail={name}", self.name, why.token()))
            }
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

/// The name as a token of RFC 9651, or as a quoted string if it is none.
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
        for (name, spelled) in
            [("node-1", "node-1"), ("10.0.0.1:80", "\"10.0.0.1:80\""), ("a b\"c\\", "\"a b\\\"c\\\\\"")]
        {
            assert_eq!(Speller::new(name).spell(Outcome::Hit), format!("{spelled}; hit"));
        }
    }

    #[test]
    fn outcomes_read_as_the_rfc_has_them() {
        let speller = Speller::new("n");
        let forward = |why, stored, collapsed| Outcome::Forward { why, stored, collapsed };
        let pulled = |status, stored, detail| Outcome::Pulled {
            why: Why::Vary,
            status,
            stored,
            collapsed: true,
            detail,
        };
        let failed = Outcome::Failed { why: Why::Miss, status: 404, detail: "not-found" };
        for (outcome, text) in [
            (forward(Why::Miss, true, false), "n; fwd=uri-miss; stored"),
            (forward(Why::Miss, false, false), "n; fwd=uri-miss"),
            (forward(Why::Miss, true, true), "n; fwd=uri-miss; stored; collapsed"),
            (forward(Why::Partial, true, false), "n; fwd=partial; stored"),
            (forward(Why::Stale, false, false), "n; fwd=stale"),
            (failed, "n; fwd=uri-miss; fwd-status=404; detail=not-found"),
            (
                Outcome::Lateral { why: Why::Miss, status: 206 },
                "n; fwd=uri-miss; fwd-status=206; detail=lateral",
            ),
            (Outcome::Local("method"), "n; detail=method"),
            (Outcome::Kept { ttl: 5, detail: None }, "n; hit; ttl=5"),
            (Outcome::Kept { ttl: -5, detail: Some("x") }, "n; hit; ttl=-5; detail=x"),
            (pulled(Some(304), true, None), "n; fwd=vary-miss; fwd-status=304; stored; collapsed"),
            (pulled(None, false, Some("x")), "n; fwd=vary-miss; collapsed; detail=x"),
        ] {
            assert_eq!(speller.spell(outcome), text);
        }
    }
}
