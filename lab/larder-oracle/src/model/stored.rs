//! A stored reply: its exchange, and the 304s that renewed it.

use super::directives::{Directives, members};
use crate::record::{Exchange, Record};
use crate::wire::Fields;

/// Fields for the origin that requests of cases list in Connection. RFC 9110 section 7.6.1 forbids a sender to list them, and
/// larder ignores them there (docs/operate/clients.md).
const FOR_THE_ORIGIN: [&str; 2] = ["authorization", "cookie"];

/// Fields that belong to one connection (RFC 9110 section 7.6.1).
const HOP_BY_HOP: [&str; 7] =
    ["connection", "proxy-connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// A stored reply.
#[derive(Clone, Debug)]
pub struct Stored<'a> {
    /// The case.
    pub record: &'a Record,
    /// The exchange that the body comes from.
    pub base: &'a Exchange,
    /// Status of the base.
    pub status: u16,
    /// The 304s that renewed the reply, in order of arrival at the origin.
    pub renewals: Vec<&'a Exchange>,
    /// The fields of the base, updated by each 304.
    pub fields: Fields,
    /// The directives that apply to the cache.
    pub directives: Directives,
}

impl<'a> Stored<'a> {
    /// Creates the reply of an exchange after renewals by 304s. `None` if the origin closed the connection.
    pub fn new(record: &'a Record, base: &'a Exchange, renewals: Vec<&'a Exchange>) -> Option<Self> {
        let sent = base.reply.as_ref()?;
        let fields = renewals
            .iter()
            .filter_map(|renewal| renewal.reply.as_ref())
            .fold(sent.fields.clone(), |fields, sent| updated(fields, &sent.fields));
        let directives = Directives::of_reply(&fields);
        Some(Self { record, base, status: sent.status, renewals, fields, directives })
    }

    /// The reply as it was before the 304s for the request of a step.
    pub fn without(&self, step: usize) -> Option<Self> {
        let renewals = self.renewals.iter().copied().filter(|renewal| renewal.step != step).collect();
        Self::new(self.record, self.base, renewals)
    }

    /// The latest exchange for this reply.
    pub fn last(&self) -> &'a Exchange {
        self.renewals.last().copied().unwrap_or(self.base)
    }

    /// All exchanges of the reply.
    pub fn exchanges(&self) -> impl Iterator<Item = &'a Exchange> {
        std::iter::once(self.base).chain(self.renewals.iter().copied())
    }

    /// The exchanges for requests other than that of a step.
    pub fn of_others(&self, step: usize) -> impl Iterator<Item = &'a Exchange> {
        self.exchanges().filter(move |exchange| exchange.step != step)
    }

    /// Whether the origin confirmed the reply for the request of a step (RFC 9111 section 4.3.3).
    pub fn is_validated_for(&self, step: usize) -> bool {
        self.renewals.last().is_some_and(|renewal| renewal.step == step)
    }
}

/// RFC 9111 section 3.2: each field of the 304 replaces the stored fields of the same name.
fn updated(mut fields: Fields, new: &Fields) -> Fields {
    for (name, _) in new.iter() {
        fields.remove(name);
    }
    fields.extend(new);
    fields
}

/// The end-to-end fields of a request (RFC 9110 section 7.6.1): without `Connection` and the fields that it lists. Only these
/// reach the origin and can affect the selection of a reply.
pub fn end_to_end(fields: &Fields) -> Fields {
    let mut kept = fields.clone();
    for value in fields.all("connection") {
        for name in members(value) {
            let name = name.to_ascii_lowercase();
            if !FOR_THE_ORIGIN.contains(&name.as_str()) {
                kept.remove(&name);
            }
        }
    }
    for name in HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

/// The value of a field as RFC 9111 section 4.1 compares it: lines combined, white space around members ignored.
pub fn selecting(fields: &Fields, name: &str) -> Option<String> {
    Some(members(&fields.joined(name)?).collect::<Vec<_>>().join(","))
}

/// Whether two entity tags match by the weak comparison (RFC 9110 section 8.8.3.2).
pub fn tags_match(one: &str, other: &str) -> bool {
    one.trim().trim_start_matches("W/") == other.trim().trim_start_matches("W/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_connection_names_end_at_the_first_hop() {
        let lines = "Connection: close, X-Lang, Cookie\nX-Lang: de\nCookie: a\nTE: trailers";
        let request = Fields::of_lines(lines);
        assert_eq!(end_to_end(&request), Fields::of_lines("Cookie: a"));
    }

    /// RFC 9111 section 4.1: white space, and fields in several lines.
    #[test]
    fn selecting_fields_are_normalized() {
        let value = |lines| selecting(&Fields::of_lines(lines), "x-lang");
        assert_eq!(value("X-Lang: de,  en"), value("X-Lang: de\nX-Lang: en"));
        assert_ne!(value("X-Lang: de"), value("X-Lang: en"));
        assert_ne!(value("X-Lang:"), value("X-Other: de"), "empty is not absent");
    }

    /// RFC 9110 section 8.8.3.2.
    #[test]
    fn tags_match_weakly() {
        assert!(tags_match("W/\"1\"", "W/\"1\"") && tags_match("W/\"1\"", "\"1\""));
        assert!(!tags_match("W/\"1\"", "W/\"2\""));
    }
}
