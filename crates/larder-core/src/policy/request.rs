//! A request as dispatcher and policies see it.

use super::choice::Reason;
use crate::class::ServiceClass;
use crate::id::{NodeId, RouteId, TargetId};

/// The nodes a request has been tried on: at most [`Exclude::MAX`], of which the latest are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exclude([u16; Self::MAX]);

impl Exclude {
    /// The number of nodes that are remembered.
    pub const MAX: usize = 8;
    /// None.
    pub const NONE: Self = Self([u16::MAX; Self::MAX]);

    /// Whether no node is excluded.
    pub fn is_empty(&self) -> bool {
        self.0[0] == u16::MAX
    }

    /// Whether this node is excluded.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.contains(&node.0)
    }

    /// The nodes, the latest first.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        self.0.into_iter().filter(|node| *node != u16::MAX).map(NodeId)
    }

    /// These nodes and one more; the earliest is dropped where there is no room.
    #[must_use]
    pub fn with(mut self, node: NodeId) -> Self {
        if !self.contains(node) {
            self.0.rotate_right(1);
            self.0[0] = node.0;
        }
        self
    }
}

impl Default for Exclude {
    fn default() -> Self {
        Self::NONE
    }
}

/// The node that a request has to do with before anybody has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tie {
    /// None.
    #[default]
    None,
    /// The node that accepted the request, where the nodes themselves face the clients (CARD, dec-CARD: WARD section 1).
    /// Source: the shell; only `ward` and `part` look at it.
    Origin(NodeId),
    /// The client wishes this one, which keeps something for it (a sticky session). Source: the shell, from the request.
    Wish(NodeId),
    /// The client wished this one, which drains, and its time for that is over.
    Past(NodeId),
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The target.
    pub target: TargetId,
    /// Nodes that must not be chosen, because the request has failed there.
    pub exclude: Exclude,
    /// The node that the request has to do with, if it has to do with one.
    pub tie: Tie,
    /// The request's costs beside sending bytes. Source: the shell, from the URL; only `cap`, `cap-load` and
    /// `static` look at it.
    pub class: ServiceClass,
    /// The route it takes, and so whose policy decides. Source: the shell, from host and path.
    pub route: RouteId,
    /// It asks for a connection that is likely to last (an upgrade, CONNECT), and so is placed by all requests at a node,
    /// long-lived ones included. Source: the shell, from the header.
    pub lasting: bool,
}

impl Request {
    /// A request of class N on the default route that came by a switch and has not been tried anywhere.
    pub const fn new(target: TargetId) -> Self {
        Self {
            target,
            exclude: Exclude::NONE,
            tie: Tie::None,
            class: ServiceClass::N,
            route: RouteId::DEFAULT,
            lasting: false,
        }
    }

    /// This request, of this class.
    #[must_use]
    pub const fn with_class(self, class: ServiceClass) -> Self {
        Self { class, ..self }
    }

    /// This request, accepted by this node.
    #[must_use]
    pub const fn with_origin(self, node: NodeId) -> Self {
        Self { tie: Tie::Origin(node), ..self }
    }

    /// This request, with this tie.
    #[must_use]
    pub const fn with_tie(self, tie: Tie) -> Self {
        Self { tie, ..self }
    }

    /// The node that accepted it, where the nodes themselves face the clients.
    #[inline]
    pub const fn origin(&self) -> Option<NodeId> {
        match self.tie {
            Tie::Origin(node) => Some(node),
            _ => None,
        }
    }

    /// This request, on this route.
    #[must_use]
    pub const fn with_route(self, route: RouteId) -> Self {
        Self { route, ..self }
    }

    /// This request, likely to last or not.
    #[must_use]
    pub const fn with_lasting(self, lasting: bool) -> Self {
        Self { lasting, ..self }
    }

    /// `reason`, or that this is a retry.
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
    fn builders_change_one_thing() {
        let plain = Request::new(TargetId(7));
        let request = plain.with_class(ServiceClass::Db).with_origin(NodeId(3));
        assert_eq!((request.target, request.exclude), (plain.target, plain.exclude));
        assert_eq!((request.class, request.origin()), (ServiceClass::Db, Some(NodeId(3))));
    }
}
