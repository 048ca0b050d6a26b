//! What a recorded run started from: settings, routes and nodes.

use super::frame::{put_spec, put_table, spec, table};
use super::wire::{Wire, put, put_bytes};
use super::{FRAME_BYTES_MAX, MAGIC, RecordError, VERSION};
use crate::dispatch::{Admission, Dispatcher, RouteSpec, Settings};
use crate::nodes::{GroupId, NODES_LIMIT, NodeSpec};
use core::fmt::Write as _;
use core::str::FromStr;
use core::time::Duration;
use std::sync::Arc;

/// What a run started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The default route's settings, and so the dispatcher's.
    pub settings: Settings,
    /// The other routes.
    pub routes: Vec<RouteSpec>,
    /// The nodes, in the order of their slots.
    pub nodes: Vec<NodeSpec>,
}

impl Header {
    /// The first bytes of a record: magic, version, and the header with its length before it.
    ///
    /// # Errors
    /// A setting that a record does not hold, or more than fits in one frame.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let mut body = Vec::new();
        put_settings(&mut body, &self.settings)?;
        put(&mut body, self.routes.len() as u64);
        for route in &self.routes {
            put(&mut body, route.group.index() as u64);
            put_settings(&mut body, &route.settings)?;
        }
        put(&mut body, self.nodes.len() as u64);
        self.nodes.iter().for_each(|spec| put_spec(&mut body, spec));
        if body.len() > FRAME_BYTES_MAX {
            return Err(RecordError::TooLong(body.len() as u64));
        }
        let mut out = [&MAGIC[..], &[VERSION]].concat();
        put_bytes(&mut out, &body);
        Ok(out)
    }

    /// A header from its bytes, without magic, version and length.
    ///
    /// # Errors
    /// The bytes are no header.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut wire = Wire(bytes);
        let own = settings(&mut wire)?;
        let count = wire.number("number of routes")?;
        if count >= Dispatcher::ROUTES_MAX as u64 {
            return Err(RecordError::Value { what: "number of routes", value: count });
        }
        let route = |_| {
            let number: u8 = wire.small("group")?;
            let group = GroupId::new(number);
            let group = group.ok_or(RecordError::Value { what: "group", value: number.into() })?;
            Ok(RouteSpec { group, settings: settings(&mut wire)? })
        };
        let routes = (0..count).map(route).collect::<Result<_, RecordError>>()?;
        let count = wire.number("number of nodes")?;
        if count > u64::from(NODES_LIMIT) {
            return Err(RecordError::Value { what: "number of nodes", value: count });
        }
        let nodes = (0..count).map(|_| spec(&mut wire)).collect::<Result<_, _>>()?;
        wire.end()?;
        Ok(Self { settings: own, routes, nodes })
    }
}

/// The settings as text, and the routing table if there is one: 0, or 1 and the table.
fn put_settings(out: &mut Vec<u8>, settings: &Settings) -> Result<(), RecordError> {
    let text = to_text(settings);
    let read = from_text(&text).map(|read| Settings { table: settings.table.clone(), ..read });
    if read.as_ref() != Ok(settings) {
        return Err(RecordError::Settings("one of them has no name there"));
    }
    put_bytes(out, text.as_bytes());
    match &settings.table {
        None => out.push(0),
        Some(table) => {
            out.push(1);
            put_table(out, table);
        }
    }
    Ok(())
}

fn settings(wire: &mut Wire<'_>) -> Result<Settings, RecordError> {
    let settings = from_text(wire.text("settings")?)?;
    let table = match wire.byte("routing table")? {
        0 => None,
        1 => Some(Arc::new(table(wire)?)),
        other => return Err(RecordError::Value { what: "sign of a routing table", value: other.into() }),
    };
    Ok(Settings { table, ..settings })
}

/// The settings, one `name value` per line.
fn to_text(settings: &Settings) -> String {
    let s = settings;
    let admission = match s.admission {
        Admission::Derived => "derived".to_owned(),
        Admission::Unlimited => "unlimited".to_owned(),
        Admission::Fixed(limit) => limit.to_string(),
    };
    let lines: [(&str, &dyn core::fmt::Display); 13] = [
        ("policy", &s.policy),
        ("seed", &s.seed),
        ("t_low", &s.t_low),
        ("t_high", &s.t_high),
        ("replication_decay_ns", &s.replication_decay.as_nanos()),
        ("targets_max", &s.targets_max),
        ("nodes_max", &s.nodes_max),
        ("admission", &admission),
        ("queue_max", &s.queue_max),
        ("queue_timeout_ns", &s.queue_timeout.as_nanos()),
        ("join_targets_per_s", &s.join_targets_per_s),
        ("join_warm_targets", &s.join_warm_targets),
        ("shards", &s.shards),
    ];
    lines.iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name} {value}");
        text
    })
}

fn from_text(text: &str) -> Result<Settings, RecordError> {
    let mut settings = Settings::default();
    for line in text.lines() {
        let bad = || bad("setting", line);
        let (name, value) = line.split_once(' ').ok_or_else(bad)?;
        let s = &mut settings;
        match name {
            "policy" => s.policy = value.parse().map_err(|_| bad())?,
            "seed" => s.seed = number(line, value)?,
            "t_low" => s.t_low = number(line, value)?,
            "t_high" => s.t_high = number(line, value)?,
            "replication_decay_ns" => s.replication_decay = Duration::from_nanos(number(line, value)?),
            "targets_max" => s.targets_max = number(line, value)?,
            "nodes_max" => s.nodes_max = number(line, value)?,
            "queue_max" => s.queue_max = number(line, value)?,
            "queue_timeout_ns" => s.queue_timeout = Duration::from_nanos(number(line, value)?),
            "join_targets_per_s" => s.join_targets_per_s = number(line, value)?,
            "join_warm_targets" => s.join_warm_targets = number(line, value)?,
            "shards" => s.shards = number(line, value)?,
            "admission" => {
                s.admission = match value {
                    "derived" => Admission::Derived,
                    "unlimited" => Admission::Unlimited,
                    limit => Admission::Fixed(number(line, limit)?),
                }
            }
            _ => return Err(bad()),
        }
    }
    Ok(settings)
}

fn number<T: FromStr>(line: &str, value: &str) -> Result<T, RecordError> {
    value.parse().map_err(|_| bad("setting", line))
}

fn bad(what: &'static str, text: &str) -> RecordError {
    RecordError::Text { what, text: text.chars().take(60).collect() }
}
