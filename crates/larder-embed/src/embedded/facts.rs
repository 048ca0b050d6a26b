//! Facts of requests: from node ids to the nodes of the core.

use super::Embedded;
use crate::error::EmbedError;
use crate::types::{EXCLUDE_MAX, RequestFacts};
use larder_core::dispatch::{ExcludedNodes, Request, RequestAffinity};

impl Embedded {
    /// Returns the request with these facts. Node ids that have become stale are left out, because a node may be removed at any time.
    pub(super) fn request(&self, facts: &RequestFacts<'_>) -> Result<Request, EmbedError> {
        let mut request = Request::new(facts.target).with_class(facts.class).with_lasting(facts.lasting);
        if facts.exclude.len() > EXCLUDE_MAX {
            return Err(EmbedError::Range(format!("exclude has more than {EXCLUDE_MAX} nodes")));
        }
        let mut exclude = ExcludedNodes::NONE;
        for id in facts.exclude {
            exclude = self.find_slot(*id)?.map_or(exclude, |node| exclude.with(node));
        }
        request.exclude = exclude;
        if facts.sticky.is_some() && facts.origin.is_some() {
            return Err(EmbedError::Range("a request has a sticky node or an origin, not both".to_owned()));
        }
        if let Some(id) = facts.sticky
            && let Some(node) = self.find_slot(id)?
        {
            request = request.with_affinity(RequestAffinity::Sticky(node));
        }
        if let Some(id) = facts.origin
            && let Some(node) = self.find_slot(id)?
        {
            request = request.with_origin(node);
        }
        Ok(request)
    }
}
