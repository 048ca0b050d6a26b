//! `/purge`: what switch and node have in common.

use larder_edge::{PermissionError, Purge};

use super::{Answer, Ask};

/// The route, as the list of routes has it.
pub(super) const ROUTE: &str = "POST /purge?url=URL, ?prefix=URL or ?tag=TAG";

/// The purge that is asked for, if whoever asks may purge; else the answer. `role` is `switch` or `node`.
pub(super) fn asked(
    ask: &Ask<'_>,
    role: &str,
    permitted: Result<(), PermissionError>,
) -> Result<Purge, Answer> {
    match permitted {
        Ok(()) => {}
        Err(PermissionError::Off) => {
            let what = format!("this {role} has no purge token, so nobody may purge");
            let hint = format!("set {role}.purge_token to a file with a token, and reload");
            return Err(Answer::problem(403, &what, &hint));
        }
        Err(PermissionError::Wrong) => {
            let hint = format!("send 'Authorization: Bearer TOKEN' with the token of {role}.purge_token");
            return Err(Answer::problem(401, "no purge token is shown, or a wrong one", &hint));
        }
    }
    Purge::from_parameters(|kind| ask.param(kind)).map_err(|bad| Answer::problem(400, &bad.what, bad.right))
}
