//! The protocols of cooperative clusters: the live nodes' state machines, one per node, or substitutes for
//! them.
//!
//! The engine reports events. A [`ClusterProtocol`] decides which node serves a request and requests actions
//! ([`ProtocolAction`]). The protocol creates the messages. The engine models their delays and costs.

use larder_core::Bytes;

use super::cluster::Cooperation;
use super::servers::Server;
use crate::{SimError, Workload};

mod alone;
mod card;
mod directory;
mod mind;
mod press;
mod switch;
mod ward;

pub(super) use mind::{Asked, Decision, Minds, Place, State, Wish, Words};

/// Creates the protocol of a cluster for this workload.
pub(super) fn of(cluster: &Cooperation, workload: &Workload) -> Result<Box<dyn Minds>, SimError> {
    Ok(match cluster.server {
        Server::Trad => Box::new(alone::Alone::new(cluster.protocol.large_min)),
        Server::Rr => Box::new(alone::Alone::new(Bytes(u64::MAX))),
        Server::Press | Server::Distributed => Box::new(press::Presses::new(cluster)),
        Server::Dispatcher => Box::new(directory::Directory::new(workload.items.len(), cluster)),
        Server::Switch => Box::new(switch::Switch::new(cluster)?),
        Server::Card => Box::new(card::Cards::new(cluster)?),
        Server::Ward | Server::Part => Box::new(ward::Wards::new(cluster, workload)),
    })
}
