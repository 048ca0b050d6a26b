//! `[switch]`, checked and turned into what the front is told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use larder_core::dispatch::Admission;
use larder_core::rules::KeyTemplate;
use larder_core::{Bytes, NodeSpec, Settings, Weight};
use larder_front::{
    ACCESS_FIELDS, ConfigError, HealthCheck, HealthConfig, Limits, NodeEntry, RecordConfig, SwitchConfig,
    Timeouts,
};

use super::error::{ConfigError as ConfigFault, Fault, Source};
use super::raw_peer::RawPeer;
use super::raw_switch::{AdmissionWord, RawAdmission, RawHealth, RawSwitch, RawSwitchLimits, RawTimeouts};
use super::text::{Size, Span};
use super::valid::{addresses, in_range, node_name, span};
use super::valid_access_log::access_log;
use super::valid_acme::writable;
use super::valid_discover::{Discover, Place, sources};
use super::valid_edits::{against_mechanism, edits_of_all};
use super::valid_entry::entry;
use super::valid_guard::warn_of_bypasses;
use super::valid_habits::habits;
use super::valid_hacc::level_key;
use super::valid_handoff::{handoff, peer};
use super::valid_policy::apply;
use super::valid_reach::{of_node, reach};
use super::valid_route::routes;
use super::valid_rule::{classes, key};
use super::valid_safety::{clients, long_lived, outliers, retries};
use super::valid_shadow::shadow;
use super::valid_signals::signals;
use super::valid_split::split_by;
use super::valid_switches::{SwitchesRole, switches};
use super::valid_tls::{against_handoff, ranges, tls};
use super::valid_together::together;
use super::valid_traces::traces;
use super::valid_user::{RunAs, run_as};
use super::valid_ward::{WardRole, wards};
use crate::acme::AcmeRole;

/// `[switch]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct SwitchRole {
    pub(crate) switch: SwitchConfig,
    /// 0: one for each core.
    pub(crate) threads: usize,
    /// Where nodes are found beside those of the config.
    pub(crate) discover: Vec<Discover>,
    /// How often names are looked up anew; zero: never.
    pub(crate) follow: Duration,
    /// Routes that go by a routing table.
    pub(crate) wards: Vec<WardRole>,
    /// File with the secret that nodes want proved before they report. Read when the role starts.
    pub(crate) report_secret: Option<PathBuf>,
    /// File with the tokens of those that may purge. Read when the role starts.
    pub(crate) purge_token: Option<PathBuf>,
    /// Other switches in front of the same nodes.
    pub(crate) beside: Option<SwitchesRole>,
    /// As whom the work is done.
    pub(crate) run_as: Option<RunAs>,
    /// Certificates that an authority issues.
    pub(crate) acme: Option<AcmeRole>,
}

/// The oldest that the dispatcher may let a load report become.
const REPORT_AGE_MAX: Duration = Duration::from_secs(3600);

