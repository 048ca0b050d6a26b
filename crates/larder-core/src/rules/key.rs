//! The key template, which defines the requests that have the same target.
//!
//! Requests whose keys are equal have the same target, and so go to the node that has its content. By default a key is the host in
//! lower case, then path and query as sent. HACC (NT Symposium 1999, section 5.1) keys requests to a Domino server,
//! `http://host/NotesObject?Action&params`, by the object down to its view and the action. As a template this is
//! `{host}{path:3}?{query:#1}`.
//!
//! | part | contribution to the key |
//! |---|---|
//! | `{method}` | the method |
//! | `{host}` | the host in lower case, with its port as sent |
//! | `{path}` | the path |
//! | `{path:2}` | its first two segments, each with the `/` before it |
//! | `{path:2..4}`, `{path:2..}` | segments 2 to 4; from 2 to the end |
//! | `{extension}` | the extension ([`Head::extension`]) in lower case |
//! | `{query}` | `?` and the query; nothing if there is none |
//! | `{query:a,b}` | parameters `a` and `b` in this order, as `a=1&b=2`; a missing one is omitted |
//! | `{query:#1}` | the query's first item, up to the `&` |
//! | `{header:name}` | the value of a field |
//! | `{cookie:name}` | the value of a cookie |
//!
//! A missing part contributes nothing. Everything else is literal text; `{{` and `}}` are the braces themselves. Parts are
//! concatenated without a separator: text between two parts (`{cookie:user}|{path}`) distinguishes `a`, `b/` from `ab`, `/`.
//! Of several parameters, fields or cookies of one name the first counts.

use super::CAPTURE_BYTES_MAX;
use super::error::RuleError;
use super::head::Head;
use super::key_text::KeyPart;
use crate::id::TargetId;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// A template of a target's key; see [the module](self) for what it may hold.
///
/// ```
/// use larder_core::rules::{Head, KeyTemplate};
///
/// let domino: KeyTemplate = "{host}{path:3}?{query:#1}".parse()?;
/// let id = |target: &str| domino.id(&Head::get(b"notes.example", target.as_bytes()));
/// // One view, whatever the document and the parameters; another action is another target.
/// assert_eq!(id("/db.nsf/byDate/7f?OpenDocument&Start=1"), id("/db.nsf/byDate/7f?OpenDocument"));
/// assert_ne!(id("/db.nsf/byDate/7f?OpenDocument"), id("/db.nsf/byDate/7f?EditDocument"));
/// # Ok::<(), larder_core::rules::RuleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    text: Box<str>,
    parts: Box<[KeyPart]>,
}

impl KeyTemplate {
    /// The default template, `{host}{path}{query}`.
    pub const DEFAULT: &'static str = "{host}{path}{query}";

    /// Returns the template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the target of a request: [`TargetId::of`] its key. Allocates nothing. O(key, and the text examined
    /// for it).
    pub fn id(&self, head: &Head<'_>) -> TargetId {
        let mut hash = KeyHasher::new();
        self.write(head, &mut hash);
        hash.id()
    }

    /// Appends the key of a request, for display.
    pub fn render(&self, head: &Head<'_>, key: &mut Vec<u8>) {
        self.write(head, key);
    }

    fn write(&self, head: &Head<'_>, sink: &mut impl KeySink) {
        for part in &self.parts {
            match part {
                KeyPart::Literal(text) => sink.put(text),
                KeyPart::Method => sink.put(&head.method[..head.method.len().min(CAPTURE_BYTES_MAX)]),
                KeyPart::Host => put_lower(sink, head.host),
                KeyPart::Path => sink.put(head.path),
                KeyPart::Segments { from, to } => sink.put(head.segments(*from, *to)),
                KeyPart::Extension => put_lower(sink, head.extension().unwrap_or_default()),
                KeyPart::Query => {
                    if let Some(query) = head.query {
                        sink.put(b"?");
                        sink.put(query);
                    }
                }
                KeyPart::Parameters(names) => put_parameters(sink, head, names),
                KeyPart::Item(at) => sink.put(head.query_items().nth(*at).unwrap_or_default()),
                KeyPart::Header(name) => sink.put(head.field(name).unwrap_or_default()),
                KeyPart::Cookie(name) => sink.put(head.cookie(name).unwrap_or_default()),
            }
        }
    }
}

