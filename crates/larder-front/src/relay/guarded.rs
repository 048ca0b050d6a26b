//! Holds requests against the guards of their routes ([`crate::guard`]).

use super::{Context, Relay, link, refuse, retry};
use crate::failure::Failure;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use larder_edge::client_address;
use pingora_error::Result;
use pingora_proxy::Session;

impl Relay {
    /// Refuses a request that its route's guard does not let pass; false if it passes.
    pub(super) async fn guarded(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        let Some(guard) = &self.shared.routing.of(context.request.route).edits.guard else {
            return Ok(false);
        };
        let headers = &session.req_header().headers;
        if guard.looks_at_addresses() {
            let sender = link(session).map(|link| link.client.ip());
            let sender = sender.ok_or_else(|| refuse(context, Failure::Internal))?;
            let client = client_address(headers, sender, &self.shared.entry.trusted_relays);
            if !client.is_some_and(|address| guard.admits(address)) {
                return Err(refuse(context, Failure::Denied));
            }
        }
        guard.authenticate(headers).await.map_err(|failure| refuse(context, failure))?;
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|bytes| guard.body_is_too_large(bytes)) {
            return Err(refuse(context, Failure::BodyTooLarge));
        }
        if guard.hides_authorization() {
            session.req_header_mut().remove_header(&AUTHORIZATION);
        }
        Ok(false)
    }

    /// Refuses a request whose body has become too large; what a tunnel carries is no body.
    pub(super) fn bound_body(&self, session: &Session, context: &Context) -> Result<(), Failure> {
        let guard = &self.shared.routing.of(context.request.route).edits.guard;
        let too_large = guard.as_ref().is_some_and(|guard| guard.body_is_too_large(context.body_bytes));
        if too_large && !retry::tunnel_is_open(session) { Err(Failure::BodyTooLarge) } else { Ok(()) }
    }
}
