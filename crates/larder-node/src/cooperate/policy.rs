//! The policy of a cluster: PRESS, CARD or WARD.

use super::adapter::PolicyAdapter;
use super::card::CardAdapter;
use super::press::PressAdapter;
use super::ward::{WardAdapter, WardConfig};
use larder_core::Time;
use larder_core::dispatch::SettingsError;
use larder_core::peers::{CardSettings, PressSettings};
use larder_peers::Name;

/// The policy that decides where a request is served. All nodes of a cluster must use the same one.
#[derive(Clone, Debug)]
pub enum CooperatePolicy {
    /// Each node decides by the memory contents that its peers report. `large_min` also limits the objects that
    /// this node stores.
    Press(PressSettings),
    /// The live node with the lowest name decides for all nodes.
    Card(Box<CardSettings>),
    /// Each node decides by a routing table that all nodes share.
    Ward(WardConfig),
}

/// The policy of this cluster, with its state.
#[derive(Debug)]
pub(super) enum Policy {
    Press(Box<PressAdapter>),
    Card(Box<CardAdapter>),
    Ward(Box<WardAdapter>),
}

impl Policy {
    pub(super) fn new(policy: CooperatePolicy, name: &Name, epoch: u64) -> Result<Self, SettingsError> {
        Ok(match policy {
            CooperatePolicy::Press(settings) => Self::Press(Box::new(PressAdapter::new(epoch, settings))),
            CooperatePolicy::Card(settings) => {
                Self::Card(Box::new(CardAdapter::new(name, epoch, *settings)?))
            }
            CooperatePolicy::Ward(config) => Self::Ward(Box::new(WardAdapter::new(name, epoch, config))),
        })
    }

    /// Returns the policy's name in the settings.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Press(_) => "press",
            Self::Card(_) => "card",
            Self::Ward(_) => "ward",
        }
    }

    /// Returns all reasons that the policy's decisions can have.
    pub(super) fn reasons(&self) -> Vec<&'static str> {
        match self {
            Self::Press(_) => PressAdapter::reasons(),
            Self::Card(_) => CardAdapter::reasons(),
            Self::Ward(_) => WardAdapter::reasons(),
        }
    }

    pub(super) fn adapter(&mut self) -> &mut dyn PolicyAdapter {
        match self {
            Self::Press(press) => press.as_mut(),
            Self::Card(card) => card.as_mut(),
            Self::Ward(ward) => ward.as_mut(),
        }
    }

    pub(super) fn next_deadline(&self) -> Time {
        match self {
            Self::Press(press) => press.next_deadline(),
            Self::Card(card) => card.next_deadline(),
            Self::Ward(ward) => ward.next_deadline(),
        }
    }
}
