//! The interface of a node among peers.

use super::Node;
use crate::cooperate::{CooperateConfig, CooperateError, PeersView};
use http::Request;
use http::header::HOST;
use larder_core::TargetId;
use larder_core::policy::table::RouteTable;
use larder_handoff::channel::identity::IdentityError;
use larder_peers::ClusterSecrets;
use std::net::SocketAddr;
use std::sync::Arc;

impl Node {
    /// Joins the peers, and cooperates with them until [`Node::leave_peers`].
    ///
    /// # Errors
    /// Fails if the network cannot be started or a setting is out of range.
    pub async fn join_peers(self: &Arc<Self>, config: CooperateConfig) -> Result<(), CooperateError> {
        self.peers.join(config, &self.common.memory).await
    }

    /// Announces the leave to the peers, and completes the requests that they have forwarded. Returns true if
    /// none was cut.
    pub async fn leave_peers(&self) -> bool {
        match self.peers.cooperation() {
            Some(cooperation) => cooperation.leave().await,
            None => true,
        }
    }

    /// Replaces the secrets of the peers' network ([`larder_peers::Network::set_secrets`]), and the keys of
    /// handoffs. Does nothing if there are no peers.
    ///
    /// # Errors
    /// Fails if a key cannot be derived from a secret. Nothing has changed then.
    pub fn set_peers_secrets(&self, secrets: &ClusterSecrets) -> Result<(), IdentityError> {
        self.peers.cooperation().map_or(Ok(()), |cooperation| cooperation.set_secrets(secrets))
    }

    /// Returns the address at which the node listens for its peers; `None` if there are none.
    pub fn peers_address(&self) -> Option<SocketAddr> {
        self.peers.cooperation().map(|cooperation| cooperation.address())
    }

    /// Returns the cluster as this node sees it; `None` if there are no peers.
    pub fn peers(&self) -> Option<PeersView> {
        self.peers.cooperation().map(|cooperation| cooperation.view())
    }

    /// Passes a routing table to all peers as the newest one, such as a table made from yesterday's log. The
    /// table's owners are indices into `owners`. Returns false if this node uses no tables, or if the table has
    /// too many targets or another number of owners.
    pub fn give_table(&self, owners: &[&str], table: RouteTable) -> bool {
        self.peers.cooperation().is_some_and(|cooperation| cooperation.give_table(owners, table))
    }

    /// Returns the target of a row of a log, which is a path with its query or a URL; `None` if this node has
    /// no such target. `host` applies to rows without a host, and only in front of an origin.
    pub fn target_of_row(&self, row: &str, host: &str) -> Option<TargetId> {
        let bare = row.strip_prefix("http://").or_else(|| row.strip_prefix("https://")).unwrap_or(row);
        let (host, path) = match bare.find('/') {
            Some(0) | None => (host, bare),
            Some(slash) => bare.split_at(slash),
        };
        if self.contents.origin().is_some() && host.is_empty() {
            return None;
        }
        let mut request = Request::builder().uri(path);
        if !host.is_empty() {
            request = request.header(HOST, host);
        }
        let (parts, ()) = request.body(()).ok()?.into_parts();
        self.contents.target_of(&parts)
    }
}
