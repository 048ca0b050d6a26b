//! Header rules: fields removed, set and added.
//!
//! In this order, whatever the order in the config: all removals, then each `set`, which leaves exactly one field of its
//! name, then each `add`, which leaves what is there. A value that comes to nothing, that is too long, or that could not
//! stand in a field sets and adds nothing; `set` then leaves no field of the name, so that what a client has put there
//! cannot pass for the switch's word.
//!
//! Refused are fields that say how a message is cut out of the bytes of a connection, or that concern one connection
//! alone (RFC 9110 section 7.6.1, RFC 9112 section 6): larder-http writes them, and a rule could only break the framing, which is
//! how requests are smuggled.

use super::error::EditError;
use super::known::Known;
use super::template::{Stage, Template};
use http::HeaderValue;
use http::header::{HOST, HeaderName};
use larder_edge::Fields;
use larder_http::h1::is_text;
use std::ops::Range;

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
    /// All whose names begin so, in any case, but for those that no rule may touch.
    Beginning(Box<str>, Side),
}

/// Rules for one side; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldRules {
    remove: Vec<Removal>,
    /// Names are written as they are spelt here.
    set: Vec<(Box<str>, Template)>,
    add: Vec<(Box<str>, Template)>,
}

/// The values of the rules' fields for one message.
#[derive(Debug, Default)]
pub(crate) struct Values {
    text: Vec<u8>,
    /// The places of the values in `text`, in the order of the rules; none for a value that comes to nothing.
    places: Vec<Option<Range<usize>>>,
}

impl Values {
    fn push(&mut self, template: &Template, known: &Known<'_>) {
        let start = self.text.len();
        template.render(known, &mut self.text);
        let value = &self.text[start..];
        let blank = value.len() - value.trim_ascii_start().len();
        let range = start + blank..start + value.trim_ascii_end().len().max(blank);
        let is_value = !range.is_empty() && is_text(&self.text[range.clone()]);
        self.places.push(is_value.then_some(range));
    }
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
    pub fn remove(&mut self, side: Side, name: &str) -> Result<(), EditError> {
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
                Removal::Beginning(beginning.as_str().into(), side)
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
    pub fn set(&mut self, side: Side, name: &str, value: &str) -> Result<(), EditError> {
        let (name, value) = rule(side, Deed::Set, name, value)?;
        if self.set.iter().any(|(other, _)| other.eq_ignore_ascii_case(&name)) {
            return Err(EditError::new(format!("'{name}' is set twice"), "leave one of them out"));
        }
        let removes = |removal: &Removal| matches!(removal, Removal::One(other) if *other == *name);
        if self.remove.iter().any(removes) {
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
    pub fn add(&mut self, side: Side, name: &str, value: &str) -> Result<(), EditError> {
        let rule = rule(side, Deed::Add, name, value)?;
        room(&self.add)?;
        self.add.push(rule);
        Ok(())
    }

    /// Renders the values of the fields that the rules set and add, after those in `values`.
    pub(crate) fn render(&self, known: &Known<'_>, values: &mut Values) {
        for (_, template) in self.set.iter().chain(&self.add) {
            values.push(template, known);
        }
    }

    /// Edits a header, with the values that [`Self::render`] has made. `from` is the number of values before them; returned is the
    /// number with them.
    pub(crate) fn edit(&self, message: &mut impl Fields, values: &Values, from: usize) -> usize {
        for removal in &self.remove {
            match removal {
                Removal::One(name) => message.remove(name.as_str()),
                Removal::Beginning(start, side) => {
                    message.remove_if(|name| begins(name, start) && may_remove(*side, name));
                }
            }
        }
        let mut places = values.places.iter().skip(from);
        let mut next = || places.next().cloned().flatten().map(|place| &values.text[place]);
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

fn may_remove(side: Side, name: &[u8]) -> bool {
    HeaderName::from_bytes(name).is_ok_and(|name| allowed(side, Deed::Remove, &name, None).is_ok())
}

fn room<T>(rules: &[T]) -> Result<(), EditError> {
    if rules.len() < FIELD_RULES_MAX {
        return Ok(());
    }
    Err(EditError::new("more rules than there may be", format!("at most {FIELD_RULES_MAX} of one kind")))
}

fn rule(side: Side, deed: Deed, name: &str, value: &str) -> Result<(Box<str>, Template), EditError> {
    let (spelt, name) = (name, field_name(name)?);
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
    Ok((spelt.into(), template))
}

/// A field's name.
pub(super) fn field_name(name: &str) -> Result<HeaderName, EditError> {
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
fn allowed(side: Side, deed: Deed, name: &HeaderName, value: Option<&Template>) -> Result<(), EditError> {
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

/// Whether it is the field that names the host.
pub(super) fn is_host(name: &HeaderName) -> bool {
    *name == HOST
}

#[cfg(test)]
mod tests {
    use super::super::known::sample;
    use super::*;
    use http::HeaderMap;
    use proptest::prelude::*;

    fn edit(rules: &FieldRules, headers: &mut HeaderMap) {
        let mut values = Values::default();
        sample(|known| rules.render(known, &mut values));
        assert_eq!(rules.edit(headers, &values, 0), values.places.len());
    }

    fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a [u8]> {
        headers.get_all(name).iter().map(HeaderValue::as_bytes).collect()
    }

    #[test]
    fn removals_come_first_then_set_then_add() {
        let mut rules = FieldRules::default();
        rules.add(Side::Request, "X-Seen", "{client}").expect("adds");
        rules.set(Side::Request, "X-One", "{route}").expect("sets");
        rules.set(Side::Request, "X-None", "{header:absent}").expect("sets");
        rules.remove(Side::Request, "x-gone").expect("removes");
        rules.remove(Side::Request, "X-Internal-*").expect("removes");
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
    fn a_beginning_spares_what_no_rule_may_touch() {
        let mut rules = FieldRules::default();
        rules.remove(Side::Reply, "content-*").expect("removes");
        let mut reply = HeaderMap::new();
        for name in ["content-length", "content-encoding", "content-language"] {
            Fields::add(&mut reply, name, b"1");
        }
        edit(&rules, &mut reply);
        assert!(reply.contains_key("content-length") && reply.contains_key("content-encoding"));
        assert!(!reply.contains_key("content-language"));
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
            let mut reply = HeaderMap::new();
            let mut values = Values::default();
            sample(|known| rules.render(&Known { head, request_id: None, ..*known }, &mut values));
            rules.edit(&mut reply, &values, 0);
            for value in reply.get_all("y") {
                prop_assert!(!value.as_bytes().iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
            }
        }
    }
}
