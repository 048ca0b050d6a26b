//! Faults of a configuration, and the checks that many of its parts use.

use std::time::Duration;

/// A config that makes no sense. The name is that of the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The handoff's name cannot name what is left in the kernel.
    #[error("handoff.name = '{0}': 1 to 32 letters, digits, '-' or '_' are needed")]
    HandoffName(String),
    /// Nodes would not know who hands connections to them.
    #[error(
        "handoff.identity is missing: connections can only be handed over by a switch that has a key; make one with `larder keys new FILE`"
    )]
    HandoffIdentity,
    /// No share.
    #[error("handoff.locality_lost_max = {0} is out of range: 0 to 1")]
    HandoffShare(String),
    /// A share out of range.
    #[error("{0} = {1} is out of range: 0 to 1")]
    Share(&'static str, String),
    /// A list that needs an entry.
    #[error("{0} is empty: at least one is needed")]
    Empty(&'static str),
    /// A number out of range.
    #[error("{name} = {value} is out of range: {min} to {max}")]
    OutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The least allowed.
        min: usize,
        /// The most allowed.
        max: usize,
    },
    /// A duration out of range.
    #[error("{name} = {value:?} is out of range: {min:?} to {max:?}")]
    SpanOutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: Duration,
        /// The least allowed.
        min: Duration,
        /// The most allowed.
        max: Duration,
    },
    /// A health path that is no path.
    #[error("health path '{0}' is no path: it begins with '/' and holds no space or control character")]
    HealthPath(String),
    /// A path that is none.
    #[error("{0}: '{1}' is no path: it begins with '/' and holds no space or control character")]
    Path(&'static str, String),
    /// A name that is none.
    #[error("{0}: '{1}' is no name: 1 to 200 characters, without spaces")]
    Name(&'static str, String),
    /// A route's field that makes no sense.
    #[error("{at}: {what}")]
    Route {
        /// The route and the field, as `routes.NAME.FIELD`.
        at: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// The routes together make no sense.
    #[error("routes: {0}")]
    Routes(String),
    /// A node is in a group that no route uses.
    #[error("nodes.{node}.groups: no route uses group '{group}': {known}")]
    NodeGroup {
        /// The node.
        node: String,
        /// The group.
        group: String,
        /// The groups that there are.
        known: String,
    },
    /// A node cannot be reached so.
    #[error("node '{node}': {what}")]
    Reach {
        /// The node.
        node: String,
        /// Why.
        what: &'static str,
    },
    /// A name that cannot stand in `Via`.
    #[error("via must be letters, digits and '-', at least one")]
    Via,
}

/// All requests, as a share of them in thousandths of a percent.
pub(crate) const WHOLE: u32 = 100_000;

pub(crate) fn range(name: &'static str, value: usize, min: usize, max: usize) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { name, value, min, max }) }
}

pub(crate) fn span(name: &'static str, value: Duration, min_ms: u64, max_ms: u64) -> Result<(), ConfigError> {
    let (min, max) = (Duration::from_millis(min_ms), Duration::from_millis(max_ms));
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::SpanOutOfRange { name, value, min, max })
    }
}

/// A fault of a field of a route.
pub(crate) fn wrong(route: &str, field: &str, what: String) -> ConfigError {
    let route: String = route.chars().take(64).collect();
    ConfigError::Route { at: format!("routes.{route}.{field}"), what }
}
