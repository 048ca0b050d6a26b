//! The protocols of cooperative clusters: the live nodes' state machines, one per node, or substitutes for
//! them.
//!
//! The engine reports events. A [`ClusterProtocol`] decides which node serves a request and requests actions
//! ([`ProtocolAction`]). The protocol creates the messages. The engine models their delays and costs.

use super::cluster::CooperativeCluster;
use super::servers::ServerKind;
use crate::{SimError, Workload};

mod card;
mod dispatcher;
mod interface;
mod isolated;
mod press;
mod switch;
mod ward;

pub(super) use interface::{
    ClusterProtocol, NodeMessage, Placement, PlacementDecision, PlacementRequest, ProtocolAction, StateSize,
};

/// Creates the protocol of a cluster for this workload.
pub(super) fn create(
    cluster: &CooperativeCluster,
    workload: &Workload,
) -> Result<Box<dyn ClusterProtocol>, SimError> {
    Ok(match cluster.server {
        ServerKind::Trad | ServerKind::Rr => Box::new(isolated::IsolatedNodes),
        ServerKind::Press | ServerKind::Distributed => Box::new(press::PressNodes::new(cluster)),
        ServerKind::Dispatcher => Box::new(dispatcher::CentralDispatcher::new(workload.items.len(), cluster)),
        ServerKind::Switch => Box::new(switch::SwitchFrontEnd::new(cluster)?),
        ServerKind::Card => Box::new(card::CardNodes::new(cluster)?),
        ServerKind::Ward | ServerKind::Part => Box::new(ward::WardNodes::new(cluster, workload)),
    })
}
