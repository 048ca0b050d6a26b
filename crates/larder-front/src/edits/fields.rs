//! Header rules: fields removed, set and added.
//!
//! In this order, whatever the order in the config: all removals, then each `set`, which leaves exactly one field of its
//! name, then each `add`, which leaves what is there. A value that comes to nothing, that is too long, or that could not
//! stand in a field sets and adds nothing; `set` then leaves no field of the name, so that what a client has put there
//! cannot pass for the switch's word.
//!
//! Refused are fields that say how a message is cut out of the bytes of a connection, or that concern one connection
//! alone (RFC 9110 section 7.6.1, RFC 9112 section 6): the engine writes them, and a rule could only break the framing, which is
//! how requests are smuggled.

use super::template::{Stage, Template};
use super::{EditError, Known};
use http::HeaderValue;
use http::header::{HOST, HeaderName};
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};

/// The most rules of one kind in one place.
const FIELD_RULES_MAX: usize = 64;

/// Which messages rules are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Requests to nodes.
    Request,
    /// Replies to clients.
    Reply,
}

/// What a rule does to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Remove,
    Set,
    Add,
}

/// Which fields are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Removal {
    One(HeaderName),
    /// All whose names begin so, in lower case, but for those that no rule may touch.
    Beginning(Box<str>),
}

/// Rules for one side; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldRules {
    remove: Vec<Removal>,
    set: Vec<(HeaderName, Template)>,
    add: Vec<(HeaderName, Template)>,
}

impl FieldRules {
    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// Removes the fields of this name; with a `*` at its end, all whose names begin so.
    ///
    /// # Errors
    /// It is no name, or no rule may remove it.
    pub fn remove(&mut self, side: Side, name: &str) -> std::result::Result<(), EditError> {
        let removal = match name.strip_suffix('*') {
            Some("") => {
                return Err(EditError::new(
                    "would remove every field",
                    "write the beginning of names before '*', such as \"x-internal-*\"",
                ));
            }
            Some(beginning) => {
                // A beginning of a name is a name.
                let beginning = field_name(beginning)?;
                Removal::Beginning(beginning.as_str().into())
            }
            None => {
                let name = field_name(name)?;
                allowed(side, Deed::Remove, &name, None)?;
                Removal::One(name)
            }
        };
        room(&self.remove)?;
        self.remove.push(removal);
        Ok(())
    }

    /// Leaves one field of this name, with this value.
    ///
    /// # Errors
    /// It is no name, no rule may set it, the template is wrong, or there is such a rule already.
    pub fn set(&mut self, side: Side, name: &str, value: &str) -> std::result::Result<(), EditError> {
        let (name, value) = rule(side, Deed::Set, name, value)?;
        if self.set.iter().any(|(other, _)| *other == name) {
            return Err(EditError::new(format!("'{name}' is set twice"), "leave one of them out"));
        }
        if self.remove.contains(&Removal::One(name.clone())) {
            let what = format!("'{name}' is removed and set");
            return Err(EditError::new(what, "leave the removal out: set replaces what is there"));
        }
        room(&self.set)?;
        self.set.push((name, value));
        Ok(())
    }

    /// Adds a field of this name beside those that are there.
    ///
    /// # Errors
    /// It is no name, no rule may add it, or the template is wrong.
    pub fn add(&mut self, side: Side, name: &str, value: &str) -> std::result::Result<(), EditError> {
        let rule = rule(side, Deed::Add, name, value)?;
        room(&self.add)?;
        self.add.push(rule);
        Ok(())
    }

    /// Edits a header.
    pub(crate) fn edit(&self, message: &mut impl Message, known: &Known<'_>) -> Result<()> {
        for removal in &self.remove {
            match removal {
                Removal::One(name) => message.remove(name),
                Removal::Beginning(start) => {
                    let side = message.side();
                    for name in message.names_beginning(start) {
                        if allowed(side, Deed::Remove, &name, None).is_ok() {
                            message.remove(&name);
                        }
                    }
                }
            }
        }
        let mut text = Vec::new();
        for (name, template) in &self.set {
            match value(template, known, &mut text) {
                Some(value) => message.set(name, value)?,
                None => message.remove(name),
            }
        }
        for (name, template) in &self.add {
            if let Some(value) = value(template, known, &mut text) {
                message.add(name, value)?;
            }
        }
        Ok(())
    }
}

fn value(template: &Template, known: &Known<'_>, text: &mut Vec<u8>) -> Option<HeaderValue> {
    text.clear();
    template.render(known, text);
    let value = text.trim_ascii();
    if value.is_empty() { None } else { HeaderValue::from_bytes(value).ok() }
}

fn room<T>(rules: &[T]) -> std::result::Result<(), EditError> {
    if rules.len() < FIELD_RULES_MAX {
        return Ok(());
    }
    Err(EditError::new("more rules than there may be", format!("at most {FIELD_RULES_MAX} of one kind")))
}

