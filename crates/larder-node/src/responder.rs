//! The origin or the peer that sent a reply, for the access log.

use http::Response;
use http::uri::Authority;
use larder_peers::Name;

/// The sender of a reply. It is attached to the reply as an extension within this node.
#[derive(Clone, Debug)]
pub(crate) enum Responder {
    /// An origin, or another node that is named by its address.
    Origin(Authority),
    /// A peer.
    Peer(Name),
}

impl Responder {
    /// Returns the authority of an origin, or the name of a peer.
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Origin(authority) => authority.as_str(),
            Self::Peer(name) => name.as_str(),
        }
    }

    /// Attaches the origin to a reply, if there is one.
    pub(crate) fn mark<B>(mut reply: Response<B>, origin: Option<Authority>) -> Response<B> {
        if let Some(origin) = origin {
            reply.extensions_mut().insert(Self::Origin(origin));
        }
        reply
    }
}
