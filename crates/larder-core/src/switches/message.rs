//! The messages between switches, and their encoding.
//!
//! ```text
//! message = kind:u8 clock incarnation number:varint to_all:u8 roster rest
//! hello   = version whole:u8 part parts count(nodes) (slot name)* count(routes) (id name)* ends count(ends) (name incarnation since)*
//! loads   = all:u8 sent_until count (slot requests)* count (route outstanding waiting)*
//! sets    = route count set*                          set = target:8 bytes changed used|servers<<1 slot*
//! want    = question route since at
//! part    = question route count set* (0 | 1 next)
//! missed  = since
//! again   =
//! placements = route runs                             runs = count (slot (0 | 1 parent) count (block tokens)*)*
//! work    = route has credits:u8 all:u8 count (slot requests waiting prefill)*
//! want credits = question route slot (0 | 1 after)
//! credits = question runs (0 | 1 | 2 next)
//! ```
//!
//! *incarnation* is the sender's; it increases with each start. *number* increases with each message to all switches; a
//! message to a single switch has the number of the last message to all before it. A receiver that misses a number has missed
//! changes. *roster* increases when slots and route numbers change their meaning: a receiver cannot understand a message of a
//! roster that it does not have.
//!
//! Numbers are varints; times are nanoseconds of the [shared clock](super::shared_clock). Slots and route numbers are the sender's own,
//! which the parts of its last hello define.

use super::ends::{ENDS_MAX, IncarnationEnd};
use super::shared_clock::SharedClock;
use crate::cache::BlockRun;
use crate::chain::NodeWork;
use crate::chain::wire::{put_runs, read_runs};
use crate::id::{NodeId, TargetId};
use crate::nodes::Demand;
use crate::policy::LearnedState;
use crate::time::Time;
use crate::wire::{Wire, WireError, put, put_bytes};
use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

/// The version of the protocol, increased when messages change their meaning.
const VERSION: u64 = 2;
/// The size of a message into which sets are packed, in bytes. One more set may follow, of at most [`SERVERS_MAX`]
/// servers.
pub(super) const PACK_BYTES: usize = 48 << 10;
/// The largest number of servers of a set that is sent; larger sets are not sent.
pub(super) const SERVERS_MAX: usize = 1_000;
/// The largest number of nodes, routes and sets in a message.
const COUNT_MAX: usize = 1 << 16;
const NAME_BYTES_MAX: usize = 1 << 10;

/// The demand of a group of nodes, which is identified by its first route.
pub(super) type GroupDemand = (u16, Demand);

/// The header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageHeader {
    /// The sender's [shared clock](super::shared_clock).
    pub(super) clock: Time,
    pub(super) incarnation: u64,
    pub(super) number: u64,
    /// Whether the message goes to all switches.
    pub(super) to_all: bool,
    pub(super) roster: u64,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Introduces the sender, and defines its slots and route numbers.
    Hello {
        /// Whether the sender has received the full state of the others.
        is_complete: bool,
        /// The index of this part, from 0, and the number of parts.
        part: u16,
        parts: u16,
        nodes: Vec<(NodeId, String)>,
        routes: Vec<(u16, String)>,
        /// The number of incarnations of other switches that the sender considers ended, and the last of them, the
        /// latest at the end.
        ends: u64,
        last: Vec<IncarnationEnd>,
    },
    /// The number of the sender's requests at nodes.
    Loads {
        /// Whether nodes that are not listed have none.
        all: bool,
        /// The time of the shared clock up to which changes of sets were sent before this message.
        sent_until: Time,
        loads: Vec<(NodeId, u32)>,
        demands: Vec<GroupDemand>,
    },
    /// Sets that have changed at the sender, with times of the shared clock.
    Sets { route: u16, sets: LearnedState },
    /// Asks for a route's sets received since a time, from a position on. The route has the asking switch's number.
    Want { question: u64, route: u16, since: Time, at: u64 },
    /// The answer to `Want`; the route has the answering switch's number.
    Part { question: u64, route: u16, sets: LearnedState, next: Option<u64> },
    /// More sets have changed since this time than the sender could send.
    Missed { since: Time },
    /// Asks for a hello, because the sender did not understand a message.
    Again,
    /// Prompts that the sender has placed.
    Placements { route: u16, runs: Vec<(NodeId, BlockRun)> },
    /// The outstanding work of the sender's prompts.
    ChainWork {
        route: u16,
        /// Whether the sender has read the credits of another switch, or there was none.
        has_credits: bool,
        /// Whether nodes that are not listed have none.
        all: bool,
        work: Vec<(NodeId, NodeWork)>,
    },
    /// Asks for the credits of a node that were used after a stamp. The route and the node have the asking switch's
    /// numbers.
    WantCredits { question: u64, route: u16, node: NodeId, after: Option<u32> },
    /// An answer to `WantCredits`, or a part of one. The nodes are those of the question.
    Credits { question: u64, runs: Vec<(NodeId, BlockRun)>, end: PageEnd },
}

