//! Replies the switch makes itself.

use super::retry::reply_begun;
use super::{Context, Relay, link};
use crate::failure::{ERROR_HEADER, Failure};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderValue, Method};
use pingora_error::Result;
use pingora_http::ResponseHeader;
use pingora_proxy::{FailToProxy, Session};

impl Relay {
    /// Answers a request that failed, if there is still somebody to answer. A reply that has begun can only be
    /// broken off, which the client sees as a close before the announced end.
    pub(super) async fn answer(
        &self,
        session: &mut Session,
        failure: Failure,
        context: &Context,
    ) -> FailToProxy {
        const NOTHING: FailToProxy = FailToProxy { error_code: 0, can_reuse_downstream: false };
        if failure == Failure::ClientGone || reply_begun(session) {
            return NOTHING;
        }
        // A client at fault may not mean what it sends next; and once a node was asked the engine closes.
        let keep = failure.status() >= 500 && context.tries == 0;
        if !keep {
            session.set_keepalive(None);
            if let Some(link) = link(session) {
                link.linger();
            }
        }
        match self.write_answer(session, failure).await {
            Ok(()) => FailToProxy { error_code: failure.status(), can_reuse_downstream: keep },
            Err(_) => NOTHING,
        }
    }

    async fn write_answer(&self, session: &mut Session, failure: Failure) -> Result<()> {
        let body = Bytes::from(format!("{}\n", failure.name()));
        let mut reply = ResponseHeader::build(failure.status(), Some(8))?;
        reply.insert_header(CONTENT_TYPE, HeaderValue::from_static("text/plain"))?;
        reply.insert_header(CONTENT_LENGTH, body.len())?;
        reply.insert_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
        reply
            .insert_header(HeaderName::from_static(ERROR_HEADER), HeaderValue::from_static(failure.name()))?;
        super::headers::via_reply(&mut reply, &self.shared.via)?;
        if let Some(seconds) = failure.retry_after_s() {
            reply.insert_header(RETRY_AFTER, HeaderValue::from(seconds))?;
        }
        let bodyless = session.req_header().method == Method::HEAD;
        session.write_response_header(Box::new(reply), bodyless).await?;
        if !bodyless {
            session.write_response_body(Some(body), true).await?;
        }
        Ok(())
    }
}
