//! `larder doctor`: checks whether roles can start on this machine, which hosts they reach, and which handoff
//! mechanisms are available. It also prints how to fix what is missing.

mod clock;
mod exchange;
mod machine;
mod reach;
mod side;

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueEnum};
use larder_kernel::probe::{Facts, Finding, FindingState, Mechanism, Report, Role, evaluate};
use larder_switch::MechanismSetting;
use serde_json::{Value, json};

use self::side::SideInput;
use crate::config::{Config, ConfigError, Written};
use crate::preflight::{self, Purpose, ResolvedNames, Severity};

/// Examine whether this machine can start a config, reach its hosts, and hand off connections.
///
/// The command changes nothing. Run it as the user that runs larder, in the same network namespace, because
/// capabilities count. With --config it also makes the checks of `larder check`, connects to nodes and origin (with
/// TLS if the config says so), and compares clocks. It reports which handoff mechanism each listen address gets.
///
/// Exit code 0: the config can start, the requested mechanism is available, and this machine's clock is accurate
/// enough for the origin. Otherwise the exit code is 1. The mechanism `auto` is always available, because it falls
/// back to relay.
///
/// For example: larder doctor --config larder.toml
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Config file; its roles, addresses and nodes are examined.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Examine only this side. Default: the sides in the config, or both.
    #[arg(long, value_enum)]
    role: Option<Side>,
    /// Handoff mechanism that must be available. Default: from the config, or auto.
    #[arg(long, value_enum)]
    mechanism: Option<RequestedMechanism>,
    /// Network interface on which clients' packets arrive, instead of the interface in the config.
    #[arg(long)]
    interface: Option<String>,
    /// Service address, in addition to those in the config; may be repeated.
    #[arg(long)]
    service: Vec<SocketAddr>,
    /// Assume that packets to the nodes are tunnelled, whatever the config says.
    #[arg(long)]
    tunnels: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Side {
    Switch,
    Node,
}

/// A handoff mechanism that a user or a config requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RequestedMechanism {
    /// The best available mechanism.
    Auto,
    Cookie,
    Repair,
    Splice,
    Relay,
    /// Handoff between peers, which uses `repair`.
    Peers,
}

impl From<MechanismSetting> for RequestedMechanism {
    fn from(setting: MechanismSetting) -> Self {
        match setting {
            MechanismSetting::Auto => Self::Auto,
            MechanismSetting::Cookie => Self::Cookie,
            MechanismSetting::Repair => Self::Repair,
            MechanismSetting::Splice => Self::Splice,
            MechanismSetting::Relay => Self::Relay,
        }
    }
}

impl RequestedMechanism {
    /// Returns the mechanism that must be available; `None` if any mechanism is accepted.
    fn required_mechanism(self) -> Option<Mechanism> {
        match self {
            Self::Cookie => Some(Mechanism::Cookie),
            Self::Repair => Some(Mechanism::Repair),
            Self::Auto | Self::Splice | Self::Relay | Self::Peers => None,
        }
    }
}

impl fmt::Display for RequestedMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Cookie => "cookie",
            Self::Repair => "repair",
            Self::Splice => "splice",
            Self::Relay => "relay",
            Self::Peers => "repair",
        })
    }
}

/// The result for one side.
struct SideReport {
    requested: RequestedMechanism,
    report: Report,
    /// Addresses to which clients connect.
    listen: Vec<SocketAddr>,
    /// Nodes without handoff, because the config has no `handoff` for them.
    relayed: Vec<String>,
}

impl SideReport {
    fn available(&self) -> bool {
        self.requested.required_mechanism().is_none_or(|mechanism| self.report.can(mechanism))
    }

    /// Returns the mechanism that will be used: the requested one, or the best available one.
    fn mechanism(&self) -> String {
        match self.requested {
            RequestedMechanism::Auto => self.report.best().to_string(),
            RequestedMechanism::Cookie | RequestedMechanism::Repair if !self.available() => {
                Mechanism::Relay.to_string()
            }
            RequestedMechanism::Peers if !self.report.can(Mechanism::Repair) => Mechanism::Relay.to_string(),
            requested => requested.to_string(),
        }
    }

