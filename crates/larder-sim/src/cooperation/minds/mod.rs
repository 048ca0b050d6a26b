//! What nodes decide by: the live nodes' state machines, one per node, or what stands in for them.
//!
//! The engine says what happens; [`Minds`] say who serves a request and what they want done ([`Wish`]). Messages are theirs;
//! how long they travel, and what that takes, is the engine's.

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

/// Those of a cluster with this workload.
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
