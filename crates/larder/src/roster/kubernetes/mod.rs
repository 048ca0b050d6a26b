//! Node sources in Kubernetes: the [EndpointSlices](slices) of a service, and the pods of an [InferencePool](pool). The API server sends
//! the list and then its changes.

mod objects;
mod pool;
mod slices;

use std::path::Path;
use std::time::Duration;

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use larder_switch::NodeEntry;

use crate::config::{Discover, PoolRef, ServicePort, ServiceSlices};
use pool::Pool;
use slices::Slices;

/// Most nodes of one source. A longer list is probably an error in the selector.
const NODES_MAX: usize = 4096;
/// Longest time to wait for the first list at the start. Later the list is awaited while the process serves.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(5);

/// Error of a source. The last known nodes stay in force.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    /// The configuration is incomplete: there is no kubeconfig and no service account.
    #[error("cannot determine the address of the API server: {0}")]
    Setup(String),
    /// The API server refused the request or did not answer. The request is repeated.
    #[error("{0}")]
    Watch(String),
    /// No list arrived in time.
    #[error("no list from the API server within {} s", FIRST_LIST_TIMEOUT.as_secs())]
    Late,
    /// No endpoint has a port of this name.
    #[error("the service has endpoints and no port {0}")]
    NoPort(ServicePort),
    /// There is no pool of this name, and there has been none.
    #[error("the InferencePool does not exist: create it, or correct inference_pool")]
    NoPool,
    /// The pool is not as its API says.
    #[error("the InferencePool cannot be used: {0}")]
    Pool(String),
    /// The source has too many nodes.
    #[error("more than {NODES_MAX} nodes")]
    TooMany,
}

/// A source of nodes in Kubernetes.
#[derive(Debug)]
pub(super) enum KubernetesSource {
    Slices(Box<Slices>),
    Pool(Box<Pool>),
}

impl KubernetesSource {
    /// Creates the client for the slices of a service. Sends nothing yet.
    pub(super) async fn slices(source: Discover, service: ServiceSlices) -> Result<Self, WatchError> {
        Slices::new(source, service).await.map(|slices| Self::Slices(Box::new(slices)))
    }

    /// Creates the client for the pods of a pool. Sends nothing yet.
    pub(super) async fn pool(source: Discover, place: PoolRef) -> Result<Self, WatchError> {
        Pool::new(source, place).await.map(|pool| Self::Pool(Box::new(pool)))
    }

    /// Returns the nodes of the first list.
    pub(super) async fn first_list(&mut self) -> Result<Vec<NodeEntry>, WatchError> {
        tokio::time::timeout(FIRST_LIST_TIMEOUT, self.next_nodes()).await.unwrap_or(Err(WatchError::Late))
    }

    /// Waits for a change or for recovery, and returns the nodes.
    pub(super) async fn next_nodes(&mut self) -> Result<Vec<NodeEntry>, WatchError> {
        match self {
            Self::Slices(slices) => slices.next_nodes().await,
            Self::Pool(pool) => pool.next_nodes().await,
        }
    }
}

/// Creates a client. Sends nothing yet.
async fn client(kubeconfig: Option<&Path>) -> Result<Client, WatchError> {
    let setup = |error: &dyn std::fmt::Display| WatchError::Setup(error.to_string());
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path)
                .map_err(|error| setup(&format!("{}: {}", path.display(), error_chain(&error))))?;
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|error| setup(&error_chain(&error)))?
        }
        None => Config::incluster().map_err(|error| {
            setup(&format!("{} (outside a cluster, set kubeconfig)", error_chain(&error)))
        })?,
    };
    Client::try_from(config).map_err(|error| setup(&error_chain(&error)))
}

/// Formats an error of the API server or of the connection.
fn describe(error: &watcher::Error) -> String {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let status = match error {
        WatchError(status)
        | InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status)) => status,
        _ => return error_chain(error),
    };
    format!("the API server replied with {} {}: {}", status.code, status.reason, status.message)
}

/// Formats an error with its causes.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
