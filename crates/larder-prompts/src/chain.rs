//! The division of a prompt into blocks.

use crate::error::PromptError;
use crate::{BLOCK_BYTES, TOKEN_BYTES};
use larder_core::TargetId;
use larder_core::cache::Block;
use serde_json::{Map, Value};

/// The prompt of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    ids: Vec<u64>,
    bytes: u64,
}

impl Prompt {
    /// Reads the body of a request. Cost: O(bytes).
    ///
    /// # Errors
    /// [`PromptError`] if the body is no JSON object or has no prompt.
    pub fn parse(body: &[u8]) -> Result<Self, PromptError> {
        Self::of(&serde_json::from_slice(body)?).ok_or(PromptError::NoPrompt)
    }

    /// Returns the prompt of a parsed body; `None` if it has no text.
    pub fn of(body: &Map<String, Value>) -> Option<Self> {
        let mut text = BlockHasher::default();
        // Models do not share blocks.
        if let Some(model) = body.get("model").and_then(Value::as_str) {
            text.push_part(model.as_bytes());
        }
        let before = text.bytes;
        for part in ["tools", "messages", "prompt"].iter().filter_map(|key| body.get(*key)) {
            match part {
                Value::String(prompt) => text.push_part(prompt.as_bytes()),
                Value::Array(parts) => parts.iter().for_each(|part| text.push_message(part)),
                _ => {}
            }
        }
        (text.bytes > before).then(|| text.finish())
    }

    /// Returns the ids of the blocks, from the start of the prompt to its end. At least one.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Returns the bytes of the text, at least 1.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the blocks with their tokens, at [`TOKEN_BYTES`] each. The last block may have fewer.
    pub fn blocks(&self) -> Vec<Block> {
        const FULL: u32 = BLOCK_BYTES as u32 / TOKEN_BYTES;
        let tokens = u32::try_from(self.bytes % BLOCK_BYTES as u64).unwrap_or(0).div_ceil(TOKEN_BYTES);
        let last = if tokens == 0 { FULL } else { tokens };
        let count = self.ids.len();
        let block = |(at, id): (usize, &u64)| Block {
            id: TargetId(*id),
            tokens: if at + 1 == count { last } else { FULL },
        };
        self.ids.iter().enumerate().map(block).collect()
    }
}

/// Hashes a text block by block as it grows, so that it need not be in memory as a whole.
#[derive(Debug, Default)]
struct BlockHasher {
    ids: Vec<u64>,
    /// The bytes of the last block, which is not full.
    rest: Vec<u8>,
    bytes: u64,
}

impl BlockHasher {
    /// Appends a part and a separator, so that parts do not run together.
    fn push_part(&mut self, part: &[u8]) {
        self.push(part);
        self.push(&[0]);
    }

    /// Appends a message: role and text, or all of what is not text.
    fn push_message(&mut self, message: &Value) {
        let role = message.get("role").and_then(Value::as_str);
        match (message, role, message.get("content")) {
            (Value::String(content), ..) => self.push_part(content.as_bytes()),
            (_, Some(role), Some(Value::String(content))) if message.get("tool_calls").is_none() => {
                self.push_part(role.as_bytes());
                self.push_part(content.as_bytes());
            }
            // Such as images, calls of tools and lists of tokens.
            _ => self.push_part(message.to_string().as_bytes()),
        }
    }

    fn push(&mut self, mut text: &[u8]) {
        self.bytes += text.len() as u64;
        if !self.rest.is_empty() {
            let (head, tail) = text.split_at(text.len().min(BLOCK_BYTES - self.rest.len()));
            self.rest.extend_from_slice(head);
            text = tail;
            if self.rest.len() == BLOCK_BYTES {
                let block = std::mem::take(&mut self.rest);
                self.end_block(&block);
            }
        }
        while let Some((block, tail)) = text.split_at_checked(BLOCK_BYTES) {
            self.end_block(block);
            text = tail;
        }
        self.rest.extend_from_slice(text);
    }

