//! `[switch]`, checked and turned into what the front is told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::dispatch::{Admission, SettingsError};
use larder_core::{Bytes, NodeSpec, PolicyKind, Settings, Weight};
use larder_front::{
    AccessFormat, AccessLogConfig, AccessLogOutput, Check, ConfigError, HealthConfig, Limits, NodeEntry,
    RecordConfig, SwitchConfig, Timeouts,
};

use super::error::{Fault, suggest};
use super::raw_switch::{
    AdmissionWord, RawAdmission, RawHealth, RawPeer, RawSwitch, RawSwitchLimits, RawTimeouts,
};
use super::text::{Size, Span};
use super::valid::{addresses, in_range, node_name, word};

/// `[switch]`, valid.
#[derive(Clone, Debug)]
pub(crate) struct SwitchRole {
    pub(crate) switch: SwitchConfig,
    /// 0: one for each core.
    pub(crate) threads: usize,
}

/// Longest span a config may name: a year.
const SPAN_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

pub(super) fn switch(raw: &RawSwitch) -> Result<SwitchRole, Fault> {
    let listen = addresses("switch.listen", &raw.listen, "127.0.0.1:8080")?;
    if raw.nodes.is_empty() {
        let hint = "write nodes = [\"10.0.0.1:80\", \"10.0.0.2:80\"]";
        return Err(Fault::new("switch.nodes", "missing: a switch needs at least one node").hint(hint));
    }
    if raw.nodes.len() > usize::from(raw.nodes_max) {
        let what = format!("{} nodes are listed, {} may be", raw.nodes.len(), raw.nodes_max);
        return Err(Fault::new("switch.nodes_max", what).hint("raise nodes_max"));
    }
    let threads = in_range("switch.threads", raw.threads, 0, 1024)?;
    let mut switch = SwitchConfig::new(listen, peers(&raw.nodes)?);
    switch.settings = settings(raw)?;
    switch.health = health(&raw.health)?;
    switch.timeouts = timeouts(&raw.timeouts);
    switch.limits = limits(&raw.limits);
    switch.access_log = access_log(raw)?;
    switch.record = record(raw)?;
    switch.via.clone_from(&raw.via);
    if threads > 0 {
        switch.threads = threads;
    }
    switch.validate().map_err(|error| fault(&error))?;
    Ok(SwitchRole { switch, threads })
}

/// The front's own checks, in the words of the config file.
fn fault(error: &ConfigError) -> Fault {
    let key = |name: &str| format!("switch.{}", name.replace("_bytes_max", "_max"));
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
        ConfigError::Via => Fault::new("switch.via", error.to_string()),
    }
}

