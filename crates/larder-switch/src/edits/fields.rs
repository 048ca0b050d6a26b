//! Header rules: fields removed, set and added.
//!
//! The order does not depend on the config: first all removals, then each `set`, which leaves exactly one field of
//! its name, then each `add`, which keeps existing fields. A value that is empty, too long or not a valid field value
//! is not written. `set` then removes the field, so that a value from the client cannot pass for the switch's.
//!
//! Rules cannot touch fields that frame a message or concern one connection (RFC 9110 section 7.6.1, RFC 9112 section
//! 6). larder-http writes them, and a rule could only break the framing, which allows request smuggling.

use super::error::EditError;
use super::facts::RequestFacts;
use super::template::{Template, TemplateStage};
use http::HeaderValue;
use http::header::{HOST, HeaderName};
use larder_edge::Fields;
use larder_http::h1::is_text;
use std::ops::Range;

/// Maximum number of rules of one kind in one place.
const FIELD_RULES_MAX: usize = 64;

/// Kind of message that rules apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Requests to nodes.
    Request,
    /// Replies to clients.
    Reply,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldAction {
    Remove,
    Set,
    Add,
}

/// Fields that a removal matches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Removal {
    One(HeaderName),
    /// All fields with this prefix, in any case, except protected ones.
    Beginning(Box<str>, MessageKind),
}

/// Rules for one kind of message; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldRules {
    remove: Vec<Removal>,
    /// Names as they are written to messages.
    set: Vec<(Box<str>, Template)>,
    add: Vec<(Box<str>, Template)>,
}

/// Rendered values of the rules for one message.
#[derive(Debug, Default)]
pub(crate) struct FieldValues {
    text: Vec<u8>,
    /// Ranges of the values in `text`, in the order of the rules; `None` for an invalid or empty value.
    ranges: Vec<Option<Range<usize>>>,
}

impl FieldValues {
    fn push(&mut self, template: &Template, facts: &RequestFacts<'_>) {
        let start = self.text.len();
        template.render(facts, &mut self.text);
        let value = &self.text[start..];
        let blank = value.len() - value.trim_ascii_start().len();
        let range = start + blank..start + value.trim_ascii_end().len().max(blank);
        let is_value = !range.is_empty() && is_text(&self.text[range.clone()]);
        self.ranges.push(is_value.then_some(range));
    }
}

impl FieldRules {
    /// Whether there are no rules.
    pub const fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }

    /// Adds a rule that removes the fields of this name, or with a `*` at its end, all fields with this prefix.
    ///
    /// # Errors
    /// The name is invalid, or no rule may remove it.
    pub fn remove(&mut self, kind: MessageKind, name: &str) -> Result<(), EditError> {
        let removal = match name.strip_suffix('*') {
            Some("") => {
                return Err(EditError::new(
                    "would remove every field",
                    "write the beginning of names before '*', such as \"x-internal-*\"",
                ));
            }
            Some(beginning) => {
                // A prefix of a name is a valid name.
                let beginning = field_name(beginning)?;
                Removal::Beginning(beginning.as_str().into(), kind)
            }
            None => {
                let name = field_name(name)?;
                allowed(kind, FieldAction::Remove, &name, None)?;
                Removal::One(name)
            }
        };
        room(&self.remove)?;
        self.remove.push(removal);
        Ok(())
    }

    /// Adds a rule that sets one field of this name.
    ///
    /// # Errors
    /// The name is invalid, no rule may set it, the template is invalid, or such a rule exists.
    pub fn set(&mut self, kind: MessageKind, name: &str, value: &str) -> Result<(), EditError> {
        let (name, value) = rule(kind, FieldAction::Set, name, value)?;
        if self.set.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
            return Err(EditError::new(format!("'{name}' is set twice"), "remove one of the two"));
        }
        let removes = |removal: &Removal| matches!(removal, Removal::One(other) if *other == *name);
        if self.remove.iter().any(removes) {
            let what = format!("'{name}' is removed and set");
            return Err(EditError::new(what, "omit the removal: set replaces existing values"));
        }
        room(&self.set)?;
        self.set.push((name, value));
        Ok(())
    }

    /// Adds a rule that adds a field of this name to existing ones.
    ///
    /// # Errors
    /// The name is invalid, no rule may add it, or the template is invalid.
    pub fn add(&mut self, kind: MessageKind, name: &str, value: &str) -> Result<(), EditError> {
        let rule = rule(kind, FieldAction::Add, name, value)?;
        room(&self.add)?;
        self.add.push(rule);
        Ok(())
    }

    /// Appends the rendered values of `set` and `add` rules to `values`.
    pub(crate) fn render(&self, facts: &RequestFacts<'_>, values: &mut FieldValues) {
        for (_, template) in self.set.iter().chain(&self.add) {
            values.push(template, facts);
        }
    }

    /// Applies the rules to a header, with the values from [`Self::render`]. `from` is the number of values before
    /// theirs; returns the number after them.
    pub(crate) fn edit(&self, message: &mut impl Fields, values: &FieldValues, from: usize) -> usize {
        for removal in &self.remove {
            match removal {
                Removal::One(name) => message.remove(name.as_str()),
                Removal::Beginning(start, kind) => {
                    message.remove_if(|name| begins(name, start) && may_remove(*kind, name));
                }
            }
        }
        let mut ranges = values.ranges.iter().skip(from);
        let mut next = || ranges.next().cloned().flatten().map(|place| &values.text[place]);
        for (name, _) in &self.set {
            match next() {
                Some(value) => message.set(name, value),
                None => message.remove(name),
            }
        }
        for (name, _) in &self.add {
            if let Some(value) = next() {
                message.add(name, value);
            }
        }
        from + self.set.len() + self.add.len()
    }
}

