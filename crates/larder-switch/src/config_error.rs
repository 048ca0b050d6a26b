//! Errors of a configuration, and the checks that several parts of it share.

use std::time::Duration;

/// Error of a configuration. The message names the field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// `handoff.name` cannot be part of a kernel object's name.
    #[error("handoff.name = '{0}': 1 to 32 letters, digits, '-' or '_' are needed")]
    HandoffName(String),
    /// Handoff is on, but the switch has no key to identify itself to nodes.
    #[error(
        "handoff.identity is missing: handoff needs a key of the switch; create one with `larder keys new FILE`"
    )]
    HandoffIdentity,
    /// `handoff.locality_lost_max` is out of range.
    #[error("handoff.locality_lost_max = {0} is out of range: 0 to 1")]
    HandoffShare(String),
    /// A share is out of range.
    #[error("{0} = {1} is out of range: 0 to 1")]
    Share(&'static str, String),
    /// A list needs at least one entry.
    #[error("{0} is empty: at least one is needed")]
    Empty(&'static str),
    /// A number is out of range.
    #[error("{name} = {value} is out of range: {min} to {max}")]
    OutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: usize,
        /// Minimum.
        min: usize,
        /// Maximum.
        max: usize,
    },
    /// A duration is out of range.
    #[error("{name} = {value:?} is out of range: {min:?} to {max:?}")]
    SpanOutOfRange {
        /// The field.
        name: &'static str,
        /// Its value.
        value: Duration,
        /// Minimum.
        min: Duration,
        /// Maximum.
        max: Duration,
    },
    /// The path of a health check is not valid.
    #[error("health path '{0}' is invalid: it must begin with '/' and contain no space or control character")]
    HealthPath(String),
    /// A path is not valid.
    #[error("{0}: path '{1}' is invalid: it must begin with '/' and contain no space or control character")]
    Path(&'static str, String),
    /// A name is not valid.
    #[error("{0}: name '{1}' is invalid: use 1 to 200 characters without spaces")]
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
        /// Description of the known groups.
        known: String,
    },
    /// The transport settings of a node contradict each other.
    #[error("node '{node}': {what}")]
    NodeTransport {
        /// The node.
        node: String,
        /// The contradiction.
        what: &'static str,
    },
    /// The name for `Via` is not valid.
    #[error("via must be letters, digits and '-', at least one")]
    Via,
}

/// 100 % in the unit of shares: thousandths of a percent.
pub(crate) const SHARE_WHOLE: u32 = 100_000;

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

/// Returns an error for a field of a route.
pub(crate) fn route_error(route: &str, field: &str, what: String) -> ConfigError {
    let route: String = route.chars().take(64).collect();
    ConfigError::Route { at: format!("routes.{route}.{field}"), what }
}
