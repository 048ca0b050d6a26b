//! Errors about prompts, and the form in which OpenAI's API reports errors.

use serde_json::error::Category;
use serde_json::json;
use std::time::Duration;

/// The reason why a body has no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The body is not a JSON object with values of the right types. The text of the error of serde_json is not kept, because
    /// it may contain the whole body.
    #[error("the body is not a JSON object: {kind} at line {line}, column {column}")]
    NotJson {
        /// The kind of error.
        kind: &'static str,
        /// The line, from 1.
        line: usize,
        /// The column in bytes, from 0.
        column: usize,
    },
    /// The body has neither `messages` nor `prompt`, or they have no text.
    #[error("the body has no prompt: give 'messages' or 'prompt' a text")]
    NoPrompt,
}

impl From<serde_json::Error> for PromptError {
    fn from(error: serde_json::Error) -> Self {
        let kind = match error.classify() {
            Category::Eof => "early end",
            Category::Data => "unexpected value",
            Category::Syntax | Category::Io => "syntax error",
        };
        Self::NotJson { kind, line: error.line(), column: error.column() }
    }
}

/// The reason why a completion is refused before it is placed.
#[derive(Debug, thiserror::Error)]
pub enum PromptFault {
    /// The body is longer than [`PromptConfig::body_bytes_max`](crate::PromptConfig::body_bytes_max).
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
    /// The body did not arrive within [`PromptConfig::body_timeout`](crate::PromptConfig::body_timeout).
    #[error("the body did not arrive within {0:?}")]
    TimedOut(Duration),
    /// The memory for bodies is used up.
    #[error("too many prompts arrive at once")]
    MemoryFull,
    /// The body has no prompt.
    #[error(transparent)]
    NoPrompt(#[from] PromptError),
}

impl PromptFault {
    /// Returns the status of the reply, and the code of its error.
    pub const fn status(&self) -> (u16, &'static str) {
        match self {
            Self::TooLarge(_) => (413, "body_too_large"),
            Self::TimedOut(_) => (408, "body_timeout"),
            Self::MemoryFull => (503, "prompt_memory_full"),
            Self::NoPrompt(_) => (400, "no_prompt"),
        }
    }

    /// Returns the body of the reply, in the form of OpenAI's API.
    pub fn body(&self) -> String {
        let (status, code) = self.status();
        error_body(status, code, &self.to_string())
    }
}

/// Returns the body of an error as OpenAI's API writes it. Clients show the message, and decide by the status and the
/// code whether to try again.
pub fn error_body(status: u16, code: &str, message: &str) -> String {
    let kind = match status {
        401 | 403 => "authentication_error",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    };
    json!({ "error": { "message": message, "type": kind, "param": null, "code": code } }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_form_of_the_api() {
        let body = error_body(413, "body_too_large", "more than 8 MiB: \"a\"\n");
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["error"]["message"], "more than 8 MiB: \"a\"\n");
        assert_eq!(
            (&body["error"]["type"], &body["error"]["code"]),
            (&"invalid_request_error".into(), &"body_too_large".into())
        );
        let kinds = [401, 403, 429, 400, 499, 500, 503].map(|status| {
            let body: serde_json::Value = serde_json::from_str(&error_body(status, "c", "m")).expect("JSON");
            body["error"]["type"].as_str().unwrap_or_default().to_owned()
        });
        assert_eq!(
            kinds.each_ref().map(String::as_str),
            [
                "authentication_error",
                "authentication_error",
                "rate_limit_error",
                "invalid_request_error",
                "invalid_request_error",
                "server_error",
                "server_error",
            ]
        );
    }
}
