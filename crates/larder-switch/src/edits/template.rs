//! Templates: text with variables for facts about a request, for header rules and redirects.
//!
//! `{name}` is a variable; `{{` and `}}` are literal braces. All variables of a [`KeyTemplate`] are allowed
//! (`{method}`, `{host}`, `{path}`, `{path:2..}`, `{extension}`, `{query}`, `{query:a}`, `{header:name}`,
//! `{cookie:name}`), and:
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
//! An unknown value is empty.

use super::error::EditError;
use super::facts::RequestFacts;
use larder_core::rules::KeyTemplate;
use larder_edge::AddressText;
use larder_edge::template::pieces;
use std::fmt;
use std::io::Write as _;

/// Maximum size of a rendered value; a longer one counts as empty. Bytes.
const VALUE_BYTES_MAX: usize = 8192;

/// Stage at which a template is rendered, which determines the known facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateStage {
    /// Before a node is chosen.
    DirectReply,
    /// Before the request is sent to a node.
    Request,
    /// After the reply arrived.
    Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variable {
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

const VARIABLES: [(&str, Variable, TemplateStage); 13] = [
    ("client", Variable::Client, TemplateStage::DirectReply),
    ("client_port", Variable::ClientPort, TemplateStage::DirectReply),
    ("host_name", Variable::HostName, TemplateStage::DirectReply),
    ("scheme", Variable::Scheme, TemplateStage::DirectReply),
    ("request_id", Variable::RequestId, TemplateStage::DirectReply),
    ("route", Variable::Route, TemplateStage::DirectReply),
    ("class", Variable::Class, TemplateStage::DirectReply),
    ("policy", Variable::Policy, TemplateStage::DirectReply),
    ("target", Variable::Target, TemplateStage::DirectReply),
    ("node", Variable::Node, TemplateStage::Request),
    ("reason", Variable::Reason, TemplateStage::Request),
    ("status", Variable::Status, TemplateStage::Reply),
    ("cache", Variable::Cache, TemplateStage::Reply),
];

/// Variables shared with key templates.
const KEY_VARIABLES: [&str; 7] = ["method", "host", "path", "extension", "query", "header", "cookie"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<[u8]>),
    Variable(Variable),
    Key(KeyTemplate),
}

/// A template; see [the module](self) for its syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Box<str>,
    pieces: Box<[Piece]>,
}

impl Template {
    /// Parses a template that is rendered at this stage.
    ///
    /// # Errors
    /// It is too long, its braces do not match, or it uses facts that are unknown at this stage.
    pub fn parse(text: &str, stage: TemplateStage) -> Result<Self, EditError> {
        let pieces = pieces(text, Piece::Text, |name, braced| piece(name, braced, stage))?;
        Ok(Self { text: text.into(), pieces: pieces.into() })
    }

    /// Returns the template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns its text, if it has no variables.
    pub(super) fn constant(&self) -> Option<&[u8]> {
        match &*self.pieces {
            [] => Some(b""),
            [Piece::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns the literal texts.
    pub(super) fn literals(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(&**text),
            _ => None,
        })
    }

    /// Returns the literal text at its start; empty if it starts with a variable.
    pub(super) fn first_text(&self) -> &[u8] {
        match self.pieces.first() {
            Some(Piece::Text(text)) => text,
            _ => &[],
        }
    }

    /// Appends the rendered value. If it is longer than [`VALUE_BYTES_MAX`], appends nothing and returns false.
    pub(crate) fn render(&self, facts: &RequestFacts<'_>, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Variable(variable) => write_variable(*variable, facts, out),
                Piece::Key(key) => key.render(&facts.head, out),
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

fn piece(name: &str, braced: &str, stage: TemplateStage) -> Result<Piece, EditError> {
    if let Some((_, variable, from)) = VARIABLES.iter().find(|(facts, ..)| *facts == name) {
        return match stage >= *from {
            true => Ok(Piece::Variable(*variable)),
            false => Err(EditError::new(
                format!("{braced} is not known yet"),
                match from {
                    TemplateStage::Reply => "use it in rules for replies",
                    _ => {
                        "use it in rules for requests to nodes and for replies: here no node has been chosen"
                    }
                },
            )),
        };
    }
    let base = name.split_once(':').map_or(name, |(base, _)| base);
    if !KEY_VARIABLES.contains(&base) {
        let own: Vec<String> = VARIABLES
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
    key.map(Piece::Key).map_err(|error| {
        let text = error.to_string();
        match text.rsplit_once(": ") {
            Some((what, right)) => EditError::new(what, right),
            None => EditError::new(text, "see docs/operate/routes.md"),
        }
    })
}

fn write_variable(variable: Variable, facts: &RequestFacts<'_>, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _ = match variable {
        Variable::Client => facts
            .client
            .map_or(Ok(()), |client| out.write_all(AddressText::new(client.ip().to_canonical()).as_bytes())),
        Variable::ClientPort => facts.client.map_or(Ok(()), |client| write!(out, "{}", client.port())),
        Variable::HostName => out.write_all(&facts.head.host_name().to_ascii_lowercase()),
        Variable::Scheme => out.write_all(facts.scheme().as_bytes()),
        Variable::RequestId => out.write_all(facts.request_id.unwrap_or_default()),
        Variable::Route => out.write_all(facts.route.as_bytes()),
        Variable::Class => out.write_all(facts.class.as_bytes()),
        Variable::Policy => out.write_all(facts.policy.as_bytes()),
        Variable::Target => write!(out, "{}", facts.target),
        Variable::Node => out.write_all(facts.node.unwrap_or_default().as_bytes()),
        Variable::Reason => out.write_all(facts.reason.unwrap_or_default().as_bytes()),
        Variable::Status => facts.status.map_or(Ok(()), |status| write!(out, "{status}")),
        Variable::Cache => out.write_all(facts.cache.unwrap_or_default().as_bytes()),
    };
}

#[cfg(test)]
mod tests {
    use super::super::facts::sample;
    use super::*;
    use larder_edge::template::TEMPLATE_BYTES_MAX;

    fn rendered(text: &str) -> String {
        let template = Template::parse(text, TemplateStage::Reply).expect(text);
        let mut out = Vec::new();
        sample(|facts| assert!(template.render(facts, &mut out)));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn variables_are_filled_in() {
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
    fn errors_name_the_fault() {
        for (text, stage, what) in [
            ("{client", TemplateStage::Reply, "a '{' is not closed"),
            ("client}", TemplateStage::Reply, "a '}' closes nothing"),
            ("{clinet}", TemplateStage::Reply, "there is no part {clinet}"),
            ("{node}", TemplateStage::DirectReply, "{node} is not known yet"),
            ("{status}", TemplateStage::Request, "{status} is not known yet"),
            ("{header}", TemplateStage::Reply, "header"),
            ("{path:x}", TemplateStage::Reply, "path"),
        ] {
            let error = Template::parse(text, stage).expect_err(text);
            assert!(error.what.contains(what) && !error.right.is_empty(), "{text}: {error}");
        }
        assert!(Template::parse(&"x".repeat(TEMPLATE_BYTES_MAX + 1), TemplateStage::Reply).is_err());
    }

    #[test]
    fn a_value_is_bounded() {
        let text = "{header:long}".repeat(4);
        let template = Template::parse(&text, TemplateStage::Reply).expect("a template");
        let mut out = b"before".to_vec();
        sample(|facts| assert!(!template.render(facts, &mut out)));
        assert_eq!(out, b"before");
    }
}
