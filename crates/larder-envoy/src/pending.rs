//! The decision of an attempt, between the policy and the filter.
//!
//! The router asks the policy for a host and, if the host's connection pool takes the request, creates the attempt with its filters.
//! Both happen in one call on one thread, so a place per thread connects them. If no attempt is created, for example because the
//! cluster has too many connection pools, no filter takes the decision. It is then ended before the thread's next decision.

use crate::cluster::ClusterRef;
use crate::filter_check::FilterCheck;
use crate::prompt::PlacedPrompt;
use larder_core::Time;
use larder_embed::Decision;
use std::cell::RefCell;
use std::sync::Arc;

/// A decision that no filter has taken yet.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) cluster: ClusterRef,
    pub(crate) decision: Decision,
    /// The check of the policy that has decided.
    pub(crate) filter_check: Arc<FilterCheck>,
    /// The address of the host.
    pub(crate) host: Arc<str>,
    /// The work of the request's prompt, if the decision is by a prompt.
    pub(crate) prompt: Option<Box<PlacedPrompt>>,
    /// The time of the decision.
    pub(crate) at: Time,
}

thread_local! {
    static PENDING: RefCell<Option<Pending>> = const { RefCell::new(None) };
}

/// Stores the decision for the filter that is created next on this thread.
pub(crate) fn put(pending: Pending) {
    // Envoy may call while the thread ends; then there is no request any more.
    let _ = PENDING.try_with(|place| place.replace(Some(pending)));
}

/// Returns the decision that no filter has taken yet.
pub(crate) fn take() -> Option<Pending> {
    PENDING.try_with(RefCell::take).ok().flatten()
}

impl Pending {
    /// Ends an attempt that did not begin. The dispatcher learns nothing from it, and its host did not get the prompt.
    pub(crate) fn abandon(&mut self) {
        if let Some(prompt) = &mut self.prompt {
            prompt.lease.note_unsent();
        }
        self.cluster.end(crate::now(), &self.decision, None);
    }
}
