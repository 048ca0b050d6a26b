//! The exit code of the program, derived from its result.

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use crate::config::ConfigError;

/// Wrong usage of the command line. The text says how to correct it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Returns a usage error.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// Exit code for wrong usage and for an invalid config.
pub(crate) const USAGE_EXIT_CODE: u8 = 2;

/// Returns the exit code, and writes the error with its causes to stderr after the program's name.
///
/// The code is 0 for success and for a closed pipe on stdout, 2 for usage and config errors, and 1 for all
/// other errors.
pub fn exit_code(program: &str, result: anyhow::Result<()>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    let _ = writeln!(io::stderr(), "{program}: {error:#}");
    ExitCode::from(code(&error))
}

/// Returns the exit code for an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    let is_usage_error = error.chain().any(|cause| cause.is::<ConfigError>() || cause.is::<Usage>());
    if is_usage_error { USAGE_EXIT_CODE } else { 1 }
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

    fn exit_code_of(error: impl Into<anyhow::Error>) -> String {
        format!("{:?}", exit_code("larder", Err(error.into().context("while testing"))))
    }

    #[test]
    fn each_kind_of_error_has_its_code() {
        let of = |n: u8| format!("{:?}", ExitCode::from(n));
        assert_eq!(exit_code_of(io::Error::from(ErrorKind::BrokenPipe)), of(0));
        assert_eq!(exit_code_of(io::Error::from(ErrorKind::NotFound)), of(1));
        assert_eq!(exit_code_of(usage("no")), of(2));
    }
}
