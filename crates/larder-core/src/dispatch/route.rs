//! Routes: requests that share a policy, its settings and a group of nodes.
//!
//! A node's load is one number, regardless of the routes of its requests. All state of a policy belongs to its
//! route. Admission belongs to the group: routes of one group share its limit and its queue.

use super::Settings;
use crate::nodes::GroupId;
use crate::policy::{Policy, PolicyKind};
use alloc::boxed::Box;

/// The specification of a route other than the default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// The group of nodes that the route may use.
    pub group: GroupId,
    /// The policy and its settings. Settings of the whole dispatcher are taken from the default route instead:
    /// `nodes_max`, `admission`, the queue, the join pace, and the `t_low` and `t_high` that determine S.
    pub settings: Settings,
}

/// A route in operation.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) group: GroupId,
    pub(super) settings: Settings,
    pub(super) policy: Box<dyn Policy>,
}

impl Route {
    pub(super) fn new(spec: RouteSpec) -> Self {
        let policy = spec.settings.policy.build(&spec.settings.common(), &spec.settings.policies);
        Self { group: spec.group, settings: spec.settings, policy }
    }

    /// Returns the policy's kind.
    pub(super) fn kind(&self) -> PolicyKind {
        self.settings.policy
    }
}
