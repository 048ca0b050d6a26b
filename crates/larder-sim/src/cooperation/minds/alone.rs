//! Every node for itself.

use larder_core::peers::Why;
use larder_core::{Bytes, Time};

use super::mind::{Asked, Decision, Minds, Place, Wish};

/// Nodes that know nothing of each other.
#[derive(Debug)]
pub(super) struct Alone {
    large_min: Bytes,
}

impl Alone {
    /// Nodes that do not keep what is so large.
    pub(super) const fn new(large_min: Bytes) -> Self {
        Self { large_min }
    }
}

impl Minds for Alone {
    fn reasons(&self) -> Vec<&'static str> {
        Why::ALL.map(Why::name).to_vec()
    }

    fn decide(&mut self, _now: Time, _task: u32, asked: &Asked, _out: &mut Vec<Wish>) -> Decision {
        let keep = asked.size < self.large_min;
        let why = if keep { Why::Alone } else { Why::Large };
        Decision::Place(Place { node: asked.node, why: why as usize, keep })
    }
}
