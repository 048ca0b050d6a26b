//! Errors of requests to an origin, and the types of request bodies.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use std::error::Error;

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a request to the origin.
pub(crate) type OriginRequestBody = UnsyncBoxBody<Bytes, BoxError>;

/// The reason why the origin sent no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OriginError {
    /// No slot came free in time. Fault of this node; another node may have a free slot.
    #[error("too many requests to the origin")]
    Full,
    /// The client uses its whole share of the slots. Fault of the client, which may retry when its other
    /// requests have ended.
    #[error("too many requests of this client to the origin")]
    ClientShare,
    /// The limit on tunnels is reached. Fault of this node; another node may have room.
    #[error("too many tunnels")]
    TunnelsFull,
    /// Fault of the client.
    #[error("the client sent the request's body too slowly")]
    LateBody,
    /// Fault of the origin.
    #[error("the origin took the request too slowly")]
    WriteTimeout,
    #[error("no connection to the origin")]
    Connect,
    #[error("no connection to the origin in time")]
    ConnectTimeout,
    #[error("no TLS with the origin")]
    Tls,
    #[error("no TLS with the origin in time")]
    TlsTimeout,
    /// The origin may have received the request.
    #[error("TLS with the origin failed after the handshake")]
    TlsBroken,
    #[error("no reply from the origin in time")]
    HeadTimeout,
    #[error("the origin closed the connection")]
    Closed,
    #[error("invalid or oversized reply from the origin")]
    BadReply,
    /// Fault of the client.
    #[error("the client signs parts of the request that the node would have to sign")]
    Unsignable,
    #[error("the request was abandoned")]
    Abandoned,
}

impl OriginError {
    /// The number of errors.
    pub(super) const COUNT: usize = Self::Abandoned as usize + 1;

    /// Returns whether the error is this node's own, so that another node might succeed.
    pub(crate) const fn is_node_fault(self) -> bool {
        match self {
            Self::Full
            | Self::TunnelsFull
            | Self::Connect
            | Self::ConnectTimeout
            | Self::Tls
            | Self::TlsTimeout
            | Self::Abandoned => true,
            Self::ClientShare | Self::LateBody | Self::WriteTimeout | Self::Unsignable => false,
            Self::HeadTimeout | Self::TlsBroken | Self::Closed | Self::BadReply => false,
        }
    }

    /// Returns whether the origin has failed or cannot be reached, so that another origin may serve the
    /// request.
    pub(super) const fn is_origin_fault(self) -> bool {
        self.is_before_request()
            || matches!(
                self,
                Self::WriteTimeout | Self::HeadTimeout | Self::TlsBroken | Self::Closed | Self::BadReply
            )
    }

    /// Returns whether no part of the request has been sent.
    pub(super) const fn is_before_request(self) -> bool {
        matches!(self, Self::Connect | Self::ConnectTimeout | Self::Tls | Self::TlsTimeout)
    }

    /// Returns the status for the client, and the detail for `Cache-Status`.
    pub(crate) const fn reply(self) -> (u16, &'static str) {
        match self {
            Self::Full => (503, "origin-full"),
            Self::TunnelsFull => (503, "tunnels-full"),
            Self::ClientShare => (429, "client-share"),
            Self::LateBody => (408, "request-body-timeout"),
            Self::WriteTimeout => (504, "origin-write-timeout"),
            Self::Connect => (502, "origin-connect"),
            Self::ConnectTimeout => (504, "origin-connect-timeout"),
            Self::Tls | Self::TlsBroken => (502, "origin-tls"),
            Self::TlsTimeout => (504, "origin-tls-timeout"),
            Self::HeadTimeout => (504, "origin-timeout"),
            Self::Closed => (502, "origin-closed"),
            Self::BadReply => (502, "origin-reply"),
            Self::Unsignable => (501, "origin-sign"),
            Self::Abandoned => (503, "abandoned"),
        }
    }
}