fn begins(name: &[u8], start: &str) -> bool {
    name.get(..start.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(start.as_bytes()))
}

fn may_remove(kind: MessageKind, name: &[u8]) -> bool {
    HeaderName::from_bytes(name).is_ok_and(|name| allowed(kind, FieldAction::Remove, &name, None).is_ok())
}

fn room<T>(rules: &[T]) -> Result<(), EditError> {
    if rules.len() < FIELD_RULES_MAX {
        return Ok(());
    }
    Err(EditError::new("too many rules", format!("at most {FIELD_RULES_MAX} of one kind")))
}

fn rule(
    kind: MessageKind,
    action: FieldAction,
    name: &str,
    value: &str,
) -> Result<(Box<str>, Template), EditError> {
    let (spelt, name) = (name, field_name(name)?);
    let stage = if kind == MessageKind::Request { TemplateStage::Request } else { TemplateStage::Reply };
    let template = Template::parse(value, stage)?;
    allowed(kind, action, &name, Some(&template))?;
    if template.literals().any(|text| HeaderValue::from_bytes(text).is_err()) {
        let what = format!("'{}' is not a valid field value", value.escape_debug());
        return Err(EditError::new(what, "leave out line ends and control characters"));
    }
    if template.constant().is_some_and(|text| text.trim_ascii().is_empty()) {
        return Err(EditError::new("the value is empty", "give one, or name the field in remove"));
    }
    Ok((spelt.into(), template))
}

/// Parses the name of a field.
pub(super) fn field_name(name: &str) -> Result<HeaderName, EditError> {
    HeaderName::try_from(name).map_err(|_| {
        let what = format!("'{}' is not a valid field name", name.escape_debug());
        EditError::new(what, "letters, digits and !#$%&'*+-.^_`|~ (RFC 9110 section 5.6.2)")
    })
}

