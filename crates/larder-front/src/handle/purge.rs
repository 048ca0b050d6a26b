//! Purges, as an operator asks for them.

use super::status::SwitchHandle;
use crate::purge::PurgeReport;
use larder_edge::{Purge, Unpermitted};

impl SwitchHandle {
    /// Whether a client that shows this `Authorization` may purge. A refusal is counted.
    ///
    /// # Errors
    /// The switch has no token, or another one.
    pub fn may_purge(&self, authorization: Option<&[u8]>) -> Result<(), Unpermitted> {
        self.shared.purges.permit(authorization)
    }

    /// Has all nodes purge, also those that drain or do not answer. Must be called within the runtime.
    pub async fn purge(&self, purge: &Purge) -> PurgeReport {
        self.shared.purges.purge(&self.shared.decider.nodes, purge).await
    }
}