    /// Returns the mechanism of connections to a listen address. Connections to an unspecified address are
    /// relayed, because packets cannot be matched by it.
    fn mechanism_at(&self, listen: SocketAddr) -> String {
        let uses_handoff = !matches!(self.requested, RequestedMechanism::Splice | RequestedMechanism::Relay);
        if uses_handoff && listen.ip().is_unspecified() {
            return Mechanism::Relay.to_string();
        }
        self.mechanism()
    }

    fn lacks(&self, mechanism: Mechanism) -> String {
        let names: Vec<&str> = self.report.missing_for(mechanism).map(|f| f.what.as_str()).collect();
        names.join(", ")
    }
}

/// The result of all checks.
struct Examination {
    /// Findings of the preflight; `None` without a config.
    start: Option<Vec<(Severity, ConfigError)>>,
    machine: Vec<Finding>,
    /// Findings on hosts that roles connect to.
    reach: Vec<Finding>,
    sides: Vec<SideReport>,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let read = |path: &Path| {
        let written = Written::read(path)?;
        let config = written.validate()?;
        for warning in written.warnings(&config) {
            writeln!(io::stderr(), "warning: {warning}")?;
        }
        anyhow::Ok((written, config))
    };
    let read = args.config.as_deref().map(read).transpose()?;
    let config = read.as_ref().map(|(_, config)| config);
    let examined = read.as_ref().map(|(written, config)| preflight::examine(written, config, Purpose::Check));
    let (start, names) = examined.unzip();
    let names = names.unwrap_or_default();
    let sides = sides(args, config).into_iter().map(|role| examine(args, config, &names, role)).collect();
    let machine = vec![machine::open_files(config)];
    let reach = config.map(|config| reach::check_hosts(config, &names)).unwrap_or_default();
    let all = Examination { start, machine, reach, sides };
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &as_json(&all))?;
        writeln!(out)?;
    } else {
        print_all(&all, &mut out)?;
    }
    out.flush()?;
    for one in &all.sides {
        if let Some(mechanism) = one.requested.required_mechanism().filter(|_| !one.available()) {
            bail!(
                "the {} cannot use the requested mechanism {mechanism}: this machine lacks {}",
                one.report.role,
                one.lacks(mechanism)
            );
        }
    }
    match all.start_errors() {
        0 if all.clock_is_wrong() => bail!("this machine's clock is wrong: see \"clock\" under \"reach\""),
        0 => Ok(()),
        1 => bail!("the config cannot start on this machine: 1 error under \"start\""),
        errors => bail!("the config cannot start on this machine: {errors} errors under \"start\""),
    }
}

impl Examination {
    fn clock_is_wrong(&self) -> bool {
        self.reach
            .iter()
            .any(|finding| finding.what == clock::FINDING_NAME && finding.state == FindingState::Missing)
    }

    fn start_errors(&self) -> usize {
        let found = self.start.iter().flatten();
        found.filter(|(severity, _)| *severity == Severity::Error).count()
    }
}

/// Returns the sides to examine: the side in the arguments, else the sides in the config, else both.
fn sides(args: &DoctorArgs, config: Option<&Config>) -> Vec<Role> {
    let wanted = |side, in_config: bool| match args.role {
        Some(only) => only == side,
        None => in_config,
    };
    let (switch, node) =
        config.map_or((true, true), |c| (c.switch.is_some(), c.node.is_some() || c.agent.is_some()));
    let all = [(Role::Switch, wanted(Side::Switch, switch)), (Role::Node, wanted(Side::Node, node))];
    all.into_iter().filter_map(|(role, is)| is.then_some(role)).collect()
}