impl Default for KeyTemplate {
    fn default() -> Self {
        Self { text: Self::DEFAULT.into(), parts: [KeyPart::Host, KeyPart::Path, KeyPart::Query].into() }
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for KeyTemplate {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Ok(Self { text: text.into(), parts: super::key_text::parse_template(text)?.into() })
    }
}

/// Writes the parameters of these names, in the order of the names, in one pass over the query.
fn put_parameters(sink: &mut impl KeySink, head: &Head<'_>, names: &[Box<[u8]>]) {
    let mut found: [Option<&[u8]>; super::PARAMETERS_MAX] = [None; super::PARAMETERS_MAX];
    for item in head.query_items() {
        for (slot, name) in found.iter_mut().zip(names) {
            let named =
                item.strip_prefix(&**name).is_some_and(|rest| matches!(rest.first(), None | Some(b'=')));
            if named && slot.is_none() {
                *slot = Some(item);
            }
        }
    }
    for (at, item) in found.into_iter().flatten().enumerate() {
        sink.put(if at > 0 { b"&" } else { b"" });
        sink.put(item);
    }
}

fn put_lower(sink: &mut impl KeySink, text: &[u8]) {
    if !text.iter().any(u8::is_ascii_uppercase) {
        return sink.put(text);
    }
    let mut lowered = [0; 64];
    for chunk in text.chunks(lowered.len()) {
        let lowered = &mut lowered[..chunk.len()];
        lowered.copy_from_slice(chunk);
        lowered.make_ascii_lowercase();
        sink.put(lowered);
    }
}

/// The receiver of the bytes of a key.
trait KeySink {
    fn put(&mut self, bytes: &[u8]);
}

impl KeySink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The hash of a key. Keys up to [`KeyHasher::SHORT`] bytes, which are nearly all keys, are collected on the stack
/// and hashed at once, several times as fast as piece by piece. Longer keys are hashed in pieces of that size, with
/// the same result.
struct KeyHasher {
    held: [u8; KeyHasher::SHORT],
    len: usize,
    longer: Option<Xxh3Default>,
}

impl KeyHasher {
    const SHORT: usize = 256;

    fn new() -> Self {
        Self { held: [0; Self::SHORT], len: 0, longer: None }
    }

    fn id(mut self) -> TargetId {
        let held = &self.held[..self.len];
        TargetId(match &mut self.longer {
            None => xxh3_64(held),
            Some(hasher) => {
                hasher.update(held);
                hasher.digest()
            }
        })
    }
}

impl KeySink for KeyHasher {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.held.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
            return;
        }
        let hasher = self.longer.get_or_insert_with(Xxh3Default::new);
        hasher.update(&self.held[..self.len]);
        hasher.update(bytes);
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::{Headers, ITEMS_MAX};
    use proptest::prelude::*;

    fn key(template: &str, head: &Head<'_>) -> String {
        let template: KeyTemplate = template.parse().expect("a template");
        let mut key = Vec::new();
        template.render(head, &mut key);
        assert_eq!(template.id(head), TargetId::of(&key));
        String::from_utf8(key).expect("text")
    }

    #[test]
    fn parts_contribute_as_documented() {
        let headers = vec![("Cookie", "sid=7; lang=de"), ("Accept-Language", "de, en;q=0.5")];
        let head = Head::new(b"GET", b"Shop.Example:80", b"/a/b/c.PHP?x=1&y=2&x=3&z", &headers);
        for (template, expected) in [
            ("{host}{path}{query}", "shop.example:80/a/b/c.PHP?x=1&y=2&x=3&z"),
            ("{method} {path}", "GET /a/b/c.PHP"),
            ("{host}{path:2}", "shop.example:80/a/b"),
            ("{path:2..3}", "/b/c.PHP"),
            ("{path:2..}", "/b/c.PHP"),
            ("{path:2..2}", "/b"),
            ("{extension}", "php"),
            ("{path}?{query:z,x}", "/a/b/c.PHP?z&x=1"),
            ("{path}?{query:w}", "/a/b/c.PHP?"),
            ("{query:#1}|{query:#4}|{query:#9}", "x=1|z|"),
            ("{header:Accept-Language}", "de, en;q=0.5"),
            ("{cookie:lang}{cookie:none}", "de"),
            ("{{{method}}}", "{GET}"),
            ("{path}\u{e4}", "/a/b/c.PHP\u{e4}"),
        ] {
            assert_eq!(key(template, &head), expected, "{template}");
        }
    }

