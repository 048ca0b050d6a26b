//! What switches say to each other, as bytes.
//!
//! ```text
//! message = kind:u8 clock life number:varint all:u8 roster rest
//! hello   = version whole:u8 part parts count(nodes) (slot name)* count(routes) (id name)* ends count(ends) (name life since)*
//! loads   = all:u8 told count (slot requests)* count (route outstanding waiting)*
//! sets    = route count set*                          set = target:8 bytes changed used|servers<<1 slot*
//! want    = question route since at
//! part    = question route count set* (0 | 1 next)
//! missed  = since
//! again   =
//! ```
//! *life* grows with each start of a switch, *number* with each message to all; one to a single switch has the number of the last
//! to all before it. Who misses a number has missed news. *roster* grows when slots and route numbers change their meaning:
//! what is said in those of another roster cannot be understood.
//!
//! Numbers are varints; times are nanoseconds of the [common clock](super::common). Slots and route numbers are the
//! sender's own, which the parts of its last hello have named.

use super::common::Common;
use super::ends::{ENDS_MAX, End};
use crate::id::{NodeId, TargetId};
use crate::nodes::Demand;
use crate::policy::LearnedState;
use crate::time::Time;
use crate::wire::{Wire, WireError, put, put_bytes};
use std::sync::Arc;

/// Raised when messages change their meaning.
const VERSION: u64 = 1;
/// Bytes of a message that sets are packed into; one more set may follow, of at most [`SERVERS_MAX`] servers.
pub(super) const PACK_BYTES: usize = 48 << 10;
/// Servers of a set that is told; larger sets are not.
pub(super) const SERVERS_MAX: usize = 1_000;
/// Nodes, routes and sets that a message may have.
const COUNT_MAX: usize = 1 << 16;
const NAME_BYTES_MAX: usize = 1 << 10;

/// What is told of a gate: the route by which it is known, and its demand.
pub(super) type Gate = (u16, Demand);

/// What is said of a message itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// The sender's [common clock](super::common).
    pub(super) clock: Time,
    pub(super) life: u64,
    pub(super) number: u64,
    /// It goes to all.
    pub(super) to_all: bool,
    pub(super) roster: u64,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Who says it, and what its numbers mean.
    Hello {
        /// It has asked others for all they knew.
        whole: bool,
        /// Which part of how many, from 0.
        part: u16,
        parts: u16,
        nodes: Vec<(NodeId, String)>,
        routes: Vec<(u16, String)>,
        /// How many lives of others it takes for ended, and the last of them, the latest at the end.
        ends: u64,
        last: Vec<End>,
    },
    /// How many requests it has at nodes.
    Loads {
        /// Nodes that are not named have none.
        all: bool,
        /// Up to when, in the common clock, changes of sets were told before this.
        told: Time,
        loads: Vec<(NodeId, u32)>,
        gates: Vec<Gate>,
    },
    /// Sets that have changed there, times in the common clock.
    Sets { route: u16, sets: LearnedState },
    /// It asks for a route's sets changed since a time, from a place on; the route is by the asker's number.
    Want { question: u64, route: u16, since: Time, at: u64 },
    /// The answer; the route is by the answerer's number.
    Part { question: u64, route: u16, sets: LearnedState, next: Option<u64> },
    /// More has changed since then than it could tell.
    Missed { since: Time },
    /// It does not understand, and asks for a hello.
    Again,
}

impl Message {
    /// As bytes.
    pub(super) fn encode(&self, said: &Head) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        let mut head = |kind: u8| {
            out.push(kind);
            put(&mut out, said.clock.as_nanos());
            put(&mut out, said.life);
            put(&mut out, said.number);
            out.push(u8::from(said.to_all));
            put(&mut out, said.roster);
        };
        match self {
            Self::Hello { whole, part, parts, nodes, routes, ends, last } => {
                head(0);
                put(&mut out, VERSION);
                out.push(u8::from(*whole));
                put(&mut out, (*part).into());
                put(&mut out, (*parts).into());
                put(&mut out, nodes.len() as u64);
                for (node, name) in nodes {
                    put(&mut out, node.0.into());
                    put_bytes(&mut out, name.as_bytes());
                }
                put(&mut out, routes.len() as u64);
                for (route, name) in routes {
                    put(&mut out, (*route).into());
                    put_bytes(&mut out, name.as_bytes());
                }
                put_ends(&mut out, *ends, last);
            }
            Self::Loads { all, told, loads, gates } => {
                head(1);
                out.push(u8::from(*all));
                put(&mut out, told.as_nanos());
                put_loads(&mut out, loads, gates);
            }
            Self::Sets { route, sets } => {
                head(2);
                put(&mut out, (*route).into());
                put_sets(&mut out, sets);
            }
            Self::Want { question, route, since, at } => {
                head(3);
                put(&mut out, *question);
                put(&mut out, (*route).into());
                put(&mut out, since.as_nanos());
                put(&mut out, *at);
            }
            Self::Part { question, route, sets, next } => {
                head(4);
                put(&mut out, *question);
                put(&mut out, (*route).into());
                put_sets(&mut out, sets);
                out.push(u8::from(next.is_some()));
                next.iter().for_each(|next| put(&mut out, *next));
            }
            Self::Missed { since } => {
                head(5);
                put(&mut out, since.as_nanos());
            }
            Self::Again => head(6),
        }
        out
    }

    /// From bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Head, Self), WireError> {
        let mut wire = Wire(bytes);
        let kind = wire.byte("kind of message")?;
        let head = Head {
            clock: moment(&mut wire)?,
            life: wire.number("life")?,
            number: wire.number("number")?,
            to_all: flag(&mut wire)?,
            roster: wire.number("roster")?,
        };
        let message = match kind {
            0 => hello(&mut wire)?,
            1 => loads(&mut wire)?,
            2 => Self::Sets { route: wire.small("route")?, sets: sets(&mut wire)? },
            3 => Self::Want {
                question: wire.number("question")?,
                route: wire.small("route")?,
                since: moment(&mut wire)?,
                at: wire.number("place")?,
            },
            4 => {
                let question = wire.number("question")?;
                let (route, sets) = (wire.small("route")?, sets(&mut wire)?);
                let next = if flag(&mut wire)? { Some(wire.number("place")?) } else { None };
                Self::Part { question, route, sets, next }
            }
            5 => Self::Missed { since: moment(&mut wire)? },
            6 => Self::Again,
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok((head, message))
    }
}