fn rule(
    side: Side,
    deed: Deed,
    name: &str,
    value: &str,
) -> std::result::Result<(HeaderName, Template), EditError> {
    let name = field_name(name)?;
    let stage = if side == Side::Request { Stage::Request } else { Stage::Reply };
    let template = Template::parse(value, stage)?;
    allowed(side, deed, &name, Some(&template))?;
    if template.literals().any(|text| HeaderValue::from_bytes(text).is_err()) {
        let what = format!("'{}' cannot stand in a field", value.escape_debug());
        return Err(EditError::new(what, "leave out line ends and control characters"));
    }
    if template.constant().is_some_and(|text| text.trim_ascii().is_empty()) {
        return Err(EditError::new("the value is empty", "give one, or name the field in remove"));
    }
    Ok((name, template))
}

/// A field's name.
pub(super) fn field_name(name: &str) -> std::result::Result<HeaderName, EditError> {
    HeaderName::try_from(name).map_err(|_| {
        let what = format!("'{}' is no name of a field", name.escape_debug());
        EditError::new(what, "letters, digits and !#$%&'*+-.^_`|~ (RFC 9110 section 5.6.2)")
    })
}

/// Whether a field concerns one connection alone, or says how a message is cut out of it.
pub(super) fn frames(name: &HeaderName) -> bool {
    const NAMES: [&str; 11] = [
        "connection",
        "content-length",
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
    ];
    NAMES.contains(&name.as_str())
}

/// Whether a rule may do this to this field.
fn allowed(
    side: Side,
    deed: Deed,
    name: &HeaderName,
    value: Option<&Template>,
) -> std::result::Result<(), EditError> {
    let refuse = |what: &str, right: &str| Err(EditError::new(format!("'{name}' {what}"), right));
    if frames(name) {
        return refuse(
            "concerns one connection alone, or the framing of a message: the switch writes it itself",
            "leave it out",
        );
    }
    match (side, name.as_str(), deed) {
        (Side::Request, "host", Deed::Remove | Deed::Add) => {
            refuse("must be there once (RFC 9112 section 3.2)", "set it to a fixed host, or leave it out")
        }
        (Side::Request, "host", Deed::Set) => {
            let host = value.and_then(Template::constant).and_then(|host| std::str::from_utf8(host).ok());
            let authority = host.and_then(|host| host.parse::<http::uri::Authority>().ok());
            match authority.is_some_and(|authority| !authority.as_str().contains('@')) {
                true => Ok(()),
                false => refuse(
                    "can be set to a fixed host only",
                    "write \"app.internal\" or \"app.internal:8080\"",
                ),
            }
        }
        (Side::Request, "larder-target", _) => {
            refuse("is the switch's word to its nodes about their caches", "leave it out")
        }
        (Side::Request, "range" | "if-range", Deed::Set | Deed::Add) => refuse(
            "would have nodes answer with a part that the client has not asked for",
            "leave it out; remove is possible",
        ),
        (Side::Reply, "content-encoding" | "content-range", _) => {
            refuse("says what the body is, which a rule does not change", "leave it out")
        }
        _ => Ok(()),
    }
}

/// A message whose header can be edited.
pub(crate) trait Message {
    fn side(&self) -> Side;
    fn names_beginning(&self, start: &str) -> Vec<HeaderName>;
    fn remove(&mut self, name: &HeaderName);
    fn set(&mut self, name: &HeaderName, value: HeaderValue) -> Result<()>;
    fn add(&mut self, name: &HeaderName, value: HeaderValue) -> Result<()>;
}

fn beginning(headers: &http::HeaderMap, start: &str) -> Vec<HeaderName> {
    headers.keys().filter(|name| name.as_str().starts_with(start)).cloned().collect()
}

impl Message for RequestHeader {
    fn side(&self) -> Side {
        Side::Request
    }

    fn names_beginning(&self, start: &str) -> Vec<HeaderName> {
        beginning(&self.headers, start)
    }

    fn remove(&mut self, name: &HeaderName) {
        self.remove_header(name);
    }

    fn set(&mut self, name: &HeaderName, value: HeaderValue) -> Result<()> {
        self.insert_header(name.clone(), value)
    }

    fn add(&mut self, name: &HeaderName, value: HeaderValue) -> Result<()> {
        self.append_header(name.clone(), value).map(drop)
    }
}

impl Message for ResponseHeader {
    fn side(&self) -> Side {
        Side::Reply
    }

    fn names_beginning(&self, start: &str) -> Vec<HeaderName> {
        beginning(&self.headers, start)
    }

    fn remove(&mut self, name: &HeaderName) {
        self.remove_header(name);
    }

