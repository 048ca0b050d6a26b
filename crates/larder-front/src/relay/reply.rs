//! Replies the switch makes itself.

use super::retry::reply_begun;
use super::{Context, Relay, headers, link, refuse};
use crate::edits::{Answer, location};
use crate::failure::{ERROR_HEADER, Failure};
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE,
};
use http::{HeaderValue, Method, StatusCode};
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
        let may_go_on = match failure {
            Failure::RateLimited => true,
            Failure::Unauthorized | Failure::Denied => headers::is_bodyless(session.req_header()),
            _ => false,
        };
        let keep = (failure.status() >= 500 || may_go_on) && context.tries == 0;
        if !keep {
            session.set_keepalive(None);
        }
        match self.write_answer(session, failure, context).await {
            Ok(()) => FailToProxy { error_code: failure.status(), can_reuse_downstream: keep },
            Err(_) => NOTHING,
        }
    }

    /// Answers an authority's challenge (RFC 8555 section 8.3). One that is not of our store goes on as any request.
    pub(super) async fn challenged(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        let Some(acme) = self.shared.tls.as_ref().and_then(|tls| tls.acme()) else { return Ok(false) };
        let Some(answer) = acme.answer(session.req_header().raw_path()).await else { return Ok(false) };
        context.answered_by = Some("acme");
        let mut reply = ResponseHeader::build(StatusCode::OK, Some(4))?;
        reply.insert_header(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))?;
        reply.insert_header(CONTENT_LENGTH, answer.len())?;
        self.write_own(session, context, reply, Bytes::from(answer)).await?;
        Ok(true)
    }

    /// Answers a request that came without TLS and should not have: the same is to be had under `https`. Challenges of ACME
    /// (RFC 8555 section 8.3) are let through.
    pub(super) async fn sent_to_https(&self, session: &mut Session, context: &Context) -> Result<bool> {
        let Some(port) = self.shared.redirect else { return Ok(false) };
        if link(session).is_some_and(|link| link.security.is_some())
            || session.req_header().raw_path().starts_with(larder_edge::WELL_KNOWN)
        {
            return Ok(false);
        }
        let Some(location) = headers::under_https(session.req_header(), port) else { return Ok(false) };
        let mut reply = ResponseHeader::build(StatusCode::PERMANENT_REDIRECT, Some(4))?;
        reply.insert_header(LOCATION, location)?;
        reply.insert_header(CONTENT_LENGTH, 0)?;
        self.write_own(session, context, reply, Bytes::new()).await?;
        Ok(true)
    }

    /// Answers as the route says, if it does.
    pub(super) async fn answered(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        let Some(answer) = &self.shared.routing.of(context.request.route).edits.answer else {
            return Ok(false);
        };
        if !answer.takes(link(session).is_some_and(|link| link.security.is_some())) {
            return Ok(false);
        }
        context.answered_by = Some(answer.name());
        match answer {
            Answer::Redirect { status, to, .. } => {
                let location = self.known(session, context, None, |known| location(to, known));
                let Some(location) = location else { return Err(refuse(context, Failure::BadRequest)) };
                let mut reply = ResponseHeader::build(*status, Some(8))?;
                reply.insert_header(LOCATION, location)?;
                reply.insert_header(CONTENT_LENGTH, 0)?;
                self.write_own(session, context, reply, Bytes::new()).await?;
            }
            Answer::Respond { status, body, content_type } => {
                let mut reply = ResponseHeader::build(*status, Some(8))?;
                if !body.is_empty() {
                    reply.insert_header(CONTENT_TYPE, content_type.clone())?;
                }
                if !matches!(status.as_u16(), 204 | 304) {
                    reply.insert_header(CONTENT_LENGTH, body.len())?;
                }
                self.write_own(session, context, reply, body.clone()).await?;
            }
        }
        Ok(true)
    }

    /// Sends a reply of the switch's own.
    pub(super) async fn write_own(
        &self,
        session: &mut Session,
        context: &Context,
        mut reply: ResponseHeader,
        body: Bytes,
    ) -> Result<()> {
        // Who asks for another protocol may go on in it: what follows is no request that could be held against the rules.
        if session.req_header().headers.contains_key(UPGRADE) {
            session.set_keepalive(None);
        }
        headers::via_reply(&mut reply, &self.shared.via)?;
        self.edit_reply(session, &mut reply, context)?;
        let bodyless = body.is_empty() || session.req_header().method == Method::HEAD;
        session.write_response_header(Box::new(reply), bodyless).await?;
        if !bodyless {
            session.write_response_body(Some(body), true).await?;
        }
        Ok(())
    }

    async fn write_answer(&self, session: &mut Session, failure: Failure, context: &Context) -> Result<()> {
        let body = Bytes::from(format!("{}\n", failure.name()));
        let mut reply = ResponseHeader::build(failure.status(), Some(8))?;
        reply.insert_header(CONTENT_TYPE, HeaderValue::from_static("text/plain"))?;
        reply.insert_header(CONTENT_LENGTH, body.len())?;
        reply.insert_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))?;
        reply
            .insert_header(HeaderName::from_static(ERROR_HEADER), HeaderValue::from_static(failure.name()))?;
        if let Some(seconds) = context.retry_after_s.or(failure.retry_after_s()) {
            reply.insert_header(RETRY_AFTER, HeaderValue::from(seconds))?;
        }
        if failure == Failure::Unauthorized
            && let Some(guard) = &self.shared.routing.of(context.request.route).edits.guard
        {
            reply.insert_header(WWW_AUTHENTICATE, guard.challenge())?;
        }
        self.write_own(session, context, reply, body).await
    }
}
