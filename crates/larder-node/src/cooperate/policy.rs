//! The policy of a cluster: one of three.

use super::card::CardSide;
use super::press::PressSide;
use super::side::Side;
use super::ward::{WardConfig, WardSide};
use larder_core::Time;
use larder_core::dispatch::SettingsError;
use larder_core::peers::{CardSettings, PressSettings};
use larder_peers::Name;

/// Who decides where a request is served. The same on all nodes of a cluster.
#[derive(Clone, Debug)]
pub enum CooperatePolicy {
    /// Each node, by what the others say they have in memory. `large_min` bounds what this node keeps in memory too.
    Press(PressSettings),
    /// The live node with the lowest name, for all.
    Card(Box<CardSettings>),
    /// Each node, by a routing table that all have.
    Ward(WardConfig),
}

/// The policy of this cluster.
#[derive(Debug)]
pub(super) enum Policy {
    Press(Box<PressSide>),
    Card(Box<CardSide>),
    Ward(Box<WardSide>),
}

impl Policy {
    pub(super) fn new(policy: CooperatePolicy, name: &Name, epoch: u64) -> Result<Self, SettingsError> {
        Ok(match policy {
            CooperatePolicy::Press(settings) => Self::Press(Box::new(PressSide::new(epoch, settings))),
            CooperatePolicy::Card(settings) => Self::Card(Box::new(CardSide::new(name, epoch, *settings)?)),
            CooperatePolicy::Ward(config) => Self::Ward(Box::new(WardSide::new(name, epoch, config))),
        })
    }

    /// Its name in settings.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Press(_) => "press",
            Self::Card(_) => "card",
            Self::Ward(_) => "ward",
        }
    }

    /// All reasons that its decisions have.
    pub(super) fn reasons(&self) -> Vec<&'static str> {
        match self {
            Self::Press(_) => PressSide::reasons(),
            Self::Card(_) => CardSide::reasons(),
            Self::Ward(_) => WardSide::reasons(),
        }
    }

    pub(super) fn side(&mut self) -> &mut dyn Side {
        match self {
            Self::Press(press) => press.as_mut(),
            Self::Card(card) => card.as_mut(),
            Self::Ward(ward) => ward.as_mut(),
        }
    }

    pub(super) fn due(&self) -> Time {
        match self {
            Self::Press(press) => press.due(),
            Self::Card(card) => card.due(),
            Self::Ward(ward) => ward.due(),
        }
    }
}
