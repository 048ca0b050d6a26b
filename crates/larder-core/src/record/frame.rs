//! The encoding of decisions, changes and the end of a record.

use super::FRAME_BYTES_MAX;
use super::sink::{ChangeRecord, DecisionRecord};
use crate::class::ServiceClass;
use crate::dispatch::{
    Arrival, CacheEvent, Cause, Change, Decision, ExcludedNodes, Refusal, Request, RequestAffinity,
};
use crate::id::{NodeId, RouteId, TargetId, Ticket};
use crate::nodes::{Groups, LoadReport, NodeSpec, NodeState, PeerSwitchState, Signal, Weight};
use crate::policy::Reason;
use crate::policy::table::{Place, RouteTable};
use crate::read_log::{ReadKind, ReadLogEntry, RouteSequence, Sequence};
use crate::snapshot::{put_learned_state, read_learned_state};
use crate::time::Time;
use crate::unit::Bytes;
use crate::wire::{Wire, WireError, put, put_bytes};
use alloc::borrow::ToOwned;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

const STATES: [NodeState; 4] = [NodeState::Up, NodeState::Draining, NodeState::Down, NodeState::Removed];

/// The reason why a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The run was over: the record is complete.
    Complete,
    /// The writer was too slow. Decisions at that moment are recorded in part, and later decisions are not recorded.
    Overrun,
    /// A decision was longer than a frame may be. The record ends as after an overrun.
    TooLong,
}

impl EndReason {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Complete, Self::Overrun, Self::TooLong];

    /// Returns the name used in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Overrun => "overrun",
            Self::TooLong => "decision_too_long",
        }
    }
}

/// One frame of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A decision.
    Decision(DecisionRecord),
    /// A change.
    Change(ChangeRecord),
    /// The end, and the number of frames before it.
    End(EndReason, u64),
}

impl Frame {
    /// Encodes the frame, preceded by its length.
    ///
    /// # Errors
    /// The frame is longer than [`FRAME_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut body = Vec::with_capacity(64);
        match self {
            Self::Decision(decided) => put_decision(&mut body, decided),
            Self::Change(changed) => put_change(&mut body, changed),
            Self::End(end, frames) => {
                body.extend([2, *end as u8]);
                put(&mut body, *frames);
            }
        }
        if body.len() > FRAME_BYTES_MAX {
            return Err(WireError::TooLong(body.len() as u64));
        }
        let mut frame = Vec::with_capacity(body.len() + 4);
        put_bytes(&mut frame, &body);
        Ok(frame)
    }

    /// Decodes a frame without the length before it.
    ///
    /// # Errors
    /// The bytes are not a frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut wire = Wire(bytes);
        let frame = match wire.byte("kind of frame")? {
            0 => Self::Decision(read_decision(&mut wire)?),
            1 => Self::Change(read_change(&mut wire)?),
            2 => Self::End(wire.one_of(&EndReason::ALL, "end")?, wire.number("number of frames")?),
            kind => return Err(WireError::Value { what: "kind of frame", value: kind.into() }),
        };
        wire.end()?;
        Ok(frame)
    }
}

fn put_decision(out: &mut Vec<u8>, decided: &DecisionRecord) {
    out.push(0);
    put(out, decided.generation);
    put(out, decided.at.as_nanos());
    match decided.cause {
        Cause::Arrive => out.push(0),
        Cause::Retry(node) => {
            out.push(1);
            put(out, node.0.into());
        }
        Cause::Admit(ticket, deadline) => {
            out.push(2);
            put(out, ticket.0);
            put(out, deadline.as_nanos());
        }
        Cause::Reuse(node) => {
            out.push(3);
            put(out, node.0.into());
        }
    }
    put_request(out, &decided.request);
    put_read_log(out, &decided.read_log);
    match decided.outcome {
        Arrival::Start(Decision { node, reason }) => {
            out.push(0);
            put(out, node.0.into());
            out.push(index_of(&Reason::ALL, reason));
        }
        Arrival::Wait(ticket) => {
            out.push(1);
            put(out, ticket.0);
        }
        Arrival::Refused(refusal) => out.extend([2, index_of(&Refusal::ALL, refusal)]),
    }
}