pub(super) fn switch(
    raw: &RawSwitch,
    warnings: &mut Vec<Fault>,
    absent: &mut Vec<Fault>,
) -> Result<SwitchRole, Fault> {
    let listen = match &raw.tls {
        Some(_) if raw.listen.is_empty() => Vec::new(),
        _ => addresses("switch.listen", &raw.listen, "127.0.0.1:8080")?,
    };
    some_nodes(raw)?;
    let threads = in_range("switch.threads", raw.threads, 0, 1024)?;
    let (tls, acme) = raw.tls.as_ref().map(|raw| tls(raw, &listen, warnings)).transpose()?.unzip();
    let mut switch = SwitchConfig::new(listen, peers("switch.nodes", &raw.nodes)?);
    let discover = sources(&raw.discover)?;
    switch.grows = !discover.is_empty();
    switch.settings = settings(raw)?;
    switch.key = match level_key(&switch.settings) {
        Some(_) if raw.key != KeyTemplate::DEFAULT => {
            let what = "contradicts key: both say what an assignment covers";
            return Err(Fault::new("switch.hacc.level", what).hint("leave one of them out"));
        }
        Some(text) => key("switch.hacc.level", &text)?,
        None => key("switch.key", &raw.key)?,
    };
    switch.classes = classes("switch", &raw.classes, warnings)?;
    switch.routes = routes(raw, &switch.settings, &switch.nodes, &discover, warnings)?;
    warn_of_backups_alone(&switch, &discover, warnings);
    edits_of_all(raw, &mut switch)?;
    switch.split_by = split_by("switch.split_by", &raw.split_by)?;
    switch.signals = signals(&raw.signals)?;
    switch.traces = raw.traces.as_ref().map(|traced| traces(traced, "switch", &raw.via)).transpose()?;
    switch.shadow = shadow(&raw.shadow, switch.settings.policy)?;
    switch.handoff = handoff(&raw.handoff, absent)?;
    (switch.tls, switch.h2c, switch.announcers) =
        (tls, raw.h2c, ranges("switch.proxy_protocol_from", &raw.proxy_protocol_from)?);
    let kept = (raw.underscores_in_headers, raw.url_fields_in_headers);
    switch.entry = entry("switch", &raw.trusted_relays, &raw.forwarded, kept)?;
    against_handoff(switch.tls.as_ref(), &switch.announcers, &switch.handoff)?;
    against_mechanism(&switch, warnings)?;
    warn_of_bypasses(raw, warnings);
    reach(raw, &mut switch, warnings)?;
    let targets_max = raw.ward.targets_max.unwrap_or(switch.census_targets_max);
    switch.census_targets_max = in_range("switch.ward.targets_max", targets_max, 64, 100_000_000)?;
    safety(raw, &mut switch)?;
    switch.access_log =
        access_log("switch", raw.access_log.as_deref(), &raw.access_log_format, &ACCESS_FIELDS)?;
    switch.record = record(raw)?;
    switch.via.clone_from(&raw.via);
    if threads > 0 {
        switch.threads = threads;
    }
    switch.validate().map_err(|error| fault(&error))?;
    let wards = wards(raw, &switch)?;
    against_wards(&discover, &wards)?;
    habits(raw, warnings);
    together(&switch, warnings)?;
    let follow = follow_names(raw.follow_names)?;
    let beside = raw.switches.as_ref().map(|raw| switches(raw, absent)).transpose()?;
    let run_as = run_as(raw.user.as_deref(), raw.group.as_deref(), &switch.handoff)?;
    let acme = acme.flatten().map(|role| writable(role, run_as, absent)).transpose()?;
    let report_secret = raw.signals.secret.as_ref().map(PathBuf::from);
    let purge_token = raw.purge_token.as_ref().map(PathBuf::from);
    Ok(SwitchRole {
        switch,
        threads,
        discover,
        follow,
        wards,
        report_secret,
        purge_token,
        beside,
        run_as,
        acme,
    })
}

/// Checks the settings that protect nodes, clients and the switch itself.
fn safety(raw: &RawSwitch, switch: &mut SwitchConfig) -> Result<(), Fault> {
    switch.health = health(&raw.health)?;
    (switch.timeouts, switch.limits) = (timeouts(&raw.timeouts), limits(&raw.limits));
    switch.clients = clients(&raw.clients, &switch.handoff)?;
    switch.long_lived = long_lived(&raw.long_lived)?;
    (switch.retries, switch.outliers) = (retries(&raw.retries), outliers(&raw.outliers)?);
    Ok(())
}

/// Refuses a switch without nodes, or with more than it may have.
fn some_nodes(raw: &RawSwitch) -> Result<(), Fault> {
    if raw.nodes.is_empty() && raw.discover.is_empty() {
        let hint =
            "write nodes = [\"10.0.0.1:80\", \"10.0.0.2:80\"], or where they are found: [[switch.discover]]";
        return Err(Fault::new("switch.nodes", "missing: a switch needs at least one node").hint(hint));
    }
    if raw.nodes.len() > usize::from(raw.nodes_max) {
        let what = format!("{} nodes are listed, {} may be", raw.nodes.len(), raw.nodes_max);
        return Err(Fault::new("switch.nodes_max", what).hint("raise nodes_max"));
    }
    Ok(())
}

fn follow_names(raw: Span) -> Result<Duration, Fault> {
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(3600));
    if raw.0.is_zero() || (least..=most).contains(&raw.0) {
        return Ok(raw.0);
    }
    Err(Fault::new("switch.follow_names", format!("{raw} is out of range")).hint("1s to 1h, or 0s for never"))
}

