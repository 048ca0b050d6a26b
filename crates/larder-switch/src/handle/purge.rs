//! Purges through the admin interface.

use super::status::SwitchHandle;
use crate::purge::PurgeReport;
use larder_edge::{PermissionError, Purge};

impl SwitchHandle {
    /// Checks whether a client with this `Authorization` may purge. Counts refusals.
    ///
    /// # Errors
    /// The switch has no token, or a different one.
    pub fn may_purge(&self, authorization: Option<&[u8]>) -> Result<(), PermissionError> {
        self.shared.purges.permit(authorization)
    }

    /// Purges at all nodes, including draining and down ones. Must be called within the runtime.
    pub async fn purge(&self, purge: &Purge) -> PurgeReport {
        self.shared.purges.purge(&self.shared.decider.nodes, purge).await
    }
}
