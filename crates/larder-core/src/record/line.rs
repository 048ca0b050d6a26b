//! The decision log: one line per decision or change, seven fields with a blank between.
//!
//! ```text
//! generation lane place time_ns target node reason
//! 0 shard17 204 1503288110 9f3c51d6a7702e14 3 local
//! 0 - - 1503290004 6b0c9a1e55d1f902 - wait:12
//! 1 - - 1503300000 - 3 down
//! ```
//! Lane and place (`route2.shard17` where it is not the default route) are the decision's first visit to state that has an order, `-` if there was none. The reason of a
//! decision that chose no node is `wait:` and the ticket, or the refusal; that of a change is what changed.

use crate::dispatch::{Arrival, CacheEvent, Change};
use crate::id::{NodeId, TargetId};
use crate::read_log::{ReadLogEntry, RouteSequence};
use crate::time::Time;
use core::fmt::Write as _;

/// Appends the line of a decision. `first` is its first visit.
pub fn decided_line(
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
pub fn changed_line(out: &mut String, generation: u64, at: Time, change: &Change, node: NodeId) {
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
        Change::PeerSwitchState(elsewhere) => (None, format!("elsewhere:{}", elsewhere.switches)),
        Change::Sets(route, sets) => (None, format!("sets:{}:{}", route.0, sets.len())),
        Change::Table(route, table) => (None, format!("table:{}:{}", route.0, table.len())),
    };
    let target = target.map_or_else(|| "-".to_owned(), ToString::to_string);
    let _ = writeln!(out, "{generation} - - {ns} {target} {} {what}", node.0);
}

/// A recorded tape's first visit.
pub fn first_visit(read_log: &[ReadLogEntry]) -> Option<(RouteSequence, u64)> {
    read_log.iter().find_map(|entry| match *entry {
        ReadLogEntry::Visit(track, place) => Some((track, place)),
        ReadLogEntry::Read(..) => None,
    })
}