/// The front's own checks, in the words of the config file.
fn fault(error: &ConfigError) -> Fault {
    let key = |name: &str| {
        let name = name.replace("_bytes_max", "_max").replace("signals.body_max", "signals.page_max");
        format!("switch.{name}")
    };
    match error {
        ConfigError::Empty(name) => Fault::new(key(name), "empty: at least one is needed"),
        ConfigError::OutOfRange { name, value, min, max } => {
            Fault::new(key(name), format!("{value} is out of range")).hint(format!("{min} to {max}"))
        }
        ConfigError::SpanOutOfRange { name, value, min, max } => Fault::new(
            key(name),
            format!("{} is out of range", Span(*value)),
        )
        .hint(format!("{} to {}", Span(*min), Span(*max))),
        ConfigError::HealthPath(_) => Fault::new("switch.health.check", error.to_string()),
        ConfigError::Path(name, path) => Fault::new(key(name), format!("'{path}' is no path"))
            .hint("it begins with '/' and holds no space or control character"),
        ConfigError::Name(name, text) => {
            Fault::new(key(name), format!("'{text}' is no name")).hint("1 to 200 characters, without spaces")
        }
        // What is said of routes and groups is checked before, with lines.
        ConfigError::Route { .. } | ConfigError::Routes(_) | ConfigError::NodeGroup { .. } => {
            Fault::new("switch.routes", error.to_string())
        }
        ConfigError::Share(name, value) => {
            Fault::new(key(name), format!("{value} is out of range")).hint("0 to 1")
        }
        ConfigError::HandoffName(_) => Fault::new("switch.handoff.name", error.to_string()),
        ConfigError::HandoffIdentity => Fault::new("switch.handoff.identity", error.to_string()),
        ConfigError::HandoffShare(_) => Fault::new("switch.handoff.locality_lost_max", error.to_string()),
        ConfigError::NodeTransport { .. } => Fault::new("switch.nodes", error.to_string()),
        ConfigError::Via => Fault::new("switch.via", error.to_string()),
    }
}

fn health(raw: &RawHealth) -> Result<HealthConfig, Fault> {
    let active = match raw.check.as_str() {
        "off" => None,
        "tcp" => Some(HealthCheck::Tcp),
        path if path.starts_with('/') => Some(HealthCheck::Http { path: path.to_owned() }),
        other => {
            return Err(Fault::new("switch.health.check", format!("unknown value '{other}'"))
                .hint("\"tcp\", \"off\", or a path such as \"/health\""));
        }
    };
    Ok(HealthConfig {
        passive_fall: raw.passive_fall,
        active,
        interval: raw.interval.0,
        timeout: raw.timeout.0,
        fall: raw.fall,
        rise: raw.rise,
        retry_after: raw.retry_after.0,
    })
}

fn timeouts(raw: &RawTimeouts) -> Timeouts {
    Timeouts {
        header: raw.header.0,
        keepalive: raw.keepalive.0,
        client_read: raw.client_read.0,
        client_write: raw.client_write.0,
        connect: raw.connect.0,
        node_read: raw.node_read.0,
        node_write: raw.node_write.0,
        node_idle: raw.node_idle.0,
        drain: raw.drain.0,
    }
}

/// Refuses nodes that come and go where routes go by a routing table.
fn against_wards(discover: &[Discover], wards: &[WardRole]) -> Result<(), Fault> {
    if wards.is_empty() || discover.is_empty() {
        return Ok(());
    }
    let what = "contradicts ward and part: a routing table is for the nodes of the config";
    let hint = "list the nodes in switch.nodes, or take another policy";
    Err(Fault::new("switch.discover", what).hint(hint))
}

fn record(raw: &RawSwitch) -> Result<Option<RecordConfig>, Fault> {
    let hint = "a path, or leave it out";
    let named = |key: &str, file: &Option<String>| match file.as_deref() {
        Some("" | "-") => Err(Fault::new(format!("switch.{key}"), "names no file").hint(hint)),
        file => Ok(file.map(PathBuf::from)),
    };
    let (file, log) = (named("record", &raw.record)?, named("record_log", &raw.record_log)?);
    match (file, log) {
        (None, Some(_)) => {
            Err(Fault::new("switch.record_log", "there is no record to log").hint("set record"))
        }
        (Some(file), Some(log)) if file == log => {
            Err(Fault::new("switch.record_log", "is the same file as record").hint("give each its own"))
        }
        (file, log) => Ok(file.map(|file| RecordConfig { log, ..RecordConfig::file(file) })),
    }
}

fn limits(raw: &RawSwitchLimits) -> Limits {
    let bytes = |size: Size| usize::try_from(size.0.get()).unwrap_or(usize::MAX);
    Limits {
        connections_max: raw.connections_max,
        header_bytes_max: bytes(raw.header_max),
        uri_bytes_max: bytes(raw.uri_max),
        body_rate_min: raw.body_rate_min.0.get(),
        http2_bytes_max: bytes(raw.http2_bytes_max),
        retries_max: raw.retries_max,
        node_idle_max: raw.node_idle_max,
    }
}