    fn set(&mut self, name: &HeaderName, value: HeaderValue) -> Result<()> {
        self.insert_header(name.clone(), value)
    }

    fn add(&mut self, name: &HeaderName, value: HeaderValue) -> Result<()> {
        self.append_header(name.clone(), value).map(drop)
    }
}

/// Whether this is the name of the field that says which host is asked.
pub(super) fn is_host(name: &HeaderName) -> bool {
    name == HOST
}

#[cfg(test)]
mod tests {
    use super::super::known::sample;
    use super::*;
    use proptest::prelude::*;

    fn values<'a>(request: &'a RequestHeader, name: &str) -> Vec<&'a [u8]> {
        request.headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    #[test]
    fn removals_come_first_then_set_then_add() {
        let mut rules = FieldRules::default();
        rules.add(Side::Request, "X-Seen", "{client}").expect("adds");
        rules.set(Side::Request, "X-One", "{route}").expect("sets");
        rules.set(Side::Request, "X-None", "{header:absent}").expect("sets");
        rules.remove(Side::Request, "x-gone").expect("removes");
        rules.remove(Side::Request, "X-Internal-*").expect("removes");
        let mut request = RequestHeader::build("GET", b"/", None).expect("a header");
        for (name, value) in [
            ("x-gone", "1"),
            ("x-seen", "0"),
            ("x-one", "a"),
            ("X-One", "b"),
            ("x-none", "forged"),
            ("x-internal-a", "1"),
            ("X-Internal-B", "2"),
            ("x-internal", "stays"),
        ] {
            request.append_header(name, value).expect("appends");
        }
        sample(|known| rules.edit(&mut request, known)).expect("edits");
        assert_eq!(values(&request, "x-gone"), Vec::<&[u8]>::new());
        assert_eq!(values(&request, "x-seen"), [&b"0"[..], b"192.0.2.7"]);
        assert_eq!(values(&request, "x-one"), [b"shop"]);
        assert_eq!(values(&request, "x-none"), Vec::<&[u8]>::new(), "no client speaks for the switch");
        assert!(
            !request.headers.contains_key("x-internal-a") && !request.headers.contains_key("x-internal-b")
        );
        assert_eq!(values(&request, "x-internal"), [b"stays"]);
    }

    #[test]
    fn a_beginning_spares_what_no_rule_may_touch() {
        let mut rules = FieldRules::default();
        rules.remove(Side::Reply, "content-*").expect("removes");
        let mut reply = ResponseHeader::build(200, None).expect("a reply");
        for name in ["content-length", "content-encoding", "content-language"] {
            reply.append_header(name, "1").expect("appends");
        }
        sample(|known| rules.edit(&mut reply, known)).expect("edits");
        assert!(
            reply.headers.contains_key("content-length") && reply.headers.contains_key("content-encoding")
        );
        assert!(!reply.headers.contains_key("content-language"));
    }

    #[test]
    fn what_would_break_a_message_is_refused() {
        for name in
            ["Connection", "transfer-encoding", "Content-Length", "upgrade", "TE", "trailer", "keep-alive"]
        {
            for side in [Side::Request, Side::Reply] {
                let mut rules = FieldRules::default();
                assert!(rules.remove(side, name).is_err(), "{name}");
                assert!(rules.set(side, name, "x").is_err(), "{name}");
                assert!(rules.add(side, name, "x").is_err(), "{name}");
            }
        }
        let mut rules = FieldRules::default();
        assert!(rules.remove(Side::Request, "host").is_err());
        assert!(rules.add(Side::Request, "host", "a").is_err());
        for host in ["{header:x}", "a b", "u@a", "http://a"] {
            assert!(rules.set(Side::Request, "host", host).is_err(), "{host}");
        }
        rules.set(Side::Request, "host", "app.internal:8080").expect("a fixed host");
        assert!(rules.set(Side::Reply, "x", "a\r\nb").is_err());
        assert!(rules.set(Side::Reply, "x y", "a").is_err());
        assert!(rules.set(Side::Reply, "x", " ").is_err());
        assert!(rules.remove(Side::Reply, "*").is_err());
    }

    proptest! {
        /// Whatever a client sends, a value is one value.
        #[test]
        fn foreign_bytes_end_no_field(value in prop::collection::vec(any::<u8>(), 0..40)) {
            let headers = vec![("x", value)];
            let head = larder_core::rules::Head::new(b"GET", b"h", b"/", &headers);
            let mut rules = FieldRules::default();
            rules.set(Side::Reply, "y", "a{header:x}b").expect("sets");
            let mut reply = ResponseHeader::build(200, None).expect("a reply");
            sample(|known| {
                let known = Known { head, request_id: None, ..*known };
                rules.edit(&mut reply, &known)
            }).expect("edits");
            for value in reply.headers.get_all("y") {
                prop_assert!(!value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
            }
        }
    }
}
