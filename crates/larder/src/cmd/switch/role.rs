//! The files that a switch reads before it starts: routing tables and secrets.

use std::sync::Arc;

use larder_peers::PeersConfig;
use larder_switch::SwitchesConfig;

use super::tables::Keeper;
use crate::cmd::serve;
use crate::config::{SwitchRole, SwitchesRole};
use crate::outcome::usage;

/// Reads the routing tables and lays them into the routes that go by them.
pub(super) fn keepers(role: &mut SwitchRole) -> anyhow::Result<Vec<Arc<Keeper>>> {
    let mut keepers = Vec::with_capacity(role.wards.len());
    for ward in std::mem::take(&mut role.wards) {
        let keeper = Keeper::new(ward).map_err(|error| usage(error.to_string()))?;
        let mut routes = role.switch.routes.iter_mut();
        let settings = match routes.find(|route| route.name == keeper.route()) {
            Some(route) => &mut route.settings,
            None => &mut role.switch.settings,
        };
        settings.table = keeper.table();
        keepers.push(Arc::new(keeper));
    }
    Ok(keepers)
}

/// Reads the secrets of the switch: the one that it proves to nodes, and the one that it shares with other switches. Lets it know
/// where these are.
pub(super) fn beside(role: &mut SwitchRole) -> anyhow::Result<()> {
    let secret = role.report_secret.as_deref();
    role.switch.signals.secret =
        secret.map(|path| serve::secrets("switch.signals.secret", path)).transpose()?;
    role.switch.purge = serve::tokens("switch.purge_token", role.purge_token.as_deref())?;
    let Some(SwitchesRole { name, listen, advertise, secret, seeds, settings }) = role.beside.take() else {
        return Ok(());
    };
    let read = serve::secrets("switch.switches.secret", &secret)?;
    let network = PeersConfig { advertise, seeds, ..PeersConfig::new(name, listen, read) };
    role.switch.switches = Some(SwitchesConfig { network, settings });
    Ok(())
}
