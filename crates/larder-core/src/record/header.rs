//! What a recorded run started from: settings and nodes.

use super::frame::{put_spec, spec};
use super::wire::{Wire, put, put_bytes};
use super::{FRAME_BYTES_MAX, MAGIC, RecordError, VERSION};
use crate::dispatch::{Admission, Settings};
use crate::nodes::{NODES_LIMIT, NodeSpec};
use core::fmt::Write as _;
use core::str::FromStr;
use core::time::Duration;

/// What a run started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The dispatcher's settings. Those of policies that the live switch does not offer are not recorded.
    pub settings: Settings,
    /// The nodes, in the order of their slots.
    pub nodes: Vec<NodeSpec>,
}

impl Header {
    /// The first bytes of a record: magic, version, and the header with its length before it.
    ///
    /// # Errors
    /// The settings cannot be recorded, or there are too many nodes for one frame.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let text = to_text(&self.settings);
        if from_text(&text).as_ref() != Ok(&self.settings) {
            return Err(RecordError::Settings("they belong to policies that the switch does not offer"));
        }
        let mut body = Vec::new();
        put_bytes(&mut body, text.as_bytes());
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
        let settings = from_text(wire.text("settings")?)?;
        let count = wire.number("number of nodes")?;
        if count > u64::from(NODES_LIMIT) {
            return Err(RecordError::Value { what: "number of nodes", value: count });
        }
        let nodes = (0..count).map(|_| spec(&mut wire)).collect::<Result<_, _>>()?;
        wire.end()?;
        Ok(Self { settings, nodes })
    }
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