/// Whether it asks for sets.
pub(super) fn is_want(bytes: &[u8]) -> bool {
    bytes.first() == Some(&3)
}

fn moment(wire: &mut Wire<'_>) -> Result<Time, WireError> {
    let value = wire.number("time")?;
    let sane = value <= Common::LAST.as_nanos();
    if sane { Ok(Time::from_nanos(value)) } else { Err(WireError::Value { what: "time", value }) }
}

fn flag(wire: &mut Wire<'_>) -> Result<bool, WireError> {
    wire.one_of(&[false, true], "flag")
}

fn name(wire: &mut Wire<'_>) -> Result<String, WireError> {
    let text = wire.text("name")?;
    if text.len() > NAME_BYTES_MAX {
        return Err(WireError::TooLong(text.len() as u64));
    }
    Ok(text.to_owned())
}

fn hello(wire: &mut Wire<'_>) -> Result<Message, WireError> {
    let version = wire.number("version")?;
    if version != VERSION {
        return Err(WireError::Value { what: "version that is spoken here", value: version });
    }
    let whole = flag(wire)?;
    let (part, parts): (u16, u16) = (wire.small("part")?, wire.small("number of parts")?);
    if part >= parts {
        return Err(WireError::Value { what: "part", value: part.into() });
    }
    let count = wire.count("number of nodes", COUNT_MAX)?;
    let nodes = (0..count).map(|_| Ok((wire.node()?, name(wire)?))).collect::<Result<_, WireError>>()?;
    let count = wire.count("number of routes", COUNT_MAX)?;
    let route = |_| Ok((wire.small("route")?, name(wire)?));
    let routes = (0..count).map(route).collect::<Result<_, WireError>>()?;
    let ends = wire.number("number of ends")?;
    let count = wire.count("number of ends", ENDS_MAX)?;
    let end = |_| {
        let name = Arc::from(name(wire)?);
        Ok(End { name, life: wire.number("life")?, since: moment(wire)? })
    };
    let last = (0..count).map(end).collect::<Result<_, WireError>>()?;
    Ok(Message::Hello { whole, part, parts, nodes, routes, ends, last })
}

fn loads(wire: &mut Wire<'_>) -> Result<Message, WireError> {
    let (all, told) = (flag(wire)?, moment(wire)?);
    let count = wire.count("number of nodes", COUNT_MAX)?;
    let load = |_| Ok((wire.node()?, wire.small("number of requests")?));
    let loads = (0..count).map(load).collect::<Result<_, WireError>>()?;
    let count = wire.count("number of gates", COUNT_MAX)?;
    let gate = |_| {
        let route = wire.small("route")?;
        let outstanding = wire.small("number of requests")?;
        Ok((route, Demand { outstanding, waiting: wire.small("number of requests")? }))
    };
    let gates = (0..count).map(gate).collect::<Result<_, WireError>>()?;
    Ok(Message::Loads { all, told, loads, gates })
}

fn put_ends(out: &mut Vec<u8>, ends: u64, last: &[End]) {
    put(out, ends);
    put(out, last.len() as u64);
    for End { name, life, since } in last {
        put_bytes(out, name.as_bytes());
        put(out, *life);
        put(out, since.as_nanos());
    }
}

fn put_loads(out: &mut Vec<u8>, loads: &[(NodeId, u32)], gates: &[Gate]) {
    put(out, loads.len() as u64);
    for (node, requests) in loads {
        put(out, node.0.into());
        put(out, (*requests).into());
    }
    put(out, gates.len() as u64);
    for (route, Demand { outstanding, waiting }) in gates {
        put(out, (*route).into());
        put(out, (*outstanding).into());
        put(out, (*waiting).into());
    }
}

