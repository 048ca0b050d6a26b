//! The path `/purge` of switches and nodes.

use larder_edge::{PermissionError, Purge};

use super::{AdminReply, AdminRequest};

/// The entry in the list of routes.
pub(super) const ROUTE: &str = "POST /purge?url=URL, ?prefix=URL or ?tag=TAG";

/// Parses a purge, if the client may purge; else returns the error reply. `role` is `switch` or `node`.
pub(super) fn parse_purge(
    request: &AdminRequest<'_>,
    role: &str,
    permitted: Result<(), PermissionError>,
) -> Result<Purge, AdminReply> {
    match permitted {
        Ok(()) => {}
        Err(PermissionError::Off) => {
            let what = format!("this {role} has no purge token, so purges are disabled");
            let hint = format!("set {role}.purge_token to a file with a token, and reload");
            return Err(AdminReply::problem(403, &what, &hint));
        }
        Err(PermissionError::Wrong) => {
            let hint = format!("send 'Authorization: Bearer TOKEN' with the token of {role}.purge_token");
            return Err(AdminReply::problem(401, "missing or wrong purge token", &hint));
        }
    }
    Purge::from_parameters(|kind| request.param(kind))
        .map_err(|bad| AdminReply::problem(400, &bad.what, bad.right))
}