    /// The id of a block stands for all text up to its end.
    fn end_block(&mut self, block: &[u8]) {
        let before = self.ids.last().copied().unwrap_or(0);
        self.ids.push(TargetId::of_parts(&[&before.to_le_bytes(), block]).0);
    }

    fn finish(mut self) -> Prompt {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.end_block(&rest);
        }
        Prompt { ids: self.ids, bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parsed(body: &Value) -> Result<Prompt, PromptError> {
        Prompt::parse(body.to_string().as_bytes())
    }

    fn chat(messages: &Value) -> Prompt {
        parsed(&json!({ "model": "m", "messages": messages })).expect("valid")
    }

    #[test]
    fn a_turn_begins_with_the_blocks_of_the_turn_before() {
        let long = |letter: &str| letter.repeat(3 * BLOCK_BYTES);
        let mut messages = vec![json!({ "role": "user", "content": long("a") })];
        let first = chat(&messages.clone().into());
        messages.push(json!({ "role": "assistant", "content": long("b") }));
        let second = chat(&messages.into());
        // The last block of the first turn was not full.
        assert_eq!(first.ids.len(), 4);
        assert_eq!(second.ids[..3], first.ids[..3]);
        assert_ne!(second.ids[3], first.ids[3]);
        assert_eq!(second.bytes, first.bytes + 3 * BLOCK_BYTES as u64 + 11);
        // The id of a block stands for all text before it.
        let other = chat(&json!([{ "role": "user", "content": format!("x{}", &long("a")[1..]) }]));
        assert!(other.ids.iter().zip(&first.ids).all(|(other, one)| other != one));
        let tokens: Vec<u32> = first.blocks().iter().map(|block| block.tokens).collect();
        // 2 bytes of the model, 5 of the role and 1 after the content.
        assert_eq!(tokens, [512, 512, 512, 2]);
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
        let mut ids: Vec<u64> = different.iter().map(|messages| chat(messages).ids[0]).collect();
        ids.push(parsed(&json!({ "model": "n", "messages": different[0] })).expect("valid").ids[0]);
        let tools = json!([{ "type": "function" }]);
        let with = json!({ "model": "m", "tools": tools, "messages": different[0] });
        ids.push(parsed(&with).expect("valid").ids[0]);
        let distinct: std::collections::BTreeSet<u64> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
    }

    #[test]
    fn bodies_without_a_prompt_are_errors() {
        for body in [json!({}), json!({ "model": "m", "messages": [] }), json!({ "prompt": 5 })] {
            assert!(matches!(parsed(&body), Err(PromptError::NoPrompt)), "{body}");
        }
        for text in ["", "[1]", "{\"prompt\": \"a\"", "prompt"] {
            let error = Prompt::parse(text.as_bytes()).expect_err("no JSON object");
            assert!(error.to_string().starts_with("the body is no JSON object: "), "{error}");
        }
    }

    proptest! {
        /// The division does not depend on the pieces in which the text was pushed.
        #[test]
        fn pieces_do_not_matter(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..6)) {
            let mut hasher = BlockHasher::default();
            pieces.iter().for_each(|piece| hasher.push(piece));
            let prompt = hasher.finish();
            let (text, mut before) = (pieces.concat(), 0_u64);
            let ids: Vec<u64> = text.chunks(BLOCK_BYTES).map(|block| {
                before = TargetId::of_parts(&[&before.to_le_bytes(), block]).0;
                before
            }).collect();
            prop_assert_eq!(&prompt.ids, &ids);
            let tokens: u64 = prompt.blocks().iter().map(|block| u64::from(block.tokens)).sum();
            prop_assert_eq!(tokens, (text.len() as u64).div_ceil(u64::from(TOKEN_BYTES)));
        }

        /// Any body is a prompt or an error.
        #[test]
        fn any_body_is_a_prompt_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200), text in any::<String>()) {
            if let Ok(prompt) = Prompt::parse(&body) {
                prop_assert!(!prompt.ids.is_empty());
            }
            let prompt = parsed(&json!({ "prompt": text })).expect("a prompt, even if it is empty");
            prop_assert_eq!(prompt.bytes, text.len() as u64 + 1);
        }
    }
}
