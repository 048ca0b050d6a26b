//! A switch in one process, for parents that control it, for debugging, and for other ways to replace it.

use std::sync::Arc;

use anyhow::Context;
use larder_switch::{Switch, SwitchHandle};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{NO_SECTION, SwitchArgs};
use super::role::{load_secrets, load_tables};
use super::status::ReloadStatus;
use super::tables::TableManager;
use crate::acme;
use crate::admin::{SWITCH_ADDRESS, SwitchAdmin};
use crate::cmd::serve;
use crate::config::{Config, Written};
use crate::demo::cluster::Ready;
use crate::outcome::usage;
use crate::roster::NodeSources;

pub(crate) fn run(args: &SwitchArgs, written: &Written, config: Config) -> anyhow::Result<()> {
    let Config { switch: Some(mut role), admin, .. } = config else {
        return Err(usage(NO_SECTION));
    };
    if role.run_as.is_some() {
        return Err(usage(
            "switch.process.user needs a separate master process: start the switch without --one-process",
        ));
    }
    let tables = load_tables(&mut role)?;
    load_secrets(&mut role)?;
    let effective = written.shown()?;
    let runtime = serve::runtime(role.threads)?;
    runtime.block_on(async {
        let shutdown = serve::shutdown(&args.serve)?;
        let nodes = std::mem::take(&mut role.switch.nodes);
        let sources = NodeSources::read_all(nodes, &role.discover, role.follow, Vec::new()).await?;
        role.switch.nodes = sources.nodes();
        let switch = Switch::bind(role.switch).context("the switch cannot start")?;
        let handle = switch.handle();
        let status = ReloadStatus::new(std::process::id());
        handle.set_reloads(status.counts);
        let listen = switch.addresses().to_vec();
        reload_on_hangup(handle.clone(), tables.clone())?;
        for table in &tables {
            tokio::spawn(table.clone().watch(handle.clone()));
        }
        let roster = sources.start_manager(handle.clone());
        let acme = role.acme.map(|role| acme::CertificateManager::new(role, handle.clone()));
        let ordering = acme.as_ref().map(acme::CertificateManager::start).transpose()?;
        let admin_service = SwitchAdmin::new(handle, effective, tables, roster, status);
        let admin_service = Arc::new(admin_service.with_acme(acme));
        let admin = serve::start_admin(admin, Some(SWITCH_ADDRESS), admin_service, shutdown.clone()).await?;
        tracing::info!(?listen, "switch: ready");
        args.serve.print_ready_line(&Ready { listen, admin, peers: None })?;
        let served = switch.run(shutdown.requested()).await.context("the switch");
        drop(ordering);
        served
    })
}

/// Reopens the access log at SIGHUP, for log rotation, and reads the routing tables again.
fn reload_on_hangup(switch: SwitchHandle, tables: Vec<Arc<TableManager>>) -> anyhow::Result<()> {
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            switch.reopen_access_log();
            for table in tables.iter().filter(|table| table.has_file()) {
                let (table, switch) = (table.clone(), switch.clone());
                // Failures are logged and shown by the admin interface.
                tokio::task::spawn_blocking(move || drop(table.reload(&switch)));
            }
        }
    });
    Ok(())
}