/// Whether a field frames a message or concerns one connection.
pub(super) fn is_framing_field(name: &HeaderName) -> bool {
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

/// Checks whether a rule may apply this action to this field.
fn allowed(
    kind: MessageKind,
    action: FieldAction,
    name: &HeaderName,
    value: Option<&Template>,
) -> Result<(), EditError> {
    let refuse = |what: &str, right: &str| Err(EditError::new(format!("'{name}' {what}"), right));
    if is_framing_field(name) {
        return refuse(
            "is for one connection or the framing of a message: the switch writes it itself",
            "leave it out",
        );
    }
    match (kind, name.as_str(), action) {
        (MessageKind::Request, "host", FieldAction::Remove | FieldAction::Add) => {
            refuse("must be there once (RFC 9112 section 3.2)", "set it to a fixed host, or leave it out")
        }
        (MessageKind::Request, "host", FieldAction::Set) => {
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
        (MessageKind::Request, "larder-target", _) => {
            refuse("is reserved: the switch sends it to nodes", "leave it out")
        }
        (MessageKind::Request, "range" | "if-range", FieldAction::Set | FieldAction::Add) => refuse(
            "would make nodes reply with a part that the client has not requested",
            "omit it; only removal is possible",
        ),
        (MessageKind::Reply, "content-encoding" | "content-range", _) => {
            refuse("describes the body, which a rule does not change", "leave it out")
        }
        _ => Ok(()),
    }
}

/// Whether the field is `Host`.
pub(super) fn is_host(name: &HeaderName) -> bool {
    *name == HOST
}

#[cfg(test)]
mod tests {
    use super::super::facts::sample;
    use super::*;
    use http::HeaderMap;
    use proptest::prelude::*;

    fn edit(rules: &FieldRules, headers: &mut HeaderMap) {
        let mut values = FieldValues::default();
        sample(|facts| rules.render(facts, &mut values));
        assert_eq!(rules.edit(headers, &values, 0), values.ranges.len());
    }

    fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
        headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    #[test]
    fn removals_come_first_then_set_then_add() {
        let mut rules = FieldRules::default();
        rules.add(MessageKind::Request, "X-Seen", "{client}").expect("adds");
        rules.set(MessageKind::Request, "X-One", "{route}").expect("sets");
        rules.set(MessageKind::Request, "X-None", "{header:absent}").expect("sets");
        rules.remove(MessageKind::Request, "x-gone").expect("removes");
        rules.remove(MessageKind::Request, "X-Internal-*").expect("removes");
        let mut request = HeaderMap::new();
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
            Fields::add(&mut request, name, value.as_bytes());
        }
        edit(&rules, &mut request);
        assert_eq!(values(&request, "x-gone"), Vec::<&[u8]>::new());
        assert_eq!(values(&request, "x-seen"), [&b"0"[..], b"192.0.2.7"]);
        assert_eq!(values(&request, "x-one"), [b"shop"]);
        assert_eq!(values(&request, "x-none"), Vec::<&[u8]>::new(), "no client speaks for the switch");
        assert!(!request.contains_key("x-internal-a") && !request.contains_key("x-internal-b"));
        assert_eq!(values(&request, "x-internal"), [b"stays"]);
    }

    #[test]
    fn prefix_removal_keeps_protected_fields() {
        let mut rules = FieldRules::default();
        rules.remove(MessageKind::Reply, "content-*").expect("removes");
        let mut reply = HeaderMap::new();
        for name in ["content-length", "content-encoding", "content-language"] {
            Fields::add(&mut reply, name, b"1");
        }
        edit(&rules, &mut reply);
        assert!(reply.contains_key("content-length") && reply.contains_key("content-encoding"));
        assert!(!reply.contains_key("content-language"));
    }

    #[test]
    fn rules_that_break_messages_are_refused() {
        for name in
            ["Connection", "transfer-encoding", "Content-Length", "upgrade", "TE", "trailer", "keep-alive"]
        {
            for kind in [MessageKind::Request, MessageKind::Reply] {
                let mut rules = FieldRules::default();
                assert!(rules.remove(kind, name).is_err(), "{name}");
                assert!(rules.set(kind, name, "x").is_err(), "{name}");
                assert!(rules.add(kind, name, "x").is_err(), "{name}");
            }
        }
        let mut rules = FieldRules::default();
        assert!(rules.remove(MessageKind::Request, "host").is_err());
        assert!(rules.add(MessageKind::Request, "host", "a").is_err());
        for host in ["{header:x}", "a b", "u@a", "http://a"] {
            assert!(rules.set(MessageKind::Request, "host", host).is_err(), "{host}");
        }
        rules.set(MessageKind::Request, "host", "app.internal:8080").expect("a fixed host");
        assert!(rules.set(MessageKind::Reply, "x", "a\r\nb").is_err());
        assert!(rules.set(MessageKind::Reply, "x y", "a").is_err());
        assert!(rules.set(MessageKind::Reply, "x", " ").is_err());
        assert!(rules.remove(MessageKind::Reply, "*").is_err());
    }

    proptest! {
        /// Whatever a client sends, a value stays one value.
        #[test]
        fn client_bytes_cannot_end_a_field(value in prop::collection::vec(any::<u8>(), 0..40)) {
            let headers = vec![("x", value)];
            let head = larder_core::rules::Head::new(b"GET", b"h", b"/", &headers);
            let mut rules = FieldRules::default();
            rules.set(MessageKind::Reply, "y", "a{header:x}b").expect("sets");
            let mut reply = HeaderMap::new();
            let mut values = FieldValues::default();
            sample(|facts| rules.render(&RequestFacts { head, request_id: None, ..*facts }, &mut values));
            rules.edit(&mut reply, &values, 0);
            for value in reply.get_all("y") {
                prop_assert!(!value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
            }
        }
    }
}
