//! Prompts of OpenAI's API as chains of blocks ([`larder_core::chain`]).
//!
//! A prompt is the text of a request's model, tools and messages. It is divided into blocks of [`BLOCK_BYTES`], and the id of
//! a block is a hash of all text up to its end. No tokenizer is needed: engines store blocks of tokens, and where two texts
//! differ, so do their tokens.
//!
//! Bodies are those of `/v1/chat/completions` (`messages`) and `/v1/completions` (`prompt`). A [`PromptRoute`] places them, for a
//! switch, an endpoint picker and a module of a proxy.

mod budget;
mod chain;
mod config;
mod endpoint;
mod error;
mod lease;
mod route;

pub use budget::{BodyBudget, HeldBody};
pub use chain::Prompt;
pub use config::PromptConfig;
pub use endpoint::{has_prompt, is_completion};
pub use error::{PromptError, PromptFault, error_body};
pub use lease::PromptLease;
pub use route::{PromptRoute, PromptStatus};

/// Bytes of text in a block: about 64 tokens of English. Only whole blocks are recognised in a longer prompt, so a block must be
/// shorter than a turn of a conversation. Engines have blocks of 16 tokens and more.
pub const BLOCK_BYTES: usize = 256;

/// Bytes of a token where none are measured: a usual value for English.
pub const TOKEN_BYTES: u32 = 4;
