//! Parallel execution of many runs.

use rayon::prelude::*;

/// Runs `run(0)` to `run(jobs - 1)` on all cores. The results are in the order of their numbers.
pub fn sweep<T: Send>(jobs: usize, run: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    (0..jobs).into_par_iter().with_max_len(1).map(run).collect()
}
