//! The condition of one rule.

use super::error::{RuleCoverage, RuleError, RuleTextKind, TextFault, check_length, check_sent, text_error};
use super::glob::Glob;
use super::head::{Head, split_port};
use super::path::PathPattern;
use super::{ALTERNATIVES_MAX, RULES_MAX};
use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;

/// Which requests a rule is for. Of each kind (method, host, path, extension, each field) that is given, one
/// alternative must hold; a kind that is not given holds for every request. So a matcher without anything takes all.
///
/// ```
/// use larder_core::rules::{Head, Matcher};
///
/// let matcher = Matcher::new().host("*.example.com")?.path("/cgi-bin/*")?.path("/search")?;
/// assert!(matcher.matches(&Head::get(b"www.example.com:8080", b"/cgi-bin/query?id=7")));
/// assert!(!matcher.matches(&Head::get(b"www.example.org", b"/search")));
/// # Ok::<(), larder_core::rules::RuleError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    methods: Vec<Box<str>>,
    hosts: Vec<HostPattern>,
    paths: Vec<PathPattern>,
    extensions: Vec<Box<str>>,
    headers: Vec<FieldPattern>,
}

/// A field, and the alternative patterns of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldPattern {
    name: Box<str>,
    values: Vec<Glob>,
}

/// A host, or every name below one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPattern {
    /// The name in lower case. If `subdomains` is set, it begins with the dot.
    name: Box<str>,
    /// Whether one label or more must precede the name.
    subdomains: bool,
    /// The port; `None` for any port and none.
    port: Option<Box<str>>,
}

impl Matcher {
    /// Creates a matcher that matches every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method to the alternatives. Case matters (RFC 9110 section 9.1).
    ///
    /// # Errors
    /// The method is not a token, or a standard method in the wrong case.
    pub fn method(mut self, method: &str) -> Result<Self, RuleError> {
        check_token(RuleTextKind::Method, method)?;
        let upper = method.to_ascii_uppercase();
        if upper != method && STANDARD_METHODS.contains(&upper.as_str()) {
            return Err(text_error(RuleTextKind::Method, method, 0, TextFault::MethodCase(upper)));
        }
        self.methods.push(method.into());
        check_alternatives(RuleTextKind::Method, self.methods.len())?;
        Ok(self)
    }

    /// Adds a host to the alternatives: `example.com`, or `*.example.com` for every name below it (but not the name
    /// itself). Case does not matter. With a port, that port must have been sent; without a port, any or none may
    /// have been sent.
    ///
    /// # Errors
    /// The text is not a host, or `*` is at an invalid position.
    pub fn host(mut self, host: &str) -> Result<Self, RuleError> {
        self.hosts.push(HostPattern::parse(host)?);
        check_alternatives(RuleTextKind::Host, self.hosts.len())?;
        Ok(self)
    }

    /// Adds a path pattern ([`Glob`]) to the alternatives. The whole path is compared as sent, without the query:
    /// `/a` matches only `/a`, and `/a*` matches every path that begins with it. A pattern that begins with `~` is a
    /// regular expression of the crate `regex` over bytes: `~\.png$` matches every path with this end.
    ///
    /// # Errors
    /// No path can match, because the pattern begins with neither `/` nor `*`, or contains a `?`, space or control
    /// character. The expression is invalid, or takes more than 1 MiB when compiled.
    pub fn path(mut self, path: &str) -> Result<Self, RuleError> {
        self.paths.push(PathPattern::parse(path)?);
        check_alternatives(RuleTextKind::Path, self.paths.len())?;
        Ok(self)
    }

    /// Adds a path extension ([`Head::extension`]) to the alternatives. Case does not matter.
    ///
    /// # Errors
    /// The extension contains a dot, a slash or a `*`.
    pub fn extension(mut self, extension: &str) -> Result<Self, RuleError> {
        check_length(RuleTextKind::Extension, extension)?;
        check_sent(RuleTextKind::Extension, extension)?;
        if let Some(at) = extension.find(['*', '/', '?', ';']) {
            let found = extension[at..].chars().next().unwrap_or('*');
            return Err(text_error(
                RuleTextKind::Extension,
                extension,
                at,
                TextFault::ExtensionPattern(found),
            ));
        }
        if let Some(at) = extension.rfind('.') {
            let rest = extension[at + 1..].to_owned();
            let error = if rest.is_empty() {
                TextFault::Empty(RuleTextKind::Extension)
            } else {
                TextFault::Dot(rest)
            };
            return Err(text_error(RuleTextKind::Extension, extension, at, error));
        }
        self.extensions.push(extension.into());
        check_alternatives(RuleTextKind::Extension, self.extensions.len())?;
        Ok(self)
    }

