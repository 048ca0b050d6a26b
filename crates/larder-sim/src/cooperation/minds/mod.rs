//! What nodes decide by: the live nodes' state machines, one per node, or what stands in for them.
//!
//! The engine says what happens; [`Minds`] say who serves a request and what they want done ([`Wish`]). Messages are theirs;
//! how long they travel, and what that takes, is the engine's.

use std::rc::Rc;

use larder_core::peers::{CardMessage, Message, To, WardMessage};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, TargetId, Time};

use super::outcome::Tables;
use super::{Cooperation, Server};
use crate::{SimError, Workload};

mod alone;
mod card;
mod directory;
mod press;
mod switch;
mod ward;

/// A target of a map or of a census: 33 bytes a bucket, of which half to seven eighths are in use.
const TARGET_BYTES: usize = 48;

/// What one node says to another.
#[derive(Clone, Debug)]
pub(super) enum Words {
    Press(Message),
    Card(CardMessage),
    Ward(WardMessage),
    /// To itself: what has come of an analysis.
    Made {
        round: u64,
        table: Option<Rc<RouteTable>>,
    },
}

impl Words {
    /// How many bytes it is as a message.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Press(message) => message.encode().len(),
            Self::Card(message) => message.encode().len(),
            Self::Ward(message) => message.encode().len(),
            Self::Made { .. } => 0,
        };
        bytes as u64
    }

    /// Decisions that it asks for.
    pub(super) fn asks(&self) -> u64 {
        match self {
            Self::Card(CardMessage::Batch(batch)) => batch.asks.len() as u64,
            _ => 0,
        }
    }
}

/// What a node wants done.
#[derive(Debug)]
pub(super) enum Wish {
    /// A message is to be sent.
    Say { to: To, words: Words },
    /// A short message goes to a dispatcher beside the nodes, who knows what it says already.
    Report,
    /// A request that waited for its place has it.
    Placed { task: u32, place: Place },
    /// This node has decided as the dispatcher.
    Decided,
    /// A table is made of the counts of so many targets, which the node then hears from itself.
    Analyse { targets: usize, words: Words },
}

/// A request that is to be placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The node that asks.
    pub(super) node: u16,
    pub(super) item: u32,
    pub(super) target: TargetId,
    pub(super) size: Bytes,
}

/// Where a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) node: u16,
    /// By its number among [`Minds::reasons`].
    pub(super) why: usize,
    /// Whether what is read for it is kept in memory.
    pub(super) keep: bool,
}

/// What a node answers at once when it has parsed a request.
#[derive(Debug)]
pub(super) enum Decision {
    Place(Place),
    /// A dispatcher beside the nodes is asked ([`Minds::answer`]).
    Ask,
    /// The place is wished for ([`Wish::Placed`]), with this call or later.
    Later,
}

/// Protocol state of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) bytes: usize,
    /// Targets about which it knows something.
    pub(super) targets: usize,
}

/// What the nodes of a cluster decide by. Wishes are those of the node that the call is about.
pub(super) trait Minds {
    /// The names of the reasons, by their numbers.
    fn reasons(&self) -> Vec<&'static str>;

    /// How many nodes, from the first on, speak with one another.
    fn speakers(&self) -> u16 {
        0
    }

    /// A node learns that another is there.
    fn joined(&mut self, _now: Time, _node: u16, _peer: u16, _out: &mut Vec<Wish>) {}

    /// The node that decides for all, or makes their tables.
    fn leader(&self) -> Option<u16> {
        None
    }

    /// The first node is given what [`Given`](super::Given) says.
    fn given(&mut self, _now: Time, _out: &mut Vec<Wish>) {}

    /// The initial node has parsed a request; no other has its task's number until it is over.
    fn decide(&mut self, now: Time, task: u32, asked: &Asked, out: &mut Vec<Wish>) -> Decision;

    /// The dispatcher beside the nodes answers.
    fn answer(&mut self, asked: &Asked) -> Place {
        Place { node: asked.node, why: 0, keep: true }
    }

    /// A node services one connection more.
    fn begun(&mut self, _now: Time, _node: u16, _out: &mut Vec<Wish>) {}

    /// It services one less.
    fn ended(&mut self, _now: Time, _node: u16, _out: &mut Vec<Wish>) {}

    /// The initial node is done with a client's request, which was found missing there or not. Whether it has changed whether
    /// it takes part ([`Minds::sharing`]).
    fn served(&mut self, _now: Time, _asked: &Asked, _missed: bool, _out: &mut Vec<Wish>) -> bool {
        false
    }

    /// A request's connection is handed over by the initial node. Whether that node has something to tell now.
    fn moved(&mut self, _now: Time, _node: u16, _task: u32) -> bool {
        false
    }

    /// A request is over, at its initial node. Whether that has something to tell now.
    fn over(&mut self, _now: Time, _node: u16, _task: u32) -> bool {
        false
    }

    /// A relayed reply of `from` has come back.
    fn returned(&mut self, _node: u16, _from: u16) {}

    /// A node has an item in memory now, or no longer. Whether others are told.
    fn noted(&mut self, _now: Time, _change: &Asked, _cached: bool, _out: &mut Vec<Wish>) -> bool {
        false
    }

    /// A node hears another.
    fn hear(&mut self, _now: Time, _node: u16, _from: u16, _words: Words, _out: &mut Vec<Wish>) {}

    /// A node's timer strikes.
    fn tick(&mut self, _now: Time, _node: u16, _out: &mut Vec<Wish>) {}

    /// When that is.
    fn due(&self, _node: u16) -> Time {
        Time::MAX
    }

    /// How many nodes take part.
    fn sharing(&self) -> u64 {
        0
    }

    /// Of each that has any.
    fn states(&self) -> Vec<State> {
        Vec::new()
    }

    /// The routing tables that were made.
    fn tables(&self) -> Tables {
        Tables::default()
    }
}

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

/// The name of a node. Names are in the order of the nodes: the first has the lowest.
fn name_of(node: u16) -> String {
    format!("n{node:05}")
}

/// Notes something of a task.
fn put<T>(notes: &mut Vec<Option<T>>, task: u32, note: T) {
    let at = task as usize;
    if notes.len() <= at {
        notes.resize_with(at + 1, || None);
    }
    notes[at] = Some(note);
}

/// Takes it away.
fn take<T>(notes: &mut [Option<T>], task: u32) -> Option<T> {
    notes.get_mut(task as usize)?.take()
}
