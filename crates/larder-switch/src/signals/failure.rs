//! Failures of signals: reasons why a node's load report or cache event did not reach the dispatcher.

/// Reason of a failure, as metrics and logs name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalFailure {
    /// The connection failed or broke.
    Connection,
    /// The reply was late.
    Timeout,
    /// The reply had a status other than 200.
    Status,
    /// The reply was too large.
    BodyTooLarge,
    /// A line was too long.
    LineTooLong,
    /// The reply was malformed.
    Malformed,
    /// The node has restarted, so its counters do not describe the period.
    Restarted,
    /// The dispatcher rejected the report, because the node takes no requests now.
    NotTaken,
    /// The node closed the event stream because the switch lagged behind.
    Lagging,
    /// The event stream ended.
    Ended,
}

impl SignalFailure {
    /// Every reason.
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

    /// Returns the name used in logs and metric labels.
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
    fn causes_are_in_order() {
        for (index, cause) in SignalFailure::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
        }
    }
}
