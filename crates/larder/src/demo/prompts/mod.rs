//! `larder demo --prompts`: policies that place prompts, before modelled inference servers.
//!
//! The switch is a process, and prompts pass it as real requests with streams. The servers are the engines of the simulator in real
//! time, in this process, which also sends the load. Beside each policy stands the simulation of the same requests.

mod client;
mod engine;
mod result;
pub(crate) mod table;

pub(crate) use result::PromptsReport;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use larder_core::chain::ChainPolicyKind;
use larder_sim::prompts::{
    DEFAULT_OBJECTIVE_S, EngineModel, PromptCluster, PromptWorkload, simulate_prompts,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::cluster::{arguments, end_all, ready, spawn};
use result::{PolicyOutcome, SCHEMA};

/// Sessions of agents that begin per second of the workload's time.
const SESSIONS_PER_S: f64 = 1.0;
/// The workload passes as many times faster than its own time, so that sessions have several turns in a short run. Engines are not
/// faster.
const SPEED: f64 = 4.0;
/// The engine of each server.
const ENGINE: EngineModel = EngineModel::LLAMA3_8B;

/// Settings of the demo.
#[derive(Clone, Debug)]
pub(crate) struct PromptsSetup {
    /// The executable of larder.
    pub(crate) larder: PathBuf,
    /// Number of servers.
    pub(crate) nodes: u16,
    /// The policies, in the order of the report.
    pub(crate) policies: Vec<ChainPolicyKind>,
    /// Time of arrivals for each policy. Afterwards it may take as long again to complete replies.
    pub(crate) seconds: u64,
    /// Seed of the workload.
    pub(crate) seed: u64,
}

/// Runs the demo.
///
/// # Errors
/// A process does not start, or a setting is out of range.
pub(crate) async fn run(setup: PromptsSetup) -> anyhow::Result<PromptsReport> {
    let seconds = setup.seconds as f64;
    let workload = PromptWorkload::agents(setup.seed, seconds * SPEED, SESSIONS_PER_S).at_speed(SPEED);
    let spinner = super::spinner("");
    let mut policies = Vec::new();
    for policy in &setup.policies {
        spinner.set_message(format!("{policy}: {} requests in {} s", workload.len(), setup.seconds));
        let live = run_policy(&setup, *policy, &workload).await?;
        let cluster = PromptCluster {
            nodes: setup.nodes,
            engine: ENGINE,
            policy: *policy,
            objective_s: DEFAULT_OBJECTIVE_S,
            switches: 1,
            isolated: false,
        };
        policies.push(PolicyOutcome::new(*policy, &live, &simulate_prompts(&workload, &cluster)?));
    }
    spinner.finish_and_clear();
    Ok(PromptsReport {
        schema: SCHEMA,
        nodes: setup.nodes,
        engine: ENGINE.name,
        requests: workload.len(),
        seconds: setup.seconds,
        reuse_unlimited: workload.reuse(u64::MAX).tokens,
        policies,
    })
}

/// Replies of a run, in any order.
#[derive(Debug, Default)]
struct LiveRun {
    completions: Vec<client::Completion>,
    /// Requests that failed.
    errors: usize,
    /// Requests without a complete reply at the end of the run.
    unfinished: usize,
    /// The first error.
    error: Option<String>,
    /// Time from the first request to the last reply.
    elapsed: Duration,
}

async fn run_policy(
    setup: &PromptsSetup,
    policy: ChainPolicyKind,
    workload: &PromptWorkload,
) -> anyhow::Result<LiveRun> {
    // Dropped at the end, with all servers.
    let mut servers = JoinSet::new();
    let mut addresses = Vec::new();
    for _ in 0..setup.nodes {
        addresses.push(engine::start(ENGINE, &mut servers).await?);
    }
    let folder = tempfile::tempdir().context("cannot create a folder for the config")?;
    let config = folder.path().join("larder.toml");
    std::fs::write(&config, config_text(&addresses, policy))
        .with_context(|| format!("cannot write {}", config.display()))?;
    let words = [("--config", config.display().to_string()), ("--admin", "off".to_owned())];
    let mut switch = spawn(&setup.larder, &arguments("switch", &words), "the switch")?;
    let ready = ready(&mut switch, "the switch").await?;
    let address = *ready.listen.first().context("the switch reported no listen address")?;
    let run = send_all(address, workload, Duration::from_secs(2 * setup.seconds)).await;
    end_all(vec![switch]).await;
    Ok(run)
}

/// Returns the config of the switch. Admission is not limited, so that only the policy matters.
fn config_text(servers: &[SocketAddr], policy: ChainPolicyKind) -> String {
    let nodes: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [{}]\n[switch.admission]\nlimit = \"unlimited\"\n\
         [[switch.routes]]\nname = \"llm\"\npath = \"/v1/*\"\n\
         prompts = {{ policy = \"{policy}\", server_tokens = {}, memory = \"2GiB\" }}\n",
        nodes.join(", "),
        ENGINE.kv_tokens
    )
}

/// Sends each request at its time, and waits for the replies until `most` after the first one.
async fn send_all(address: SocketAddr, workload: &PromptWorkload, most: Duration) -> LiveRun {
    let begun = Instant::now();
    let (mut run, mut requests) = (LiveRun::default(), JoinSet::new());
    let take = |run: &mut LiveRun,
                reply: Result<anyhow::Result<client::Completion>, tokio::task::JoinError>| {
        run.elapsed = begun.elapsed();
        match reply {
            Ok(Ok(completion)) => run.completions.push(completion),
            Ok(Err(error)) => {
                run.errors += 1;
                run.error.get_or_insert_with(|| format!("{error:#}"));
            }
            Err(error) => {
                run.errors += 1;
                run.error.get_or_insert_with(|| error.to_string());
            }
        }
    };
    let first = workload.requests().next().map(|(request, _)| request.time).unwrap_or_default();
    for (request, blocks) in workload.requests() {
        let body = client::body(blocks, request.output);
        sleep_until(begun + request.time.since(first)).await;
        requests.spawn(client::complete(address, body));
        while let Some(reply) = requests.try_join_next() {
            take(&mut run, reply);
        }
    }
    while let Ok(Some(reply)) = timeout_at(begun + most, requests.join_next()).await {
        take(&mut run, reply);
    }
    run.unfinished = requests.len();
    if run.unfinished > 0 {
        run.elapsed = begun.elapsed();
    }
    run
}
