//! The node among its peers, as whoever runs the node sees it.

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
    /// Joins its peers, and works with them until [`Node::leave_peers`].
    ///
    /// # Errors
    /// The network cannot be started, or a setting is out of range.
    pub async fn join_peers(self: &Arc<Self>, config: CooperateConfig) -> Result<(), CooperateError> {
        self.peers.join(config, &self.ground.memory).await
    }

    /// Tells the peers that this node goes, and lets end what they have forwarded. `true` if nothing was cut.
    pub async fn leave_peers(&self) -> bool {
        match self.peers.cooperation() {
            Some(cooperation) => cooperation.leave().await,
            None => true,
        }
    }

    /// Replaces the secrets of its peers' network ([`larder_peers::Network::set_secrets`]), and the keys by which connections are
    /// handed over. Does nothing if there are no peers.
    ///
    /// # Errors
    /// If keys cannot be made of a secret. Nothing has changed then.
    pub fn set_peers_secrets(&self, secrets: &ClusterSecrets) -> Result<(), IdentityError> {
        self.peers.cooperation().map_or(Ok(()), |cooperation| cooperation.set_secrets(secrets))
    }

    /// The address at which the node listens to its peers; `None` if there are none.
    pub fn peers_address(&self) -> Option<SocketAddr> {
        self.peers.cooperation().map(|cooperation| cooperation.address())
    }

    /// Returns the cluster as this node sees it; `None` if there are no peers.
    pub fn peers(&self) -> Option<PeersView> {
        self.peers.cooperation().map(|cooperation| cooperation.view())
    }

    /// Gives a routing table, such as one made of yesterday's log, to all peers, as the newest; its owners are named by their
    /// numbers in it. False: this node goes by none, or the table has more targets than it may, or another number of owners.
    pub fn give_table(&self, owners: &[&str], table: RouteTable) -> bool {
        self.peers.cooperation().is_some_and(|cooperation| cooperation.give_table(owners, table))
    }

    /// The target of a row of a log: a path with its query, or a host before it. None: it is none here. `host` is that of rows
    /// which name none, and matters before an origin only.
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
