//! How long the control channel waits for what.

use std::time::Duration;

/// Times of the control channel. Both sides keep their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the connection's start to the end of the handshake and the first message. Default 5 s.
    pub handshake: Duration,
    /// From a message's first byte to its last, received or sent. Default 60 s: the longest message, 4 MiB, at 0.6 Mbit/s.
    pub message: Duration,
    /// Between two pings of the front-end, and between two signs of life of the node. Default
    /// 500 ms.
    pub ping: Duration,
    /// The peer is given up when not one byte has come for so long. Default 2 s; more than `ping`.
    pub silence: Duration,
    /// Before the first attempt to connect again; doubles with each failure. Default 100 ms.
    pub retry_min: Duration,
    /// The longest time between two attempts to connect. Default 5 s.
    pub retry_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            message: Duration::from_secs(60),
            ping: Duration::from_millis(500),
            silence: Duration::from_secs(2),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
        }
    }
}

impl Timing {
    /// Time before attempt number `attempt` (from 0) to connect again: `retry_min * 2^attempt`, at most `retry_max`,
    /// less up to a quarter by `chance`, so that front-ends do not knock all at once.
    pub(crate) fn retry(&self, attempt: u32, chance: u8) -> Duration {
        let doubled = self.retry_min.saturating_mul(1_u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX));
        let full = doubled.min(self.retry_max);
        full - full * u32::from(chance) / (4 * 256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_and_never_rest_longer_than_the_limit() {
        let timing = Timing::default();
        let waits: Vec<u128> = (0..8).map(|attempt| timing.retry(attempt, 0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(timing.retry(u32::MAX, 0), timing.retry_max);
        let least = timing.retry_max * 3 / 4;
        assert!((least..=timing.retry_max).contains(&timing.retry(9, u8::MAX)));
    }
}
