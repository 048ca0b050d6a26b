//! The origin or the peer that a reply is from, for the access log.

use http::Response;
use http::uri::Authority;
use larder_peers::Name;

/// Marks a reply, within this node, with who was asked for it.
#[derive(Clone, Debug)]
pub(crate) enum Responder {
    /// An origin, or another node by its address.
    Origin(Authority),
    /// A peer.
    Peer(Name),
}

impl Responder {
    /// Its host and port, or its name.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Origin(authority) => authority.as_str(),
            Self::Peer(name) => name.as_str(),
        }
    }

    /// Marks a reply of an origin.
    pub(crate) fn mark<B>(mut reply: Response<B>, origin: Option<Authority>) -> Response<B> {
        if let Some(origin) = origin {
            reply.extensions_mut().insert(Self::Origin(origin));
        }
        reply
    }
}
