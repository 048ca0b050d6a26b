//! The table that ward-analysis starts from: how often each target was asked for, and how large it is.

use std::cmp::Reverse;

use serde::Serialize;

use crate::trace::{Request, Trace};

/// What a log says of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Frequency {
    /// The target: an index into [`Trace::targets`].
    pub target: u32,
    /// How often it was asked for, at least once.
    pub requests: u64,
    /// Its size: the largest reply.
    pub bytes: u64,
}

/// The targets of a log by falling frequency (the paper's *Freq-Size*).
///
/// The paper leaves equal frequencies open. Here the smaller target stands first, since it costs less memory for the
/// same requests, and equal ones stand in order of first appearance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frequencies {
    rows: Vec<Frequency>,
}

impl Frequencies {
    /// Of all requests of a trace.
    pub fn of(trace: &Trace) -> Self {
        Self::of_requests(trace, &trace.requests)
    }

    /// Of some requests of a trace, a day's for instance. Sizes are the largest replies of the whole trace.
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

    /// From counts made elsewhere; rows without requests are left out.
    pub fn from_rows(rows: impl IntoIterator<Item = Frequency>) -> Self {
        let mut rows: Vec<_> = rows.into_iter().filter(|row| row.requests > 0).collect();
        rows.sort_unstable_by_key(|row| (Reverse(row.requests), row.bytes, row.target));
        Self { rows }
    }

    /// The rows, most requested first.
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
    fn a_part_of_the_requests_counts_by_itself() {
        let trace =
            crate::synth::generate(&crate::synth::Recipe::zipf(50, 1_000, 0.8), 1, 1.0).expect("possible");
        let sum = |table: &Frequencies| table.rows().iter().map(|row| row.requests).sum::<u64>();
        assert_eq!(sum(&Frequencies::of(&trace)), 1_000);
        assert_eq!(sum(&Frequencies::of_requests(&trace, &trace.requests[..300])), 300);
    }
}
