//! Requests and replies of the admin interface, independent of HTTP.

use serde::Serialize;

/// A parsed request without its body, which no route needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdminRequest<'a> {
    /// Whether the method is POST. Otherwise it is GET or HEAD.
    pub(crate) post: bool,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    /// Value of the header `Authorization`.
    pub(crate) authorization: Option<&'a [u8]>,
}

impl AdminRequest<'_> {
    /// Returns the percent-decoded value of a query parameter.
    pub(crate) fn param(&self, name: &str) -> Option<String> {
        self.params(name).next()
    }

    /// Returns all values of a query parameter, percent-decoded, in their order.
    pub(crate) fn params(&self, name: &str) -> impl Iterator<Item = String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(move |(key, _)| *key == name).map(|(_, value)| percent_decode(value))
    }

    /// Returns the fields of the parameters `header=NAME:VALUE`, or the reply to a wrong one.
    pub(crate) fn headers(&self) -> Result<Vec<(String, String)>, AdminReply> {
        let field = |header: String| {
            let field =
                header.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
            let hint = "write header=NAME:VALUE, percent-encoded";
            field.ok_or_else(|| AdminReply::problem(400, "invalid header", hint))
        };
        self.params("header").map(field).collect()
    }
}

/// Splits `host/path?query`, with or without a scheme, into host and path.
pub(crate) fn split_target(target: &str) -> Option<(&str, String)> {
    let bare = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://")).unwrap_or(target);
    let split = bare.find(['/', '?']).unwrap_or(bare.len());
    let (host, path) = bare.split_at(split);
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    (!host.is_empty() && !host.contains(char::is_whitespace)).then_some((host, path))
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdminReply {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
    /// Methods for the header `Allow` of a 405 reply.
    pub(crate) allow: Option<&'static str>,
}

/// A process that the admin interface shows and changes.
pub(crate) trait AdminService: Send + Sync + 'static {
    /// Returns the reply to a request. Many threads call this at once, outside the runtime, so it may block.
    fn reply(&self, request: &AdminRequest<'_>) -> AdminReply;
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    hint: &'a str,
}

impl AdminReply {
    /// Returns 200 with a JSON body, or 500 if the value cannot be serialized.
    pub(crate) fn json(value: &impl Serialize) -> Self {
        match serde_json::to_string_pretty(value) {
            Ok(mut body) => {
                body.push('\n');
                Self { status: 200, content_type: "application/json", body, allow: None }
            }
            Err(error) => Self::problem(500, "cannot encode the reply as JSON", &error.to_string()),
        }
    }

    /// Returns 200 with a text body.
    pub(crate) fn text(content_type: &'static str, body: String) -> Self {
        Self { status: 200, content_type, body, allow: None }
    }

    /// Returns an error with a hint, as JSON.
    pub(crate) fn problem(status: u16, error: &str, hint: &str) -> Self {
        let body = serde_json::to_string_pretty(&ErrorBody { error, hint }).unwrap_or_default() + "\n";
        Self { status, content_type: "application/json", body, allow: None }
    }

    /// Returns 405.
    pub(crate) fn wrong_method(allow: &'static str) -> Self {
        let hint = format!("allowed methods: {allow}");
        Self { allow: Some(allow), ..Self::problem(405, "method not allowed", &hint) }
    }

    /// Returns 404 with the list of paths.
    pub(crate) fn no_such_path(routes: &[&str]) -> Self {
        Self::problem(404, "no such path", &format!("known paths: {}", routes.join(", ")))
    }
}

/// Decodes percent escapes such as `%41`. Invalid escapes stay as they are. Invalid UTF-8 is replaced.
pub(crate) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = (bytes[at] == b'%').then(|| bytes.get(at + 1..at + 3)).flatten();
        let digits = escape.and_then(|digits| str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let request =
            AdminRequest { post: false, path: "/", authorization: None, query: "a=1&target=www%2Fx%3Fq=1&b" };
        assert_eq!(request.param("target").as_deref(), Some("www/x?q=1"));
        assert_eq!(request.param("b"), None);
        for broken in ["%", "%4", "%zz", "%+1", "%ff"] {
            let _ = percent_decode(broken);
        }
        assert_eq!(percent_decode("%+1%41"), "%+1A");
    }

    #[test]
    fn targets_are_split_into_host_and_path() {
        let split = |text| split_target(text).map(|(host, path)| format!("{host} {path}"));
        assert_eq!(split("www:80/a?b=c").as_deref(), Some("www:80 /a?b=c"));
        assert_eq!(split("http://www").as_deref(), Some("www /"));
        assert_eq!(split("www?b").as_deref(), Some("www /?b"));
        assert_eq!((split("/a"), split(""), split("a b/c")), (None, None, None));
    }
}