/// The end of a part of a page of credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageEnd {
    /// More of this page follows.
    More,
    /// The last page ends.
    Last,
    /// The page ends; the next one begins after this stamp.
    Next(u32),
}

impl Message {
    /// Encodes the message.
    pub(super) fn encode(&self, header: &MessageHeader) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.push(self.kind());
        put(&mut out, header.clock.as_nanos());
        put(&mut out, header.incarnation);
        put(&mut out, header.number);
        out.push(u8::from(header.to_all));
        put(&mut out, header.roster);
        match self {
            Self::Hello { is_complete, part, parts, nodes, routes, ends, last } => {
                put(&mut out, VERSION);
                out.push(u8::from(*is_complete));
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
            Self::Loads { all, sent_until, loads, demands } => {
                out.push(u8::from(*all));
                put(&mut out, sent_until.as_nanos());
                put_loads(&mut out, loads, demands);
            }
            Self::Sets { route, sets } => {
                put(&mut out, (*route).into());
                put_sets(&mut out, sets);
            }
            Self::Want { question, route, since, at } => {
                put(&mut out, *question);
                put(&mut out, (*route).into());
                put(&mut out, since.as_nanos());
                put(&mut out, *at);
            }
            Self::Part { question, route, sets, next } => {
                put(&mut out, *question);
                put(&mut out, (*route).into());
                put_sets(&mut out, sets);
                out.push(u8::from(next.is_some()));
                next.iter().for_each(|next| put(&mut out, *next));
            }
            Self::Missed { since } => {
                put(&mut out, since.as_nanos());
            }
            Self::Again => {}
            Self::Placements { .. }
            | Self::ChainWork { .. }
            | Self::WantCredits { .. }
            | Self::Credits { .. } => self.put_chain_body(&mut out),
        }
        out
    }