fn examine(args: &DoctorArgs, config: Option<&Config>, names: &ResolvedNames, role: Role) -> SideReport {
    let SideInput { subject, requested, listen, relayed, findings } =
        side::side_input(args, config, names, role);
    let mut report = evaluate(&Facts::of_this_host(&subject), &subject);
    report.findings.extend(findings);
    SideReport { requested, report, listen, relayed }
}

/// Describes what is lost while something is missing.
fn describe_costs(finding: &Finding) -> Option<String> {
    if finding.state != FindingState::Missing || finding.needed_for.is_empty() {
        return None;
    }
    let names: Vec<&str> = finding.needed_for.iter().map(|mechanism| mechanism.name()).collect();
    let rest = Mechanism::ALL.into_iter().find(|mechanism| !finding.needed_for.contains(mechanism));
    let rest = rest.unwrap_or(Mechanism::Relay);
    Some(format!("{}; the best remaining mechanism is {rest}", names.join(" and ")))
}

fn as_json(all: &Examination) -> Value {
    let start = all.start.as_ref().map(|findings| {
        let finding = |(severity, error): &(Severity, ConfigError)| {
            json!({
                "severity": severity.name(),
                "file": error.origin,
                "line": error.line,
                "column": error.column,
                "key": error.key,
                "found": error.what,
                "remedy": error.hint,
            })
        };
        json!({ "ready": all.start_errors() == 0, "findings": findings.iter().map(finding).collect::<Vec<_>>() })
    });
    let list = |findings: &[Finding]| findings.iter().map(finding_as_json).collect::<Vec<_>>();
    json!({
        "start": start,
        "machine": list(&all.machine),
        "reach": list(&all.reach),
        "roles": all.sides.iter().map(side_as_json).collect::<Vec<_>>(),
    })
}

fn finding_as_json(f: &Finding) -> Value {
    let needed_for: Vec<&str> = f.needed_for.iter().map(|m| m.name()).collect();
    json!({
        "what": f.what,
        "state": f.state.name(),
        "found": f.found,
        "why": f.why,
        "remedy": f.remedy,
        "needed_for": needed_for,
        "costs": describe_costs(f),
    })
}

fn side_as_json(one: &SideReport) -> Value {
    json!({
        "role": one.report.role.to_string(),
        "asked": one.requested.to_string(),
        "mechanism": one.mechanism(),
        "available": one.available(),
        "listen": one.listen.iter().map(|at| json!({ "address": at, "mechanism": one.mechanism_at(*at) })).collect::<Vec<_>>(),
        "relayed_nodes": one.relayed,
        "possible": Mechanism::ALL.iter().filter(|m| one.report.can(**m)).map(|m| m.name()).collect::<Vec<_>>(),
        "findings": one.report.findings.iter().map(finding_as_json).collect::<Vec<_>>(),
    })
}

