//! In place of `kubernetes.rs` where the feature `kubernetes` is off, as in the build for the demo. The config refuses
//! sources of that kind, so there is never one to follow.

use std::convert::Infallible;

use larder_switch::NodeEntry;

use crate::config::{Discover, ServiceSlices};

/// Why there are no slices.
#[derive(Debug, thiserror::Error)]
#[error("this build of larder has no support for Kubernetes")]
pub(super) struct SlicesError;

/// The slices of a service; none are ever made.
#[derive(Debug)]
pub(super) struct Slices(Infallible);

impl Slices {
    pub(super) async fn new(_: Discover, _: ServiceSlices) -> Result<Self, SlicesError> {
        Err(SlicesError)
    }

    pub(super) async fn first(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        match self.0 {}
    }

    pub(super) async fn next(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        match self.0 {}
    }
}
