//! Random numbers from a seed.

use core::time::Duration;
use larder_trace::synth::Stream;

/// The random number generator of a world.
#[derive(Debug)]
pub(super) struct FaultRng(Stream);

impl FaultRng {
    pub(super) fn new(seed: u64) -> Self {
        Self(Stream::new(seed, "faults"))
    }

    /// Returns a number from 0 to `count` - 1.
    pub(super) fn draw_below(&mut self, count: u64) -> u64 {
        self.0.below(count.max(1))
    }

    /// Returns true with a probability of `of` in 1,000.
    pub(super) fn draw_permille(&mut self, of: u64) -> bool {
        self.draw_below(1_000) < of
    }

    /// Returns a duration from `least` to `most` microseconds.
    pub(super) fn draw_micros(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least + self.draw_below(most - least + 1))
    }
}
