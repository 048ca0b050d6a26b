//! Files that a switch reads before it starts: routing tables and secrets.

use std::sync::Arc;

use super::tables::TableManager;
use crate::cmd::serve::{self, peer_switches};
use crate::config::SwitchRole;
use crate::outcome::usage;

/// Reads the routing tables, and adds them to the settings of their routes.
pub(super) fn load_tables(role: &mut SwitchRole) -> anyhow::Result<Vec<Arc<TableManager>>> {
    let mut managers = Vec::with_capacity(role.wards.len());
    for ward in std::mem::take(&mut role.wards) {
        let manager = TableManager::new(ward).map_err(|error| usage(error.to_string()))?;
        let mut routes = role.switch.routes.iter_mut();
        let settings = match routes.find(|route| route.name == manager.route()) {
            Some(route) => &mut route.settings,
            None => &mut role.switch.settings,
        };
        settings.table = manager.table();
        managers.push(Arc::new(manager));
    }
    Ok(managers)
}

/// Reads the secrets for nodes and for peer switches, and configures the connection to the peer switches.
pub(super) fn load_secrets(role: &mut SwitchRole) -> anyhow::Result<()> {
    let secret = role.report_secret.as_deref();
    role.switch.signals.secret =
        secret.map(|path| serve::secrets("switch.signals.secret", path)).transpose()?;
    role.switch.purge = serve::tokens("switch.purge_token", role.purge_token.as_deref())?;
    let beside = role.beside.take();
    role.switch.switches = beside.map(|peers| peer_switches("switch.switches.secret", peers)).transpose()?;
    Ok(())
}
