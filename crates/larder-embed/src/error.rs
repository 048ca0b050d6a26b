//! The errors of calls.

use crate::types::NodeHandle;
use larder_config::ConfigError;
use larder_core::SnapshotError;
use larder_core::nodes::JoinError;

/// The reason why a call cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbedError {
    /// The config cannot be used.
    #[error("cannot use the config: {0}")]
    Config(ConfigError),
    /// An argument is out of range. The text names the argument and its range.
    #[error("{0}")]
    Range(String),
    /// No node has had this id.
    #[error("no node has had the id {0}")]
    UnknownNode(NodeHandle),
    /// No node has this name. The text is the escaped beginning of the name.
    #[error("no node has the name '{0}'")]
    UnknownName(String),
    /// The node with this id was removed.
    #[error("the node with the id {0} was removed")]
    RemovedNode(NodeHandle),
    /// The node cannot be added: its name is empty or taken, or the table is full.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The node with this id has no such request in flight.
    #[error("no such request is in flight at the node with the id {0}: a request is ended once")]
    NoRequest(NodeHandle),
    /// A long-lived request cannot be retried.
    #[error("a long-lived request cannot be retried")]
    LongLived,
    /// The bytes are not a snapshot of this version.
    #[error("cannot load the snapshot: {0}")]
    Snapshot(SnapshotError),
}
