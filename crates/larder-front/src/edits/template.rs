//! Text with parts of what is known of a request: the values of header rules, and where redirects lead.
//!
//! `{name}` stands for a part, `{{` and `}}` for the braces. All that a [`KeyTemplate`] takes may be used (`{method}`,
//! `{host}`, `{path}`, `{path:2..}`, `{extension}`, `{query}`, `{query:a}`, `{header:name}`, `{cookie:name}`), and:
//!
//! | part | what | known |
//! |---|---|---|
//! | `{client}`, `{client_port}` | the client's address, as announced by a balancer that is believed | always |
//! | `{host_name}` | the host in lower case, without its port | always |
//! | `{scheme}` | `https` where TLS ends here, else `http` | always |
//! | `{request_id}` | the request's id, where they are on | always |
//! | `{route}`, `{class}`, `{policy}`, `{target}` | route, service class, policy, the target's id | always |
//! | `{node}`, `{reason}` | the node that serves it, and why that one | requests to nodes, replies |
//! | `{status}`, `{cache}` | the reply's status; `hit` or `miss` by the node's word | replies |
//!
//! What is unknown puts nothing.

use super::error::EditError;
use super::known::Known;
use larder_core::rules::KeyTemplate;
use larder_edge::AddressText;
use larder_edge::template::pieces;
use std::fmt;
use std::io::Write as _;

/// The longest value that comes of one; a longer one counts as empty. Bytes.
const VALUE_BYTES_MAX: usize = 8192;

/// When a template is rendered: what is known by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No node has been chosen, and none will be.
    Answer,
    /// On its way to a node.
    Request,
    /// A reply is there.
    Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Client,
    ClientPort,
    HostName,
    Scheme,
    RequestId,
    Route,
    Class,
    Policy,
    Target,
    Node,
    Reason,
    Status,
    Cache,
}

const PARTS: [(&str, Part, Stage); 13] = [
    ("client", Part::Client, Stage::Answer),
    ("client_port", Part::ClientPort, Stage::Answer),
    ("host_name", Part::HostName, Stage::Answer),
    ("scheme", Part::Scheme, Stage::Answer),
    ("request_id", Part::RequestId, Stage::Answer),
    ("route", Part::Route, Stage::Answer),
    ("class", Part::Class, Stage::Answer),
    ("policy", Part::Policy, Stage::Answer),
    ("target", Part::Target, Stage::Answer),
    ("node", Part::Node, Stage::Request),
    ("reason", Part::Reason, Stage::Request),
    ("status", Part::Status, Stage::Reply),
    ("cache", Part::Cache, Stage::Reply),
];

/// The parts that a key template has too.
const KEY_PARTS: [&str; 7] = ["method", "host", "path", "extension", "query", "header", "cookie"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<[u8]>),
    Part(Part),
    OfKey(KeyTemplate),
}

/// A template; see [the module](self) for what it may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    pieces: Box<[Piece]>,
}

impl Template {
    /// Reads a template that is rendered at this stage.
    ///
    /// # Errors
    /// It is too long, its braces do not match, or it names what is not known by then.
    pub fn parse(text: &str, stage: Stage) -> Result<Self, EditError> {
        let pieces = pieces(text, Piece::Text, |name, braced| piece(name, braced, stage))?;
        Ok(Self { text: text.into(), pieces: pieces.into() })
    }

