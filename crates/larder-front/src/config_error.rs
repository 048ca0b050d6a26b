//! Faults of a configuration, and the checks that many of its parts use.

use std::time::Duration;

/// A fault of the configuration. Its message names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The name of the handoff cannot be part of the names of objects in the kernel.
    #[error("handoff.name = '{0}': 1 to 32 letters, digits, '-' or '_' are needed")]
    HandoffName(String),
    /// Handoff is on and the switch has no key by which nodes know it.
    #[error(
        "handoff.identity is missing: connections can only be handed over by a switch that has a key; make one with `larder keys new FILE`"
    )]
    HandoffIdentity,
    /// `handoff.locality_lost_max` is out of range.
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
    /// The path of a health check is not valid.
    #[error("health path '{0}' is no path: it begins with '/' and holds no space or control character")]
    HealthPath(String),
    /// A path is not valid.
    #[error("{0}: '{1}' is no path: it begins with '/' and holds no space or control character")]
    Path(&'static str, String),
    /// A name is not valid.
    #[error("{0}: '{1}' is no name: 1 to 200 characters, without spaces")]
    Name(&'static str, String),
    /// A field of a route is not valid.
    #[error("{at}: {what}")]
    Route {
        /// The route and the field, as `routes.NAME.FIELD`.
        at: String,
        /// The fault and its remedy.
        what: String,
    },
    /// The routes contradict each other.
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
    /// The ways to a node contradict each other.
    #[error("node '{node}': {what}")]
    Reach {
        /// The node.
        node: String,
        /// The contradiction.
        what: &'static str,
    },
    /// The name for `Via` is not valid.
    #[error("via must be letters, digits and '-', at least one")]
    Via,
}

/// The whole, in the unit of shares: thousandths of a percent.
pub(crate) const WHOLE: u32 = 100_000;

/// Checks that a number is in range.
pub(crate) fn range(name: &'static str, value: usize, min: usize, max: usize) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { name, value, min, max }) }
}

/// Checks that a duration is in range. Milliseconds.
pub(crate) fn span(name: &'static str, value: Duration, min_ms: u64, max_ms: u64) -> Result<(), ConfigError> {
    let (min, max) = (Duration::from_millis(min_ms), Duration::from_millis(max_ms));
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::SpanOutOfRange { name, value, min, max })
    }
}

/// Returns the fault of a field of a route.
pub(crate) fn wrong(route: &str, field: &str, what: String) -> ConfigError {
    let route: String = route.chars().take(64).collect();
    ConfigError::Route { at: format!("routes.{route}.{field}"), what }
}
