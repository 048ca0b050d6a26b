//! Request handler of a thread.

use crate::shared::Shared;
use std::sync::Arc;

/// Handles the requests of all clients of a thread.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) shared: Arc<Shared>,
}
