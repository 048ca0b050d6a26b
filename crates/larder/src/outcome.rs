//! How the program ends: which error gives which exit code.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use crate::config::ConfigError;

/// The arguments cannot mean anything; the text says what would.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// A usage error, ready to return.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// The exit code of wrong usage and of a wrong config.
pub(crate) const WRONG_USE: u8 = 2;

/// Returns 0 for success and for a reader of stdout that went away, 2 for usage and config errors, and 1 for all other
/// errors. Writes the error and its causes to stderr, after the name of the program.
pub fn exit_code(program: &str, result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(io::stderr(), "{program}: {error:#}");
    ExitCode::from(code(&error))
}

/// The exit code for an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    let wrong_use = error.chain().any(|cause| cause.is::<ConfigError>() || cause.is::<Usage>());
    if wrong_use { WRONG_USE } else { 1 }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(error: impl Into<anyhow::Error>) -> String {
        format!("{:?}", exit_code("larder", Err(error.into().context("while testing"))))
    }

    #[test]
    fn each_kind_of_error_has_its_code() {
        let of = |n: u8| format!("{:?}", ExitCode::from(n));
        assert_eq!(exits(io::Error::from(ErrorKind::BrokenPipe)), of(0));
        assert_eq!(exits(io::Error::from(ErrorKind::NotFound)), of(1));
        assert_eq!(exits(usage("no")), of(2));
    }
}
