//! The interface between the engine and the state machines of a cluster.

use std::rc::Rc;

use larder_core::peers::{CardMessage, Message, To, WardMessage};
use larder_core::policy::table::RouteTable;
use larder_core::{Bytes, TargetId, Time};

use crate::cooperation::outcome::Tables;

/// A target of a map or of a census: 33 bytes a bucket, of which half to seven eighths are in use.
pub(super) const TARGET_BYTES: usize = 48;

/// A message from one node to another.
#[derive(Clone, Debug)]
pub(in crate::cooperation) enum Words {
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
    /// Its bytes as a message.
    pub(in crate::cooperation) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Press(message) => message.encode().len(),
            Self::Card(message) => message.encode().len(),
            Self::Ward(message) => message.encode().len(),
            Self::Made { .. } => 0,
        };
        bytes as u64
    }

    /// Decisions that it asks for.
    pub(in crate::cooperation) fn asks(&self) -> u64 {
        match self {
            Self::Card(CardMessage::Batch(batch)) => batch.asks.len() as u64,
            _ => 0,
        }
    }
}

/// An action that a node wants.
#[derive(Debug)]
pub(in crate::cooperation) enum Wish {
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
pub(in crate::cooperation) struct Asked {
    /// The node that asks.
    pub(in crate::cooperation) node: u16,
    pub(in crate::cooperation) item: u32,
    pub(in crate::cooperation) target: TargetId,
    pub(in crate::cooperation) size: Bytes,
}

/// The place at which a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cooperation) struct Place {
    pub(in crate::cooperation) node: u16,
    /// By its number among [`Minds::reasons`].
    pub(in crate::cooperation) why: usize,
    /// Whether what is read for it is kept in memory.
    pub(in crate::cooperation) keep: bool,
}

/// The answer of a node that has just parsed a request.
#[derive(Debug)]
pub(in crate::cooperation) enum Decision {
    Place(Place),
    /// A dispatcher beside the nodes is asked ([`Minds::answer`]).
    Ask,
    /// The place is wished for ([`Wish::Placed`]), with this call or later.
    Later,
}

/// Protocol state of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::cooperation) struct State {
    pub(in crate::cooperation) bytes: usize,
    /// Targets about which it knows something.
    pub(in crate::cooperation) targets: usize,
}

/// The state machines by which the nodes of a cluster decide. Wishes are those of the node that the call is about.
pub(in crate::cooperation) trait Minds {
    /// The names of the reasons, by their numbers.
    fn reasons(&self) -> Vec<&'static str>;

    /// The number of nodes, from the first on, that speak with one another.
    fn speakers(&self) -> u16 {
        0
    }

    /// A node learns that another is there.
    fn joined(&mut self, _now: Time, _node: u16, _peer: u16, _out: &mut Vec<Wish>) {}

    /// The node that decides for all, or makes their tables.
    fn leader(&self) -> Option<u16> {
        None
    }

    /// The first node is given what [`Given`](crate::cooperation::Given) says.
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

    /// The time of the node's next timer.
    fn due(&self, _node: u16) -> Time {
        Time::MAX
    }

    /// The number of nodes that take part.
    fn sharing(&self) -> u64 {
        0
    }

    /// The protocol state of each node that has any.
    fn states(&self) -> Vec<State> {
        Vec::new()
    }

    /// The routing tables that were made.
    fn tables(&self) -> Tables {
        Tables::default()
    }
}

/// The name of a node. Names are in the order of the nodes: the first has the lowest.
pub(super) fn name_of(node: u16) -> String {
    format!("n{node:05}")
}

/// Notes something of a task.
pub(super) fn put<T>(notes: &mut Vec<Option<T>>, task: u32, note: T) {
    let at = task as usize;
    if notes.len() <= at {
        notes.resize_with(at + 1, || None);
    }
    notes[at] = Some(note);
}

/// Takes it away.
pub(super) fn take<T>(notes: &mut [Option<T>], task: u32) -> Option<T> {
    notes.get_mut(task as usize)?.take()
}