fn print_all(all: &Examination, out: &mut impl Write) -> io::Result<()> {
    if let Some(start) = &all.start {
        match all.start_errors() {
            0 => writeln!(out, "start: possible; names, addresses, files and secrets meet the config")?,
            _ => writeln!(out, "start: not possible")?,
        }
        for (severity, error) in start {
            writeln!(out, "  {:<8}  {}", severity.name(), error.to_string().replace('\n', "\n          "))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "machine:")?;
    print_findings(&all.machine, out)?;
    writeln!(out)?;
    if !all.reach.is_empty() {
        writeln!(out, "reach:")?;
        print_findings(&all.reach, out)?;
        writeln!(out)?;
    }
    all.sides.iter().try_for_each(|one| print_side(one, out))
}

fn print_side(one: &SideReport, out: &mut impl Write) -> io::Result<()> {
    let report = &one.report;
    writeln!(out, "handoff, {}: {} requested, {} used", report.role, one.requested, one.mechanism())?;
    for mechanism in Mechanism::ALL {
        match one.lacks(mechanism) {
            lacks if lacks.is_empty() => writeln!(out, "  {mechanism:<8} possible")?,
            lacks => writeln!(out, "  {mechanism:<8} not possible: this machine lacks {lacks}")?,
        }
    }
    for listen in &one.listen {
        writeln!(out, "  connections to {listen} use {}", one.mechanism_at(*listen))?;
    }
    if !one.relayed.is_empty() {
        let names = one.relayed.join(", ");
        writeln!(out, "  nodes without `handoff` in the config, which get relayed connections: {names}")?;
    }
    print_findings(&report.findings, out)?;
    writeln!(out)
}

fn print_findings(findings: &[Finding], out: &mut impl Write) -> io::Result<()> {
    let width = findings.iter().map(|f| f.what.chars().count()).max().unwrap_or(0);
    for finding in findings {
        writeln!(out, "  {:<8}  {:<width$}  {}", finding.state.name(), finding.what, finding.found)?;
        if finding.state != FindingState::Works {
            writeln!(out, "  {:<8}  {:<width$}  why: {}", "", "", finding.why)?;
            if let Some(remedy) = &finding.remedy {
                writeln!(out, "  {:<8}  {:<width$}  remedy: {remedy}", "", "")?;
            }
            if let Some(costs) = describe_costs(finding) {
                writeln!(out, "  {:<8}  {:<width$}  lost: {costs}", "", "")?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(what: &str, state: FindingState, needed_for: &'static [Mechanism]) -> Finding {
        Finding {
            what: what.to_owned(),
            state,
            found: "so".to_owned(),
            why: "it matters",
            remedy: (state != FindingState::Works).then(|| "do this".to_owned()),
            needed_for,
        }
    }

    fn examined(requested: RequestedMechanism) -> SideReport {
        let findings = vec![
            finding("one", FindingState::Works, &[Mechanism::Cookie, Mechanism::Repair]),
            finding("another", FindingState::Missing, &[Mechanism::Cookie]),
            finding("third", FindingState::Degraded, &[Mechanism::Repair]),
        ];
        let report = Report { role: Role::Switch, findings };
        let listen = vec!["10.9.0.100:80".parse().unwrap(), "0.0.0.0:80".parse().unwrap()];
        SideReport { requested, report, listen, relayed: vec!["b".to_owned()] }
    }

    #[test]
    fn the_requested_mechanism_is_used_if_available() {
        for (requested, used, available) in [
            (RequestedMechanism::Auto, "repair", true),
            (RequestedMechanism::Cookie, "relay", false),
            (RequestedMechanism::Repair, "repair", true),
            (RequestedMechanism::Splice, "splice", true),
            (RequestedMechanism::Relay, "relay", true),
            (RequestedMechanism::Peers, "repair", true),
        ] {
            let one = examined(requested);
            assert_eq!((one.mechanism().as_str(), one.available()), (used, available), "{requested}");
            let side = side_as_json(&one);
            assert_eq!(
                (side["mechanism"].as_str(), side["available"].as_bool()),
                (Some(used), Some(available))
            );
            assert_eq!(side["possible"], json!(["repair", "relay"]));
        }
    }

    #[test]
    fn missing_features_are_listed_with_their_remedies() {
        let mut out = Vec::new();
        print_side(&examined(RequestedMechanism::Auto), &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains("cookie   not possible: this machine lacks another\n"), "{text}");
        assert!(text.contains("repair   possible\n"), "{text}");
        assert_eq!(text.matches("remedy: do this").count(), 2, "{text}");
        assert_eq!(text.matches("why: it matters").count(), 2, "{text}");
        for line in [
            "lost: cookie; the best remaining mechanism is repair",
            "connections to 10.9.0.100:80 use repair",
            // Packets cannot be matched by an unspecified address.
            "connections to 0.0.0.0:80 use relay",
            "nodes without `handoff` in the config, which get relayed connections: b",
        ] {
            assert_eq!(text.matches(line).count(), 1, "{line} in\n{text}");
        }
    }
}
