//! Dictionaries of structured field values (RFC 9651 section 4.2), as far as cache directives need them: names
//! with an integer, a boolean or another value. Parameters are checked and dropped.

use std::str;

/// Most members with different names in a dictionary; one more makes the field invalid. Parsers must support at
/// least this many (RFC 9651 section 3.2), and names are compared one by one.
const MEMBERS_MAX: usize = 1_024;

/// The value of a dictionary's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BareItem {
    Integer(i64),
    Boolean(bool),
    /// A decimal, a string, a token, bytes, a date or a list.
    Other,
}

/// Parses a dictionary. Returns each name once, with its last value. `None` if the text is not a dictionary, or
/// has more than [`MEMBERS_MAX`] members. The caller joins the lines of a field by `", "`.
pub(crate) fn parse_dictionary(text: &[u8]) -> Option<Vec<(&str, BareItem)>> {
    let mut parser = Parser(text);
    let mut members: Vec<(&str, BareItem)> = Vec::new();
    parser.skip(b" ");
    while !parser.0.is_empty() {
        let name = parser.parse_key()?;
        let value = if parser.consume(b'=') { parser.parse_value()? } else { BareItem::Boolean(true) };
        parser.skip_parameters()?;
        let is_full = members.len() == MEMBERS_MAX;
        match members.iter_mut().find(|(earlier, _)| *earlier == name) {
            Some(member) => member.1 = value,
            None if is_full => return None,
            None => members.push((name, value)),
        }
        parser.skip(b" \t");
        if parser.0.is_empty() {
            break;
        }
        if !parser.consume(b',') {
            return None;
        }
        parser.skip(b" \t");
        if parser.0.is_empty() {
            return None;
        }
    }
    Some(members)
}