fn read_decision(wire: &mut Wire<'_>) -> Result<DecisionRecord, WireError> {
    let generation = wire.number("generation")?;
    let at = Time::from_nanos(wire.number("time")?);
    let cause = match wire.byte("cause")? {
        0 => Cause::Arrive,
        1 => Cause::Retry(wire.node()?),
        2 => Cause::Admit(Ticket(wire.number("ticket")?), Time::from_nanos(wire.number("deadline")?)),
        3 => Cause::Reuse(wire.node()?),
        cause => return Err(WireError::Value { what: "cause", value: cause.into() }),
    };
    let request = read_request(wire)?;
    let read_log = decode_read_log(wire)?;
    let outcome = match wire.byte("outcome")? {
        0 => Arrival::Start(Decision { node: wire.node()?, reason: wire.one_of(&Reason::ALL, "reason")? }),
        1 => Arrival::Wait(Ticket(wire.number("ticket")?)),
        2 => Arrival::Refused(wire.one_of(&Refusal::ALL, "refusal")?),
        outcome => return Err(WireError::Value { what: "outcome", value: outcome.into() }),
    };
    Ok(DecisionRecord { generation, at, cause, request, read_log, outcome })
}

/// The number of values for each kind of affinity: the number of possible nodes.
const AFFINITY_NODES: u64 = 1 << 16;

/// Returns the code of an affinity. 0 is none; origins come first, as in records from before there were others.
fn affinity_number(affinity: RequestAffinity) -> u64 {
    let (kind, node) = match affinity {
        RequestAffinity::None => return 0,
        RequestAffinity::Origin(node) => (0, node),
        RequestAffinity::Sticky(node) => (1, node),
        RequestAffinity::Expired(node) => (2, node),
        RequestAffinity::Placed(node) => (3, node),
    };
    kind * AFFINITY_NODES + u64::from(node.0) + 1
}

fn put_request(out: &mut Vec<u8>, request: &Request) {
    out.extend(request.target.0.to_le_bytes());
    out.push(index_of(&ServiceClass::ALL, request.class));
    put(out, request.route.0.into());
    put(out, affinity_number(request.affinity));
    out.push(request.lasting.into());
    put(out, request.exclude.nodes().count() as u64);
    // The earliest node comes first, in the order in which they were added.
    request.exclude.nodes().rev().for_each(|node| put(out, node.0.into()));
}

fn read_request(wire: &mut Wire<'_>) -> Result<Request, WireError> {
    let target = TargetId(wire.word("target")?);
    let class = wire.one_of(&ServiceClass::ALL, "service class")?;
    let route = RouteId(wire.small("route")?);
    let affinity = match wire.number("tie")? {
        0 => RequestAffinity::None,
        number => {
            let node = NodeId(u16::try_from((number - 1) % AFFINITY_NODES).unwrap_or(u16::MAX));
            match (number - 1) / AFFINITY_NODES {
                0 => RequestAffinity::Origin(node),
                1 => RequestAffinity::Sticky(node),
                2 => RequestAffinity::Expired(node),
                3 => RequestAffinity::Placed(node),
                _ => return Err(WireError::Value { what: "tie", value: number }),
            }
        }
    };
    let lasting = wire.one_of(&[false, true], "lasting")?;
    let mut exclude = ExcludedNodes::NONE;
    let excluded = wire.number("number of excluded nodes")?;
    if excluded > ExcludedNodes::MAX as u64 {
        return Err(WireError::Value { what: "number of excluded nodes", value: excluded });
    }
    for _ in 0..excluded {
        exclude = exclude.with(wire.node()?);
    }
    Ok(Request { target, exclude, affinity, class, route, lasting })
}

/// The first code of visits; the codes of reads are below it.
const VISITS: u8 = 0x40;

