//! Replacement for `kubernetes.rs` in builds without the feature `kubernetes`, such as the build for the
//! demo. The config refuses sources of this kind, so no source is ever created.

use std::convert::Infallible;

use larder_switch::NodeEntry;

use crate::config::{Discover, ServiceSlices};

/// Error of every Kubernetes source in this build.
#[derive(Debug, thiserror::Error)]
#[error("this build of larder has no support for Kubernetes")]
pub(super) struct SlicesError;

/// The slices of a service; never constructed.
#[derive(Debug)]
pub(super) struct Slices(Infallible);

impl Slices {
    pub(super) async fn new(_: Discover, _: ServiceSlices) -> Result<Self, SlicesError> {
        Err(SlicesError)
    }

    pub(super) async fn first_list(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        match self.0 {}
    }

    pub(super) async fn next_nodes(&mut self) -> Result<Vec<NodeEntry>, SlicesError> {
        match self.0 {}
    }
}
