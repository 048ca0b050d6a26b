//! Results that PRESS's authors measured on 8 nodes of 1999 with their own traces (Carrera and Bianchini,
//! PPoPP 2001).

/// A row of table 3, with a figure of section 4.2. Shares are in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedResult {
    pub(crate) trace: &'static str,
    /// Hit ratio of the traditional server.
    pub(crate) trad: f64,
    /// Hit ratios of PRESS: of requests that the receiving node served, and of all requests.
    pub(crate) local: f64,
    pub(crate) total: f64,
    pub(crate) forwarded: f64,
    /// Requests that caused a broadcast of a load, and of a change of the cache.
    pub(crate) load: f64,
    pub(crate) cache: f64,
    /// Throughput gain of PRESS over the traditional server.
    pub(crate) gain: f64,
}

const fn row(trace: &'static str, gain: f64, shares: [f64; 6]) -> PublishedResult {
    let [trad, local, total, forwarded, load, cache] = shares;
    PublishedResult { trace, trad, local, total, forwarded, load, cache, gain }
}

/// Table 3 and figures 6 to 9.
pub(crate) const TABLE_3: [PublishedResult; 4] = [
    row("Clarknet", 57.0, [88.9, 98.4, 99.6, 74.6, 28.9, 0.2]),
    row("Rutgers", 48.0, [88.1, 89.5, 97.1, 72.0, 22.6, 0.1]),
    row("Forth", 50.0, [92.8, 97.7, 99.3, 71.5, 27.4, 0.1]),
    row("Combined", 49.0, [88.6, 91.1, 97.6, 73.4, 27.3, 0.5]),
];

/// Error of the authors' model: for PRESS on average, and for the traditional server at most.
pub(crate) const MODEL_ERROR: (f64, f64) = (0.09, 0.38);

/// Throughput of WARD over round robin and over pure partitioning (Cherkasova and Karlsson, HPL-2001-2).
pub(crate) const WARD_OVER: (f64, f64) = (2.6, 1.5);

/// Returns the smallest and the largest value of a column.
pub(crate) fn range(column: fn(&PublishedResult) -> f64) -> (f64, f64) {
    TABLE_3
        .iter()
        .map(column)
        .fold((f64::INFINITY, 0.0), |(low, high), value| (low.min(value), high.max(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_span_the_traces() {
        assert_eq!((range(|row| row.gain), range(|row| row.trad)), ((48.0, 57.0), (88.1, 92.8)));
    }
}
