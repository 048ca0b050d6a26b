//! Direct replies of the switch: redirects (RFC 9110 section 15.4) and fixed replies. They ask no node and take no
//! admission.

use super::error::EditError;
use super::facts::RequestFacts;
use super::template::{Template, TemplateStage};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};

/// Maximum size of a fixed body. Bytes.
const BODY_BYTES_MAX: usize = 16_384;

/// Reply that the switch sends itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectReply {
    /// A redirect to another URL.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: StatusCode,
        /// The value of `Location`.
        to: Template,
        /// Scheme of the requests that are redirected; others are served. `Some(true)` for https.
        secure: Option<bool>,
    },
    /// A status and a short body, the same for all requests.
    Respond {
        /// 200 to 599.
        status: StatusCode,
        /// The body.
        body: Bytes,
        /// Media type of the body.
        content_type: HeaderValue,
    },
}

impl DirectReply {
    /// Creates a redirect.
    ///
    /// # Errors
    /// The status is not a redirect, or the template is invalid, is not a URI, or leads back to the same URL.
    pub fn redirect(status: u16, to: &str, secure: Option<bool>) -> Result<Self, EditError> {
        if !matches!(status, 301 | 302 | 303 | 307 | 308) {
            let right = "301, 302, 303, 307 or 308 (307 and 308 keep the method)";
            return Err(EditError::new(format!("{status} is not a redirect status"), right).at("status"));
        }
        let template = Template::parse(to, TemplateStage::DirectReply).map_err(|error| error.at("to"))?;
        let example =
            "write \"https://{host_name}{path}{query}\", \"/new{path}\" or \"https://www.example.com/\"";
        let begins =
            ["/", "http://", "https://", "{path", "{scheme}://"].iter().any(|start| to.starts_with(start));
        if !begins {
            return Err(
                EditError::new(format!("'{}' is not a URL or path", to.escape_debug()), example).at("to")
            );
        }
        if let Some(bad) = template.literals().flatten().find(|byte| !is_uri_byte(**byte)) {
            let what = format!("{:?} is not allowed in a URI", char::from(*bad));
            return Err(EditError::new(what, "write it percent-encoded: '%20' for a space").at("to"));
        }
        let same = to.strip_suffix("{query}").unwrap_or(to).strip_suffix("{path}");
        let loops = match same {
            Some("" | "{scheme}://{host}" | "{scheme}://{host_name}") => true,
            Some("https://{host}" | "https://{host_name}") => secure != Some(false),
            Some("http://{host}" | "http://{host_name}") => secure != Some(true),
            _ => false,
        };
        if loops {
            let right = match to.split_once("://") {
                Some(("https", _)) => {
                    "write scheme = \"http\" beside it, so that requests by https are served"
                }
                Some(("http", _)) => {
                    "write scheme = \"https\" beside it, so that requests by http are served"
                }
                _ => "lead to another host, path or scheme",
            };
            return Err(EditError::new("redirect loop: it leads to the requested URL", right).at("to"));
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::TEMPORARY_REDIRECT);
        Ok(Self::Redirect { status, to: template, secure })
    }

    /// Creates a fixed reply.
    ///
    /// # Errors
    /// The status is not a final one or allows no body, the body is too long, or the type is not a valid field value.
    pub fn respond(status: u16, body: &str, content_type: &str) -> Result<Self, EditError> {
        let facts = StatusCode::from_u16(status).ok().filter(|_| (200..=599).contains(&status));
        let Some(code) = facts else {
            return Err(EditError::new(format!("{status} is not a final status"), "200 to 599").at("status"));
        };
        if matches!(status, 204 | 205 | 304) && !body.is_empty() {
            return Err(EditError::new(
                format!("a reply with status {status} has no body"),
                "leave the body out",
            )
            .at("body"));
        }
        if status == 206 {
            return Err(EditError::new("206 is only for range requests", "take another status").at("status"));
        }
        if body.len() > BODY_BYTES_MAX {
            let right = format!("at most {BODY_BYTES_MAX}; let a node serve what is longer");
            return Err(
                EditError::new(format!("a body of {} bytes is too large", body.len()), right).at("body")
            );
        }
        let content_type = HeaderValue::try_from(content_type).map_err(|_| {
            let what = format!("'{}' is not a media type", content_type.escape_debug());
            EditError::new(what, "write \"text/plain\", \"application/json\" or the like").at("type")
        })?;
        Ok(Self::Respond { status: code, body: Bytes::copy_from_slice(body.as_bytes()), content_type })
    }

    /// Returns the name used in the access log.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Redirect { .. } => "redirect",
            Self::Respond { .. } => "respond",
        }
    }

    /// Whether it applies to a request with or without TLS.
    pub(crate) fn applies_to(&self, by_tls: bool) -> bool {
        match self {
            Self::Redirect { secure: Some(secure), .. } => *secure == by_tls,
            _ => true,
        }
    }
}