    /// HACC, section 5.1, Domino: the object to view depth, and the action.
    #[test]
    fn key_of_hacc_for_domino() {
        let domino: KeyTemplate = "{host}{path:3}?{query:#1}".parse().expect("a template");
        let key = |target: &str| {
            let mut key = Vec::new();
            domino.render(&Head::get(b"notes", target.as_bytes()), &mut key);
            String::from_utf8(key).expect("text")
        };
        assert_eq!(
            key("/mail/db.nsf/byDate/doc1?OpenDocument&Start=5"),
            "notes/mail/db.nsf/byDate?OpenDocument"
        );
        assert_eq!(key("/mail/db.nsf/byDate/doc2?OpenDocument"), "notes/mail/db.nsf/byDate?OpenDocument");
        assert_eq!(key("/mail/db.nsf/byDate?OpenView&Count=30"), "notes/mail/db.nsf/byDate?OpenView");
        assert_eq!(key("/mail/db.nsf?OpenNavigator"), "notes/mail/db.nsf?OpenNavigator");
    }

    #[test]
    fn parameter_beyond_the_limit_is_missing() {
        let query = format!("{}a=1", "&".repeat(ITEMS_MAX));
        let head = Head { query: Some(query.as_bytes()), ..Head::get(b"h", b"/") };
        assert_eq!(key("{path}{query:a}", &head), "/");
    }

    /// Fields that all have these bytes as their value.
    #[derive(Debug)]
    struct FixedField(Vec<u8>);

    impl Headers for FixedField {
        fn get(&self, _name: &str) -> Option<&[u8]> {
            Some(&self.0)
        }
    }

    fn bytes(max: usize) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(
            prop_oneof![any::<u8>(), Just(b'&'), Just(b'/'), Just(b'='), Just(b'a')],
            0..max,
        )
    }

    proptest! {
        /// The default key is the joined text, for any length.
        #[test]
        fn default_key_is_host_path_and_query(host in bytes(300), target in bytes(600)) {
            let head = Head::get(&host, &target);
            let joined = [&host.to_ascii_lowercase()[..], &target].concat();
            prop_assert_eq!(KeyTemplate::default().id(&head), TargetId::of(&joined));
            prop_assert_eq!(KeyTemplate::DEFAULT.parse::<KeyTemplate>(), Ok(KeyTemplate::default()));
        }

        /// The id is the hash of the key for any template and any bytes.
        #[test]
        fn id_is_the_hash_of_its_key(host in bytes(80), target in bytes(400), field in bytes(300)) {
            let headers = FixedField(field);
            let head = Head::new(b"GET", &host, &target, &headers);
            for template in ["{host}{path:3}?{query:#1}", "{query:a,b}{cookie:a}|{header:x}", "{method}{extension}{path:2..}{path}"] {
                let template: KeyTemplate = template.parse().expect("a template");
                let mut key = Vec::new();
                template.render(&head, &mut key);
                prop_assert_eq!(template.id(&head), TargetId::of(&key));
            }
        }

        /// Selected parameters agree with a reference that makes a list of all.
        #[test]
        fn parameters_agree_with_a_list(query in "[abc=&]{0,20}") {
            let head = Head { query: Some(query.as_bytes()), ..Head::get(b"", b"") };
            let items: Vec<&str> = query.split('&').filter(|_| !query.is_empty()).collect();
            let first = |name: &str| items.iter().find(|item| item.split('=').next() == Some(name)).copied();
            let wanted: Vec<&str> = ["b", "a", "ab"].into_iter().filter_map(first).collect();
            prop_assert_eq!(key("{query:b,a,ab}", &head), wanted.join("&"));
        }
    }
}