fn put_sets(out: &mut Vec<u8>, sets: &LearnedState) {
    put(out, sets.len() as u64);
    for set in sets.sets() {
        out.extend_from_slice(&set.target.0.to_le_bytes());
        put(out, set.changed.as_nanos());
        put(out, u64::from(set.used) | (set.servers.len() as u64) << 1);
        set.servers.iter().for_each(|node| put(out, node.0.into()));
    }
}

fn sets(wire: &mut Wire<'_>) -> Result<LearnedState, WireError> {
    let mut sets = LearnedState::default();
    for _ in 0..wire.count("number of targets", COUNT_MAX)? {
        let target = TargetId(wire.word("target")?);
        let changed = moment(wire)?;
        let head = wire.number("number of servers")?;
        let count = usize::try_from(head >> 1).ok().filter(|count| (1..=SERVERS_MAX).contains(count));
        let count = count.ok_or(WireError::Value { what: "number of servers", value: head >> 1 })?;
        let servers = (0..count).map(|_| wire.node()).collect::<Result<Vec<NodeId>, _>>()?;
        sets.push((target, changed, head & 1 == 1), servers.into_iter());
    }
    Ok(sets)
}

/// Packs sets into as many parts as messages of [`PACK_BYTES`] need; at least one. How many sets were too large to be told
/// comes with them.
pub(super) fn packed(sets: &LearnedState) -> (Vec<LearnedState>, usize) {
    let (mut packs, mut bytes, mut too_large) = (vec![LearnedState::default()], 0, 0);
    for set in sets.sets() {
        if set.servers.len() > SERVERS_MAX {
            too_large += 1;
            continue;
        }
        // A target, a time of ten bytes, a count of three, and three bytes a server at most.
        let takes = 8 + 10 + 3 + 3 * set.servers.len();
        if bytes + takes > PACK_BYTES {
            packs.push(LearnedState::default());
            bytes = 0;
        }
        bytes += takes;
        let last = packs.len() - 1;
        packs[last].push((set.target, set.changed, set.used), set.servers.iter().copied());
    }
    (packs, too_large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memory(sets: &[(u64, u64, &[u16])]) -> LearnedState {
        let mut memory = LearnedState::default();
        for (target, changed, servers) in sets {
            let head = (TargetId(*target), Time::from_nanos(*changed), target % 2 == 0);
            memory.push(head, servers.iter().copied().map(NodeId));
        }
        memory
    }

    #[test]
    fn what_is_said_is_what_is_heard() {
        let sets = memory(&[(7, 1 << 60, &[3, 500]), (u64::MAX, 0, &[0])]);
        let demand = Demand { outstanding: 70_000, waiting: 1 };
        for message in [
            Message::Hello {
                whole: true,
                part: 1,
                parts: 2,
                nodes: vec![(NodeId(400), "a node".to_owned())],
                routes: vec![(0, "default".to_owned()), (3, "images".to_owned())],
                ends: 300,
                last: vec![End { name: Arc::from("b"), life: 1 << 40, since: Time::from_secs(9) }],
            },
            Message::Loads {
                all: true,
                told: Time::from_nanos(1 << 50),
                loads: vec![(NodeId(0), 0), (NodeId(9), u32::MAX)],
                gates: vec![(3, demand)],
            },
            Message::Sets { route: 3, sets: sets.clone() },
            Message::Want { question: 9, route: 1, since: Time::from_nanos(5), at: u64::MAX },
            Message::Part { question: 0, route: 0, sets: sets.clone(), next: None },
            Message::Part { question: 1 << 33, route: 0, sets, next: Some(1 << 40) },
            Message::Missed { since: Time::from_secs(3) },
            Message::Again,
        ] {
            let clock = Time::from_secs(77);
            let head = Head { clock, life: 1 << 50, number: 300, to_all: true, roster: 2 };
            assert_eq!(Message::decode(&message.encode(&head)), Ok((head, message)));
        }
    }

    #[test]
    fn no_message_is_too_long() {
        let longest =
            Head { clock: Common::LAST, life: u64::MAX, number: u64::MAX, to_all: true, roster: u64::MAX };
        let servers: Vec<u16> = (0..1_000).collect();
        let sets: Vec<(u64, u64, &[u16])> = (0..200).map(|i| (i, 1 << 61, &servers[..])).collect();
        let (packs, too_large) = packed(&memory(&sets));
        assert_eq!((packs.iter().map(LearnedState::len).sum::<usize>(), too_large), (200, 0));
        for sets in packs {
            assert!(Message::Sets { route: 9, sets }.encode(&longest).len() < 64 << 10);
        }
        let servers: Vec<u16> = (0..1_001).collect();
        assert_eq!(packed(&memory(&[(1, 1, &servers)])).1, 1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            crate::switches::fuzzing::fuzz_message(&bytes);
        }
    }
}
