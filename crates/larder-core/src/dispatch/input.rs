//! What happens and what is to be done, written down: for recording a run and feeding it to another dispatcher.

use super::{Arrival, CacheEvent, Cancel, Decision, Dispatcher, Refusal, Request, Started};
use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::{JoinError, LoadReport, NodeSpec, NodeState, Weight};
use crate::policy::table::RouteTable;
use crate::time::Time;
use std::sync::Arc;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A request arrived.
    Arrive(Request),
    /// A request failed at a node and may be tried elsewhere.
    Retry(NodeId, Request),
    /// The forwarding plane has started a request at a node by an earlier decision.
    Reuse(NodeId, Request),
    /// A request of a route ended at a node.
    Finish(RouteId, NodeId),
    /// A request of a route at a node turned out to be long-lived.
    BecomeLongLived(RouteId, NodeId),
    /// A long-lived request of a route takes a place among the admitted again.
    BecomeShortLived(RouteId, NodeId),
    /// A long-lived request ended at a node.
    EndLongLived(NodeId),
    /// An admitted request of a route ended that was at no node.
    Abandon(RouteId),
    /// The client of a waiting request is gone.
    Cancel(Ticket),
    /// Time has passed.
    Expire,
    /// A node joined.
    Join(NodeSpec),
    /// A node failed, drained, left or recovered.
    State(NodeId, NodeState),
    /// A node got another weight.
    Reweigh(NodeId, Weight),
    /// A node became a backup, or an ordinary node.
    Backup(NodeId, bool),
    /// A node said how loaded it is.
    Report(NodeId, LoadReport),
    /// A node's cache changed.
    Cache(NodeId, TargetId, CacheEvent),
    /// A route got another routing table.
    Table(RouteId, Arc<RouteTable>),
}

/// Something to be done, or the answer to an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The answer to [`Input::Arrive`].
    Arrival(Arrival),
    /// The answer to [`Input::Retry`].
    Retry(Result<Decision, Refusal>),
    /// The answer to [`Input::Cancel`].
    Cancel(Cancel),
    /// The answer to [`Input::Join`].
    Join(Result<NodeId, JoinError>),
    /// The answer to [`Input::Reuse`], [`Input::BecomeLongLived`], [`Input::BecomeShortLived`], [`Input::State`], [`Input::Reweigh`], [`Input::Backup`], [`Input::Report`], [`Input::Cache`] and
    /// [`Input::Table`].
    Changed(bool),
    /// A waiting request's deadline passed.
    Expired(Ticket),
    /// A waiting request starts, or is refused.
    Started(Started),
}

impl Dispatcher {
    /// Does what the method of the input's name does, and returns all that comes out, in order.
    pub fn handle(&self, now: Time, input: Input) -> Vec<Output> {
        let mut started = Vec::new();
        let mut outputs = Vec::new();
        match input {
            Input::Arrive(request) => outputs.push(Output::Arrival(self.arrive(now, request))),
            Input::Retry(failed, request) => outputs.push(Output::Retry(self.retry(now, failed, request))),
            Input::Reuse(node, request) => outputs.push(Output::Changed(self.reuse(now, request, node))),
            Input::Finish(route, node) => self.finish_on(now, route, node, &mut started),
            Input::BecomeLongLived(route, node) => {
                outputs.push(Output::Changed(self.become_long_lived(now, route, node, &mut started)));
            }
            Input::BecomeShortLived(route, node) => {
                outputs.push(Output::Changed(self.become_short_lived(now, route, node)));
            }
            Input::EndLongLived(node) => self.end_long_lived(now, node),
            Input::Abandon(route) => self.abandon_on(now, route, &mut started),
            Input::Cancel(ticket) => outputs.push(Output::Cancel(self.cancel(ticket))),
            Input::Expire => {
                let mut expired = Vec::new();
                self.expire(now, &mut expired);
                outputs.extend(expired.into_iter().map(Output::Expired));
            }
            Input::Join(spec) => outputs.push(Output::Join(self.join(now, spec, &mut started))),
            Input::State(node, state) => {
                outputs.push(Output::Changed(self.set_state(now, node, state, &mut started)));
            }
            Input::Reweigh(node, weight) => {
                outputs.push(Output::Changed(self.reweigh(now, node, weight, &mut started)));
            }
            Input::Backup(node, backup) => {
                outputs.push(Output::Changed(self.set_backup(now, node, backup, &mut started)));
            }
            Input::Report(node, report) => outputs.push(Output::Changed(self.report(now, node, report))),
            Input::Table(route, table) => outputs.push(Output::Changed(self.set_table(now, route, &table))),
            Input::Cache(node, target, event) => {
                outputs.push(Output::Changed(self.cache_event(now, node, target, event)));
            }
        }
        outputs.extend(started.into_iter().map(Output::Started));
        outputs
    }
}
