//! `larder agent`: a node's side of handoff, for a host with a server of another make.

use std::sync::Arc;

use clap::Args;

use super::handoff;
use super::serve::{self, ServeArgs};
use crate::admin::AgentSurface;
use crate::config::{AgentRole, Config};
use crate::demo::cluster::Ready;
use crate::outcome::usage;

/// Let the server of this host take handed-off connections.
///
/// The server stays as it is and sees clients by their own addresses. The agent looks after programs in the kernel by
/// which it accepts connections that a switch has begun, and tells the switch which have ended and how busy the host
/// is. It is on no connection's way: if it ends, connections live on, and new ones are relayed.
///
/// The config is read at the start alone: SIGHUP does nothing.
///
/// For example: larder agent --config agent.toml, with an `[agent]` section. Needs `CAP_BPF` and `CAP_NET_ADMIN`; larder
/// doctor says what else.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    serve: ServeArgs,
}

pub(crate) fn run(args: &AgentArgs) -> anyhow::Result<()> {
    serve::outlive_hangup()?;
    let written = args.serve.written()?;
    if args.serve.config.is_none() {
        return Err(usage("an agent needs to know its switches: --config FILE, with an [agent] section"));
    }
    let config = written.validate()?;
    written.present(&config)?;
    super::logging::start(&config.log)?;
    let Config { agent: Some(AgentRole { name, handoff }), admin, .. } = config else {
        return Err(usage("there is no [agent] section"));
    };
    let runtime = serve::runtime(args.serve.threads.unwrap_or(1))?;
    runtime.block_on(async {
        let shutdown = serve::shutdown(&args.serve)?;
        let agent = handoff::start(&name, handoff, None).await?;
        let surface = Arc::new(AgentSurface::new(agent.outcomes()));
        let admin = serve::start_admin(admin, None, surface, shutdown.clone()).await?;
        args.serve.say_ready(&Ready { listen: vec![agent.address()], admin, peers: None })?;
        shutdown.requested().await;
        agent.stop().await;
        Ok(())
    })
}