    /// The template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its text, if it is nothing else.
    pub(super) fn constant(&self) -> Option<&[u8]> {
        match &*self.pieces {
            [] => Some(b""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// What it says outside of parts.
    pub(super) fn literals(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(&**text),
            _ => None,
        })
    }

    /// The text that it begins with; empty if it begins with a part.
    pub(super) fn first_text(&self) -> &[u8] {
        match self.pieces.first() {
            Some(Piece::Text(text)) => text,
            _ => &[],
        }
    }

    /// Appends what it comes to; nothing, and false, where that is longer than [`VALUE_BYTES_MAX`].
    pub(crate) fn render(&self, known: &Known<'_>, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Part(part) => put(*part, known, out),
                Piece::OfKey(key) => key.render(&known.head, out),
            }
            if out.len() - start > VALUE_BYTES_MAX {
                out.truncate(start);
                return false;
            }
        }
        true
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn piece(name: &str, braced: &str, stage: Stage) -> Result<Piece, EditError> {
    if let Some((_, part, from)) = PARTS.iter().find(|(known, ..)| *known == name) {
        return match stage >= *from {
            true => Ok(Piece::Part(*part)),
            false => Err(EditError::new(
                format!("{braced} is not known yet"),
                match from {
                    Stage::Reply => "use it in rules for replies",
                    _ => {
                        "use it in rules for requests to nodes and for replies: here no node has been chosen"
                    }
                },
            )),
        };
    }
    let base = name.split_once(':').map_or(name, |(base, _)| base);
    if !KEY_PARTS.contains(&base) {
        let own: Vec<String> = PARTS
            .iter()
            .filter(|(.., from)| stage >= *from)
            .map(|(name, ..)| format!("{{{name}}}"))
            .collect();
        let right = format!(
            "use one of {}, {{method}}, {{host}}, {{path}}, {{path:2..}}, {{extension}}, {{query}}, {{query:a}}, \
             {{header:name}}, {{cookie:name}}",
            own.join(", ")
        );
        return Err(EditError::new(format!("there is no part {braced}"), right));
    }
    let key: Result<KeyTemplate, _> = braced.parse();
    key.map(Piece::OfKey).map_err(|error| {
        let text = error.to_string();
        match text.rsplit_once(": ") {
            Some((what, right)) => EditError::new(what, right),
            None => EditError::new(text, "see docs/routes.md"),
        }
    })
}

fn put(part: Part, known: &Known<'_>, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = match part {
        Part::Client => known
            .client
            .map_or(Ok(()), |client| out.write_all(AddressText::new(client.ip().to_canonical()).as_bytes())),
        Part::ClientPort => known.client.map_or(Ok(()), |client| write!(out, "{}", client.port())),
        Part::HostName => out.write_all(&known.head.host_name().to_ascii_lowercase()),
        Part::Scheme => out.write_all(known.scheme().as_bytes()),
        Part::RequestId => out.write_all(known.request_id.unwrap_or_default()),
        Part::Route => out.write_all(known.route.as_bytes()),
        Part::Class => out.write_all(known.class.as_bytes()),
        Part::Policy => out.write_all(known.policy.as_bytes()),
        Part::Target => write!(out, "{}", known.target),
        Part::Node => out.write_all(known.node.unwrap_or_default().as_bytes()),
        Part::Reason => out.write_all(known.reason.unwrap_or_default().as_bytes()),
        Part::Status => known.status.map_or(Ok(()), |status| write!(out, "{status}")),
        Part::Cache => out.write_all(known.cache.unwrap_or_default().as_bytes()),
    };
}

#[cfg(test)]
mod tests {
    use super::super::known::sample;
    use super::*;
    use larder_edge::template::TEMPLATE_BYTES_MAX;

    fn rendered(text: &str) -> String {
        let template = Template::parse(text, Stage::Reply).expect(text);
        let mut out = Vec::new();
        sample(|known| assert!(template.render(known, &mut out)));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn parts_are_filled_in() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("{{{client}}}", "{192.0.2.7}"),
            ("{client}:{client_port}", "192.0.2.7:4711"),
            ("{scheme}://{host}{path}{query}", "https://www.example.com:8443/a/b?c=1&d=2"),
            ("{host_name}|{path:2..}|{query:d}", "www.example.com|/b|d=2"),
            ("{method} {header:accept} {cookie:sid}", "GET text/html s1"),
            ("{route} {class} {policy} {node} {reason} {status} {cache}", "shop db lard-r n1 known 200 hit"),
            ("{target}/{request_id}", "000000000000002a/id-1"),
            ("[{header:absent}{cookie:absent}{query:absent}]", "[]"),
        ] {
            assert_eq!(rendered(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, stage, what) in [
            ("{client", Stage::Reply, "a '{' is not closed"),
            ("client}", Stage::Reply, "a '}' closes nothing"),
            ("{clinet}", Stage::Reply, "there is no part {clinet}"),
            ("{node}", Stage::Answer, "{node} is not known yet"),
            ("{status}", Stage::Request, "{status} is not known yet"),
            ("{header}", Stage::Reply, "header"),
            ("{path:x}", Stage::Reply, "path"),
        ] {
            let error = Template::parse(text, stage).expect_err(text);
            assert!(error.what.contains(what) && !error.right.is_empty(), "{text}: {error}");
        }
        assert!(Template::parse(&"x".repeat(TEMPLATE_BYTES_MAX + 1), Stage::Reply).is_err());
    }

    #[test]
    fn a_value_is_bounded() {
        let text = "{header:long}".repeat(4);
        let template = Template::parse(&text, Stage::Reply).expect("a template");
        let mut out = b"before".to_vec();
        sample(|known| assert!(!template.render(known, &mut out)));
        assert_eq!(out, b"before");
    }
}
