//! `larder picker`: an endpoint picker for gateways.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use larder_picker::{Picker, PickerServer};
use larder_switch::NodeEntry;
use tokio::net::TcpListener;

use super::serve::{self, ServeArgs};
use crate::admin::PickerAdmin;
use crate::config::{Config, PickerRole, Role, Texts, Written};
use crate::demo::cluster::Ready;
use crate::outcome::usage;
use crate::preflight;
use crate::roster::{NodeSources, resolve};

/// Interval at which the names of endpoints are resolved again.
const FOLLOW_NAMES: Duration = Duration::from_secs(30);

/// Tell a gateway such as Envoy which endpoint serves a request (Kubernetes endpoint picker).
///
/// The gateway asks over gRPC, by the endpoint picker protocol of Gateway API Inference Extension. Requests do not pass
/// the picker. Several replicas of a picker agree.
///
/// For example: larder picker --config picker.toml
///
/// The config needs a `[picker]` section. SIGTERM and SIGINT end the picker after the requests in flight.
#[derive(Debug, Args)]
pub(crate) struct PickerArgs {
    /// Address that gateways connect to: ADDRESS:PORT; port 0 takes any free port.
    #[arg(short, long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Name of this replica among its peers, such as that of its pod.
    #[arg(long, value_name = "NAME")]
    peer_name: Option<String>,
    /// Address that its peers use to reach this replica: ADDRESS:PORT.
    #[arg(long, value_name = "ADDRESS")]
    peer_address: Option<String>,
    #[command(flatten)]
    serve: ServeArgs,
}

impl PickerArgs {
    /// Reads the config file, and applies the options.
    fn read_config(&self) -> anyhow::Result<Written> {
        let mut written = self.serve.read_config()?;
        let Some(picker) = &mut written.raw.picker else {
            return Err(usage(
                "the config has no [picker] section: add one with listen and [[picker.discover]] or nodes",
            ));
        };
        if let Some(listen) = &self.listen {
            picker.listen = Texts(vec![listen.clone()]);
        }
        let given = (&self.peer_name, &self.peer_address);
        match (&mut picker.peers, given) {
            (None, (None, None)) => {}
            (None, _) => return Err(usage("--peer-name and --peer-address need a [picker.peers] section")),
            (Some(peers), (name, address)) => {
                if let Some(name) = name {
                    peers.name.clone_from(name);
                }
                peers.advertise = address.clone().or_else(|| peers.advertise.take());
            }
        }
        Ok(written)
    }
}

pub(crate) fn run(args: &PickerArgs) -> anyhow::Result<()> {
    serve::ignore_hangup()?;
    if args.serve.config.is_none() {
        return Err(usage(
            "the picker cannot start without a config: give --config FILE with a [picker] section",
        ));
    }
    let written = args.read_config()?;
    let config = written.validate()?;
    super::logging::start(&config.log)?;
    serve::raise_open_files();
    preflight::start(&written, &config.only(Role::Picker))?;
    for warning in written.warnings(&config) {
        tracing::warn!(%warning, "config: accepted with a warning");
    }
    let Config { picker: Some(role), admin, .. } = config else {
        return Err(usage("the config has no [picker] section"));
    };
    let runtime = serve::runtime(args.serve.threads.unwrap_or(0))?;
    let ended = runtime.block_on(async {
        let shutdown = serve::shutdown(&args.serve)?;
        let PickerRole { listen, mut picker, nodes, discover, peers } = role;
        picker.peers = peers.map(|peers| serve::peer_switches("picker.peers.secret", peers)).transpose()?;
        let listener = TcpListener::bind(listen).await.with_context(|| {
            format!("cannot listen on {listen}: set picker.listen (or --listen) to another address")
        })?;
        let listen = listener.local_addr()?;
        let sources = NodeSources::read_all(nodes, &discover, FOLLOW_NAMES, Vec::new()).await?;
        let resolved = |entry: NodeEntry| {
            let address = resolve(&entry.address).map_err(anyhow::Error::msg)?;
            Ok((entry.spec, address))
        };
        let nodes = sources.nodes().into_iter().map(resolved).collect::<anyhow::Result<Vec<_>>>()?;
        let picker = Arc::new(Picker::new(picker, nodes).context("the picker cannot start")?);
        let server = PickerServer::new(Arc::clone(&picker), listener).context("the picker cannot start")?;
        let roster = sources.start_manager(Arc::clone(&picker));
        let surface = Arc::new(PickerAdmin::new(picker, roster));
        let admin = serve::start_admin(admin, None, surface, shutdown.clone()).await?;
        tracing::info!(%listen, "endpoint picker: ready");
        args.serve.print_ready_line(&Ready { listen: vec![listen], admin, peers: None })?;
        let drained = server.serve(shutdown.requested()).await;
        if drained.aborted > 0 {
            tracing::warn!(
                connections = drained.aborted,
                "drain: deadline passed, open connections are closed"
            );
        }
        Ok(())
    });
    // Threads that block, as in a name lookup, do not delay the end.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended
}