    /// Appends what a message about chains has after its header.
    fn put_chain_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Placements { route, runs } => {
                put(out, (*route).into());
                put_runs(out, runs);
            }
            Self::ChainWork { route, has_credits, all, work } => {
                put(out, (*route).into());
                out.push(u8::from(*has_credits));
                out.push(u8::from(*all));
                put(out, work.len() as u64);
                for (node, NodeWork { requests, waiting, prefill }) in work {
                    let numbers = [node.0.into(), (*requests).into(), (*waiting).into(), *prefill];
                    numbers.into_iter().for_each(|number| put(out, number));
                }
            }
            Self::WantCredits { question, route, node, after } => {
                put(out, *question);
                put(out, (*route).into());
                put(out, node.0.into());
                out.push(u8::from(after.is_some()));
                after.iter().for_each(|after| put(out, (*after).into()));
            }
            Self::Credits { question, runs, end } => {
                put(out, *question);
                put_runs(out, runs);
                match end {
                    PageEnd::More => out.push(0),
                    PageEnd::Last => out.push(1),
                    PageEnd::Next(stamp) => {
                        out.push(2);
                        put(out, (*stamp).into());
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns the first byte of the encoding.
    const fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 0,
            Self::Loads { .. } => 1,
            Self::Sets { .. } => 2,
            Self::Want { .. } => 3,
            Self::Part { .. } => 4,
            Self::Missed { .. } => 5,
            Self::Again => 6,
            Self::Placements { .. } => 7,
            Self::ChainWork { .. } => 8,
            Self::WantCredits { .. } => 9,
            Self::Credits { .. } => 10,
        }
    }

    /// Decodes a message.
    pub(super) fn decode(bytes: &[u8]) -> Result<(MessageHeader, Self), WireError> {
        let mut wire = Wire(bytes);
        let kind = wire.byte("kind of message")?;
        let head = MessageHeader {
            clock: moment(&mut wire)?,
            incarnation: wire.number("life")?,
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
            7 => Self::Placements { route: wire.small("route")?, runs: read_runs(&mut wire, COUNT_MAX)? },
            8 => chain_work(&mut wire)?,
            9 => Self::WantCredits {
                question: wire.number("question")?,
                route: wire.small("route")?,
                node: wire.node()?,
                after: if flag(&mut wire)? { Some(wire.small("stamp")?) } else { None },
            },
            10 => {
                let (question, runs) = (wire.number("question")?, read_runs(&mut wire, COUNT_MAX)?);
                let end = match wire.byte("end of a page")? {
                    0 => PageEnd::More,
                    1 => PageEnd::Last,
                    2 => PageEnd::Next(wire.small("stamp")?),
                    value => return Err(WireError::Value { what: "end of a page", value: value.into() }),
                };
                Self::Credits { question, runs, end }
            }
            kind => return Err(WireError::Value { what: "kind of message", value: kind.into() }),
        };
        wire.end()?;
        Ok((head, message))
    }
}

/// Returns whether the message asks for sets.
pub(super) fn is_set_request(bytes: &[u8]) -> bool {
    bytes.first() == Some(&3)
}

fn moment(wire: &mut Wire<'_>) -> Result<Time, WireError> {
    let value = wire.number("time")?;
    let sane = value <= SharedClock::LAST.as_nanos();
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
    let is_complete = flag(wire)?;
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
        Ok(IncarnationEnd { name, incarnation: wire.number("life")?, since: moment(wire)? })
    };
    let last = (0..count).map(end).collect::<Result<_, WireError>>()?;
    Ok(Message::Hello { is_complete, part, parts, nodes, routes, ends, last })
}

fn loads(wire: &mut Wire<'_>) -> Result<Message, WireError> {
    let (all, sent_until) = (flag(wire)?, moment(wire)?);
    let count = wire.count("number of nodes", COUNT_MAX)?;
    let load = |_| Ok((wire.node()?, wire.small("number of requests")?));
    let loads = (0..count).map(load).collect::<Result<_, WireError>>()?;
    let count = wire.count("number of gates", COUNT_MAX)?;
    let demand = |_| {
        let route = wire.small("route")?;
        let outstanding = wire.small("number of requests")?;
        Ok((route, Demand { outstanding, waiting: wire.small("number of requests")? }))
    };
    let demands = (0..count).map(demand).collect::<Result<_, WireError>>()?;
    Ok(Message::Loads { all, sent_until, loads, demands })
}

fn put_ends(out: &mut Vec<u8>, ends: u64, last: &[IncarnationEnd]) {
    put(out, ends);
    put(out, last.len() as u64);
    for IncarnationEnd { name, incarnation, since } in last {
        put_bytes(out, name.as_bytes());
        put(out, *incarnation);
        put(out, since.as_nanos());
    }
}