fn put_read_log(out: &mut Vec<u8>, read_log: &[ReadLogEntry]) {
    put(out, read_log.len() as u64);
    for entry in read_log {
        match *entry {
            ReadLogEntry::Read(read, value) => {
                out.push(read.code());
                put(out, value);
            }
            ReadLogEntry::Visit(track, at) => {
                put_sequence(out, track);
                put(out, at);
            }
        }
    }
}

fn decode_read_log(wire: &mut Wire<'_>) -> Result<Vec<ReadLogEntry>, WireError> {
    let entries = wire.number("length of the tape")?;
    // An entry has at least two bytes.
    if entries > wire.0.len() as u64 / 2 {
        return Err(WireError::Value { what: "length of the tape", value: entries });
    }
    let entry = |_| {
        let code = wire.byte("tape entry")?;
        if code >= VISITS {
            return Ok(ReadLogEntry::Visit(read_sequence(wire, code)?, wire.number("visit")?));
        }
        let read = ReadKind::ALL.get(usize::from(code));
        let read = read.ok_or(WireError::Value { what: "tape entry", value: code.into() })?;
        Ok(ReadLogEntry::Read(*read, wire.number("value read")?))
    };
    (0..entries).map(entry).collect()
}

/// The flag of a visit on a route other than the default route; the route follows.
const ROUTED: u8 = 0x20;

fn put_sequence(out: &mut Vec<u8>, track: RouteSequence) {
    let (code, index) = match track.sequence {
        Sequence::Turn => (VISITS, None),
        Sequence::Lots => (VISITS + 1, None),
        Sequence::Joiners => (VISITS + 2, None),
        Sequence::Shard(index) => (VISITS + 3, Some(index)),
        Sequence::Own(index) => (VISITS + 4, Some(index)),
    };
    if track.route == RouteId::DEFAULT {
        out.push(code);
    } else {
        out.push(code | ROUTED);
        put(out, track.route.0.into());
    }
    index.into_iter().for_each(|index| put(out, index.into()));
}

fn read_sequence(wire: &mut Wire<'_>, code: u8) -> Result<RouteSequence, WireError> {
    let route = if code & ROUTED == 0 { RouteId::DEFAULT } else { RouteId(wire.small("route")?) };
    let sequence = match code & !ROUTED {
        VISITS => Sequence::Turn,
        0x41 => Sequence::Lots,
        0x42 => Sequence::Joiners,
        0x43 => Sequence::Shard(wire.small("shard")?),
        0x44 => Sequence::Own(wire.small("lane")?),
        _ => return Err(WireError::Value { what: "tape entry", value: code.into() }),
    };
    Ok(RouteSequence { route, sequence })
}

fn put_change(out: &mut Vec<u8>, changed: &ChangeRecord) {
    out.push(1);
    put(out, changed.generation);
    put(out, changed.at.as_nanos());
    match &changed.change {
        Change::Join(spec) => {
            out.push(0);
            put_spec(out, spec);
        }
        Change::State(node, state) => {
            out.push(1);
            put(out, node.0.into());
            out.push(index_of(&STATES, *state));
        }
        Change::Reweigh(node, weight) => {
            out.push(2);
            put(out, node.0.into());
            put(out, weight.milli().into());
        }
        Change::Report(node, report) => {
            out.push(3);
            put(out, node.0.into());
            put_report(out, report);
        }
        Change::Cache(node, target, event) => {
            out.push(4);
            put(out, node.0.into());
            out.extend(target.0.to_le_bytes());
            out.push(match event {
                CacheEvent::Stored => 0,
                CacheEvent::Evicted => 1,
                CacheEvent::Gone => 2,
            });
        }
        Change::Table(route, table) => {
            out.push(5);
            put(out, route.0.into());
            put_table(out, table);
        }
        Change::PeerSwitches(peer_switches) => {
            out.push(6);
            put_peer_switches(out, peer_switches);
        }
        Change::Sets(route, sets) => {
            out.push(7);
            put(out, route.0.into());
            put_learned_state(out, sets);
        }
        Change::LongLived(node, requests) => {
            out.push(8);
            put(out, node.0.into());
            put(out, (*requests).into());
        }
        Change::Backup(node, backup) => {
            out.push(9);
            put(out, node.0.into());
            out.push((*backup).into());
        }
    }
    put_read_log(out, &changed.read_log);
    put(out, changed.node.0.into());
}

