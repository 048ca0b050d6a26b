//! A request, as the dispatcher and the policies see it.

use super::choice::Reason;
use crate::class::ServiceClass;
use crate::id::{NodeId, RouteId, TargetId};

/// The nodes at which a request has failed: at most [`ExcludedNodes::MAX`], of which the latest are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExcludedNodes([u16; Self::MAX]);

impl ExcludedNodes {
    /// The largest number of nodes kept.
    pub const MAX: usize = 8;
    /// No excluded node.
    pub const NONE: Self = Self([u16::MAX; Self::MAX]);

    /// Returns whether no node is excluded.
    pub fn is_empty(&self) -> bool {
        self.0[0] == u16::MAX
    }

    /// Returns whether `node` is excluded.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.contains(&node.0)
    }

    /// Returns the nodes, the latest first.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        self.0.into_iter().filter(|node| *node != u16::MAX).map(NodeId)
    }

    /// Returns these nodes and `node`. If there is no room, the earliest node is dropped.
    #[must_use]
    pub fn with(mut self, node: NodeId) -> Self {
        if !self.contains(node) {
            self.0.rotate_right(1);
            self.0[0] = node.0;
        }
        self
    }
}

impl Default for ExcludedNodes {
    fn default() -> Self {
        Self::NONE
    }
}

/// The node that a request is tied to before the policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestAffinity {
    /// No node.
    #[default]
    None,
    /// The node that accepted the request, if the nodes accept client connections themselves (CARD, dec-CARD: WARD
    /// section 1). Source: the caller; only `ward` and `part` use it.
    Origin(NodeId),
    /// The node that keeps the client's session (a sticky session). Source: the caller, from the request.
    Sticky(NodeId),
    /// The node that kept the client's session. It is draining, and its time for sticky clients is over.
    Expired(NodeId),
    /// The node that the caller has chosen by what it knows about the request beyond its target, such as the blocks of a
    /// prompt ([`crate::chain`]). Source: the caller.
    Placed(NodeId),
}

/// A request to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The target.
    pub target: TargetId,
    /// The nodes that must not be chosen, because the request has failed there.
    pub exclude: ExcludedNodes,
    /// The node that the request is tied to, if any.
    pub affinity: RequestAffinity,
    /// The class of the request's costs other than sending bytes. Source: the caller, from the URL; only `cap`,
    /// `cap-load` and `static` use it.
    pub class: ServiceClass,
    /// The route, which determines the policy. Source: the caller, from host and path.
    pub route: RouteId,
    /// Whether the request asks for a connection that is likely to last (an upgrade, CONNECT). It is then placed by
    /// all requests at a node, including long-lived ones. Source: the caller, from the header.
    pub lasting: bool,
}

impl Request {
    /// Creates a request of class N on the default route, without affinity and without excluded nodes.
    pub const fn new(target: TargetId) -> Self {
        Self {
            target,
            exclude: ExcludedNodes::NONE,
            affinity: RequestAffinity::None,
            class: ServiceClass::N,
            route: RouteId::DEFAULT,
            lasting: false,
        }
    }

    /// Returns this request with another class.
    #[must_use]
    pub const fn with_class(self, class: ServiceClass) -> Self {
        Self { class, ..self }
    }

    /// Returns this request, accepted by `node`.
    #[must_use]
    pub const fn with_origin(self, node: NodeId) -> Self {
        Self { affinity: RequestAffinity::Origin(node), ..self }
    }

    /// Returns this request with another affinity.
    #[must_use]
    pub const fn with_affinity(self, affinity: RequestAffinity) -> Self {
        Self { affinity, ..self }
    }

    /// Returns the node that accepted the request, if the nodes accept client connections themselves.
    #[inline]
    pub const fn origin(&self) -> Option<NodeId> {
        match self.affinity {
            RequestAffinity::Origin(node) => Some(node),
            _ => None,
        }
    }

    /// Returns this request on another route.
    #[must_use]
    pub const fn with_route(self, route: RouteId) -> Self {
        Self { route, ..self }
    }

    /// Returns this request, likely to last or not.
    #[must_use]
    pub const fn with_lasting(self, lasting: bool) -> Self {
        Self { lasting, ..self }
    }

    /// Returns `reason`, or [`Reason::Retry`] if the request has failed at a node.
    pub(crate) fn reason_or(&self, reason: Reason) -> Reason {
        if self.exclude.is_empty() { reason } else { Reason::Retry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_stays_within_half_a_cache_line() {
        assert_eq!(size_of::<Request>(), 32);
    }

    #[test]
    fn builders_change_one_field() {
        let plain = Request::new(TargetId(7));
        let request = plain.with_class(ServiceClass::Db).with_origin(NodeId(3));
        assert_eq!((request.target, request.exclude), (plain.target, plain.exclude));
        assert_eq!((request.class, request.origin()), (ServiceClass::Db, Some(NodeId(3))));
    }
}
