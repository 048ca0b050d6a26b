//! The endpoints whose requests have a prompt.

use larder_core::rules::Head;

/// Returns whether requests to this path, without its query, have a prompt: `/v1/chat/completions` or `/v1/completions`, with any
/// prefix before `/v1`.
pub fn is_completion(path: &[u8]) -> bool {
    [&b"/v1/chat/completions"[..], b"/v1/completions"].iter().any(|endpoint| path.ends_with(endpoint))
}

/// Returns whether a request with this head is a completion whose body can be read.
pub fn has_prompt(head: &Head<'_>) -> bool {
    head.method == b"POST" && is_completion(head.path) && head.headers.get("content-encoding").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_completions_have_a_prompt() {
        for (path, has_prompt) in [
            ("/v1/chat/completions", true),
            ("/v1/completions", true),
            ("/team/v1/chat/completions", true),
            ("/v1/chat/completions/", false),
            ("/v1/embeddings", false),
            ("/v1/models", false),
            ("/completions", false),
            ("", false),
        ] {
            assert_eq!(is_completion(path.as_bytes()), has_prompt, "{path}");
        }
    }
}
