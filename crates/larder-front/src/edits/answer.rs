//! Requests that the switch answers by itself: redirects (RFC 9110 section 15.4) and fixed answers. No node is asked,
//! and no place among the admitted is taken.

use super::error::EditError;
use super::known::Known;
use super::template::{Stage, Template};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};

/// The longest body of a fixed answer. Bytes.
const BODY_BYTES_MAX: usize = 16_384;

/// What the switch answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The same, or another thing, is elsewhere.
    Redirect {
        /// 301, 302, 303, 307 or 308.
        status: StatusCode,
        /// The value of `Location`.
        to: Template,
        /// Only requests by this scheme are answered so, others are served: `Some(true)` for https.
        secure: Option<bool>,
    },
    /// A status and a short body, the same for all.
    Respond {
        /// 200 to 599.
        status: StatusCode,
        /// The body.
        body: Bytes,
        /// Its type.
        content_type: HeaderValue,
    },
}

impl Answer {
    /// A redirect.
    ///
    /// # Errors
    /// The status is none of a redirect, or the template is wrong, leads nowhere, or back to where it is used.
    pub fn redirect(status: u16, to: &str, secure: Option<bool>) -> Result<Self, EditError> {
        if !matches!(status, 301 | 302 | 303 | 307 | 308) {
            let right = "301, 302, 303, 307 or 308 (307 and 308 keep the method)";
            return Err(EditError::new(format!("{status} is no status of a redirect"), right));
        }
        let template = Template::parse(to, Stage::Answer)?;
        let example =
            "write \"https://{host_name}{path}{query}\", \"/new{path}\" or \"https://www.example.com/\"";
        let begins =
            ["/", "http://", "https://", "{path", "{scheme}://"].iter().any(|start| to.starts_with(start));
        if !begins {
            return Err(EditError::new(format!("'{}' leads nowhere", to.escape_debug()), example));
        }
        if let Some(bad) = template.literals().flatten().find(|byte| !is_of_uri(**byte)) {
            let what = format!("{:?} cannot stand in a URI", char::from(*bad));
            return Err(EditError::new(what, "write it percent-encoded: '%20' for a space"));
        }
        let same = to.strip_suffix("{query}").unwrap_or(to).strip_suffix("{path}");
        let around = match same {
            Some("" | "{scheme}://{host}" | "{scheme}://{host_name}") => true,
            Some("https://{host}" | "https://{host_name}") => secure != Some(false),
            Some("http://{host}" | "http://{host_name}") => secure != Some(true),
            _ => false,
        };
        if around {
            let right = match to.split_once("://") {
                Some(("https", _)) => {
                    "write scheme = \"http\" beside it, so that requests by https are served"
                }
                Some(("http", _)) => {
                    "write scheme = \"https\" beside it, so that requests by http are served"
                }
                _ => "lead to another host, path or scheme",
            };
            return Err(EditError::new("leads in a circle: to what was asked for", right));
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::TEMPORARY_REDIRECT);
        Ok(Self::Redirect { status, to: template, secure })
    }

    /// A fixed answer.
    ///
    /// # Errors
    /// The status is none of a final reply, or has no body while one is given; the body is too long; the type cannot stand
    /// in a field.
    pub fn respond(status: u16, body: &str, content_type: &str) -> Result<Self, EditError> {
        let known = StatusCode::from_u16(status).ok().filter(|_| (200..=599).contains(&status));
        let Some(code) = known else {
            return Err(EditError::new(format!("{status} is no status of a reply"), "200 to 599"));
        };
        if matches!(status, 204 | 205 | 304) && !body.is_empty() {
            return Err(EditError::new(format!("a reply of {status} has no body"), "leave the body out"));
        }
        if status == 206 {
            return Err(EditError::new("206 is for a part that was asked for", "take another status"));
        }
        if body.len() > BODY_BYTES_MAX {
            let right = format!("at most {BODY_BYTES_MAX}; let a node serve what is longer");
            return Err(EditError::new(format!("{} bytes are too many", body.len()), right));
        }
        let content_type = HeaderValue::try_from(content_type).map_err(|_| {
            let what = format!("'{}' is no type", content_type.escape_debug());
            EditError::new(what, "write \"text/plain\", \"application/json\" or the like")
        })?;
        Ok(Self::Respond { status: code, body: Bytes::copy_from_slice(body.as_bytes()), content_type })
    }

    /// The word for it in the access log.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Redirect { .. } => "redirect",
            Self::Respond { .. } => "respond",
        }
    }

    /// Whether a request that came by TLS, or did not, is answered so.
    pub(crate) fn takes(&self, by_tls: bool) -> bool {
        match self {
            Self::Redirect { secure: Some(secure), .. } => *secure == by_tls,
            _ => true,
        }
    }
}

/// Where a redirect leads. `None` where that is no URI.
///
/// What a client has put into it is encoded where it could not stand in a URI, and cannot become a host: `//other.example/` and, as
/// browsers read it, `/\other.example/` lead elsewhere. Only what the template itself says, `//cdn.example/{path}`, does.
pub(crate) fn location(to: &Template, known: &Known<'_>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    if !to.render(known, &mut text) {
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
        if is_of_uri(byte) {
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

/// Whether a byte may stand in a URI (RFC 3986 section 2).
pub(super) fn is_of_uri(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::super::known::sample;
    use super::*;
    use larder_core::rules::Head;
    use proptest::prelude::*;

    fn leads(to: &str, path: &[u8]) -> Option<String> {
        let Answer::Redirect { to, .. } = Answer::redirect(302, to, None).expect(to) else { return None };
        sample(|known| {
            let known = Known { head: Head::get(b"Shop.example:8080", path), ..*known };
            location(&to, &known).map(|value| String::from_utf8(value).expect("ASCII"))
        })
    }

    #[test]
    fn a_template_says_where() {
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
    fn what_leads_nowhere_is_refused() {
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
            assert!(Answer::redirect(status, to, secure).is_err(), "{status} {to}");
        }
        assert!(Answer::redirect(308, "https://{host_name}{path}{query}", Some(false)).is_ok());
        for (status, body) in [(199, ""), (600, ""), (204, "x"), (304, "x"), (206, "")] {
            assert!(Answer::respond(status, body, "text/plain").is_err(), "{status}");
        }
        assert!(Answer::respond(200, &"x".repeat(BODY_BYTES_MAX + 1), "text/plain").is_err());
        assert!(Answer::respond(200, "x", "a\nb").is_err());
    }

    proptest! {
        /// Whatever path is asked for, the redirect stays on this host and is one field of URI characters.
        #[test]
        fn a_path_leads_to_no_other_host(path in "/[/\\\\a:@.%?#\u{0}-\u{20}\u{7f}-\u{ff}]{0,20}") {
            for template in ["{path}/", "/{path}", "/{path:1..}", "/{query:#1}", "{path:2..}{query}", "//{path}"] {
                if let Some(to) = leads(template, path.as_bytes()) {
                    prop_assert!(to.starts_with('/') && !to.starts_with("//"), "{} {}", template, to);
                    prop_assert!(to.bytes().all(is_of_uri), "{} {}", template, to);
                }
            }
        }
    }
}
