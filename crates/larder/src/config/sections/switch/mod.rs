//! `[switch]`.

pub(crate) mod acme;
pub(crate) mod admission;
pub(crate) mod clients;
pub(crate) mod connect;
pub(crate) mod covers;
pub(crate) mod discover;
pub(crate) mod edits;
pub(crate) mod foreign_syntax;
pub(crate) mod guard;
pub(crate) mod handoff;
pub(crate) mod headers;
pub(crate) mod limits;
pub(crate) mod nodes;
pub(crate) mod policy_requirements;
pub(crate) mod process;
pub(crate) mod prompts;
pub(crate) mod record;
pub(crate) mod route;
pub(crate) mod routes;
pub(crate) mod rule;
pub(crate) mod section;
pub(crate) mod shadow;
pub(crate) mod signals;
pub(crate) mod split;
pub(crate) mod switches;
pub(crate) mod tls;
pub(crate) mod ward;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::Settings;
use larder_core::rules::KeyTemplate;
use larder_switch::{ACCESS_FIELDS, ConfigError, SwitchConfig};

use crate::acme::AcmeRole;
use crate::config::error::Fault;
use crate::config::sections::access_log::access_log;
use crate::config::sections::entry::entry;
use crate::config::sections::policy::apply;
use crate::config::sections::policy::hacc::level_key;
use crate::config::sections::switch::acme::writable;
use crate::config::sections::switch::admission::{limit, long_lived};
use crate::config::sections::switch::clients::{clients, retries};
use crate::config::sections::switch::connect::connect;
use crate::config::sections::switch::discover::{Discover, HOLD_OF_SWITCH, Place, sources};
use crate::config::sections::switch::edits::against_mechanism;
use crate::config::sections::switch::foreign_syntax::warn_of_foreign_syntax;
use crate::config::sections::switch::handoff::handoff;
use crate::config::sections::switch::limits::{health, limits, outliers, timeouts};
use crate::config::sections::switch::nodes::node_entries;
use crate::config::sections::switch::policy_requirements::check_policy_requirements;
use crate::config::sections::switch::process::{RunAs, run_as};
use crate::config::sections::switch::record::record;
use crate::config::sections::switch::routes::{edits_of_all, routes, warn_of_bypasses};
use crate::config::sections::switch::rule::{classes, key};
use crate::config::sections::switch::section::SwitchSection;
use crate::config::sections::switch::shadow::shadow;
use crate::config::sections::switch::signals::signals;
use crate::config::sections::switch::split::split_by;
use crate::config::sections::switch::switches::{SwitchesRole, switches};
use crate::config::sections::switch::tls::{against_handoff, tls};
use crate::config::sections::switch::ward::{WardRole, wards};
use crate::config::sections::traces::traces;
use crate::config::values::{addresses, ranges};

/// `[switch]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct SwitchRole {
    pub(crate) switch: SwitchConfig,
    /// Number of worker threads; 0 for one per core.
    pub(crate) threads: usize,
    /// Sources of nodes besides the config.
    pub(crate) discover: Vec<Discover>,
    /// Interval at which names are resolved again; zero for never.
    pub(crate) follow: Duration,
    /// Routes that use a routing table.
    pub(crate) wards: Vec<WardRole>,
    /// File with the secret that the switch proves to nodes. It is read when the role starts.
    pub(crate) report_secret: Option<PathBuf>,
    /// File with the tokens that permit a purge. It is read when the role starts.
    pub(crate) purge_token: Option<PathBuf>,
    /// Peer switches in front of the same nodes.
    pub(crate) beside: Option<SwitchesRole>,
    /// User of the worker processes.
    pub(crate) run_as: Option<RunAs>,
    /// Certificates that an authority issues.
    pub(crate) acme: Option<AcmeRole>,
}

/// Largest age of a load report that the dispatcher supports.
const REPORT_AGE_MAX: Duration = Duration::from_secs(3600);

