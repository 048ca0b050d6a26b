//! Errors about prompts, and the form in which OpenAI's API reports errors.

use serde_json::json;

/// The reason why a body has no prompt.
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    /// The body is no JSON.
    #[error("the body is no JSON object: {0}")]
    NotJson(#[from] serde_json::Error),
    /// The body has neither `messages` nor `prompt`, or they have no text.
    #[error("the body has no 'messages' and no 'prompt' with text")]
    NoPrompt,
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
