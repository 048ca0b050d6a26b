//! `Cache-Status` (RFC 9211): which cache answered, and from memory or not.
//!
//! The field is a structured list (RFC 8941): `edge; fwd=miss, "node 2"; hit; ttl=9`. Each cache appends its own
//! member, so the *first* is the one closest to the origin: the content node. A field that breaks the grammar is
//! ignored whole, as RFC 8941 asks.

/// Longest cache name that is taken, bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// What a `Cache-Status` field says about the cache closest to the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheNote {
    name: Vec<u8>,
    hit: bool,
    members: u32,
}

/// The field breaks the grammar of RFC 8941, or a name in it exceeds [`NAME_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed Cache-Status")]
pub struct Malformed;

impl CacheNote {
    /// Name of the cache, without quotes; empty if the field was absent.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether that cache answered from what it held.
    pub fn hit(&self) -> bool {
        self.hit
    }

    /// How many caches the reply passed.
    pub fn members(&self) -> u32 {
        self.members
    }

    /// Forgets what was read and keeps the memory.
    pub fn clear(&mut self) {
        self.name.clear();
        self.hit = false;
        self.members = 0;
    }

    /// Reads one field line. Further lines of the same reply continue the list.
    ///
    /// # Errors
    /// [`Malformed`]; the note is then cleared.
    pub fn read(&mut self, field: &[u8]) -> Result<(), Malformed> {
        let done = self.read_list(field);
        if done.is_err() {
            self.clear();
        }
        done
    }

    fn read_list(&mut self, field: &[u8]) -> Result<(), Malformed> {
        let mut cursor = Cursor { rest: field };
        cursor.skip(b" ");
        if cursor.rest.is_empty() {
            return Ok(());
        }
        loop {
            let first = self.members == 0;
            let mut spare = Vec::new();
            cursor.name(if first { &mut self.name } else { &mut spare })?;
            let hit = cursor.parameters()?;
            if first {
                self.hit = hit;
            }
            self.members = self.members.saturating_add(1);
            cursor.skip(b" \t");
            match cursor.take() {
                None => return Ok(()),
                Some(b',') => cursor.skip(b" \t"),
                Some(_) => return Err(Malformed),
            }
            if cursor.rest.is_empty() {
                return Err(Malformed);
            }
        }
    }
}

/// Reads RFC 8941 items off the front of a slice.
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, any_of: &[u8]) {
        self.take_while(|byte| any_of.contains(&byte));
    }

    fn take_while(&mut self, keep: impl Fn(u8) -> bool) -> &'a [u8] {
        let len = self.rest.iter().take_while(|byte| keep(**byte)).count();
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// A token or a string: what RFC 9211 allows as a cache's name.
    fn name(&mut self, into: &mut Vec<u8>) -> Result<(), Malformed> {
        into.clear();
        match self.peek().ok_or(Malformed)? {
            b'"' => self.string(|byte| into.push(byte))?,
            first if first.is_ascii_alphabetic() || first == b'*' => {
                into.extend_from_slice(self.take_while(is_token));
            }
            _ => return Err(Malformed),
        }
        if into.len() > NAME_BYTES_MAX { Err(Malformed) } else { Ok(()) }
    }

    fn string(&mut self, mut each: impl FnMut(u8)) -> Result<(), Malformed> {
        self.take();
        loop {
            match self.take().ok_or(Malformed)? {
                b'"' => return Ok(()),
                b'\\' => match self.take() {
                    Some(byte @ (b'"' | b'\\')) => each(byte),
                    _ => return Err(Malformed),
                },
                byte @ 0x20..=0x7e => each(byte),
                _ => return Err(Malformed),
            }
        }
    }

    /// Parameters of one member; whether the last `hit` among them is true.
    fn parameters(&mut self) -> Result<bool, Malformed> {
        let mut hit = false;
        while self.peek() == Some(b';') {
            self.take();
            self.skip(b" ");
            if !self.peek().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'*') {
                return Err(Malformed);
            }
            let key = self.take_while(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
            });
            let truth = if self.peek() == Some(b'=') {
                self.take();
                self.bare_item()?
            } else {
                true
            };
            if key == b"hit" {
                hit = truth;
            }
        }
        Ok(hit)
    }

    /// Any bare item; whether it is the boolean true.
    fn bare_item(&mut self) -> Result<bool, Malformed> {
        match self.peek().ok_or(Malformed)? {
            b'"' => self.string(|_| ()).map(|()| false),
            b'?' => {
                self.take();
                match self.take() {
                    Some(b'1') => Ok(true),
                    Some(b'0') => Ok(false),
                    _ => Err(Malformed),
                }
            }
            b':' => {
                self.take();
                self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                if self.take() == Some(b':') { Ok(false) } else { Err(Malformed) }
            }
            first if first.is_ascii_alphabetic() || first == b'*' => {
                self.take_while(is_token);
                Ok(false)
            }
            first if first.is_ascii_digit() || first == b'-' => {
                let number = self.take_while(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
                if is_number(number) { Ok(false) } else { Err(Malformed) }
            }
            _ => Err(Malformed),
        }
    }
}

