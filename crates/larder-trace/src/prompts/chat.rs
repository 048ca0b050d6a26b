//! Logs of requests of OpenAI's API: JSON lines with a time and the body of a request.
//!
//! - The time is `timestamp`, `time`, `created_at`, `created` or `ts`: RFC 3339, or a number of seconds, milliseconds
//!   and so on since 1970.
//! - The body is the object `request` or `body`, or the line itself: `messages` of `/v1/chat/completions`, or `prompt` of
//!   `/v1/completions`.
//! - `usage` has `prompt_tokens` and `completion_tokens`. It is in the line, or in the object `response`, or in the `body` of that.
//!
//! A prompt is the text of its model, tools and messages. It is divided into blocks of [`BLOCK_BYTES`], and the id of a block is a hash of
//! all text up to its end. No tokenizer is needed: engines store blocks of tokens, and where two texts differ, so do their tokens.

use larder_core::TargetId;
use serde_json::{Map, Value};

use crate::format::timestamp::{self, CommonClock};
use crate::record::Reason;

/// Bytes of text in a block: about 512 tokens of English.
pub(super) const BLOCK_BYTES: usize = 2_048;

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
    let text = text(body).ok_or(Reason::NoPrompt)?;
    let usage = usage(line);
    let tokens = |key| usage.and_then(|usage| usage.get(key)).and_then(Value::as_u64);
    Ok(ChatRequest {
        time_ns,
        blocks: chain(&text),
        bytes: text.len() as u64,
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

/// Returns the text that determines the stored blocks, in the order in which engines see it; `None` if there is no prompt.
fn text(body: &Map<String, Value>) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    // Models do not share blocks.
    if let Some(model) = body.get("model").and_then(Value::as_str) {
        push(&mut text, model.as_bytes());
    }
    let before = text.len();
    for part in ["tools", "messages", "prompt"].iter().filter_map(|key| body.get(*key)) {
        match part {
            Value::String(prompt) => push(&mut text, prompt.as_bytes()),
            Value::Array(parts) => parts.iter().for_each(|part| push_message(&mut text, part)),
            _ => {}
        }
    }
    (text.len() > before).then_some(text)
}

/// Appends a part and a separator, so that parts do not run together.
fn push(text: &mut Vec<u8>, part: &[u8]) {
    text.extend_from_slice(part);
    text.push(0);
}

/// Appends a message: role and text, or all of what is not text.
fn push_message(text: &mut Vec<u8>, message: &Value) {
    let role = message.get("role").and_then(Value::as_str);
    match (message, role, message.get("content")) {
        (Value::String(content), ..) => push(text, content.as_bytes()),
        (_, Some(role), Some(Value::String(content))) if message.get("tool_calls").is_none() => {
            push(text, role.as_bytes());
            push(text, content.as_bytes());
        }
        // Such as images, calls of tools and lists of tokens.
        _ => push(text, message.to_string().as_bytes()),
    }
}

fn chain(text: &[u8]) -> Vec<u64> {
    let mut before = 0_u64;
    let next = |block: &[u8]| {
        before = TargetId::of_parts(&[&before.to_le_bytes(), block]).0;
        before
    };
    text.chunks(BLOCK_BYTES).map(next).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(line: &Value) -> Result<ChatRequest, Reason> {
        parse(line.as_object().expect("an object"))
    }

    fn chat(messages: &Value) -> ChatRequest {
        parsed(&json!({ "time": 1, "model": "m", "messages": messages })).expect("valid")
    }

    #[test]
    fn a_turn_begins_with_the_blocks_of_the_turn_before() {
        let long = |letter: &str| letter.repeat(3 * BLOCK_BYTES);
        let mut messages = vec![json!({ "role": "user", "content": long("a") })];
        let first = chat(&messages.clone().into());
        messages.push(json!({ "role": "assistant", "content": long("b") }));
        let second = chat(&messages.into());
        // The last block of the first turn was not full.
        assert_eq!(first.blocks.len(), 4);
        assert_eq!(second.blocks[..3], first.blocks[..3]);
        assert_ne!(second.blocks[3], first.blocks[3]);
        assert_eq!(second.bytes, first.bytes + 3 * BLOCK_BYTES as u64 + 11);
        // The id of a block stands for all text before it.
        let other = chat(&json!([{ "role": "user", "content": format!("x{}", &long("a")[1..]) }]));
        assert!(other.blocks.iter().zip(&first.blocks).all(|(other, one)| other != one));
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
    fn all_that_engines_see_counts() {
        let different = [
            json!([{ "role": "user", "content": "a" }]),
            json!([{ "role": "system", "content": "a" }]),
            json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }] }]),
            json!([{ "role": "assistant", "content": "a", "tool_calls": [{ "id": "1" }] }]),
            json!([{ "role": "user", "content": "a" }, { "role": "user", "content": "a" }]),
        ];
        let mut ids: Vec<u64> = different.iter().map(|messages| chat(messages).blocks[0]).collect();
        ids.push(
            parsed(&json!({ "time": 1, "model": "n", "messages": different[0] })).expect("valid").blocks[0],
        );
        let tools = json!([{ "type": "function" }]);
        let with = json!({ "time": 1, "model": "m", "tools": tools, "messages": different[0] });
        ids.push(parsed(&with).expect("valid").blocks[0]);
        let distinct: std::collections::BTreeSet<u64> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
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