fn read_change(wire: &mut Wire<'_>) -> Result<ChangeRecord, WireError> {
    let generation = wire.number("generation")?;
    let at = Time::from_nanos(wire.number("time")?);
    let change = match wire.byte("change")? {
        0 => Change::Join(read_spec(wire)?),
        1 => Change::State(wire.node()?, wire.one_of(&STATES, "state")?),
        2 => Change::Reweigh(wire.node()?, read_weight(wire)?),
        3 => {
            let node = wire.node()?;
            Change::Report(node, read_report(wire)?)
        }
        4 => {
            let (node, target) = (wire.node()?, TargetId(wire.word("target")?));
            let event =
                wire.one_of(&[CacheEvent::Stored, CacheEvent::Evicted, CacheEvent::Gone], "cache event")?;
            Change::Cache(node, target, event)
        }
        5 => Change::Table(RouteId(wire.small("route")?), Arc::new(read_table(wire)?)),
        6 => Change::PeerSwitches(Arc::new(read_peer_switches(wire)?)),
        7 => Change::Sets(RouteId(wire.small("route")?), Arc::new(read_learned_state(wire)?)),
        8 => Change::LongLived(wire.node()?, wire.small("long-lived requests")?),
        9 => Change::Backup(wire.node()?, wire.one_of(&[false, true], "backup")?),
        change => return Err(WireError::Value { what: "change", value: change.into() }),
    };
    Ok(ChangeRecord { generation, at, change, read_log: decode_read_log(wire)?, node: wire.node()? })
}

/// Encodes the state of the other switches: their number, their requests by slot, and the load difference that
/// counts as equal. Their admitted requests concern only the admission queues, whose answers are in the read log.
fn put_peer_switches(out: &mut Vec<u8>, peer_switches: &PeerSwitchState) {
    put(out, peer_switches.switches.into());
    put(out, peer_switches.equal_within.into());
    put(out, u64::try_from(peer_switches.clock_offset.as_nanos()).unwrap_or(u64::MAX));
    put(out, peer_switches.requests.len() as u64);
    peer_switches.requests.iter().for_each(|requests| put(out, (*requests).into()));
}

fn read_peer_switches(wire: &mut Wire<'_>) -> Result<PeerSwitchState, WireError> {
    let (switches, equal_within) = (wire.small("number of switches")?, wire.small("number of connections")?);
    let clock_offset = Duration::from_nanos(wire.number("time")?);
    let nodes = wire.count("number of nodes", usize::from(u16::MAX))?;
    let requests = (0..nodes).map(|_| wire.small("number of requests")).collect::<Result<_, _>>()?;
    Ok(PeerSwitchState { switches, requests, equal_within, clock_offset, admitted: Vec::new() })
}

/// Encodes a routing table: its nodes, the number of targets, and each target's distance from the previous one with
/// its place: 0 for the core, else the node's number plus 1.
pub(super) fn put_table(out: &mut Vec<u8>, table: &RouteTable) {
    put(out, table.nodes().into());
    put(out, table.len() as u64);
    let mut before = 0;
    for (target, place) in table.iter() {
        put(out, target.0 - before);
        before = target.0;
        put(out, place.owner().map_or(0, |node| u64::from(node.0) + 1));
    }
}

