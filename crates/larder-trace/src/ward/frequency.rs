//! The input of ward-analysis: the number of requests and the size of each target.

use std::cmp::Reverse;

use serde::Serialize;

use crate::trace::{Request, Trace};

/// The frequency and size of one target in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Frequency {
    /// The target, as an index into [`Trace::targets`].
    pub target: u32,
    /// Number of requests, at least 1.
    pub requests: u64,
    /// Size of the target: the largest reply, in bytes.
    pub bytes: u64,
}

/// The targets of a log by falling frequency (*Freq-Size* of the paper).
///
/// The paper does not define the order of equal frequencies. Here the smaller target is first, because it
/// costs less memory for the same requests. Targets of equal size are in order of first appearance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frequencies {
    rows: Vec<Frequency>,
}

impl Frequencies {
    /// Counts all requests of a trace.
    pub fn of(trace: &Trace) -> Self {
        Self::of_requests(trace, &trace.requests)
    }

    /// Counts some requests of a trace, for example those of a day. Sizes are the largest replies of the
    /// whole trace.
    pub fn of_requests(trace: &Trace, requests: &[Request]) -> Self {
        let mut counts = vec![0_u64; trace.targets.len()];
        for request in requests {
            counts[request.target as usize] += 1;
        }
        let rows = (0_u32..).zip(counts).zip(&trace.targets).map(|((target, requests), t)| Frequency {
            target,
            requests,
            bytes: t.size.get(),
        });
        Self::from_rows(rows)
    }

    /// Creates a table from existing counts. Rows without requests are omitted.
    pub fn from_rows(rows: impl IntoIterator<Item = Frequency>) -> Self {
        let mut rows: Vec<_> = rows.into_iter().filter(|row| row.requests > 0).collect();
        rows.sort_unstable_by_key(|row| (Reverse(row.requests), row.bytes, row.target));
        Self { rows }
    }

    /// Returns the rows, with the most requested first.
    pub fn rows(&self) -> &[Frequency] {
        &self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fall_in_frequency_and_equal_ones_rise_in_size() {
        let row = |target, requests, bytes| Frequency { target, requests, bytes };
        let table = Frequencies::from_rows([
            row(0, 1, 5),
            row(1, 3, 50),
            row(2, 0, 1),
            row(3, 3, 40),
            row(4, 1, 5),
            row(5, 9, 900),
        ]);
        let order: Vec<_> = table.rows().iter().map(|row| row.target).collect();
        assert_eq!(order, [5, 3, 1, 0, 4]);
    }

    #[test]
    fn a_part_of_the_requests_is_counted_alone() {
        let trace =
            crate::synth::generate(&crate::synth::Recipe::zipf(50, 1_000, 0.8), 1, 1.0).expect("possible");
        let sum = |table: &Frequencies| table.rows().iter().map(|row| row.requests).sum::<u64>();
        assert_eq!(sum(&Frequencies::of(&trace)), 1_000);
        assert_eq!(sum(&Frequencies::of_requests(&trace, &trace.requests[..300])), 300);
    }
}