pub(crate) fn switch(
    raw: &SwitchSection,
    warnings: &mut Vec<Fault>,
    absent: &mut Vec<Fault>,
) -> Result<SwitchRole, Fault> {
    let listen = match &raw.tls {
        Some(_) if raw.listen.is_empty() => Vec::new(),
        _ => addresses("switch.listen", &raw.listen, "127.0.0.1:8080")?,
    };
    some_nodes(raw)?;
    let (tls, acme) = raw.tls.as_ref().map(|raw| tls(raw, &listen, warnings)).transpose()?.unzip();
    let mut switch = SwitchConfig::new(listen, node_entries("switch.nodes", &raw.nodes)?);
    let discover = sources("switch.discover", &raw.discover, HOLD_OF_SWITCH)?;
    switch.grows = !discover.is_empty();
    switch.settings = settings(raw)?;
    switch.key = match level_key(&switch.settings) {
        Some(_) if raw.key != KeyTemplate::DEFAULT => {
            let what = "contradicts key: both define the target";
            return Err(Fault::new("switch.policies.hacc.level", what).hint("leave one of them out"));
        }
        Some(text) => key("switch.policies.hacc.level", &text)?,
        None => key("switch.key", &raw.key)?,
    };
    switch.classes = classes("switch", &raw.classes, warnings)?;
    switch.routes = routes(raw, &switch.settings, &switch.nodes, &discover, warnings)?;
    warn_of_backups_alone(&switch, &discover, warnings);
    edits_of_all(raw, &mut switch)?;
    switch.split_by = split_by("switch.split_by", &raw.split_by)?;
    switch.signals = signals(&raw.signals)?;
    switch.traces =
        raw.traces.as_ref().map(|traced| traces(traced, "switch", &raw.headers.via)).transpose()?;
    switch.shadow = shadow(&raw.shadow, switch.settings.policy)?;
    switch.handoff = handoff(&raw.handoff, absent)?;
    (switch.tls, switch.h2c, switch.announcers) =
        (tls, raw.h2c, ranges("switch.trust.proxy_protocol_from", &raw.trust.proxy_protocol_from)?);
    let trust = &raw.trust;
    let kept = (trust.underscores_in_headers, trust.url_fields_in_headers);
    switch.entry = entry("switch", &trust.relays, trust.forwarded.0, kept)?;
    against_handoff(switch.tls.as_ref(), &switch.announcers, &switch.handoff)?;
    against_mechanism(&switch, warnings)?;
    warn_of_bypasses(raw, warnings);
    connect(raw, &mut switch, warnings)?;
    switch.census_targets_max =
        raw.policies.ward.as_ref().and_then(|ward| ward.targets_max).unwrap_or(switch.census_targets_max);
    safety(raw, &mut switch)?;
    switch.access_log =
        access_log("switch", raw.access_log.file.as_deref(), &raw.access_log.format, &ACCESS_FIELDS)?;
    switch.record = record(&raw.record)?;
    switch.via.clone_from(&raw.headers.via);
    if raw.process.threads > 0 {
        switch.threads = raw.process.threads;
    }
    switch.validate().map_err(|error| fault(&error))?;
    let wards = wards(raw, &switch)?;
    against_wards(&discover, &wards)?;
    warn_of_foreign_syntax(raw, warnings);
    check_policy_requirements(&switch, warnings)?;
    let beside = raw.switches.as_ref().map(|raw| switches("switch.switches", raw, absent)).transpose()?;
    let run_as = run_as(raw.process.user.as_deref(), raw.process.group.as_deref(), &switch.handoff)?;
    let acme = acme.flatten().map(|role| writable(role, run_as, absent)).transpose()?;
    let report_secret = raw.signals.secret.as_ref().map(PathBuf::from);
    let purge_token = raw.purge_token.as_ref().map(PathBuf::from);
    Ok(SwitchRole {
        switch,
        threads: raw.process.threads,
        discover,
        follow: raw.connect.follow_names.0,
        wards,
        report_secret,
        purge_token,
        beside,
        run_as,
        acme,
    })
}

/// Checks the settings that protect nodes, clients and the switch itself.
fn safety(raw: &SwitchSection, switch: &mut SwitchConfig) -> Result<(), Fault> {
    switch.health = health(&raw.health)?;
    (switch.timeouts, switch.limits) = (timeouts(&raw.timeouts), limits(&raw.limits, &raw.retries));
    switch.clients = clients(&raw.clients, &switch.handoff)?;
    switch.long_lived = long_lived(&raw.admission.long_lived);
    (switch.retries, switch.outliers) = (retries(&raw.retries), outliers(&raw.health.outliers));
    Ok(())
}

