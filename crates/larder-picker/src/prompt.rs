//! The prompt of a request: its body is read before the decision.
//!
//! This needs bodies in the mode `FULL_DUPLEX_STREAMED`. In the other modes the gateway sends no body before it has the endpoint, so
//! completions are placed by their heads.

use crate::counters::RequestOutcome;
use bytes::Bytes;
use larder_prompts::{HeldBody, Prompt, PromptFault, PromptRoute};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

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

/// Returns the outcome of a request that is refused for this reason.
pub(crate) const fn outcome(fault: &PromptFault) -> RequestOutcome {
    match fault {
        PromptFault::TooLarge(_) => RequestOutcome::TooLarge,
        PromptFault::TimedOut(_) => RequestOutcome::BodyTimeout,
        PromptFault::MemoryFull => RequestOutcome::MemoryFull,
        PromptFault::NoPrompt(_) => RequestOutcome::NoPrompt,
    }
}

impl PendingPrompt {
    pub(crate) fn new(route: &Arc<PromptRoute>, permitted: Option<Vec<SocketAddr>>) -> Self {
        let held = HeldBody::new(route.budget().clone());
        Self { route: Arc::clone(route), permitted, held, content: Vec::new() }
    }

    /// Returns the longest time for the body.
    pub(crate) fn time_max(&self) -> Duration {
        self.route.config.body_timeout
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
