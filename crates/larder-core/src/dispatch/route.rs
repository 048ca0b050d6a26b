//! Routes: requests that share a policy, its settings and a group of nodes.
//!
//! A node's load is one number, whichever routes its requests came by. Everything that a policy remembers belongs to its
//! route. Admission belongs to the group: routes of one group share its limit and its queue.

use super::Settings;
use crate::nodes::GroupId;
use crate::policy::{Policy, PolicyKind};

/// A route beside the default one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// The nodes it may use.
    pub group: GroupId,
    /// Its policy and what that goes by. What concerns the dispatcher as a whole (`nodes_max`, `admission`, the queue, the
    /// join pace, and the `t_low` and `t_high` that S is derived from) is taken from the default route.
    pub settings: Settings,
}

/// A route at work.
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

    /// The policy's kind.
    pub(super) fn kind(&self) -> PolicyKind {
        self.settings.policy
    }
}
