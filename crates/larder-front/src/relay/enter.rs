//! Applies the entry rules ([`larder_edge::EntryRules`]) to a client's request before routes, keys and limits read it.
//!
//! The relay engine removes the standard hop-by-hop fields before a node is asked. It would also remove what `Connection` nominates, but
//! only after the decision, and it refuses the nominations that the rules ignore.

use super::{Context, Relay, headers};
use crate::conn::Link;
use crate::failure::Failure;
use crate::http2;
use bytes::Bytes;
use http::HeaderValue;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use larder_edge::{EntryRules, Sender, TooManyOptions};
use pingora_error::Result;
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::Session;

impl Relay {
    /// Applies the rules for header fields that enter.
    pub(super) fn enter(&self, session: &mut Session) -> Result<(), Failure> {
        // Without a connection nothing is known of the sender.
        let link = http2::connection();
        let link = link.ok_or(Failure::Internal)?;
        let dropped = enter(&self.shared.entry, session.req_header_mut(), &link)
            .map_err(|TooManyOptions| Failure::BadRequest)?;
        if dropped > 0 {
            self.shared.metrics.fields_dropped(dropped);
        }
        Ok(())
    }

    /// Answers 404 to a client that asks for a path by which nodes answer switches; false for other paths.
    pub(super) async fn is_of_nodes(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        if !is_of_nodes(session.req_header().raw_path()) {
            return Ok(false);
        }
        context.answered_by = Some("own-path");
        let mut reply = ResponseHeader::build(StatusCode::NOT_FOUND, Some(2))?;
        reply.insert_header(CONTENT_LENGTH, 0)?;
        self.write_own(session, context, reply, Bytes::new()).await?;
        Ok(true)
    }
}

/// Removes from a request what its sender may not set, and writes who the sender is, before routes, keys and limits read it. Returns
/// the number of fields dropped for their names.
fn enter(rules: &EntryRules, request: &mut RequestHeader, link: &Link) -> Result<u64, TooManyOptions> {
    let host = headers::host(request).to_vec();
    let mut fields = headers::Engine(request);
    let dropped = rules.sanitize(&mut fields)?;
    let (address, security) = (link.client.ip(), link.security.as_ref());
    let sender = Sender {
        address,
        trusted: rules.trusted_relays.trusts(address),
        secure: security.is_some(),
        host: Some(&host),
        client_cert: security.and_then(|security| security.client_cert.as_ref()).map(HeaderValue::as_bytes),
    };
    Ok(dropped + rules.identify(&mut fields, sender))
}

/// Whether a path is one of those by which nodes answer switches and monitors. Clients do not reach them through the switch.
fn is_of_nodes(target: &[u8]) -> bool {
    target.starts_with(b"/.larder/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_nodes_are_not_for_clients() {
        for path in ["/.larder/load", "/.larder/events?x", "/.larder/"] {
            assert!(is_of_nodes(path.as_bytes()), "{path}");
        }
        for path in ["/", "/.larder", "/a/.larder/load", "/.lard"] {
            assert!(!is_of_nodes(path.as_bytes()), "{path}");
        }
    }
}
