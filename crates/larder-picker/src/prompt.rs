//! The prompt of a request: its body is read before the decision.
//!
//! This needs bodies in the mode `FULL_DUPLEX_STREAMED`. In the other modes the gateway sends no body before it has the endpoint, so
//! completions are placed by their heads.

use crate::counters::RequestOutcome;
use bytes::Bytes;
use larder_core::rules::Head;
use larder_prompts::{HeldBody, Prompt, PromptError, PromptRoute, error_body, is_completion};
use std::net::SocketAddr;
use std::sync::Arc;

/// The largest piece of a body that is sent back. Envoy takes at most 64 KiB.
const PIECE_BYTES_MAX: usize = 60 << 10;

/// A request whose body is read.
#[derive(Debug)]
pub(crate) struct PendingPrompt {
    route: Arc<PromptRoute>,
    permitted: Option<Vec<SocketAddr>>,
    held: HeldBody,
    content: Vec<u8>,
}

/// A completion that is placed by its prompt.
#[derive(Debug)]
pub(crate) struct ReadPrompt {
    pub(crate) route: Arc<PromptRoute>,
    pub(crate) permitted: Option<Vec<SocketAddr>>,
    pub(crate) prompt: Prompt,
    pub(crate) held: HeldBody,
    pub(crate) content: Bytes,
}

/// The reason why a completion is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PromptFault {
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
    #[error("too many prompts arrive at once")]
    MemoryFull,
    #[error(transparent)]
    NoPrompt(#[from] PromptError),
}

impl PromptFault {
    pub(crate) const fn outcome(&self) -> RequestOutcome {
        match self {
            Self::TooLarge(_) => RequestOutcome::TooLarge,
            Self::MemoryFull => RequestOutcome::MemoryFull,
            Self::NoPrompt(_) => RequestOutcome::NoPrompt,
        }
    }

    /// Returns the status of the reply, and the code of its error.
    pub(crate) const fn status(&self) -> (u16, &'static str) {
        match self {
            Self::TooLarge(_) => (413, "body_too_large"),
            Self::MemoryFull => (503, "prompt_memory_full"),
            Self::NoPrompt(_) => (400, "no_prompt"),
        }
    }

    /// Returns the body of the reply, in the form of OpenAI's API.
    pub(crate) fn body(&self) -> Bytes {
        let (status, code) = self.status();
        error_body(status, code, &self.to_string()).into()
    }
}

/// Returns whether a request with this head is a completion whose body can be read.
pub(crate) fn has_prompt(head: &Head<'_>) -> bool {
    head.method == b"POST" && is_completion(head.path) && head.headers.get("content-encoding").is_none()
}

impl PendingPrompt {
    pub(crate) fn new(route: &Arc<PromptRoute>, permitted: Option<Vec<SocketAddr>>) -> Self {
        let held = HeldBody::new(route.budget().clone());
        Self { route: Arc::clone(route), permitted, held, content: Vec::new() }
    }

    /// Adds a piece of the body.
    pub(crate) fn add(&mut self, piece: &[u8]) -> Result<(), PromptFault> {
        let (length, bytes_max) = (self.content.len() + piece.len(), self.route.config.body_bytes_max);
        if length > bytes_max {
            return Err(PromptFault::TooLarge(bytes_max));
        }
        if !self.held.grow_to(length, bytes_max) {
            return Err(PromptFault::MemoryFull);
        }
        self.content.reserve_exact(self.held.bytes() - self.content.len());
        self.content.extend_from_slice(piece);
        Ok(())
    }

    /// Reads the prompt of the whole body.
    pub(crate) fn read(self) -> Result<ReadPrompt, PromptFault> {
        let Self { route, permitted, held, content } = self;
        let prompt = Prompt::parse(&content)?;
        Ok(ReadPrompt { route, permitted, prompt, held, content: content.into() })
    }
}

/// Divides a body into the pieces that are sent back, at least one. Returns each with whether it is the last one.
pub(crate) fn pieces(mut content: Bytes) -> impl Iterator<Item = (Bytes, bool)> {
    let mut is_done = false;
    std::iter::from_fn(move || {
        if is_done {
            return None;
        }
        let piece = content.split_to(content.len().min(PIECE_BYTES_MAX));
        is_done = content.is_empty();
        Some((piece, is_done))
    })
}