/// Refuses a switch without nodes, or with too many.
fn some_nodes(raw: &SwitchSection) -> Result<(), Fault> {
    if raw.nodes.is_empty() && raw.discover.is_empty() {
        let hint =
            "write nodes = [\"10.0.0.1:80\", \"10.0.0.2:80\"], or where they are found: [[switch.discover]]";
        return Err(Fault::new("switch.nodes", "missing: a switch needs at least one node").hint(hint));
    }
    if raw.nodes.len() > usize::from(raw.limits.nodes_max) {
        let what = format!("{} nodes are listed, {} may be", raw.nodes.len(), raw.limits.nodes_max);
        return Err(Fault::new("switch.limits.nodes_max", what).hint("raise limits.nodes_max"));
    }
    Ok(())
}

/// Translates an error of the switch's own checks into a fault of the config.
fn fault(error: &ConfigError) -> Fault {
    match error {
        ConfigError::HealthPath(_) => Fault::new("switch.health.check", error.to_string()),
        ConfigError::Path(name, path) => Fault::new(format!("switch.{name}"), format!("'{path}' is no path"))
            .hint("it begins with '/' and holds no space or control character"),
        ConfigError::Name(name, text) => Fault::new(format!("switch.{name}"), format!("'{text}' is no name"))
            .hint("1 to 200 characters, without spaces"),
        ConfigError::HandoffName(_) => Fault::new("switch.handoff.name", error.to_string()),
        ConfigError::HandoffIdentity => Fault::new("switch.handoff.identity", error.to_string()),
        ConfigError::NodeTransport { .. } => Fault::new("switch.nodes", error.to_string()),
        ConfigError::Via => Fault::new("switch.headers.via", error.to_string()),
        // Routes, groups and ranges have been checked before, with their lines.
        ConfigError::Route { .. } | ConfigError::Routes(_) | ConfigError::NodeGroup { .. } => {
            Fault::new("switch.routes", error.to_string())
        }
        ConfigError::Empty(_)
        | ConfigError::OutOfRange { .. }
        | ConfigError::SpanOutOfRange { .. }
        | ConfigError::Share(..)
        | ConfigError::HandoffShare(_) => Fault::new("switch", error.to_string()),
    }
}

/// Refuses sources of nodes if a route uses a routing table.
fn against_wards(discover: &[Discover], wards: &[WardRole]) -> Result<(), Fault> {
    if wards.is_empty() || discover.is_empty() {
        return Ok(());
    }
    let what = "contradicts ward and part: a routing table needs a fixed list of nodes";
    let hint = "list the nodes in switch.nodes, or use another policy";
    Err(Fault::new("switch.discover", what).hint(hint))
}

/// Warns of groups that have backups and no ordinary node. Nodes in files are not known here.
fn warn_of_backups_alone(switch: &SwitchConfig, discover: &[Discover], warnings: &mut Vec<Fault>) {
    if discover.iter().any(|source| matches!(source.place, Place::File(_))) {
        return;
    }
    let named: BTreeSet<&str> = switch.routes.iter().filter_map(|route| route.group.as_deref()).collect();
    for group in std::iter::once(None).chain(named.into_iter().map(Some)) {
        let inside = |groups: &[String]| group.is_none_or(|group| groups.iter().any(|name| name == group));
        let nodes = switch.nodes.iter().map(|node| (&node.groups, node.spec.backup));
        let sources = discover.iter().map(|source| (&source.groups, source.backup));
        let mut members = nodes.chain(sources).filter(|(groups, _)| inside(groups)).peekable();
        if members.peek().is_some() && members.all(|(_, backup)| backup) {
            let of = group.map_or_else(String::new, |group| format!(" of group '{group}'"));
            let what = format!("every node{of} is a backup: the backups take all requests");
            warnings.push(
                Fault::new("switch.nodes", what).hint("leave backup out of the nodes that are to serve"),
            );
        }
    }
}

/// Returns the settings of the dispatcher and of the default route.
fn settings(raw: &SwitchSection) -> Result<Settings, Fault> {
    let mut settings = Settings {
        nodes_max: raw.limits.nodes_max,
        admission: limit(raw.admission.limit),
        long_lived_max: raw.admission.long_lived.max_per_node,
        queue_max: raw.admission.queue_max,
        queue_timeout: raw.admission.queue_timeout.0,
        join_targets_per_s: raw.join.targets_per_s,
        join_warm_targets: raw.join.warm_targets,
        shards: raw.process.shards,
        ..Settings::default()
    };
    // Reports that come more rarely than the standard allows are not too old for that.
    settings.report_age_max = settings.report_age_max.max(raw.signals.missing_after.0.min(REPORT_AGE_MAX));
    apply("switch", &raw.parameters(), &mut settings)?;
    Ok(settings)
}