fn put_loads(out: &mut Vec<u8>, loads: &[(NodeId, u32)], demands: &[GroupDemand]) {
    put(out, loads.len() as u64);
    for (node, requests) in loads {
        put(out, node.0.into());
        put(out, (*requests).into());
    }
    put(out, demands.len() as u64);
    for (route, Demand { outstanding, waiting }) in demands {
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

/// Packs sets into as many parts as messages of [`PACK_BYTES`] require, at least one. Returns the parts, and the
/// number of sets that were too large to be sent.
pub(super) fn pack_sets(sets: &LearnedState) -> (Vec<LearnedState>, usize) {
    let (mut packs, mut bytes, mut too_large) = (vec![LearnedState::default()], 0, 0);
    for set in sets.sets() {
        if set.servers.len() > SERVERS_MAX {
            too_large += 1;
            continue;
        }
        // A target, a time of ten bytes, a count of three, and at most three bytes per server.
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

fn chain_work(wire: &mut Wire<'_>) -> Result<Message, WireError> {
    let (route, has_credits, all) = (wire.small("route")?, flag(wire)?, flag(wire)?);
    let count = wire.count("number of nodes", COUNT_MAX)?;
    let work = |_| {
        let (node, requests) = (wire.node()?, wire.small("number of requests")?);
        let (waiting, prefill) = (wire.small("number of requests")?, wire.number("number of tokens")?);
        Ok((node, NodeWork { requests, waiting, prefill }))
    };
    let work = (0..count).map(work).collect::<Result<_, WireError>>()?;
    Ok(Message::ChainWork { route, has_credits, all, work })
}

/// Packs runs into as many parts as messages of [`PACK_BYTES`] require. Long runs are divided.
pub(super) fn pack_runs(runs: impl IntoIterator<Item = (NodeId, BlockRun)>) -> Vec<Vec<(NodeId, BlockRun)>> {
    // A slot of three bytes, a parent, a count, and a block with a number of tokens of at most five bytes.
    const HEAD_BYTES: usize = 3 + 9 + 3;
    const BLOCK_BYTES: usize = 8 + 5;
    const BLOCKS_MAX: usize = PACK_BYTES / 2 / BLOCK_BYTES;
    let (mut packs, mut bytes) = (Vec::<Vec<_>>::new(), 0);
    for (node, BlockRun { mut parent, blocks }) in runs {
        for blocks in blocks.chunks(BLOCKS_MAX) {
            let takes = HEAD_BYTES + BLOCK_BYTES * blocks.len();
            if packs.is_empty() || bytes + takes > PACK_BYTES {
                packs.push(Vec::new());
                bytes = 0;
            }
            bytes += takes;
            let run = BlockRun { parent, blocks: blocks.to_vec() };
            parent = blocks.last().map(|block| block.id);
            if let Some(pack) = packs.last_mut() {
                pack.push((node, run));
            }
        }
    }
    packs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Block;
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
    fn messages_round_trip() {
        let sets = memory(&[(7, 1 << 60, &[3, 500]), (u64::MAX, 0, &[0])]);
        let demand = Demand { outstanding: 70_000, waiting: 1 };
        let block = |id, tokens| Block { id: TargetId(id), tokens };
        let runs = vec![
            (NodeId(9), BlockRun { parent: None, blocks: vec![block(u64::MAX, 0), block(1, u32::MAX)] }),
            (NodeId(0), BlockRun { parent: Some(TargetId(1)), blocks: Vec::new() }),
        ];
        for message in [
            Message::Hello {
                is_complete: true,
                part: 1,
                parts: 2,
                nodes: vec![(NodeId(400), "a node".to_owned())],
                routes: vec![(0, "default".to_owned()), (3, "images".to_owned())],
                ends: 300,
                last: vec![IncarnationEnd {
                    name: Arc::from("b"),
                    incarnation: 1 << 40,
                    since: Time::from_secs(9),
                }],
            },
            Message::Loads {
                all: true,
                sent_until: Time::from_nanos(1 << 50),
                loads: vec![(NodeId(0), 0), (NodeId(9), u32::MAX)],
                demands: vec![(3, demand)],
            },
            Message::Sets { route: 3, sets: sets.clone() },
            Message::Want { question: 9, route: 1, since: Time::from_nanos(5), at: u64::MAX },
            Message::Part { question: 0, route: 0, sets: sets.clone(), next: None },
            Message::Part { question: 1 << 33, route: 0, sets, next: Some(1 << 40) },
            Message::Missed { since: Time::from_secs(3) },
            Message::Again,
            Message::Placements { route: 1, runs: runs.clone() },
            Message::ChainWork {
                route: 2,
                has_credits: true,
                all: false,
                work: vec![(NodeId(3), NodeWork { requests: 4, waiting: u32::MAX, prefill: u64::MAX })],
            },
            Message::WantCredits { question: 5, route: 6, node: NodeId(7), after: Some(u32::MAX) },
            Message::WantCredits { question: 5, route: 6, node: NodeId(7), after: None },
            Message::Credits { question: 8, runs: runs.clone(), end: PageEnd::More },
            Message::Credits { question: 8, runs: Vec::new(), end: PageEnd::Last },
            Message::Credits { question: 8, runs, end: PageEnd::Next(9) },
        ] {
            let clock = Time::from_secs(77);
            let head = MessageHeader { clock, incarnation: 1 << 50, number: 300, to_all: true, roster: 2 };
            assert_eq!(Message::decode(&message.encode(&head)), Ok((head, message)));
        }
    }

    #[test]
    fn messages_stay_within_the_size_limit() {
        let longest = MessageHeader {
            clock: SharedClock::LAST,
            incarnation: u64::MAX,
            number: u64::MAX,
            to_all: true,
            roster: u64::MAX,
        };
        let servers: Vec<u16> = (0..1_000).collect();
        let sets: Vec<(u64, u64, &[u16])> = (0..200).map(|i| (i, 1 << 61, &servers[..])).collect();
        let (packs, too_large) = pack_sets(&memory(&sets));
        assert_eq!((packs.iter().map(LearnedState::len).sum::<usize>(), too_large), (200, 0));
        let most = NodeWork { requests: u32::MAX, waiting: u32::MAX, prefill: u64::MAX };
        let work = (60_000..62_000).map(|node| (NodeId(node), most)).collect();
        let work = Message::ChainWork { route: u16::MAX, has_credits: true, all: true, work };
        assert!(work.encode(&longest).len() < 64 << 10);
        for sets in packs {
            assert!(Message::Sets { route: 9, sets }.encode(&longest).len() < 64 << 10);
        }
        let servers: Vec<u16> = (0..1_001).collect();
        assert_eq!(pack_sets(&memory(&[(1, 1, &servers)])).1, 1);
    }

    #[test]
    fn long_prompts_are_divided_and_stay_below_their_parents() {
        let block = |id| Block { id: TargetId(id), tokens: u32::MAX };
        let run =
            |first, count| BlockRun { parent: None, blocks: (first..first + count).map(block).collect() };
        let packs = pack_runs([(NodeId(0), run(0, 30_000)), (NodeId(1), run(90_000, 3))]);
        let mut last = None;
        for (node, run) in packs.iter().flatten() {
            let first = run.blocks.first().expect("a run has blocks").id.0;
            let parent = (first % 90_000 != 0).then(|| TargetId(first - 1));
            assert_eq!((run.parent, *node), (parent, NodeId(u16::from(first >= 90_000))));
            last = run.blocks.last().map(|block| block.id.0);
        }
        assert_eq!(last, Some(90_002));
        assert_eq!(packs.iter().flatten().map(|(_, run)| run.blocks.len()).sum::<usize>(), 30_003);
        for runs in packs {
            let message = Message::Placements { route: u16::MAX, runs };
            assert!(message.encode(&MessageHeader::default()).len() < 50 << 10);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            crate::switches::fuzzing::fuzz_message(&bytes);
        }
    }
}
