//! Why a node's report, or a change in its cache, did not reach the dispatcher.

/// A cause, as metrics and logs name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// No connection, or it broke.
    Connection,
    /// No answer in time.
    Timeout,
    /// An answer other than 200.
    Status,
    /// The answer is longer than allowed.
    BodyTooLarge,
    /// A line is longer than allowed.
    LineTooLong,
    /// The answer cannot be read.
    Malformed,
    /// The node has started anew: its counters say nothing of the period.
    Restarted,
    /// The dispatcher took no report: the node takes no requests now.
    NotTaken,
    /// The node cut the event stream because the switch lagged behind.
    Lagging,
    /// The event stream ended.
    Ended,
}

impl Cause {
    /// Every cause.
    pub(crate) const ALL: [Self; 10] = [
        Self::Connection,
        Self::Timeout,
        Self::Status,
        Self::BodyTooLarge,
        Self::LineTooLong,
        Self::Malformed,
        Self::Restarted,
        Self::NotTaken,
        Self::Lagging,
        Self::Ended,
    ];

    /// The word used in logs and metric labels.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::BodyTooLarge => "body_too_large",
            Self::LineTooLong => "line_too_long",
            Self::Malformed => "malformed",
            Self::Restarted => "restarted",
            Self::NotTaken => "not_taken",
            Self::Lagging => "lagging",
            Self::Ended => "ended",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_at_its_place() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
        }
    }
}
