//! What the system lets a process have.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that are left to the rest of the process.
const RESERVE: u64 = 64;

/// The process may not hold as many connections as the run needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{connections} connections need {needed} open files, but the limit is {limit}: use fewer, or raise it (ulimit -n, or LimitNOFILE= of the service)"
)]
pub struct TooFewFiles {
    /// Connections asked for.
    pub connections: u32,
    /// Open files they need, with what is kept for the rest of the process.
    pub needed: u64,
    /// The hard limit.
    pub limit: u64,
}

/// Raises the soft limit of open files, if needed, so that `connections` fit.
///
/// # Errors
/// [`TooFewFiles`] if the hard limit is too low.
pub(crate) fn make_room(connections: u32) -> Result<(), TooFewFiles> {
    let needed = u64::from(connections) + RESERVE;
    let limits = getrlimit(Resource::Nofile);
    if limits.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let hard = limits.maximum.unwrap_or(u64::MAX);
    let refused = TooFewFiles { connections, needed, limit: hard };
    if hard < needed {
        return Err(refused);
    }
    let raised = rustix::process::Rlimit { current: limits.maximum, maximum: limits.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|_| refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_up_to_the_hard_one_and_no_further() {
        make_room(1).unwrap();
        if let Some(hard) = getrlimit(Resource::Nofile).maximum
            && let Ok(beyond) = u32::try_from(hard + 1)
        {
            let refused = make_room(beyond).unwrap_err();
            assert_eq!(refused.limit, hard);
        }
    }
}