/// Returns the value of `Location`; `None` if it is not a URI.
///
/// Bytes from the client are percent-encoded if they are not URI characters, and cannot become a host:
/// `//other.example/` and, as browsers read it, `/\other.example/` lead to another host. Only the template's own
/// text, as in `//cdn.example/{path}`, can name one.
pub(crate) fn location(to: &Template, facts: &RequestFacts<'_>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    if !to.render(facts, &mut text) {
        return None;
    }
    let mut rest = &text[..];
    let mut location = Vec::with_capacity(rest.len());
    let names_host = matches!(to.first_text(), [b'/', b'/', host, ..] if *host != b'/' && *host != b'\\');
    if !names_host && let [b'/', ..] = rest {
        location.push(b'/');
        while let [b'/' | b'\\', more @ ..] = rest {
            rest = more;
        }
    }
    for &byte in rest {
        if is_uri_byte(byte) {
            location.push(byte);
        } else {
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            location.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
    let uri = http::Uri::try_from(&location[..]).ok()?;
    let leads = uri.host().map_or(location.first() == Some(&b'/'), |host| !host.is_empty());
    leads.then_some(location)
}

/// Whether a byte is a URI character (RFC 3986 section 2).
pub(super) fn is_uri_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::super::facts::sample;
    use super::*;
    use larder_core::rules::Head;
    use proptest::prelude::*;

    fn leads(to: &str, path: &[u8]) -> Option<String> {
        let DirectReply::Redirect { to, .. } = DirectReply::redirect(302, to, None).expect(to) else {
            return None;
        };
        sample(|facts| {
            let facts = RequestFacts { head: Head::get(b"Shop.example:8080", path), ..*facts };
            location(&to, &facts).map(|value| String::from_utf8(value).expect("ASCII"))
        })
    }

    #[test]
    fn redirects_follow_the_template() {
        for (to, path, expected) in [
            ("https://{host_name}:8443{path}{query}", "/a?b=c", "https://shop.example:8443/a?b=c"),
            ("https://www.example.com/", "/a", "https://www.example.com/"),
            ("/new{path:2..}{query}", "/old/x/y?q", "/new/x/y?q"),
            ("{path}/", "/dir", "/dir/"),
            ("{path}/", "//evil.example", "/evil.example/"),
            ("{path}/", "/\\evil.example", "/evil.example/"),
            ("/{path:2..}", "/old/evil.example/", "/evil.example/"),
            ("/{query:#1}", "/a?/evil.example", "/evil.example"),
            ("//cdn.example{path}", "/a", "//cdn.example/a"),
            ("{path}/", "/a\\b c\u{e9}", "/a%5Cb%20c%C3%A9/"),
        ] {
            assert_eq!(leads(to, path.as_bytes()).as_deref(), Some(expected), "{to} {path}");
        }
    }

    #[test]
    fn invalid_redirects_are_refused() {
        for (status, to, secure) in [
            (300, "/a", None),
            (304, "/a", None),
            (302, "", None),
            (302, "www.example.com", None),
            (302, "/a b", None),
            (302, "{path}{query}", None),
            (302, "https://{host}{path}{query}", None),
            (302, "https://{host_name}{path}{query}", Some(true)),
            (302, "{scheme}://{host}{path}{query}", None),
            (302, "/{node}", None),
        ] {
            assert!(DirectReply::redirect(status, to, secure).is_err(), "{status} {to}");
        }
        assert!(DirectReply::redirect(308, "https://{host_name}{path}{query}", Some(false)).is_ok());
        for (status, body) in [(199, ""), (600, ""), (204, "x"), (304, "x"), (206, "")] {
            assert!(DirectReply::respond(status, body, "text/plain").is_err(), "{status}");
        }
        assert!(DirectReply::respond(200, &"x".repeat(BODY_BYTES_MAX + 1), "text/plain").is_err());
        assert!(DirectReply::respond(200, "x", "a\nb").is_err());
    }

    proptest! {
        /// Whatever the path, the redirect stays on this host and consists of URI characters.
        #[test]
        fn paths_cannot_redirect_to_another_host(path in "/[/\\\\a:@.%?#\u{0}-\u{20}\u{7f}-\u{ff}]{0,20}") {
            for template in ["{path}/", "/{path}", "/{path:1..}", "/{query:#1}", "{path:2..}{query}", "//{path}"] {
                if let Some(to) = leads(template, path.as_bytes()) {
                    prop_assert!(to.starts_with('/') && !to.starts_with("//"), "{} {}", template, to);
                    prop_assert!(to.bytes().all(is_uri_byte), "{} {}", template, to);
                }
            }
        }
    }
}
