//! Interception: something outside the dispatcher stands around every decision and every change.
//!
//! A recorder needs that: it gives each decision a [`Source`] that notes what the decision reads, and keeps decisions and
//! changes apart ([`crate::record`]). The dispatcher knows nothing of records. Without an interceptor each decision reads
//! live, at the price of one look at an option.

use super::arrival::Arrival;
use super::change::{Cause, Change};
use crate::id::NodeId;
use crate::policy::Request;
use crate::source::Source;
use crate::time::Time;
use core::fmt;

/// Stands around every decision and every change of a dispatcher.
pub(crate) trait Interceptor: Send + Sync + fmt::Debug {
    /// Calls `decide` once, with the source that the decision is to read, and gives what that gives.
    fn decide(
        &self,
        at: Time,
        cause: Cause,
        request: &Request,
        decide: &dyn Fn(Source<'_>) -> Arrival,
    ) -> Arrival;

    /// Calls `act` once, with the source that the change is to read. `act` gives the change and the node that changed, if
    /// it took effect.
    fn change(&self, at: Time, act: &mut dyn FnMut(Source<'_>) -> Option<(Change, NodeId)>);
}
