//! Cache directives (RFC 9111 section 5.2 and RFC 9213).

use crate::wire::Fields;

/// Largest number of seconds that a cache must represent (RFC 9111 section 1.2.2).
const SECONDS_MAX: i64 = 1 << 31;

/// Directives of a request or a reply. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// `no-store`.
    pub no_store: bool,
    /// `no-cache` without fields.
    pub no_cache: bool,
    /// Fields of `no-cache="..."`, in lower case.
    pub no_cache_fields: Vec<String>,
    /// `private` without fields.
    pub private: bool,
    /// Fields of `private="..."`, in lower case.
    pub private_fields: Vec<String>,
    /// `public`.
    pub public: bool,
    /// `must-revalidate`.
    pub must_revalidate: bool,
    /// `proxy-revalidate`.
    pub proxy_revalidate: bool,
    /// `must-understand`.
    pub must_understand: bool,
    /// `only-if-cached`.
    pub only_if_cached: bool,
    /// `max-age`.
    pub max_age: Option<i64>,
    /// `s-maxage`.
    pub s_maxage: Option<i64>,
    /// `max-stale`; the largest number if it has no value.
    pub max_stale: Option<i64>,
    /// `min-fresh`.
    pub min_fresh: Option<i64>,
    /// `stale-while-revalidate`.
    pub stale_while_revalidate: Option<i64>,
    /// `stale-if-error`.
    pub stale_if_error: Option<i64>,
    /// Whether a targeted field applies, so that `Cache-Control` and `Expires` are ignored.
    pub is_targeted: bool,
}

impl Directives {
    /// The directives of a request.
    pub fn of_request(fields: &Fields) -> Self {
        Self::of_list(&fields.joined("cache-control").unwrap_or_default())
    }

    /// The directives of a reply for a cache of a content delivery network. RFC 9213 section 2.2: a valid `CDN-Cache-Control`
    /// replaces `Cache-Control` and `Expires`.
    pub fn of_reply(fields: &Fields) -> Self {
        let targeted = fields.joined("cdn-cache-control").and_then(|text| Self::of_dictionary(&text));
        targeted.unwrap_or_else(|| Self::of_request(fields))
    }

    /// RFC 9111 section 5.2: names in any case, arguments as tokens or quoted strings, empty members ignored.
    fn of_list(text: &str) -> Self {
        let mut found = Self::default();
        for member in members(text) {
            let (name, argument) = match member.split_once('=') {
                Some((name, argument)) => (name.trim(), Some(argument.trim())),
                None => (member, None),
            };
            found.add(&name.to_ascii_lowercase(), argument, true);
        }
        found
    }

    /// RFC 9213 section 2.1: a Dictionary of RFC 9651. `None` if it is empty or not valid; the field is then ignored.
    fn of_dictionary(text: &str) -> Option<Self> {
        let mut last: Vec<(&str, Option<&str>)> = Vec::new();
        let members: Vec<&str> = split_outside_quotes(text).map(str::trim).collect();
        for member in members {
            let item = member.split(';').next()?.trim_end();
            let (key, value) = item.split_once('=').map_or((item, None), |(key, value)| (key, Some(value)));
            let starts = key.starts_with(|c: char| c.is_ascii_lowercase() || c == '*');
            let of_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.*".contains(c);
            if !starts || !key.chars().all(of_key) || value.is_some_and(|value| !is_bare_item(value)) {
                return None;
            }
            // RFC 9651 section 4.2.2: of members with the same key, the last one counts.
            last.retain(|(known, _)| *known != key);
            last.push((key, value));
        }
        let mut found = Self { is_targeted: true, ..Self::default() };
        for (key, value) in last {
            found.add(key, value, false);
        }
        Some(found)
    }

    /// Adds a directive. In lists a number may be quoted. In dictionaries a quoted number is a string and thus invalid, and the
    /// reply counts as stale.
    fn add(&mut self, name: &str, argument: Option<&str>, quoted: bool) {
        let number = |old: Option<i64>| {
            let new = argument.and_then(|text| seconds(if quoted { unquoted(text) } else { text }));
            // Of two values the smaller one counts: RFC 9111 section 4.2.1 leaves the choice to the cache, so the model is strict.
            Some(old.unwrap_or(SECONDS_MAX).min(new.unwrap_or(0)))
        };
        match name {
            "no-store" => self.no_store = true,
            "public" => self.public = true,
            "must-revalidate" => self.must_revalidate = true,
            "proxy-revalidate" => self.proxy_revalidate = true,
            "must-understand" => self.must_understand = true,
            "only-if-cached" => self.only_if_cached = true,
            "no-cache" => match names(argument) {
                Some(fields) => self.no_cache_fields.extend(fields),
                None => self.no_cache = true,
            },
            "private" => match names(argument) {
                Some(fields) => self.private_fields.extend(fields),
                None => self.private = true,
            },
            "max-age" => self.max_age = number(self.max_age),
            "s-maxage" => self.s_maxage = number(self.s_maxage),
            "min-fresh" => self.min_fresh = number(self.min_fresh),
            "max-stale" if argument.is_none() => self.max_stale = Some(SECONDS_MAX),
            "max-stale" => self.max_stale = number(self.max_stale),
            "stale-while-revalidate" => self.stale_while_revalidate = number(self.stale_while_revalidate),
            "stale-if-error" => self.stale_if_error = number(self.stale_if_error),
            _ => {}
        }
    }
}

