//! Signals: load reports, cache events, results of requests and routing tables.

use super::Embedded;
use crate::error::EmbedError;
use crate::types::{Decision, Feedback, NodeHandle, STATUS_MAX};
use larder_core::dispatch::{CacheEvent, ReplyFeedback, Request};
use larder_core::nodes::LoadReport;
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{NodeId, RouteId, TargetId, Time};
use std::sync::Arc;

impl Embedded {
    /// Passes the result of a request to the policy, and counts it.
    pub(super) fn learn(
        &self,
        now: Time,
        node: NodeId,
        decision: &Decision,
        feedback: &Feedback,
    ) -> Result<(), EmbedError> {
        let Feedback { elapsed, first_byte, bytes, status, cache, failed } = *feedback;
        if status > STATUS_MAX {
            return Err(EmbedError::Range(format!("{status} is no HTTP status")));
        }
        let request = Request::new(decision.target).with_class(decision.class);
        let counts = &self.slots[node.index()].counts;
        if failed {
            counts.fail();
            self.dispatcher.observe_failure(now, &request, node, first_byte.unwrap_or(elapsed));
            return Ok(());
        }
        let is_useful = matches!(status, 0 | 200..=299 | 304);
        let found = cache.filter(|_| is_useful);
        counts.reply(bytes, found);
        if !elapsed.is_zero() {
            self.dispatcher.observe_reply(now, &request, node, &ReplyFeedback { elapsed, first_byte, found });
        }
        Ok(())
    }

    /// Stores a node's load report in place of the previous one. Returns false if the node does not take requests.
    ///
    /// # Errors
    /// As [`Embedded::state`].
    pub fn report(&self, now: Time, id: NodeHandle, report: LoadReport) -> Result<bool, EmbedError> {
        let node = self.member(id)?;
        Ok(self.dispatcher.report(now, node, report))
    }

    /// Passes a change of a node's cache to a policy that mirrors caches (`lb-gc`). Returns false if the policy does not, or the node
    /// does not take requests.
    ///
    /// # Errors
    /// As [`Embedded::state`].
    pub fn cache_event(
        &self,
        now: Time,
        id: NodeHandle,
        target: TargetId,
        event: CacheEvent,
    ) -> Result<bool, EmbedError> {
        let node = self.member(id)?;
        Ok(self.dispatcher.cache_event(now, node, target, event))
    }

    /// Sets the routing table of `ward` and `part`. A row has a target and its owner; `None` if the target belongs to the core. Returns
    /// false if the policy uses no table.
    ///
    /// # Errors
    /// As [`Embedded::state`] for an owner. [`EmbedError::Range`]: the table has too many rows, or the dispatcher has no nodes.
    pub fn set_table(
        &self,
        now: Time,
        rows: impl IntoIterator<Item = (TargetId, Option<NodeHandle>)>,
    ) -> Result<bool, EmbedError> {
        let place = |(target, owner): (TargetId, Option<NodeHandle>)| match owner {
            None => Ok((target, Place::Core)),
            Some(id) => Ok((target, Place::Node(self.member(id)?.0))),
        };
        let places = rows.into_iter().map(place).collect::<Result<Vec<_>, EmbedError>>()?;
        let nodes = u16::try_from(self.dispatcher.nodes().slots()).unwrap_or(u16::MAX);
        let table = RouteTable::new(nodes, places).map_err(|error| EmbedError::Range(error.to_string()))?;
        Ok(self.dispatcher.set_table(now, RouteId::DEFAULT, &Arc::new(table)))
    }
}
