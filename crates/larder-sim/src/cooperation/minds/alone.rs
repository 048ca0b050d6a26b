//! Nodes that serve all requests themselves.

use larder_core::peers::Why;
use larder_core::{Bytes, Time};

use super::mind::{Asked, Decision, Minds, Place, Wish};

/// Nodes that do not communicate.
#[derive(Debug)]
pub(super) struct Alone {
    large_min: Bytes,
}

impl Alone {
    /// Creates nodes that do not keep targets of `large_min` or more.
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
