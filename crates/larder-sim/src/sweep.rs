//! Many runs on all cores.

use rayon::prelude::*;

/// Runs `run(0)` to `run(jobs - 1)` on all cores and gives the results in order, whatever order they end in.
pub fn sweep<T: Send>(jobs: usize, run: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    (0..jobs).into_par_iter().with_max_len(1).map(run).collect()
}