/// A parser over the rest of the text.
struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    fn skip(&mut self, bytes: &[u8]) {
        while let [first, rest @ ..] = self.0
            && bytes.contains(first)
        {
            self.0 = rest;
        }
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn consume(&mut self, byte: u8) -> bool {
        let found = self.0.first() == Some(&byte);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn take_while(&mut self, belongs: impl Fn(u8) -> bool) -> &'a [u8] {
        let len = self.0.iter().position(|byte| !belongs(*byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn parse_key(&mut self) -> Option<&'a str> {
        let starts = self.0.first().is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'*');
        let belongs =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte);
        let name = starts.then(|| self.take_while(belongs))?;
        str::from_utf8(name).ok()
    }

    fn skip_parameters(&mut self) -> Option<()> {
        while self.consume(b';') {
            self.skip(b" ");
            self.parse_key()?;
            if self.consume(b'=') {
                self.parse_bare_item()?;
            }
        }
        Some(())
    }

    /// Parses an item or a list of items, without the parameters behind it.
    fn parse_value(&mut self) -> Option<BareItem> {
        if !self.consume(b'(') {
            return self.parse_bare_item();
        }
        loop {
            self.skip(b" ");
            if self.consume(b')') {
                return Some(BareItem::Other);
            }
            self.parse_bare_item()?;
            self.skip_parameters()?;
            if !matches!(self.0.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn parse_bare_item(&mut self) -> Option<BareItem> {
        match self.0.first()? {
            b'-' | b'0'..=b'9' => self.parse_number(),
            b'"' => self.parse_string(),
            b'?' => self.parse_boolean(),
            b':' => self.parse_bytes(),
            b'%' => self.parse_display_string(),
            b'@' => {
                self.next();
                matches!(self.parse_number()?, BareItem::Integer(_)).then_some(BareItem::Other)
            }
            byte if byte.is_ascii_alphabetic() || *byte == b'*' => {
                let symbols = b"!#$%&'*+-.^_`|~:/";
                self.take_while(|byte| byte.is_ascii_alphanumeric() || symbols.contains(&byte));
                Some(BareItem::Other)
            }
            _ => None,
        }
    }

    fn parse_number(&mut self) -> Option<BareItem> {
        let sign = if self.consume(b'-') { -1 } else { 1 };
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if self.consume(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            let fits = (1..=12).contains(&digits.len()) && (1..=3).contains(&fraction.len());
            return fits.then_some(BareItem::Other);
        }
        if digits.len() > 15 {
            return None;
        }
        let number: i64 = str::from_utf8(digits).ok()?.parse().ok()?;
        Some(BareItem::Integer(sign * number))
    }

    fn parse_boolean(&mut self) -> Option<BareItem> {
        self.next();
        match self.next()? {
            b'0' => Some(BareItem::Boolean(false)),
            b'1' => Some(BareItem::Boolean(true)),
            _ => None,
        }
    }

    fn parse_string(&mut self) -> Option<BareItem> {
        self.next();
        loop {
            match self.next()? {
                b'"' => return Some(BareItem::Other),
                b'\\' => {
                    if !matches!(self.next()?, b'"' | b'\\') {
                        return None;
                    }
                }
                b' '..=b'~' => {}
                _ => return None,
            }
        }
    }

    fn parse_bytes(&mut self) -> Option<BareItem> {
        self.next();
        self.take_while(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
        self.consume(b':').then_some(BareItem::Other)
    }

    fn parse_display_string(&mut self) -> Option<BareItem> {
        self.next();
        if !self.consume(b'"') {
            return None;
        }
        let hex = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut decoded = Vec::new();
        loop {
            match self.next()? {
                b'"' => return str::from_utf8(&decoded).ok().map(|_| BareItem::Other),
                b'%' => decoded.push(hex(self.next()?)? << 4 | hex(self.next()?)?),
                byte @ b' '..=b'~' => decoded.push(byte),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_of_all_types_are_read() {
        let text = b" a, b=5 ,\tc=-7;x;y=\"\\\"\", d=?0, e=1.25, f=\"x,y\", g=*t/1:, h=:aGk=:, i=@9, \
                     j=%\"f%c3%bc\", k=(1 \"a\";q  z), l=(), *m=12, a=?1;z=?0 ";
        let members = parse_dictionary(text).unwrap();
        let expected = [
            ("a", BareItem::Boolean(true)),
            ("b", BareItem::Integer(5)),
            ("c", BareItem::Integer(-7)),
            ("d", BareItem::Boolean(false)),
            ("e", BareItem::Other),
            ("f", BareItem::Other),
            ("g", BareItem::Other),
            ("h", BareItem::Other),
            ("i", BareItem::Other),
            ("j", BareItem::Other),
            ("k", BareItem::Other),
            ("l", BareItem::Other),
            ("*m", BareItem::Integer(12)),
        ];
        assert_eq!(members, expected);
        assert_eq!(parse_dictionary(b"  "), Some(Vec::new()));
        assert_eq!(parse_dictionary(b"a=1, a=2"), Some(vec![("a", BareItem::Integer(2))]));
    }

    #[test]
    fn one_error_makes_the_whole_invalid() {
        for text in [
            &b"A=1"[..],
            b"a=",
            b"a =1",
            b"a= 1",
            b"a,",
            b"a,,b",
            b"a b",
            b"\ta",
            b"a=--1",
            b"a=-",
            b"a=1.",
            b"a=1.2345",
            b"a=1234567890123456",
            b"a=1234567890123.1",
            b"a=?2",
            b"a=?",
            b"a=\"x",
            b"a=\"\\x\"",
            b"a=\"\x7f\"",
            b"a=:x",
            b"a=:x y:",
            b"a=@1.5",
            b"a=%x",
            b"a=%\"%C3\"",
            b"a=%\"%ff\"",
            b"a=(1",
            b"a=(1\"x\")",
            b"a=(1,2)",
            b"a;",
            b"a;B",
            b"a;b=",
            b"a=1, &",
            b"\xfc",
        ] {
            assert_eq!(parse_dictionary(text), None, "{:?}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn members_beyond_the_limit_make_the_whole_invalid() {
        let members = |count| (0..count).map(|nth| format!("a{nth}")).collect::<Vec<_>>().join(", ");
        let most = members(MEMBERS_MAX);
        assert_eq!(parse_dictionary(most.as_bytes()).map(|members| members.len()), Some(MEMBERS_MAX));
        assert_eq!(
            parse_dictionary(format!("{most}, a0=1").as_bytes()).map(|all| all[0]),
            Some(("a0", BareItem::Integer(1)))
        );
        assert_eq!(parse_dictionary(members(MEMBERS_MAX + 1).as_bytes()), None);
    }

    proptest! {
        #[test]
        fn foreign_text_is_accepted(text in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse_dictionary(&text);
        }
    }
}
