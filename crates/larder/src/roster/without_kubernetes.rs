//! Replacement for `kubernetes` in builds without the feature of this name, such as the build for the demo. The config refuses sources
//! of this kind, so no source is ever created.

use std::convert::Infallible;

use larder_switch::NodeEntry;

use crate::config::{Discover, PoolRef, ServiceSlices};

/// Error of every Kubernetes source in this build.
#[derive(Debug, thiserror::Error)]
#[error("this build of larder has no support for Kubernetes")]
pub(super) struct WatchError;

/// A source of nodes in Kubernetes; never constructed.
#[derive(Debug)]
pub(super) struct KubernetesSource(Infallible);

impl KubernetesSource {
    pub(super) async fn slices(_: Discover, _: ServiceSlices) -> Result<Self, WatchError> {
        Err(WatchError)
    }

    pub(super) async fn pool(_: Discover, _: PoolRef) -> Result<Self, WatchError> {
        Err(WatchError)
    }

    pub(super) async fn first_list(&mut self) -> Result<Vec<NodeEntry>, WatchError> {
        match self.0 {}
    }

    pub(super) async fn next_nodes(&mut self) -> Result<Vec<NodeEntry>, WatchError> {
        match self.0 {}
    }
}
