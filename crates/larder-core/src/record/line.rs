//! The decision log: one line per decision or change, with seven fields separated by spaces.
//!
//! ```text
//! generation lane place time_ns target node reason
//! 0 shard17 204 1503288110 9f3c51d6a7702e14 3 local
//! 0 - - 1503290004 6b0c9a1e55d1f902 - wait:12
//! 1 - - 1503300000 - 3 down
//! ```
//!
//! `lane` and `place` (`route2.shard17` on a route other than the default route) are the decision's first visit to a
//! [sequence](crate::read_log::Sequence), and its position; `-` if there was none. If a decision chose no node, its reason is
//! `wait:` and the ticket, or the refusal. The reason of a change is the kind of change.

use crate::dispatch::{Arrival, CacheEvent, Change};
use crate::id::{NodeId, TargetId};
use crate::read_log::{ReadLogEntry, RouteSequence};
use crate::time::Time;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::string::ToString;
use core::fmt::Write as _;

/// Appends the line of a decision. `first` is its first visit.
pub fn write_decision_line(
    out: &mut String,
    generation: u64,
    first: Option<(RouteSequence, u64)>,
    at: Time,
    target: TargetId,
    outcome: Arrival,
) {
    let ns = at.as_nanos();
    // Writing to a string does not fail.
    let _ = match first {
        Some((sequence, place)) => write!(out, "{generation} {sequence} {place} {ns} {target} "),
        None => write!(out, "{generation} - - {ns} {target} "),
    };
    let _ = match outcome {
        Arrival::Start(decision) => writeln!(out, "{} {}", decision.node.0, decision.reason),
        Arrival::Wait(ticket) => writeln!(out, "- wait:{}", ticket.0),
        Arrival::Refused(refusal) => writeln!(out, "- {refusal}"),
    };
}

/// Appends the line of a change that concerned `node`.
pub fn write_change_line(out: &mut String, generation: u64, at: Time, change: &Change, node: NodeId) {
    let ns = at.as_nanos();
    let (target, what) = match change {
        Change::Join(_) => (None, "join".to_owned()),
        Change::State(_, state) => (None, state.to_string()),
        Change::Reweigh(_, weight) => (None, format!("weight:{weight}")),
        Change::Backup(_, backup) => (None, if *backup { "backup" } else { "ordinary" }.to_owned()),
        Change::Report(..) => (None, "report".to_owned()),
        Change::Cache(_, target, CacheEvent::Stored) => (Some(target), "stored".to_owned()),
        Change::Cache(_, target, CacheEvent::Evicted) => (Some(target), "evicted".to_owned()),
        Change::Cache(_, target, CacheEvent::Gone) => (Some(target), "gone".to_owned()),
        Change::LongLived(_, requests) => (None, format!("long-lived:{requests}")),
        Change::PeerSwitches(peer_switches) => (None, format!("elsewhere:{}", peer_switches.switches)),
        Change::Sets(route, sets) => (None, format!("sets:{}:{}", route.0, sets.len())),
        Change::Table(route, table) => (None, format!("table:{}:{}", route.0, table.len())),
    };
    let target = target.map_or_else(|| "-".to_owned(), ToString::to_string);
    let _ = writeln!(out, "{generation} - - {ns} {target} {} {what}", node.0);
}

/// Returns the first visit in a read log.
pub fn first_visit(read_log: &[ReadLogEntry]) -> Option<(RouteSequence, u64)> {
    read_log.iter().find_map(|entry| match *entry {
        ReadLogEntry::Visit(track, place) => Some((track, place)),
        ReadLogEntry::Read(..) => None,
    })
}