    /// Adds a pattern ([`Glob`]) to the alternatives for the value of a field. Each named field must match. If a
    /// request has several fields of a name, the first counts. `*` requires only that the field exists.
    ///
    /// # Errors
    /// The name is not a token.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, RuleError> {
        check_token(RuleTextKind::HeaderName, name)?;
        check_length(RuleTextKind::HeaderValue, value)?;
        let name = name.to_ascii_lowercase();
        let at = self.headers.iter().position(|field| *field.name == *name).unwrap_or_else(|| {
            self.headers.push(FieldPattern { name: name.into(), values: Vec::new() });
            self.headers.len() - 1
        });
        self.headers[at].values.push(Glob::new(value));
        check_alternatives(RuleTextKind::HeaderName, self.headers.len())?;
        check_alternatives(RuleTextKind::HeaderValue, self.headers[at].values.len())?;
        Ok(self)
    }

    /// Returns whether the matcher matches every request.
    pub fn takes_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the matcher matches a request. O(alternatives x the text they examine).
    pub fn matches(&self, head: &Head<'_>) -> bool {
        self.matches_split(head, split_port(head.host))
    }

    /// Returns whether the matcher matches a request whose host has been split already.
    fn matches_split(&self, head: &Head<'_>, (name, port): (&[u8], Option<&[u8]>)) -> bool {
        let any = |is_empty: bool, found: bool| is_empty || found;
        any(self.methods.is_empty(), self.methods.iter().any(|method| method.as_bytes() == head.method))
            && any(self.hosts.is_empty(), self.hosts.iter().any(|host| host.matches(name, port)))
            && any(self.paths.is_empty(), self.paths.iter().any(|path| path.matches(head.path)))
            && (self.extensions.is_empty()
                || head.extension().is_some_and(|extension| {
                    self.extensions.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(extension))
                }))
            && self.headers.iter().all(|field| {
                let value = head.headers.get(&field.name);
                value.is_some_and(|value| field.values.iter().any(|pattern| pattern.matches(value)))
            })
    }
}

/// Returns the value of the first rule that matches a request.
pub(super) fn find_first<T: Copy>(rules: &[(Matcher, T)], head: &Head<'_>) -> Option<T> {
    let host = split_port(head.host);
    rules.iter().find(|(matcher, _)| matcher.matches_split(head, host)).map(|(_, to)| *to)
}

/// Writes the given kinds in a fixed order; `any` for a matcher that matches every request. For display: values are
/// not quoted.
impl fmt::Display for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |texts: Vec<&str>| texts.join("|");
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        let kinds = [
            ("method", join(self.methods.iter().map(|text| &**text).collect())),
            ("host", hosts.join("|")),
            ("path", join(self.paths.iter().map(PathPattern::as_str).collect())),
            ("extension", join(self.extensions.iter().map(|text| &**text).collect())),
        ];
        let mut given: Vec<String> = Vec::new();
        given.extend(
            kinds.into_iter().filter(|(_, text)| !text.is_empty()).map(|(k, text)| format!("{k}={text}")),
        );
        for field in &self.headers {
            let values = join(field.values.iter().map(Glob::as_str).collect());
            given.push(format!("{}={values}", field.name));
        }
        f.write_str(if given.is_empty() { "any" } else { "" })?;
        f.write_str(&given.join(" "))
    }
}

impl HostPattern {
    fn parse(host: &str) -> Result<Self, RuleError> {
        let error = |at: usize, fault: TextFault| Err(text_error(RuleTextKind::Host, host, at, fault));
        check_length(RuleTextKind::Host, host)?;
        check_sent(RuleTextKind::Host, host)?;
        let rest = host.split_once("://").map_or(host, |(_, rest)| rest);
        let alone = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let alone = alone.rsplit('@').next().unwrap_or_default();
        if alone.is_empty() {
            return error(0, TextFault::Empty(RuleTextKind::Host));
        }
        if alone != host {
            let at = host.find(['/', '?', '#', '@', ':']).unwrap_or(0);
            return error(at, TextFault::HostAlone(alone.to_owned()));
        }
        let subdomains = host.starts_with("*.");
        let name = if subdomains { &host[1..] } else { host };
        if let Some(at) = name.find('*') {
            return error(at + usize::from(subdomains), TextFault::HostStar);
        }
        let (name, port) = split_port(name.as_bytes());
        let name_text = &host[usize::from(subdomains)..][..name.len()];
        if name_text.trim_matches('.').is_empty() {
            return error(0, TextFault::Empty(RuleTextKind::Host));
        }
        if !name_text.starts_with('[') && name_text.contains(':') {
            return error(0, TextFault::HostAlone(format!("[{host}]")));
        }
        let port = port.map(|port| core::str::from_utf8(port).unwrap_or_default());
        if port.is_some_and(|port| {
            !port.bytes().all(|byte| byte.is_ascii_digit()) || !port.parse::<u16>().is_ok_and(|port| port > 0)
        }) {
            return error(usize::from(subdomains) + name.len() + 1, TextFault::Port);
        }
        Ok(Self { name: name_text.to_ascii_lowercase().into(), subdomains, port: port.map(Into::into) })
    }

