//! Timeouts and intervals of the control channel.

use std::time::Duration;

/// Timeouts and intervals of the control channel. Each side has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Maximum time from the start of the connection to the end of the handshake and the first message. Default 5 s.
    pub handshake: Duration,
    /// Maximum time from a message's first byte to its last, in either direction. Default 60 s: the longest message, 4
    /// MiB, at 0.6 Mbit/s.
    pub message: Duration,
    /// Interval between two pings of the switch, and between two heartbeats of the node. Default 500 ms.
    pub ping: Duration,
    /// Time without a byte after which the other side counts as dead. Default 2 s; must be more than `ping`.
    pub silence: Duration,
    /// Delay of the first reconnect; doubles with each failure. Default 100 ms.
    pub retry_min: Duration,
    /// Maximum delay between two attempts to connect. Default 5 s.
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

/// Returns the delay before attempt number `attempt` (from 0) to reconnect: `min * 2^attempt`, at most `max`. `jitter`
/// reduces it by up to a quarter, so that hosts do not all reconnect at the same time.
pub fn retry_delay(attempt: u32, min: Duration, max: Duration, jitter: u8) -> Duration {
    let full = min.saturating_mul(1 << attempt.min(20)).min(max);
    full - full * u32::from(jitter) / (4 * 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_and_never_rest_longer_than_the_limit() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(5));
        let waits: Vec<u128> = (0..8).map(|attempt| retry_delay(attempt, min, max, 0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(retry_delay(u32::MAX, min, max, 0), max);
        for attempt in [9, u32::MAX] {
            assert!((max * 3 / 4..=max).contains(&retry_delay(attempt, min, max, u8::MAX)));
        }
    }
}
