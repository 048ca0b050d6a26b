//! The use of a zone's memory: how much for the state, how much for its snapshot, and how many targets fit.

use crate::zone::HEADER_BYTES;
use larder_core::{PolicyKind, Settings};

/// The memory of a target in the state, at most: an entry of a table that has just grown, and its share of the growth.
const TARGET_BYTES: usize = 96;

/// The memory of a target in a snapshot with two servers.
const SNAPSHOT_TARGET_BYTES: usize = 22;

/// The memory of a node of the table: counters and the policy's values.
const NODE_BYTES: usize = 1_024;

/// The memory of a node's name in a snapshot, and of a policy's values for the node.
const SNAPSHOT_NODE_BYTES: usize = 256;

/// The memory for everything else in the state.
const FIXED_BYTES: usize = 512 << 10;

/// The smallest useful number of targets.
const TARGETS_MIN: usize = 1_024;

/// The division of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The size of the zone. Bytes.
    pub(crate) memory: usize,
    pub(crate) heap_bytes: usize,
    pub(crate) snapshot_bytes: usize,
    /// The largest number of stored targets.
    pub(crate) targets_max: usize,
    /// The number of targets that fit.
    pub(crate) capacity: usize,
}

/// The reason why a memory is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlanError {
    #[error(
        "memory: {0} MB is too little for this upstream: write memory={1}m, or lower limits.nodes_max or policies.targets_max in the \
         file of config="
    )]
    TooSmall(usize, usize),
}

impl Plan {
    /// Divides `memory` bytes for a dispatcher with these settings. If the settings do not limit the targets, the memory does.
    pub(crate) fn new(memory: usize, settings: &Settings) -> Result<Self, PlanError> {
        let nodes = usize::from(settings.nodes_max);
        let fixed =
            HEADER_BYTES + FIXED_BYTES + table_bytes(settings) + nodes * (NODE_BYTES + SNAPSHOT_NODE_BYTES);
        let per_target = TARGET_BYTES + SNAPSHOT_TARGET_BYTES;
        let is_limited = settings.targets_max != Settings::default().targets_max;
        let wanted = if is_limited { settings.targets_max } else { TARGETS_MIN };
        let needed = fixed + wanted * per_target;
        if needed > memory {
            return Err(PlanError::TooSmall(memory >> 20, (needed >> 20) + 1));
        }
        let fitting = ((memory - fixed) / per_target).min(1 << 32);
        let targets_max = if is_limited { wanted } else { fitting };
        let snapshot_bytes = fitting * SNAPSHOT_TARGET_BYTES + nodes * SNAPSHOT_NODE_BYTES;
        Ok(Self {
            memory,
            heap_bytes: memory - HEADER_BYTES - snapshot_bytes,
            snapshot_bytes,
            targets_max,
            capacity: fitting,
        })
    }
}

/// Returns the memory for the table of a policy that computes one from the membership, while it replaces such a table.
fn table_bytes(settings: &Settings) -> usize {
    let policies = &settings.policies;
    match settings.policy {
        PolicyKind::Maglev => 64 * policies.maglev.size as usize,
        PolicyKind::Rendezvous => 64 * policies.rendezvous.places as usize,
        PolicyKind::Bounded | PolicyKind::BoundedJump => {
            64 * usize::from(settings.nodes_max) * policies.bounded.points as usize
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_limits_the_targets_unless_the_config_does() {
        let settings = Settings::default();
        let small = Plan::new(8 << 20, &settings).expect("it fits");
        let large = Plan::new(64 << 20, &settings).expect("it fits");
        assert!(small.targets_max > 40_000 && large.targets_max > 500_000, "{small:?} {large:?}");
        for plan in [small, large] {
            assert_eq!(HEADER_BYTES + plan.heap_bytes + plan.snapshot_bytes, plan.memory);
        }
        let limited = Settings { targets_max: 5_000, ..settings };
        assert_eq!(Plan::new(64 << 20, &limited).expect("it fits").targets_max, 5_000);
    }

    #[test]
    fn a_memory_that_is_too_small_names_the_size_that_is_enough() {
        let settings = Settings { targets_max: 1_000_000, ..Settings::default() };
        let Err(PlanError::TooSmall(64, enough)) = Plan::new(64 << 20, &settings) else {
            panic!("it does not fit")
        };
        assert!(Plan::new(enough << 20, &settings).is_ok());
        assert!(Plan::new(1 << 20, &Settings::default()).is_err());
    }
}