    fn matches(&self, name: &[u8], port: Option<&[u8]>) -> bool {
        let pattern = self.name.as_bytes();
        let same = if self.subdomains {
            // At least one byte before the dot.
            name.len() > pattern.len() && name[name.len() - pattern.len()..].eq_ignore_ascii_case(pattern)
        } else {
            name.eq_ignore_ascii_case(pattern)
        };
        same && self.port.as_ref().is_none_or(|wanted| port == Some(wanted.as_bytes()))
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = self.port.as_ref().map_or(String::new(), |port| format!(":{port}"));
        write!(f, "{}{}{port}", if self.subdomains { "*" } else { "" }, self.name)
    }
}

/// The methods of RFC 9110 section 9.3 and RFC 5789.
const STANDARD_METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

fn check_token(part: RuleTextKind, text: &str) -> Result<(), RuleError> {
    check_length(part, text)?;
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    match text.char_indices().find(|(_, c)| !token(*c)) {
        Some((at, c)) => Err(text_error(part, text, at, TextFault::NoToken(c))),
        None => Ok(()),
    }
}

fn check_alternatives(part: RuleTextKind, alternatives: usize) -> Result<(), RuleError> {
    if alternatives > ALTERNATIVES_MAX { Err(RuleError::Alternatives(part)) } else { Ok(()) }
}

