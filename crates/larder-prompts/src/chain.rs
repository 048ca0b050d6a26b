//! The division of a prompt into blocks.

use crate::error::PromptError;
use crate::{BLOCK_BYTES, TOKEN_BYTES};
use larder_core::TargetId;
use larder_core::cache::Block;
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// The number of blocks that determine the target of a prompt.
const TARGET_BLOCKS: usize = 8;

/// The prompt of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    ids: Vec<u64>,
    bytes: u64,
}

/// The parts of a body that determine the prompt, as text. Other parts are skipped.
#[derive(Debug, Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
}

/// A message, as text.
#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

impl Prompt {
    /// Reads the body of a request. Cost: O(bytes). The memory is that of one message and of 8 bytes for each block: values
    /// are hashed as they are read, and no tree is built.
    ///
    /// # Errors
    /// [`PromptError`] if the body is not a JSON object or has no prompt.
    pub fn parse(body: &[u8]) -> Result<Self, PromptError> {
        let body: Body<'_> = serde_json::from_slice(body)?;
        let mut text = BlockHasher::default();
        // Models do not share blocks.
        if let Some(model) = body.model.and_then(|model| decoded(model.get())) {
            text.push_part(model.as_bytes());
        }
        let before = text.bytes;
        for part in [body.tools, body.messages, body.prompt].into_iter().flatten() {
            let part = part.get();
            if part.starts_with('[') {
                serde_json::Deserializer::from_str(part).deserialize_seq(Messages(&mut text))?;
            } else if let Some(prompt) = decoded(part) {
                text.push_part(prompt.as_bytes());
            }
        }
        if text.bytes > before { Ok(text.finish()) } else { Err(PromptError::NoPrompt) }
    }

    /// Returns the ids of the blocks, from the start of the prompt to its end. At least one.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Returns the target of the prompt, for policies that know no chains and for lists of hot targets. Prompts with equal
    /// beginnings have one target.
    pub fn target(&self) -> TargetId {
        TargetId(self.ids.iter().take(TARGET_BLOCKS).next_back().copied().unwrap_or_default())
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

/// Returns the text of a JSON string; `None` for another value. A string that is not Unicode, such as one with half of
/// a surrogate pair, stays as it is written.
fn decoded(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    Some(serde_json::from_str(json).map_or(Cow::Borrowed(inner), Cow::Owned))
}

/// Hashes the elements of a list one by one.
struct Messages<'h>(&'h mut BlockHasher);

impl<'de> Visitor<'de> for Messages<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while let Some(message) = elements.next_element::<&RawValue>()? {
            self.0.push_message(message.get());
        }
        Ok(())
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

    /// Appends a message: role and text, or the whole JSON of anything that is not text.
    fn push_message(&mut self, json: &str) {
        if let Some(text) = decoded(json) {
            return self.push_part(text.as_bytes());
        }
        if let Ok(Message { role: Some(role), content: Some(content), tool_calls: None }) =
            serde_json::from_str(json)
            && let (Some(role), Some(content)) = (decoded(role.get()), decoded(content.get()))
        {
            self.push_part(role.as_bytes());
            return self.push_part(content.as_bytes());
        }
        // Such as images, calls of tools and lists of tokens.
        self.push_part(json.as_bytes());
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
mod tests;
