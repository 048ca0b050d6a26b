//! `[node.dynamic]` as written, with its defaults.

use larder_core::Bytes;
use larder_node::{Amount, DynamicConfig, HandlerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::between::Between;
use super::text::{Size, Span, Texts};

/// `[node.dynamic]`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawDynamic {
    /// The programs: tables with `name`, `paths` and what a request takes: `cpu`, `reads` of `read_size` from the
    /// disk, `reply`. `cacheable` says for how long a reply may be kept; without it, replies say no-store. Amounts
    /// are one value, or "least..most" drawn by target. The first whose path fits answers.
    #[schemars(example = example())]
    pub(crate) handlers: Vec<RawHandler>,
    /// What CPU time is taken from: "real", the cores of this machine, or "modelled", a processor that all replies
    /// of the node share. By default that of the modelled store if it has one, else real.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["real", "modelled"]), example = &"real")]
    pub(crate) cpu: Option<String>,
    /// Real processors that work at one time, 0 for all; at most 400.
    pub(crate) processors: u16,
    /// How many times faster jobs are than written; a modelled processor's other times are those of the LARD paper's
    /// of 1998. 0.001 to 1000000.
    pub(crate) cpu_speed: f64,
    /// Longest time a job has a processor while others wait, 100us to 1h; by default until it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "10ms")]
    pub(crate) turn: Option<Span>,
    /// Directory for a file of `scratch_size` that programs read, past the page cache. It has no name once the node
    /// serves. Absent: the modelled store's disks, or those of `disk_speed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = "/var/tmp")]
    pub(crate) scratch: Option<String>,
    /// Length of that file. 4KiB to 1TiB.
    pub(crate) scratch_size: Size,
    /// Modelled disks for the programs of a node with a root: how many times faster than the LARD paper's disk of
    /// 1998 they are. 0.001 to 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(example = 1.0)]
    pub(crate) disk_speed: Option<f64>,
    /// Requests in programs at one time, working or waiting; 503 beyond. 1 to 1000000.
    pub(crate) requests_max: usize,
    /// Bytes of a request's body, which is read and ignored; 413 beyond. At most 1GiB.
    pub(crate) body_max: Size,
    /// What drawn amounts are drawn with, besides the target.
    pub(crate) seed: u64,
}

/// An entry of `node.dynamic.handlers`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawHandler {
    /// Its name in `Cache-Status`.
    pub(crate) name: String,
    /// Patterns of its targets: "*" is any run of bytes; with a "?", path and query must fit, else the path.
    pub(crate) paths: Texts,
    /// CPU time, at most 60s.
    #[serde(default = "no_time")]
    pub(crate) cpu: Between<Span>,
    /// Reads from the disk, at most 10000.
    #[serde(default)]
    pub(crate) reads: u32,
    /// Bytes of each read, 1 to 64MiB.
    #[serde(default = "read_size")]
    pub(crate) read_size: Size,
    /// Bytes of its replies, at most 16MiB.
    #[serde(default = "reply")]
    pub(crate) reply: Between<Size>,
    /// For how long a reply to GET may be kept, 1s to 365d. Absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cacheable: Option<Span>,
}

/// A program that needs no disk.
fn example() -> serde_json::Value {
    serde_json::json!([{ "name": "light", "paths": "/cgi-bin/*", "cpu": "1ms..5ms", "reply": "4KiB" }])
}

fn no_time() -> Between<Span> {
    Between::always(Span::default())
}

fn read_size() -> Size {
    Size(HandlerConfig::new("", "").read_bytes)
}

fn reply() -> Between<Size> {
    let Amount { least, most } = HandlerConfig::new("", "").reply;
    Between { least: Size(least), most: Size(most) }
}

impl Default for RawDynamic {
    fn default() -> Self {
        let config = DynamicConfig::new(Vec::new());
        Self {
            handlers: Vec::new(),
            cpu: None,
            processors: 0,
            cpu_speed: 1.0,
            turn: None,
            scratch: None,
            scratch_size: Size(Bytes::mib(64)),
            disk_speed: None,
            requests_max: config.requests_max,
            body_max: Size(config.body_max),
            seed: config.seed,
        }
    }
}