fn health(raw: &RawHealth) -> Result<HealthConfig, Fault> {
    let active = match raw.check.as_str() {
        "off" => None,
        "tcp" => Some(Check::Tcp),
        path if path.starts_with('/') => Some(Check::Http { path: path.to_owned() }),
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

fn access_log(raw: &RawSwitch) -> Result<Option<AccessLogConfig>, Fault> {
    let format = match raw.access_log_format.as_str() {
        "combined" => AccessFormat::Combined,
        "json" => AccessFormat::Json,
        other => {
            return Err(Fault::new("switch.access_log_format", format!("unknown value '{other}'"))
                .hint(suggest(other, &["combined", "json"])));
        }
    };
    let log = match raw.access_log.as_deref() {
        None => None,
        Some("") => {
            return Err(
                Fault::new("switch.access_log", "names no file").hint("a path, \"-\", or leave it out")
            );
        }
        Some("-") => Some(AccessLogConfig { output: AccessLogOutput::Stdout, ..AccessLogConfig::file("-") }),
        Some(path) => Some(AccessLogConfig::file(path)),
    };
    Ok(log.map(|log| AccessLogConfig { format, ..log }))
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
        retries_max: raw.retries_max,
        node_idle_max: raw.node_idle_max,
    }
}

fn peers(raw: &[RawPeer]) -> Result<Vec<NodeEntry>, Fault> {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut peers = Vec::with_capacity(raw.len());
    for (i, entry) in raw.iter().enumerate() {
        let key = format!("switch.nodes[{i}]");
        host_and_port(&entry.address).map_err(|what| {
            Fault::new(&key, format!("'{}' {what}", entry.address))
                .hint("write \"10.0.0.1:80\" or \"name:80\"")
        })?;
        let name = entry.name.as_deref().unwrap_or(&entry.address);
        node_name(&key, name)?;
        if let Some(first) = names.insert(name, i) {
            let what = format!("the name '{name}' is that of switch.nodes[{first}] already");
            return Err(Fault::new(key, what)
                .hint("give each node a name of its own: { name = \"a\", address = ... }"));
        }
        let weight = Weight::from_f64(entry.weight).ok_or_else(|| {
            Fault::new(format!("{key}.weight"), format!("{} is out of range", entry.weight))
                .hint("0.001 to 100")
        })?;
        let cache = entry.cache.map_or(Bytes::ZERO, |size| size.0);
        let spec = NodeSpec { weight, cache, ..NodeSpec::named(name) };
        peers.push(NodeEntry { spec, address: entry.address.clone() });
    }
    Ok(peers)
}

/// A policy that the switch can run.
fn policy(name: &str) -> Result<PolicyKind, Fault> {
    let key = "switch.policy";
    let live = PolicyKind::LIVE.map(PolicyKind::name);
    let kind: PolicyKind = word(key, name, &live)?;
    if !kind.is_live() {
        let what = format!("'{kind}' runs in the simulator only for now");
        let hint = format!("use one of {}, or try it with larder sim", live.join(", "));
        return Err(Fault::new(key, what).hint(hint));
    }
    Ok(kind)
}

fn settings(raw: &RawSwitch) -> Result<Settings, Fault> {
    if raw.t_low >= raw.t_high {
        let what = format!("{} is not below t_high, which is {}", raw.t_low, raw.t_high);
        return Err(Fault::new("switch.t_low", what).hint("the paper uses t_low = 25, t_high = 65"));
    }
    let settings = Settings {
        policy: policy(&raw.policy)?,
        seed: raw.seed,
        t_low: raw.t_low,
        t_high: raw.t_high,
        replication_decay: span("switch.replication_decay", raw.replication_decay)?,
        targets_max: raw.targets_max,
        nodes_max: raw.nodes_max,
        admission: match raw.admission {
            RawAdmission::Fixed(limit) => Admission::Fixed(limit),
            RawAdmission::Word(AdmissionWord::Derived) => Admission::Derived,
            RawAdmission::Word(AdmissionWord::Unlimited) => Admission::Unlimited,
        },
        queue_max: in_range("switch.queue_max", raw.queue_max, 0, 1_000_000)?,
        queue_timeout: span("switch.queue_timeout", raw.queue_timeout)?,
        join_targets_per_s: raw.join_targets_per_s,
        join_warm_targets: raw.join_warm_targets,
        shards: raw.shards,
        ..Settings::default()
    };
    match settings.validate() {
        Ok(()) => Ok(settings),
        Err(SettingsError::OutOfRange { name, value, range }) => {
            Err(Fault::new(format!("switch.{name}"), format!("{value} is out of range")).hint(range))
        }
        Err(SettingsError::Node(error)) => Err(Fault::new("switch.nodes", error.to_string())),
    }
}

fn host_and_port(address: &str) -> Result<(), &'static str> {
    let (host, port) = address.rsplit_once(':').ok_or("has no port")?;
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || bare_v6 || host.chars().any(char::is_whitespace) || host.contains('/') {
        return Err("names no host");
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err("has no port from 1 to 65535"),
    }
}

fn span(key: &str, span: Span) -> Result<Duration, Fault> {
    if span.0 <= SPAN_MAX {
        return Ok(span.0);
    }
    Err(Fault::new(key, format!("{span} is out of range")).hint("at most a year"))
}
