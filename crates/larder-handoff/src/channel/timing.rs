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

impl Timing {
    /// Delay before attempt number `attempt` (from 0) to reconnect: `retry_min * 2^attempt`, at most `retry_max`.
    /// `jitter` reduces it by up to a quarter, so that switches do not all reconnect at the same time.
    pub(crate) fn retry_delay(&self, attempt: u32, jitter: u8) -> Duration {
        let doubled = self.retry_min.saturating_mul(1_u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX));
        let full = doubled.min(self.retry_max);
        full - full * u32::from(jitter) / (4 * 256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_and_never_rest_longer_than_the_limit() {
        let timing = Timing::default();
        let waits: Vec<u128> = (0..8).map(|attempt| timing.retry_delay(attempt, 0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(timing.retry_delay(u32::MAX, 0), timing.retry_max);
        let least = timing.retry_max * 3 / 4;
        assert!((least..=timing.retry_max).contains(&timing.retry_delay(9, u8::MAX)));
    }
}
