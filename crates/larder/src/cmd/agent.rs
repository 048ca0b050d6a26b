//! `larder agent`: the node's side of handoff for a host with another server.

use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use larder_handoff::channel::server::AccessControl;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::handoff;
use super::serve::{self, ServeArgs};
use crate::admin::AgentAdmin;
use crate::config::{AgentRole, Config, Role};
use crate::demo::cluster::Ready;
use crate::outcome::usage;
use crate::preflight;

/// Let a server other than larder accept handed-off connections on this host.
///
/// The server needs no change and sees the addresses of its clients. The agent manages the kernel programs that
/// accept connections from a switch. It reports ended connections and the load of this host to the switch. No
/// traffic passes the agent: if it ends, handed-off connections continue, and new connections are relayed.
///
/// SIGHUP reads the config again and applies `switches`. If a switch's key was removed, its control channel is
/// closed. If another key of `[agent]` has changed, the reload is refused.
///
/// For example: larder agent --config agent.toml
///
/// The config needs an `[agent]` section. The agent needs `CAP_NET_ADMIN`, `CAP_BPF` and `CAP_PERFMON`;
/// `larder doctor` lists all requirements.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    serve: ServeArgs,
}

pub(crate) fn run(args: &AgentArgs) -> anyhow::Result<()> {
    serve::ignore_hangup()?;
    let file = args.serve.read_config()?;
    if args.serve.config.is_none() {
        return Err(usage(
            "the agent cannot start without a config: give --config FILE with an [agent] section",
        ));
    }
    let config = file.validate()?;
    super::logging::start(&config.log)?;
    preflight::start(&file, &config.only(Role::Agent))?;
    let Config { agent: Some(AgentRole { name, handoff }), admin, .. } = config else {
        return Err(usage("the config has no [agent] section: see examples/agent.toml"));
    };
    let runtime = serve::runtime(args.serve.threads.unwrap_or(1))?;
    runtime.block_on(async {
        let hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
        let shutdown = serve::shutdown(&args.serve)?;
        let agent = handoff::start(&name, handoff.clone(), None).await?;
        let surface = Arc::new(AgentAdmin::new(agent.handshake_counters()));
        let admin = serve::start_admin(admin, None, surface, shutdown.clone()).await?;
        tracing::info!(name, "agent: ready");
        args.serve.print_ready_line(&Ready { listen: vec![agent.address()], admin, peers: None })?;
        let (running, admitted) = (AgentRole { name, handoff }, agent.access_control());
        tokio::select! {
            () = shutdown.clone().requested() => {}
            () = apply_reloads(hangup, &args.serve, running, &admitted) => shutdown.requested().await,
        }
        agent.stop().await;
        Ok(())
    })
}

/// Reads the config again at each SIGHUP, and applies the keys of the switches.
async fn apply_reloads(
    mut hangup: Signal,
    args: &ServeArgs,
    mut running: AgentRole,
    admitted: &AccessControl,
) {
    while hangup.recv().await.is_some() {
        match reload_config(args, &running) {
            Ok(role) => {
                let switches = role.handoff.switches.len();
                admitted.set_allowed_and_revoke(role.handoff.switches.clone(), Vec::new());
                running = role;
                tracing::info!(switches, "reload: done");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "reload: refused, the agent keeps its config");
            }
        }
    }
}

/// Returns the current config. Fails if more than the keys of the switches has changed.
fn reload_config(args: &ServeArgs, running: &AgentRole) -> anyhow::Result<AgentRole> {
    let file = args.read_config()?;
    let config = file.validate()?;
    file.present(&config)?;
    let role =
        config.agent.ok_or_else(|| usage("the config has no [agent] section: see examples/agent.toml"))?;
    let mut comparable = role.clone();
    comparable.handoff.switches.clone_from(&running.handoff.switches);
    if comparable != *running {
        return Err(usage("a key of [agent] other than `switches` has changed: restart the agent to use it"));
    }
    Ok(role)
}