pub(super) fn peers(list: &str, raw: &[RawPeer]) -> Result<Vec<NodeEntry>, Fault> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut peers = Vec::with_capacity(raw.len());
    for (i, entry) in raw.iter().enumerate() {
        let key = format!("{list}[{i}]");
        host_and_port(&entry.address).map_err(|what| {
            Fault::new(&key, format!("'{}' {what}", entry.address))
                .hint("write \"10.0.0.1:80\" or \"name:80\"")
        })?;
        let name = entry.name.as_deref().unwrap_or(&entry.address);
        node_name(&key, name)?;
        if let Some(first) = names.insert(name, i) {
            let what = format!("the name '{name}' is that of {list}[{first}] already");
            return Err(Fault::new(key, what)
                .hint("give each node a name of its own: { name = \"a\", address = ... }"));
        }
        let weight = Weight::from_f64(entry.weight).ok_or_else(|| {
            Fault::new(format!("{key}.weight"), format!("{} is out of range", entry.weight))
                .hint("0.001 to 100")
        })?;
        let cache = entry.cache.map_or(Bytes::ZERO, |size| size.0);
        let spec = NodeSpec { weight, cache, backup: entry.backup, ..NodeSpec::named(name) };
        let groups = groups(&format!("{key}.groups"), &entry.groups.0)?;
        let handoff = entry.handoff.as_ref().map(|raw| peer(&key, raw)).transpose()?;
        let node =
            NodeEntry { groups, handoff, http2: entry.http2, ..NodeEntry::new(spec, entry.address.clone()) };
        peers.push(of_node(&key, entry, node)?);
    }
    Ok(peers)
}

/// Warns of groups that have backups and no ordinary node. What a file of nodes says is not known here.
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

/// A node by itself, for a caller that is no file.
///
/// # Errors
/// What is wrong.
pub(crate) fn node(raw: &RawPeer) -> Result<NodeEntry, ConfigFault> {
    let one = peers("nodes", std::slice::from_ref(raw))
        .map_err(|fault| Source::new("request", "").locate(fault))?;
    one.into_iter().next().ok_or_else(|| Source::new("request", "").locate(Fault::new("nodes", "none")))
}

/// The groups a node names.
pub(super) fn groups(key: &str, names: &[String]) -> Result<Vec<String>, Fault> {
    for (i, name) in names.iter().enumerate() {
        let fits = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !fits || !(1..=64).contains(&name.len()) {
            let what = format!("'{}' cannot be a group's name", name.escape_debug());
            return Err(Fault::new(key, what).hint("1 to 64 letters, digits, '-', '_' and '.'"));
        }
        if names[..i].contains(name) {
            return Err(Fault::new(key, format!("'{name}' is named twice")).hint("leave one out"));
        }
    }
    Ok(names.to_vec())
}

/// What concerns the dispatcher as a whole, and the default route's policy.
fn settings(raw: &RawSwitch) -> Result<Settings, Fault> {
    let mut settings = Settings {
        nodes_max: raw.nodes_max,
        admission: match raw.admission {
            RawAdmission::Fixed(limit) => Admission::Fixed(limit),
            RawAdmission::Word(AdmissionWord::Auto) => Admission::Auto,
            RawAdmission::Word(AdmissionWord::Derived) => Admission::Derived,
            RawAdmission::Word(AdmissionWord::Unlimited) => Admission::Unlimited,
        },
        long_lived_max: raw.long_lived.max_per_node,
        queue_max: in_range("switch.queue_max", raw.queue_max, 0, 1_000_000)?,
        queue_timeout: span("switch.queue_timeout", raw.queue_timeout)?,
        join_targets_per_s: raw.join_targets_per_s,
        join_warm_targets: raw.join_warm_targets,
        shards: raw.shards,
        ..Settings::default()
    };
    // Reports that come more rarely than the standard allows are not too old for that.
    settings.report_age_max = settings.report_age_max.max(raw.signals.missing_after.0.min(REPORT_AGE_MAX));
    apply("switch", &raw.parameters(), &mut settings)?;
    Ok(settings)
}

pub(super) fn host_and_port(address: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("has no port")?;
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || bare_v6 || host.chars().any(char::is_whitespace) || host.contains('/') {
        return Err("names no host");
    }
    match port.parse::<u16>() {
        Ok(port @ 1..) => Ok((host, port)),
        _ => Err("has no port from 1 to 65535"),
    }
}
