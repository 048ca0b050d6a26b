//! Interim replies of an origin (1xx, RFC 9110 section 15.2), relayed to the client whose request they answer.
//!
//! Only the client whose request went to the origin gets them ([`InterimSender`]). When an interim reply
//! arrives, it is unknown whether the final reply may be shared. They are never stored. 100 (Continue) is not
//! among them, because the node sends its own when it reads a request's body.

use crate::http::fields;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode, header};
use larder_http::convert::append;
use larder_http::h1::ReplyHead;
use larder_http::relay::InterimSender;

/// Receives the interim replies to one request.
#[derive(Clone, Debug)]
pub(crate) struct InterimRelay(InterimSender);

impl InterimRelay {
    /// Returns the channel to the client that sent a request; `None` if the client cannot receive interim
    /// replies.
    pub(super) fn of_request(parts: &Parts) -> Option<Self> {
        parts.extensions.get::<InterimSender>().cloned().map(Self)
    }

    /// Receives the interim replies to a request that is about to be sent.
    pub(super) fn attach<B>(self, request: &mut Request<B>) {
        hyper::ext::on_informational(request, move |reply| {
            if reply.status() != StatusCode::CONTINUE
                && let Some(head) = head(reply.status(), reply.headers().clone())
            {
                self.0.send(head);
            }
        });
    }
}

/// Returns the head of an interim reply without hop-by-hop fields. `None` if it has too many fields.
fn head(status: StatusCode, mut headers: HeaderMap) -> Option<ReplyHead> {
    fields::remove_hop_by_hop(&mut headers);
    headers.remove(header::CONTENT_LENGTH);
    let mut head = ReplyHead::with_status(status.as_u16());
    for (name, value) in &headers {
        append(&mut head, name, value).ok()?;
    }
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_head_of_an_interim_reply_has_no_fields_of_the_connection() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("link", "</a.css>; rel=preload"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("link", "</b.js>; rel=preload"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let written = |status, headers| {
            let mut out = Vec::new();
            head(status, headers).unwrap().write(&mut out);
            String::from_utf8(out).unwrap()
        };
        let links = "link: </a.css>; rel=preload\r\nlink: </b.js>; rel=preload\r\n\r\n";
        let first = written(StatusCode::EARLY_HINTS, headers);
        assert!(first.starts_with("HTTP/1.1 103 ") && first.ends_with(links), "{first}");
        assert_eq!(written(StatusCode::from_u16(199).unwrap(), HeaderMap::new()), "HTTP/1.1 199 \r\n\r\n");
    }
}
