//! How connections come that switches and peers hand over.

use crate::contents::LateralConfig;
use larder_handoff::agent::{HandoffOffers, RestoredConnection};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// Connections that front-ends hand over.
#[derive(Debug)]
pub struct Handed {
    /// Connections that come with their state.
    pub restored: mpsc::Receiver<RestoredConnection>,
    /// The addresses that clients connect to: what is accepted on one of them was handed over.
    pub services: Vec<SocketAddr>,
    /// Settings of fetching later requests that belong to other nodes; `None`: they are served here.
    pub lateral: Option<LateralConfig>,
    /// Gives connections that rest between two requests up to other nodes when a front-end asks for it, and when this
    /// node drains; `None`: they end then.
    pub giver: Option<HandoffOffers>,
    /// It is peers that hand them over, and not front-ends: the first request of each is served here, the others as those of
    /// any client.
    pub by_peers: bool,
}

impl Handed {
    /// None are.
    pub fn none() -> Self {
        let restored = mpsc::channel(1).1;
        Self { restored, services: Vec::new(), lateral: None, giver: None, by_peers: false }
    }
}
