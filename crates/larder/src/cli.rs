//! The command line.

use clap::{CommandFactory, Parser, Subcommand};

use crate::cmd;

/// The first commands of a new user, and what holds for all commands.
const FIRST_STEPS: &str = "\
First steps:
  larder demo                      compare policies in a cluster on this machine
  larder plan ACCESS-LOG           find how many servers and how much memory your log needs
  larder switch --listen 127.0.0.1:8080 --node 10.0.0.1:80 --node 10.0.0.2:80
                                   put larder before two servers; see http://127.0.0.1:9900
  larder check larder.toml         find all errors of a config before you start it

Exit codes: 0 success, 1 failure, 2 wrong usage or config. Data goes to stdout, everything else to
stderr. Set LARDER_LOG=debug to see more.";

/// A reverse proxy that sends each request to the server that has the reply in memory, and a cache server.
///
/// The proxy is `larder switch`; your servers need no change. The cache server is `larder node`. The other commands
/// measure, plan, check and monitor.
#[derive(Debug, Parser)]
#[command(
    name = "larder",
    version,
    arg_required_else_help = true,
    after_help = FIRST_STEPS
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(Box<cmd::demo::DemoArgs>),
    Switch(Box<cmd::switch::SwitchArgs>),
    Node(Box<cmd::node::NodeArgs>),
    Agent(cmd::agent::AgentArgs),
    Picker(Box<cmd::picker::PickerArgs>),
    Keys(cmd::keys::KeysArgs),
    Load(Box<cmd::load::LoadArgs>),
    Trace(Box<cmd::trace::TraceArgs>),
    Sim(cmd::sim::SimArgs),
    Plan(Box<cmd::plan::PlanArgs>),
    Top(cmd::top::TopArgs),
    Purge(cmd::purge::PurgeArgs),
    Check(cmd::check::CheckArgs),
    Doctor(cmd::doctor::DoctorArgs),
    Completions(cmd::command_docs::CompletionsArgs),
    Manual(cmd::command_docs::ManualArgs),
    /// Print the version.
    Version,
}

impl Cli {
    /// Runs the subcommand.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Demo(args) => cmd::demo::run(&args),
            Command::Switch(args) => cmd::switch::run(&args),
            Command::Node(args) => cmd::node::run(&args),
            Command::Agent(args) => cmd::agent::run(&args),
            Command::Picker(args) => cmd::picker::run(&args),
            Command::Keys(args) => cmd::keys::run(&args),
            Command::Load(args) => cmd::load::run(&args),
            Command::Trace(args) => cmd::trace::run(*args),
            Command::Sim(args) => cmd::sim::run(&args),
            Command::Plan(args) => cmd::plan::run(&args),
            Command::Top(args) => cmd::top::run(&args),
            Command::Purge(args) => cmd::purge::run(&args),
            Command::Check(args) => cmd::check::run(&args),
            Command::Doctor(args) => cmd::doctor::run(&args),
            Command::Completions(args) => cmd::command_docs::completions(args, Self::command()),
            Command::Manual(args) => cmd::command_docs::manual(&args, Self::command()),
            Command::Version => version(),
        }
    }
}

fn version() -> anyhow::Result<()> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "larder {}", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
