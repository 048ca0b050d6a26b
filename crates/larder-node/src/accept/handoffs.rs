//! Sources of connections that switches and peers hand off.

use crate::contents::LateralConfig;
use larder_handoff::agent::{HandoffOffers, RestoredConnection};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// The connections that switches or peers hand off to this node.
#[derive(Debug)]
pub struct IncomingHandoffs {
    /// Connections that arrive with their state.
    pub restored: mpsc::Receiver<RestoredConnection>,
    /// The service addresses that clients connect to. A connection that is accepted on one of them was handed
    /// off by a switch.
    pub services: Vec<SocketAddr>,
    /// Settings for fetching later requests from other nodes; `None` serves all later requests here.
    pub lateral: Option<LateralConfig>,
    /// Offers idle connections to other nodes when a switch asks for them, and while this node drains; `None`
    /// ends them instead.
    pub offers: Option<HandoffOffers>,
    /// Whether peers hand the connections off, not switches. This node serves the first request of each such
    /// connection. Later requests are decided as for any client.
    pub from_peers: bool,
}

impl IncomingHandoffs {
    /// Returns settings without handoffs.
    pub fn none() -> Self {
        let restored = mpsc::channel(1).1;
        Self { restored, services: Vec::new(), lateral: None, offers: None, from_peers: false }
    }
}
