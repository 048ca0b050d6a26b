//! Questions and answers of the admin interface, without the HTTP around them.

use serde::Serialize;

/// What is asked: a parsed request without its body, which no route needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// The method is POST; otherwise it is GET or HEAD.
    pub(crate) post: bool,
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    /// The value of `Authorization`.
    pub(crate) authorization: Option<&'a [u8]>,
}

impl Ask<'_> {
    /// The percent-decoded value of a query parameter.
    pub(crate) fn param(&self, name: &str) -> Option<String> {
        self.params(name).next()
    }

    /// All values of a query parameter, percent-decoded, in their order.
    pub(crate) fn params(&self, name: &str) -> impl Iterator<Item = String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(move |(key, _)| *key == name).map(|(_, value)| percent_decode(value))
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
    /// Methods for the `Allow` header of a 405.
    pub(crate) allow: Option<&'static str>,
}

/// Something the admin interface can be asked about.
pub(crate) trait Surface: Send + Sync + 'static {
    /// Answers a request; called from many threads at once, outside the runtime: it may block, such as for a file.
    fn answer(&self, ask: &Ask<'_>) -> Answer;
}

#[derive(Serialize)]
struct Problem<'a> {
    error: &'a str,
    hint: &'a str,
}

impl Answer {
    /// 200 with a JSON body; 500 where the value cannot be written, which is our own bug.
    pub(crate) fn json(value: &impl Serialize) -> Self {
        match serde_json::to_string_pretty(value) {
            Ok(mut body) => {
                body.push('\n');
                Self { status: 200, content_type: "application/json", body, allow: None }
            }
            Err(error) => Self::problem(500, "the answer cannot be written as JSON", &error.to_string()),
        }
    }

    /// 200 with plain text.
    pub(crate) fn text(content_type: &'static str, body: String) -> Self {
        Self { status: 200, content_type, body, allow: None }
    }

    /// An error with a hint at what would work, as JSON.
    pub(crate) fn problem(status: u16, error: &str, hint: &str) -> Self {
        let body = serde_json::to_string_pretty(&Problem { error, hint }).unwrap_or_default() + "\n";
        Self { status, content_type: "application/json", body, allow: None }
    }

    /// 405: the path exists, the method does not.
    pub(crate) fn wrong_method(allow: &'static str) -> Self {
        let hint = format!("this path answers {allow}");
        Self { allow: Some(allow), ..Self::problem(405, "method not allowed", &hint) }
    }

    /// 404, listing what there is.
    pub(crate) fn no_such_path(routes: &[&str]) -> Self {
        Self::problem(404, "no such path", &format!("there are: {}", routes.join(", ")))
    }
}

/// Decodes `%41`; leaves what is no escape as it stands, and replaces what is no UTF-8.
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
        let ask = Ask { post: false, path: "/", authorization: None, query: "a=1&target=www%2Fx%3Fq=1&b" };
        assert_eq!(ask.param("target").as_deref(), Some("www/x?q=1"));
        assert_eq!(ask.param("b"), None);
        for broken in ["%", "%4", "%zz", "%+1", "%ff"] {
            let _ = percent_decode(broken);
        }
        assert_eq!(percent_decode("%+1%41"), "%+1A");
    }
}
