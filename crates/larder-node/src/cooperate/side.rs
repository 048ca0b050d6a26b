//! The three policies behind one face: what happens goes in, what is to be said and done comes out.

use super::card::CardSide;
use super::press::PressSide;
use super::ward::{WardConfig, WardSide};
use crate::terms::PeersMemory;
use larder_core::dispatch::SettingsError;
use larder_core::peers::{Analyse, CardSettings, PressSettings};
use larder_core::{Bytes, NodeId, TargetId, Time, WireError};
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

/// What a policy has to say, or to have done.
#[derive(Debug)]
pub(super) enum Say {
    /// A message to one.
    To(NodeId, Vec<u8>),
    /// A message to all.
    All(Vec<u8>, Told),
    /// The census is to be taken.
    Count { whole: bool },
    /// A table is to be made.
    Analyse(Box<Analyse>),
}

/// What all are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Load,
    Changes,
    Table,
}

/// A policy at work. What does not concern it does nothing.
pub(super) trait Side {
    /// When [`Side::tick`] is due next, or earlier.
    fn due(&self) -> Time;

    /// Does what is due.
    fn tick(&mut self, now: Time, out: &mut Vec<Say>);

    /// A node is there.
    fn joined(&mut self, now: Time, node: NodeId, name: &Name, out: &mut Vec<Say>);

    /// A node is gone.
    fn left(&mut self, now: Time, node: NodeId, out: &mut Vec<Say>);

    /// A node can be told something, from the beginning.
    fn linked(&mut self, _now: Time, _node: NodeId, _out: &mut Vec<Say>) {}

    /// A node says something.
    fn hear(&mut self, now: Time, from: NodeId, bytes: &[u8], out: &mut Vec<Say>) -> Result<(), WireError>;

    /// A connection is serviced here.
    fn begun(&mut self, _now: Time, _out: &mut Vec<Say>) {}

    /// It is not any more.
    fn ended(&mut self, _now: Time, _out: &mut Vec<Say>) {}

    /// A target has come into this node's memory, or has left it.
    fn noted(&mut self, _now: Time, _target: TargetId, _cached: bool, _out: &mut Vec<Say>) {}

    /// A client's request was answered with a whole of this size; with `missed` this node served it and had it not in memory.
    fn served(&mut self, _now: Time, _target: TargetId, _size: Bytes, _missed: bool, _out: &mut Vec<Say>) {}

    /// A client's request, served here, was answered with an error that says that there is nothing.
    fn came_to_nothing(&mut self, _now: Time, _target: TargetId, _out: &mut Vec<Say>) {}

    /// This node's memory has another size, and with it perhaps what is too large to be shared. Returns whether all is done; else it
    /// is to be called again.
    fn resized(&mut self, _memory: PeersMemory) -> bool {
        true
    }

    /// What was forwarded to a node has ended.
    fn returned(&mut self, _node: NodeId) {}

    /// A node has begun to answer what was forwarded to it.
    fn answered(&mut self, node: NodeId);

    /// It did not answer; with `to_blame` that is its fault.
    fn unanswered(&mut self, now: Time, node: NodeId, target: TargetId, to_blame: bool);
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
