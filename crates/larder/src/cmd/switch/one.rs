//! A switch as one process: for a parent that holds it, for debugging, and for who replaces it by other means.

use std::sync::Arc;

use anyhow::Context;
use larder_switch::{Switch, SwitchHandle};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{NO_SECTION, SwitchArgs};
use super::role::{beside, keepers};
use super::status::ReloadStatus;
use super::tables::Keeper;
use crate::acme;
use crate::admin::{SWITCH_ADDRESS, SwitchSurface};
use crate::cmd::serve;
use crate::config::{Config, Written};
use crate::demo::cluster::Ready;
use crate::outcome::usage;
use crate::roster::Found;

pub(crate) fn run(args: &SwitchArgs, written: &Written, config: Config) -> anyhow::Result<()> {
    let Config { switch: Some(mut role), admin, .. } = config else {
        return Err(usage(NO_SECTION));
    };
    if role.run_as.is_some() {
        return Err(usage(
            "switch.process.user needs a process that keeps the listeners: start the switch without --one-process",
        ));
    }
    let tables = keepers(&mut role)?;
    beside(&mut role)?;
    let effective = written.shown()?;
    let runtime = serve::runtime(role.threads)?;
    runtime.block_on(async {
        let shutdown = serve::shutdown(&args.serve)?;
        let nodes = std::mem::take(&mut role.switch.nodes);
        let found = Found::look(nodes, &role.discover, role.follow, Vec::new()).await?;
        role.switch.nodes = found.nodes();
        let switch = Switch::bind(role.switch).context("the switch cannot start")?;
        let handle = switch.handle();
        let status = ReloadStatus::first(std::process::id());
        handle.set_reloads(status.counts);
        let listen = switch.addresses().to_vec();
        on_hangup(handle.clone(), tables.clone())?;
        for keeper in &tables {
            tokio::spawn(keeper.clone().watch(handle.clone()));
        }
        let roster = found.keep(handle.clone());
        let acme = role.acme.map(|role| acme::Keeper::new(role, handle.clone()));
        let ordering = acme.as_ref().map(acme::Keeper::start).transpose()?;
        let surface = SwitchSurface::new(handle, effective, tables, roster, status);
        let surface = Arc::new(surface.with_acme(acme));
        let admin = serve::start_admin(admin, Some(SWITCH_ADDRESS), surface, shutdown.clone()).await?;
        tracing::info!(?listen, "switch: ready");
        args.serve.say_ready(&Ready { listen, admin, peers: None })?;
        let served = switch.run(shutdown.requested()).await.context("the switch");
        drop(ordering);
        served
    })
}

/// SIGHUP opens the access log anew, for log rotation, and reads the routing tables again.
fn on_hangup(switch: SwitchHandle, keepers: Vec<Arc<Keeper>>) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            switch.reopen_access_log();
            for keeper in keepers.iter().filter(|keeper| keeper.has_file()) {
                let (keeper, switch) = (keeper.clone(), switch.clone());
                // A failure is logged and shown by the admin interface.
                tokio::task::spawn_blocking(move || drop(keeper.reload(&switch)));
            }
        }
    });
    Ok(())
}
