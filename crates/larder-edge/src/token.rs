//! Tokens that authorize operators, for example to purge.
//!
//! A file contains one or two tokens, one per line. Both are accepted; the first is used for requests to others. A
//! token is replaced without interruption in three steps: add the new one as the second line, make it the first, remove
//! the old one.

use crate::{CertificateFault, read_secret};
use aws_lc_rs::digest::{SHA256, digest};
use std::fmt;
use std::path::Path;

/// Minimum length of a token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;
/// Maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 256;
/// Maximum number of tokens in a file.
const TOKENS_MAX: usize = 2;

/// The tokens of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct Tokens {
    first: Box<str>,
    second: Option<Box<str>>,
}

impl Tokens {
    /// Reads one or two tokens from a file that only its owner may read.
    ///
    /// # Errors
    /// The file cannot be read, other users may access it, or it does not contain one or two tokens of 16 to 256
    /// characters. The error never contains a token.
    pub fn load(path: &Path) -> Result<Self, CertificateFault> {
        let text = read_secret(path)?;
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let fault = |what: String| Err(CertificateFault::new(path, what));
        if lines.len() > TOKENS_MAX {
            return fault(format!("holds {} tokens, at most {TOKENS_MAX}", lines.len()));
        }
        for line in &lines {
            if !line.bytes().all(|byte| byte.is_ascii_graphic()) {
                return fault("holds a token with other characters than printable ASCII".to_owned());
            }
            if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&line.len()) {
                let len = line.len();
                return fault(format!(
                    "holds a token of {len} characters: {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}; try openssl rand -hex 32"
                ));
            }
        }
        let mut lines = lines.into_iter().map(Box::from);
        // An empty file was rejected above.
        Ok(Self { first: lines.next().unwrap_or_default(), second: lines.next() })
    }

    /// Returns the token for requests to others.
    pub fn first(&self) -> &str {
        &self.first
    }

    /// Checks whether the value of an `Authorization` field contains one of the tokens (RFC 6750 section 2.1). The time
    /// does not depend on the tokens.
    pub fn accept(&self, authorization: &[u8]) -> bool {
        let scheme = b"bearer ";
        let (shown, is_bearer) = match authorization.split_at_checked(scheme.len()) {
            Some((start, rest)) => (rest.trim_ascii(), start.eq_ignore_ascii_case(scheme)),
            None => (&[][..], false),
        };
        let shown = digest(&SHA256, shown);
        let mut accepted = false;
        for token in std::iter::once(&self.first).chain(&self.second) {
            let token = digest(&SHA256, token.as_bytes());
            let differs = token.as_ref().iter().zip(shown.as_ref()).fold(0, |found, (a, b)| found | (a ^ b));
            accepted |= differs == 0;
        }
        accepted && is_bearer
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens(..)")
    }
}

/// Reason why a request is not authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermissionError {
    /// No tokens are configured, so nobody is authorized.
    #[error("there is no token")]
    Off,
    /// The request has no token, or a wrong one.
    #[error("missing or wrong token")]
    Wrong,
}

/// Checks whether a request with this `Authorization` is authorized by `tokens`.
///
/// # Errors
/// No tokens are configured, or the request has none of them.
pub fn permit(tokens: Option<&Tokens>, authorization: Option<&[u8]>) -> Result<(), PermissionError> {
    let tokens = tokens.ok_or(PermissionError::Off)?;
    if authorization.is_some_and(|shown| tokens.accept(shown)) { Ok(()) } else { Err(PermissionError::Wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    fn load(text: &str) -> Result<Tokens, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        fs::write(&path, text).expect("writes");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
        Tokens::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn both_tokens_are_accepted_as_bearer() {
        let (old, new) = ("o".repeat(16), "n".repeat(32));
        let tokens = load(&format!("{new}\n{old}\n")).expect("two");
        assert_eq!(tokens.first(), new);
        for (shown, accepted) in [
            (format!("Bearer {old}"), true),
            (format!("bearer  {new} "), true),
            (format!("Basic {new}"), false),
            (format!("Bearer {new}x"), false),
            (format!("Bearer {}", &new[1..]), false),
            ("Bearer ".to_owned(), false),
            ("Bearer".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(tokens.accept(shown.as_bytes()), accepted, "{shown}");
        }
        assert_eq!(format!("{tokens:?}"), "Tokens(..)");
    }

    #[test]
    fn invalid_token_files_are_refused() {
        let good = "x".repeat(16);
        for (text, word) in [
            ("short", "5 characters"),
            (&"x".repeat(257), "257 characters"),
            (&format!("{good} {good}"), "printable ASCII"),
            (&format!("{good}\n{good}\n{good}"), "3 tokens"),
            ("", "empty"),
        ] {
            let error = load(text).expect_err(text);
            assert!(error.contains(word) && !error.contains(&good), "{error}");
        }
    }
}