/// An integer of up to 15 digits, or a decimal with 12 before and 3 after the point.
fn is_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let mut parts = digits.split(|byte| *byte == b'.');
    let whole = parts.next().unwrap_or_default();
    let fraction = parts.next();
    let all_digits = |part: &[u8]| part.iter().all(u8::is_ascii_digit);
    let fits = match fraction {
        None => (1..=15).contains(&whole.len()),
        Some(fraction) => (1..=12).contains(&whole.len()) && (1..=3).contains(&fraction.len()),
    };
    fits && parts.next().is_none() && all_digits(whole) && fraction.is_none_or(all_digits)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(field: &str) -> Result<(String, bool, u32), Malformed> {
        let mut note = CacheNote::default();
        note.read(field.as_bytes())?;
        Ok((String::from_utf8_lossy(note.name()).into_owned(), note.hit(), note.members()))
    }

    #[test]
    fn the_first_member_is_taken() {
        for (field, name, hit, members) in [
            ("node-1; hit", "node-1", true, 1),
            ("node-1;hit;ttl=-412", "node-1", true, 1),
            ("node-2; fwd=uri-miss; stored", "node-2", false, 1),
            ("node-2; hit=?0; fwd=stale; fwd-status=304", "node-2", false, 1),
            ("n; hit=?1", "n", true, 1),
            (r#""node 3; hit \"x\""; fwd=miss; detail="a, b; hit""#, r#"node 3; hit "x""#, false, 1),
            ("origin; hit , edge; fwd=miss;key=:aGk=:", "origin", true, 2),
            ("a; fwd=miss,b; hit;x=1.5", "a", false, 2),
            ("*w/eird:1", "*w/eird:1", false, 1),
            ("", "", false, 0),
        ] {
            assert_eq!(note(field), Ok((name.into(), hit, members)), "{field}");
        }
    }

    #[test]
    fn a_field_that_breaks_the_grammar_is_ignored_whole() {
        for field in [
            ",",
            "a,",
            "a,,b",
            "a; Hit",
            "a; hit=?2",
            "\"open",
            "\"bad\\n\"",
            "a; hit b",
            "1x",
            "a; ttl=1.",
            "a;",
            "a; ttl=1.2345",
            "a; x=:zz",
            "a; detail=\"\u{7f}\"",
            "(a b)",
            "a; =1",
        ] {
            assert_eq!(note(field), Err(Malformed), "{field}");
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(note(&long), Err(Malformed));
    }

    #[test]
    fn further_lines_continue_the_list() {
        let mut note = CacheNote::default();
        note.read(b"inner; hit").unwrap();
        note.read(b"outer; fwd=miss").unwrap();
        assert_eq!((note.name(), note.hit(), note.members()), (&b"inner"[..], true, 2));
        note.read(b"?").unwrap_err();
        assert_eq!(note, CacheNote::default());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(field in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut note = CacheNote::default();
            if note.read(&field).is_err() {
                prop_assert_eq!(note, CacheNote::default());
            }
        }

        #[test]
        fn a_quoted_name_comes_back_as_it_was(name in "[ -~]{0,60}", hit: bool) {
            let quoted = name.replace('\\', r"\\").replace('"', "\\\"");
            let field = format!("\"{quoted}\"{}, other; fwd=miss", if hit { "; hit" } else { "" });
            prop_assert_eq!(note(&field), Ok((name, hit, 2)));
        }
    }
}
