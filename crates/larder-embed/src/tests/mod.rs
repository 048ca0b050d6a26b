//! The calls as a program makes them.

mod allocations;
mod life;
mod wrong;

use crate::*;
use larder_core::{ServiceClass, TargetId, Time};

const FOUR: &str = "nodes = [\"a\", \"b\", \"c\", \"d\"]\n";

fn embedded(config: &str) -> Embedded {
    Embedded::new(config.parse().expect("a valid config")).expect("the config can be used")
}

/// A request for a target id.
fn target(id: u64) -> RequestFacts<'static> {
    RequestFacts::new(TargetId(id))
}

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// Decides about a request that starts.
fn start(dispatcher: &Embedded, now: u64, facts: &RequestFacts<'_>) -> Decision {
    match dispatcher.decide(at(now), facts) {
        Ok(Outcome::Start(decision)) => decision,
        other => panic!("the request does not start: {other:?}"),
    }
}

/// Reads a number of the status.
fn number(status: &serde_json::Value, field: &str) -> u64 {
    status[field].as_u64().unwrap_or_else(|| panic!("{field} is no number: {status}"))
}
