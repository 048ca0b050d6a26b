//! Facts of requests: from the structures of the header to the types of the core.

use super::{Handle, Keys};
use crate::fault::Fault;
use crate::types::{Decision, LARDER_NO_NODE};
use larder_core::dispatch::{ExcludedNodes, Request, RequestAffinity};
use larder_core::{NodeState, Reason, ServiceClass, TargetId};
use std::ffi::CStr;

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Start(Decision),
    /// The code of the refusal.
    Refused(i32),
}

/// The largest number of nodes in a request's `exclude`.
const EXCLUDE_MAX: usize = 64;

impl Handle {
    /// Returns the request with these facts. Node ids that have become stale are left out, because a node may be removed at any time.
    pub(super) fn request(&self, facts: &crate::types::Request, keys: Keys<'_>) -> Result<Request, Fault> {
        let target = keys.key.map_or(TargetId(facts.target), TargetId::of);
        let mut request = Request::new(target)
            .with_class(class(facts.service_class)?)
            .with_lasting(flag("lasting", facts.lasting)?);
        if keys.exclude.len() > EXCLUDE_MAX {
            return Err(Fault::range(format!("exclude has more than {EXCLUDE_MAX} nodes")));
        }
        let mut exclude = ExcludedNodes::NONE;
        for id in keys.exclude {
            exclude = self.find_slot(*id)?.map_or(exclude, |node| exclude.with(node));
        }
        request.exclude = exclude;
        if facts.sticky != LARDER_NO_NODE && facts.origin != LARDER_NO_NODE {
            return Err(Fault::range("a request has a sticky node or an origin, not both"));
        }
        if facts.sticky != LARDER_NO_NODE
            && let Some(node) = self.find_slot(facts.sticky)?
        {
            request = request.with_affinity(RequestAffinity::Sticky(node));
        }
        if facts.origin != LARDER_NO_NODE
            && let Some(node) = self.find_slot(facts.origin)?
        {
            request = request.with_origin(node);
        }
        Ok(request)
    }
}

/// Checks a decision that the host passes back.
pub(super) fn check_decision(decision: &Decision) -> Result<(), Fault> {
    class(decision.service_class)?;
    flag("long_lived", decision.long_lived)?;
    Ok(())
}

pub(super) fn class(number: u8) -> Result<ServiceClass, Fault> {
    let known = ServiceClass::ALL.get(usize::from(number)).copied();
    known.ok_or_else(|| Fault::range(format!("{number} is no service class")))
}

pub(super) fn flag(name: &str, value: u8) -> Result<bool, Fault> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::range(format!("{name} is {other}: 0 or 1"))),
    }
}

pub(crate) fn node_state(number: u8) -> Result<NodeState, Fault> {
    let states = [NodeState::Up, NodeState::Draining, NodeState::Down, NodeState::Removed];
    let known = states.get(usize::from(number)).copied();
    known.ok_or_else(|| Fault::range(format!("{number} is no state of a node")))
}

/// Returns the code of a reason: its index in the list of all reasons.
pub(super) fn reason_code(reason: Reason) -> u8 {
    reason as u8
}

/// The names of the reasons, by code.
const REASON_NAMES: [&CStr; Reason::ALL.len()] = [
    c"random",
    c"turn",
    c"least_loaded",
    c"hash",
    c"first",
    c"lost",
    c"local",
    c"shrink",
    c"migrate",
    c"replicate",
    c"retry",
    c"core",
    c"owner",
    c"origin",
    c"oldest",
    c"overflow",
    c"quickest",
    c"reuse",
    c"sticky",
    c"sticky_full",
    c"sticky_down",
    c"sticky_drained",
];

/// Returns the name of a reason; `None` for another number.
pub(crate) fn reason_name(code: u8) -> Option<&'static CStr> {
    REASON_NAMES.get(usize::from(code)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_their_names() {
        for reason in Reason::ALL {
            let name = reason_name(reason_code(reason)).expect("a name");
            assert_eq!(name.to_str(), Ok(reason.name()));
        }
        assert_eq!(reason_name(Reason::ALL.len() as u8), None);
    }
}
