//! The requests of a thread.

use crate::shared::Shared;
use std::sync::Arc;

/// The requests of all clients of a thread.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) shared: Arc<Shared>,
}
