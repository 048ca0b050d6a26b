//! Logs of requests of OpenAI's API: JSON lines with a time and the body of a request.
//!
//! - The time is `timestamp`, `time`, `created_at`, `created` or `ts`: RFC 3339, or a number of seconds, milliseconds
//!   and so on since 1970.
//! - The body is the object `request` or `body`, or the line itself: `messages` of `/v1/chat/completions`, or `prompt` of
//!   `/v1/completions`.
//! - `usage` has `prompt_tokens` and `completion_tokens`. It is in the line, or in the object `response`, or in the `body` of that.
//!
//! The blocks are those of [`larder_prompts`], which the switch uses too.

use larder_prompts::Prompt;
use serde_json::{Map, Value};

use crate::format::timestamp::{self, CommonClock};
use crate::record::Reason;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChatRequest {
    /// Time in ns since 1970.
    pub(super) time_ns: u64,
    /// Ids of the blocks.
    pub(super) blocks: Vec<u64>,
    /// Bytes of the text, at least 1.
    pub(super) bytes: u64,
    /// Tokens of the prompt; `None` if they are not logged.
    pub(super) prompt_tokens: Option<u64>,
    /// Tokens of the reply; 0 if they are not logged.
    pub(super) reply_tokens: u64,
}

/// Parses a line. The bytes of its text are limited by the line's.
pub(super) fn parse(line: &Map<String, Value>) -> Result<ChatRequest, Reason> {
    const TIMES: [&str; 5] = ["timestamp", "time", "created_at", "created", "ts"];
    let time = TIMES.iter().find_map(|key| line.get(*key)).and_then(time_ns).ok_or(Reason::NoTime)?;
    let time_ns = u64::try_from(time).map_err(|_| Reason::NoTime)?;
    let body = ["request", "body"].iter().find_map(|key| line.get(*key)?.as_object()).unwrap_or(line);
    let text = serde_json::to_vec(body).map_err(|_| Reason::NotJson)?;
    let prompt = Prompt::parse(&text).map_err(|_| Reason::NoPrompt)?;
    let usage = usage(line);
    let tokens = |key| usage.and_then(|usage| usage.get(key)).and_then(Value::as_u64);
    Ok(ChatRequest {
        time_ns,
        blocks: prompt.ids().to_vec(),
        bytes: prompt.bytes(),
        prompt_tokens: tokens("prompt_tokens").filter(|tokens| *tokens > 0),
        reply_tokens: tokens("completion_tokens").unwrap_or(0),
    })
}

fn time_ns(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => timestamp::parse_any(text.as_bytes(), &mut CommonClock::default()),
        Value::Number(number) => {
            timestamp::parse_any(number.to_string().as_bytes(), &mut CommonClock::default())
        }
        _ => None,
    }
}

fn usage(line: &Map<String, Value>) -> Option<&Value> {
    let response = || line.get("response");
    line.get("usage").or_else(|| response()?.get("usage")).or_else(|| response()?.get("body")?.get("usage"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(line: &Value) -> Result<ChatRequest, Reason> {
        parse(line.as_object().expect("an object"))
    }

    #[test]
    fn bodies_times_and_usages_are_found_where_servers_write_them() {
        let body = json!({ "model": "m", "prompt": "Hello" });
        let plain =
            parsed(&json!({ "timestamp": 1_700_000_000, "model": "m", "prompt": "Hello" })).expect("valid");
        assert_eq!((plain.time_ns, plain.prompt_tokens), (1_700_000_000_000_000_000, None));
        let usage = json!({ "prompt_tokens": 7, "completion_tokens": 9 });
        for line in [
            json!({ "created_at": "2023-11-14T22:13:20Z", "request": body, "usage": usage }),
            json!({ "ts": 1_700_000_000_000_u64, "body": body, "response": { "usage": usage } }),
            json!({ "created": 1.7e9, "body": body, "response": { "body": { "usage": usage } } }),
        ] {
            let found = parsed(&line).expect("valid");
            assert_eq!((found.time_ns, &found.blocks), (plain.time_ns, &plain.blocks), "{line}");
            assert_eq!((found.prompt_tokens, found.reply_tokens), (Some(7), 9), "{line}");
        }
    }

    #[test]
    fn lines_without_a_prompt_or_time_are_errors() {
        for (line, reason) in [
            (json!({}), Reason::NoTime),
            (json!({ "time": -5, "prompt": "a" }), Reason::NoTime),
            (json!({ "time": "noon", "prompt": "a" }), Reason::NoTime),
            (json!({ "time": 1 }), Reason::NoPrompt),
            (json!({ "time": 1, "model": "m", "messages": [] }), Reason::NoPrompt),
            (json!({ "time": 1, "prompt": 5 }), Reason::NoPrompt),
        ] {
            assert_eq!(parsed(&line), Err(reason), "{line}");
        }
    }
}
