//! Interception of decisions and changes.
//!
//! A recorder ([`crate::record`]) implements the interceptor. It gives each decision a [`ReadSource`] that logs the
//! values that the decision reads, and it keeps decisions and changes in order. The dispatcher does not depend on
//! records. Without an interceptor each decision reads live values and checks one option.

use super::arrival::Arrival;
use super::change::{Cause, Change};
use crate::id::NodeId;
use crate::policy::Request;
use crate::read_source::ReadSource;
use crate::time::Time;
use core::fmt;

/// A hook that is called for every decision and every change of a dispatcher.
pub(crate) trait Interceptor: Send + Sync + fmt::Debug {
    /// Calls `decide` once with the source that the decision reads, and returns its result.
    fn decide(
        &self,
        at: Time,
        cause: Cause,
        request: &Request,
        decide: &dyn Fn(ReadSource<'_>) -> Arrival,
    ) -> Arrival;

    /// Calls `act` once with the source that the change reads. `act` returns the change and the changed node if the
    /// change took effect.
    fn change(&self, at: Time, act: &mut dyn FnMut(ReadSource<'_>) -> Option<(Change, NodeId)>);
}
