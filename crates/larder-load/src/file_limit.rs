//! The limit on open files.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors reserved for the rest of the process.
const RESERVE: u64 = 64;

/// The limit on open files is too low for the run's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{connections} connections need {needed} open files, but the limit is {limit}: use fewer, or raise it (ulimit -n, or LimitNOFILE= of the service)"
)]
pub struct FileLimitError {
    /// Connections of the run.
    pub connections: u32,
    /// Open files needed, including the reserve for the rest of the process.
    pub needed: u64,
    /// The hard limit.
    pub limit: u64,
}

/// Raises the soft limit on open files, if needed, so that the process can open `connections` connections.
///
/// # Errors
/// [`FileLimitError`] if the hard limit is too low.
pub(crate) fn raise_file_limit(connections: u32) -> Result<(), FileLimitError> {
    let needed = u64::from(connections) + RESERVE;
    let limits = getrlimit(Resource::Nofile);
    if limits.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let hard = limits.maximum.unwrap_or(u64::MAX);
    let error = FileLimitError { connections, needed, limit: hard };
    if hard < needed {
        return Err(error);
    }
    let raised = rustix::process::Rlimit { current: limits.maximum, maximum: limits.maximum };
    setrlimit(Resource::Nofile, raised).map_err(|_| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_up_to_the_hard_limit() {
        raise_file_limit(1).unwrap();
        if let Some(hard) = getrlimit(Resource::Nofile).maximum
            && let Ok(beyond) = u32::try_from(hard + 1)
        {
            let error = raise_file_limit(beyond).unwrap_err();
            assert_eq!(error.limit, hard);
        }
    }
}