/// Checks that a list is not too long and that each of its rules can be reached.
pub(super) fn check_list<T>(rules: &[(Matcher, T)]) -> Result<(), RuleError> {
    if rules.len() > RULES_MAX {
        return Err(RuleError::Rules(rules.len()));
    }
    for (at, (matcher, _)) in rules.iter().enumerate() {
        let before = rules[..at].iter().position(|(earlier, _)| earlier.takes_all() || earlier == matcher);
        if let Some(by) = before {
            let coverage = RuleCoverage(rules[by].0.takes_all());
            return Err(RuleError::Unreachable { rule: at + 1, by: by + 1, coverage });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(pattern: &str, host: &str) -> bool {
        Matcher::new().host(pattern).expect("a host").matches(&Head::get(host.as_bytes(), b"/"))
    }

    #[test]
    fn host_is_exact_or_all_subdomains() {
        for (pattern, sent, expected) in [
            ("example.com", "EXAMPLE.com", true),
            ("Example.com", "example.com:8080", true),
            ("example.com", "www.example.com", false),
            ("*.example.com", "www.Example.com:1", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "badexample.com", false),
            ("*.example.com", ".example.com", false),
            ("example.com:80", "example.com:80", true),
            ("example.com:80", "example.com:8080", false),
            ("example.com:80", "example.com", false),
            ("[::1]", "[::1]:80", true),
            ("[::1]:80", "[::1]:80", true),
            ("*.example.com:80", "a.example.com:80", true),
        ] {
            assert_eq!(host(pattern, sent), expected, "{pattern} {sent}");
        }
    }

    #[test]
    fn kinds_are_combined_by_and_alternatives_by_or() -> Result<(), RuleError> {
        let matcher = Matcher::new()
            .method("GET")?
            .method("HEAD")?
            .path("/a*")?
            .extension("php")?
            .extension("asp")?
            .header("Accept", "*json*")?
            .header("accept", "*xml*")?
            .header("x-tier", "*")?;
        let fields = |accept: &'static str| vec![("accept", accept), ("X-Tier", "")];
        let (json, xml, html) = (fields("text/json"), fields("xml"), fields("text/html"));
        assert!(matcher.matches(&Head::new(b"GET", b"h", b"/a.php?x", &json)));
        assert!(matcher.matches(&Head::new(b"HEAD", b"h", b"/ab.ASP", &xml)));
        assert!(!matcher.matches(&Head::new(b"POST", b"h", b"/a.php", &json)));
        assert!(!matcher.matches(&Head::new(b"GET", b"h", b"/b.php", &json)));
        assert!(!matcher.matches(&Head::new(b"GET", b"h", b"/a.html", &json)));
        assert!(!matcher.matches(&Head::new(b"GET", b"h", b"/a.php", &html)));
        let untiered = vec![("accept", "json")];
        assert!(!matcher.matches(&Head::new(b"GET", b"h", b"/a.php", &untiered)));
        let shown = "method=GET|HEAD path=/a* extension=php|asp accept=*json*|*xml* x-tier=*";
        assert_eq!(matcher.to_string(), shown);
        assert!(Matcher::new().matches(&Head::get(b"", b"")));
        assert_eq!(Matcher::new().to_string(), "any");
        Ok(())
    }

    #[test]
    fn text_is_compared_as_it_was_sent() -> Result<(), RuleError> {
        let matcher = Matcher::new().path("/a b*".replace(' ', "%20").as_str())?;
        assert!(matcher.matches(&Head::get(b"h", b"/a%20bc")));
        assert!(!Matcher::new().path("/a")?.matches(&Head::get(b"h", b"/%61")));
        assert!(!Matcher::new().path("/a/*")?.matches(&Head::get(b"h", b"/b/../a/")));
        Ok(())
    }

    #[test]
    fn every_fault_has_its_column_and_remedy() {
        let cases: &[(Result<Matcher, RuleError>, &str)] = &[
            (
                Matcher::new().method("get"),
                "method 'get', column 1: methods are compared with their case: write 'GET'",
            ),
            (Matcher::new().method("A B"), "method 'A B', column 2: ' ' cannot stand here"),
            (Matcher::new().method(""), "method '', column 1: it is empty: write for example 'GET'"),
            (
                Matcher::new().host("http://a/b"),
                "host 'http://a/b', column 5: a host is a name or address alone: write 'a'",
            ),
            (Matcher::new().host("www.*.com"), "host 'www.*.com', column 5: '*' stands for the front labels"),
            (Matcher::new().host("*"), "host '*', column 1: '*' stands for the front labels"),
            (Matcher::new().host("*."), "host '*.', column 1: it is empty"),
            (Matcher::new().host("a:http"), "host 'a:http', column 3: a port is a number"),
            (Matcher::new().host("a:0"), "host 'a:0', column 3: a port is a number"),
            (Matcher::new().host("a:+8"), "host 'a:+8', column 3: a port is a number"),
            (
                Matcher::new().host("fe80::1"),
                "host 'fe80::1', column 1: a host is a name or address alone: write '[fe80::1]'",
            ),
            (Matcher::new().host("://"), "host '://', column 1: it is empty"),
            (
                Matcher::new().path("a/b"),
                "path 'a/b', column 1: a path begins with '/': write '/a/b', or '*a/b'",
            ),
            (Matcher::new().path("/ä?x"), "path '/ä?x', column 3: '?' begins the query"),
            (
                Matcher::new().path("/a b"),
                "path '/a b', column 3: ' ' never comes here in a request: write it as",
            ),
            (
                Matcher::new().extension(".php"),
                "extension '.php', column 1: an extension is what follows the last dot: write 'php'",
            ),
            (
                Matcher::new().extension("tar.gz"),
                "extension 'tar.gz', column 4: an extension is what follows the last dot: write 'gz'",
            ),
            (Matcher::new().extension("."), "extension '.', column 1: it is empty"),
            (Matcher::new().extension("ph*"), "extension 'ph*', column 3: an extension has no '*'"),
            (Matcher::new().header("a:", "b"), "header name 'a:', column 2: ':' cannot stand here"),
            (Matcher::new().header("a", &"x".repeat(1025)), "header value 'xxxxxxxx"),
        ];
        for (result, expected) in cases {
            let error = result.as_ref().expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}\n{expected}");
        }
    }

    #[test]
    fn alternatives_are_limited() {
        let mut matcher = Matcher::new();
        for _ in 0..ALTERNATIVES_MAX {
            matcher = matcher.path("/a").expect("room");
        }
        assert_eq!(matcher.path("/a"), Err(RuleError::Alternatives(RuleTextKind::Path)));
    }

    proptest! {
        /// Agrees with a reference that compares hosts label by label.
        #[test]
        fn hosts_agree_with_labels(pattern in "(\\*\\.)?[ab]{1,2}(\\.[aB]{1,2}){0,2}", sent in "[aB]{1,2}(\\.[ab]{1,2}){0,3}") {
            let labels = |host: &str| host.to_lowercase().split('.').map(str::to_owned).collect::<Vec<_>>();
            let (wanted, given) = (labels(&pattern), labels(&sent));
            let expected = match wanted.split_first() {
                Some((star, subdomains)) if star == "*" => given.len() > subdomains.len() && given.ends_with(subdomains),
                _ => wanted == given,
            };
            prop_assert_eq!(host(&pattern, &sent), expected);
        }

        #[test]
        fn any_text_parses_or_fails_with_a_column(text in "\\PC{0,30}") {
            for result in [
                Matcher::new().method(&text), Matcher::new().host(&text), Matcher::new().path(&text),
                Matcher::new().extension(&text), Matcher::new().header(&text, &text),
            ] {
                match result {
                    Ok(matcher) => prop_assert!(!matcher.takes_all()),
                    Err(RuleError::Text { column, .. }) => prop_assert!(column <= text.chars().count() + 1),
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
        }
    }
}