/// RFC 9111 section 1.2.2: a number of digits; a larger one than the largest is the largest.
pub fn seconds(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(SECONDS_MAX).min(SECONDS_MAX))
}

/// The fields of a qualified `no-cache` or `private`. `None` if the directive has no valid list of fields (RFC 9111 section
/// 5.2.2.4). It then applies to the whole reply, which is stricter.
fn names(argument: Option<&str>) -> Option<Vec<String>> {
    let list = argument?.strip_prefix('"')?.strip_suffix('"')?;
    let names = list.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty());
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then_some(names)
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// The members of a list (RFC 9110 section 5.6.1), without empty ones.
pub fn members(text: &str) -> impl Iterator<Item = &str> {
    split_outside_quotes(text).map(str::trim).filter(|member| !member.is_empty())
}

/// Parts between commas that are not within a quoted string (RFC 9110 section 5.6.4).
fn split_outside_quotes(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ',' => return !is_quoted,
            _ => {}
        }
        false
    })
}

/// A bare item of RFC 9651 section 3.3: a number, a string, a token or a Boolean.
fn is_bare_item(text: &str) -> bool {
    let is_string = text.len() > 1 && text.starts_with('"') && text.ends_with('"');
    let number = text.strip_prefix('-').unwrap_or(text);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let is_token = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '*')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c));
    is_string || is_number || is_token || matches!(text, "?0" | "?1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply_directives(lines: &str) -> Directives {
        Directives::of_reply(&Fields::of_lines(lines))
    }

    #[test]
    fn directives_are_read_in_every_spelling() {
        let plain = Directives { public: true, max_age: Some(60), ..Directives::default() };
        for lines in [
            "Cache-Control: public, max-age=60",
            "Cache-Control: Public,,MAX-AGE=\"60\" ,",
            "Cache-Control: public\nCache-Control: max-age=60",
            "Cache-Control: ext=\"a, no-store, \\\", b\", public, max-age=60",
            "Cache-Control: max-age=90, public, max-age=60",
        ] {
            assert_eq!(reply_directives(lines), plain, "{lines}");
        }
        for (value, expected) in [
            ("max-age=-1", 0),
            ("max-age=1.5", 0),
            ("max-age", 0),
            ("max-age=99999999999999999999", SECONDS_MAX),
        ] {
            assert_eq!(
                reply_directives(&format!("Cache-Control: {value}")).max_age,
                Some(expected),
                "{value}"
            );
        }
    }

    #[test]
    fn qualified_forms_name_fields() {
        let found = reply_directives("Cache-Control: private=\"Set-Cookie, x-a\", no-cache=\"x-b\"");
        assert_eq!(found.private_fields, ["set-cookie", "x-a"]);
        assert_eq!(found.no_cache_fields, ["x-b"]);
        assert!(!found.private && !found.no_cache);
        assert!(reply_directives("Cache-Control: private=x-a").private, "a token is not the form of the RFC");
        assert!(reply_directives("Cache-Control: no-cache=\"\"").no_cache);
    }

    /// RFC 9213 section 2.2 and its examples.
    #[test]
    fn a_targeted_field_replaces_cache_control() {
        let found = reply_directives("Cache-Control: max-age=60, no-store\nCDN-Cache-Control: max-age=600");
        assert!(found.is_targeted && !found.no_store && found.max_age == Some(600));
        for ignored in ["", "max-age=1, &&", "MAX-AGE=1", "max-age=1,"] {
            let found = reply_directives(&format!("Cache-Control: no-cache\nCDN-Cache-Control: {ignored}"));
            assert!(!found.is_targeted && found.no_cache, "{ignored}");
        }
        assert_eq!(reply_directives("CDN-Cache-Control: max-age=10, max-age=0").max_age, Some(0));
        assert_eq!(
            reply_directives("CDN-Cache-Control: max-age=\"10\"").max_age,
            Some(0),
            "a string is no number"
        );
        assert_eq!(reply_directives("CDN-Cache-Control: max-age=10;x=1, ext=\"a,b\"").max_age, Some(10));
    }
}
