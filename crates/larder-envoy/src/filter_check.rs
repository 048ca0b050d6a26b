//! Whether the cluster of a policy has the filter, as far as its requests show.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of decisions in a row that no filter may take before the cluster counts as one without the filter.
const UNTAKEN_MAX: u32 = 64;

/// A cluster without the filter refuses its requests, except one in this number. That one shows whether the filter has been added.
const PROBE_EACH: u32 = 64;

/// Counts decisions that no filter takes.
#[derive(Debug, Default)]
pub(crate) struct FilterCheck {
    untaken: AtomicU32,
    refused: AtomicU32,
}

impl FilterCheck {
    /// Notes that the filter of an attempt has taken its decision.
    pub(crate) fn note_taken(&self) {
        if self.untaken.load(Ordering::Relaxed) > 0 {
            self.untaken.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that no filter has taken a decision.
    pub(crate) fn note_untaken(&self) {
        self.untaken.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the next request is refused.
    pub(crate) fn refuses(&self) -> bool {
        self.untaken.load(Ordering::Relaxed) >= UNTAKEN_MAX
            && self.refused.fetch_add(1, Ordering::Relaxed) % PROBE_EACH != PROBE_EACH - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_refused_until_a_filter_takes_a_decision() {
        let check = FilterCheck::default();
        let served = |requests: u32| {
            (0..requests).filter(|_| !check.refuses()).inspect(|_| check.note_untaken()).count()
        };
        assert_eq!(served(64), 64);
        assert_eq!(served(640), 10, "one request in 64 probes");
        check.note_taken();
        assert!(!check.refuses());
    }
}
