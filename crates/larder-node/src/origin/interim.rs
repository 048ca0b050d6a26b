//! Interim replies of an origin (1xx, RFC 9110 section 15.2) on their way to the client whose request they answer.
//!
//! ```text
//! hyper's client -> Hints -> channel -> the client's request, while it waits for the final reply -> HintLine -> socket
//! ```
//! Only the client whose request went to the origin gets them: when an interim reply arrives, nobody knows yet whether the
//! final reply may be shared. They are never stored. 100 (Continue) is not among them: the node sends its own when it reads
//! a request's body. A limit drops interim replies, never the final one: [`WAITING_MAX`] between two turns of the client's
//! connection, and what [`HintLine::send`] bounds.

use super::fields;
use crate::hints::HintLine;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Request, StatusCode, header};
use std::pin::pin;
use tokio::sync::mpsc;

/// Interim replies that wait for their client's turn; further ones are dropped.
const WAITING_MAX: usize = 8;

/// Takes the interim replies to one request.
#[derive(Clone, Debug)]
pub(crate) struct Hints(mpsc::Sender<Bytes>);

impl Hints {
    /// Takes those to a request that is about to be sent.
    pub(super) fn listen<B>(self, request: &mut Request<B>) {
        hyper::ext::on_informational(request, move |reply| {
            if reply.status() != StatusCode::CONTINUE {
                // Beyond the limit it is dropped.
                let _ = self.0.try_send(head(reply.status(), reply.headers().clone()));
            }
        });
    }
}

/// Does `ask`, which asks the origin, and meanwhile passes on interim replies to the client if it can take them.
pub(super) async fn passing_hints<F: Future>(
    parts: &Parts,
    ask: impl FnOnce(Option<Hints>) -> F,
) -> F::Output {
    let Some(line) = parts.extensions.get::<HintLine>() else { return ask(None).await };
    let (hints, mut waiting) = mpsc::channel(WAITING_MAX);
    let mut asking = pin!(ask(Some(Hints(hints))));
    loop {
        tokio::select! {
            // Interim replies leave before the final reply.
            biased;
            Some(head) = waiting.recv() => line.send(&head),
            asked = &mut asking => return asked,
        }
    }
}

/// The head of an interim reply in HTTP/1.1.
fn head(status: StatusCode, mut headers: HeaderMap) -> Bytes {
    fields::strip(&mut headers);
    headers.remove(header::CONTENT_LENGTH);
    let reason = status.canonical_reason().unwrap_or("");
    let mut head = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in &headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head.into()
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
        let expected = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\
                        link: </b.js>; rel=preload\r\n\r\n";
        assert_eq!(head(StatusCode::EARLY_HINTS, headers), expected);
        assert_eq!(head(StatusCode::from_u16(199).unwrap(), HeaderMap::new()), "HTTP/1.1 199 \r\n\r\n");
    }
}
