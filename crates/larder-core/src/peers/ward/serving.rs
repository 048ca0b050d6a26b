//! Where targets are served while another table is made.

use super::super::card::NameKey;
use super::tables::Held;
use super::{WardSettings, rank};
use crate::id::TargetId;
use crate::policy::table::{Place, RouteTable, RouteTableError};
use std::sync::Arc;

/// Where targets go that the table does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// To the live node of the highest hash of target and name.
    #[default]
    Hashed,
    /// Nowhere: they are served where they are asked for. The paper.
    Here,
}

/// Which node serves a target by the table in force, or, where there is none, by hash: that node has it in memory. A table that
/// leaves targets there costs no reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub(super) held: Option<Arc<Held>>,
    /// The nodes that the next table is for, in its order.
    nodes: Vec<NameKey>,
    rest: Rest,
    targets_max: usize,
}

impl Serving {
    pub(super) fn new(held: Option<Arc<Held>>, nodes: &[NameKey], settings: &WardSettings) -> Self {
        let WardSettings { rest, targets_max, .. } = *settings;
        Self { held, nodes: nodes.to_vec(), rest, targets_max }
    }

    /// Its place, with the owner as the place in [`Analyse::nodes`](super::Analyse::nodes). None: at whichever node is asked.
    /// O(nodes).
    pub fn place(&self, target: TargetId) -> Option<Place> {
        let Some(held) = &self.held else { return self.hashed(target) };
        match held.table.get(target) {
            Some(Place::Core) => Some(Place::Core),
            Some(Place::Node(owner)) => {
                let owner = held.owners.get(usize::from(owner));
                owner.and_then(|owner| self.owner(*owner)).or_else(|| self.hashed(target))
            }
            None if self.rest == Rest::Here => None,
            None => self.hashed(target),
        }
    }

    /// The next table with what it leaves out of the one in force: a target that nobody has asked for lately, or that is no longer
    /// worth a place in memory, has its owner as long as that is there, for that is who has it if anybody does. At most
    /// `targets_max` in all. None of it where what a table does not have is served where it is asked for ([`Rest::Here`]).
    ///
    /// # Errors
    /// As [`RouteTable::new`].
    pub fn remembered(&self, next: RouteTable) -> Result<RouteTable, RouteTableError> {
        let Some(held) = self.held.as_ref().filter(|_| self.rest == Rest::Hashed) else { return Ok(next) };
        let places: Vec<Option<Place>> = held.owners.iter().map(|owner| self.owner(*owner)).collect();
        let left_out = held.table.iter().filter(|(target, _)| next.get(*target).is_none());
        let owned =
            left_out.filter_map(|(target, place)| Some((target, *places.get(place.owner()?.index())?)));
        let there = owned.filter_map(|(target, place)| Some((target, place?)));
        let room = self.targets_max.saturating_sub(next.len());
        RouteTable::new(next.nodes(), next.iter().chain(there.take(room)))
    }

    fn owner(&self, name: NameKey) -> Option<Place> {
        self.nodes.iter().position(|node| *node == name).and_then(at)
    }

    fn hashed(&self, target: TargetId) -> Option<Place> {
        let ranked = self.nodes.iter().enumerate();
        ranked.max_by_key(|(_, name)| rank(target, **name)).and_then(|(place, _)| at(place))
    }
}

fn at(place: usize) -> Option<Place> {
    u16::try_from(place).ok().map(Place::Node)
}