pub(super) fn read_table(wire: &mut Wire<'_>) -> Result<RouteTable, WireError> {
    let nodes = wire.small("number of the table's nodes")?;
    let count = wire.number("number of targets")?;
    // A target has at least two bytes.
    if count > wire.0.len() as u64 / 2 {
        return Err(WireError::Value { what: "number of targets", value: count });
    }
    let mut target = 0_u64;
    let place = |_| {
        let step = wire.number("target")?;
        target = target.checked_add(step).ok_or(WireError::Value { what: "target", value: step })?;
        let place = match wire.number("place")? {
            0 => Place::Core,
            node => Place::Node(
                u16::try_from(node - 1).map_err(|_| WireError::Value { what: "place", value: node })?,
            ),
        };
        Ok((TargetId(target), place))
    };
    let places = (0..count).map(place).collect::<Result<Vec<_>, WireError>>()?;
    RouteTable::new(nodes, places).map_err(|_| WireError::Value { what: "routing table", value: count })
}

/// Encodes a report: a bit for each number that is known, then those numbers.
fn put_report(out: &mut Vec<u8>, report: &LoadReport) {
    let wide = |value: Option<u32>| value.map(u64::from);
    let share = |value: Option<u16>| value.map(u64::from);
    let LoadReport { cpu_permille, disk_permille, memory_permille, processes, service_us, .. } = *report;
    let LoadReport { disk_bytes_per_s, paging_per_s, queue, app, .. } = *report;
    let first = [share(cpu_permille), share(disk_permille), share(memory_permille), wide(processes)];
    let second = [wide(service_us), disk_bytes_per_s, wide(paging_per_s), wide(queue)];
    let values = || first.into_iter().chain(second).chain(app.map(wide));
    put(out, values().rev().fold(0, |bits, value| bits << 1 | u64::from(value.is_some())));
    values().flatten().for_each(|value| put(out, value));
}

fn read_report(wire: &mut Wire<'_>) -> Result<LoadReport, WireError> {
    /// Reads the next number if its bit is set.
    fn next<T: TryFrom<u64>>(wire: &mut Wire<'_>, bits: &mut u64) -> Result<Option<T>, WireError> {
        let there = *bits & 1 == 1;
        *bits >>= 1;
        there.then(|| wire.small("reported number")).transpose()
    }
    let mut bits = wire.number("reported numbers")?;
    if bits >> Signal::ALL.len() > 0 {
        return Err(WireError::Value { what: "set of reported numbers", value: bits });
    }
    let mut report = LoadReport {
        cpu_permille: next(wire, &mut bits)?,
        disk_permille: next(wire, &mut bits)?,
        memory_permille: next(wire, &mut bits)?,
        processes: next(wire, &mut bits)?,
        service_us: next(wire, &mut bits)?,
        disk_bytes_per_s: next(wire, &mut bits)?,
        paging_per_s: next(wire, &mut bits)?,
        queue: next(wire, &mut bits)?,
        ..LoadReport::default()
    };
    for value in &mut report.app {
        *value = next(wire, &mut bits)?;
    }
    Ok(report)
}

pub(super) fn put_spec(out: &mut Vec<u8>, spec: &NodeSpec) {
    put_bytes(out, spec.name.as_bytes());
    put(out, spec.weight.milli().into());
    put(out, spec.cache.get());
    put(out, spec.groups.bits());
    out.push(spec.backup.into());
}

pub(super) fn read_spec(wire: &mut Wire<'_>) -> Result<NodeSpec, WireError> {
    let name = wire.text("node name")?.to_owned();
    Ok(NodeSpec {
        name,
        weight: read_weight(wire)?,
        cache: Bytes(wire.number("cache size")?),
        groups: Groups::from_bits(wire.number("groups")?),
        backup: wire.one_of(&[false, true], "backup")?,
    })
}

fn read_weight(wire: &mut Wire<'_>) -> Result<Weight, WireError> {
    let milli: u32 = wire.small("weight")?;
    Weight::from_milli(milli).ok_or(WireError::Value { what: "weight", value: milli.into() })
}

/// Returns the index of a value in its list. No list has more values than fit in a byte.
fn index_of<T: PartialEq + Copy>(all: &[T], value: T) -> u8 {
    let at = all.iter().position(|other| *other == value).unwrap_or(all.len());
    u8::try_from(at).unwrap_or(u8::MAX)
}
