//! `[node.dynamic]`.

use std::path::PathBuf;

use larder_core::Bytes;
use larder_node::{
    Amount, CpuConfig, DiskModel, DynamicConfig, DynamicDisk, HandlerConfig, ProcessorModel, StoreConfig,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::between::Between;
use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::text::{Size, Span, Texts};
use crate::config::words::choice;

keys! {
    /// `[node.dynamic]`.
    table DynamicSection, config = DynamicConfig::new(Vec::new());

    /// Programs, each a table with `name`, `paths` and the cost of a request: `cpu`, `reads` of `read_size` from the
    /// disk, `reply`. `cacheable` sets how long a reply may be cached; without it replies are no-store. An amount is
    /// one value, or "least..most", drawn by target. The first program whose path matches replies.
    handlers: Vec<HandlerTable>, entries 256, example example();
    /// Source of CPU time: "real" uses the cores of this machine, "modelled" a modelled processor that all replies of
    /// the node share. Unset: the processor of the modelled store if there is one, else "real".
    cpu: Option<Cpu>, example "real";
    /// Number of real processors that work at one time. 0: all.
    processors: u16 = 0, range "0 to 400";
    /// Speed of jobs as a multiple of their configured CPU times. Other times of a modelled processor are those of
    /// the LARD paper of 1998.
    cpu_speed: f64 = 1.0, range "0.001 to 1000000";
    /// Longest time that a job keeps a processor while others wait. Unset: a job runs to its end.
    turn: Option<Span>, range "100us to 1h", example "10ms";
    /// Directory for a file of `scratch_size` that programs read, past the page cache. The file is unlinked once the
    /// node serves. Unset: the disks of the modelled store, or of `disk_speed`.
    scratch: Option<String>, example "/var/tmp";
    /// Size of the file in `scratch`.
    scratch_size: Size = Size(Bytes::mib(64)), range "4KiB to 1TiB", when "scratch";
    /// Speed of modelled disks for programs of a node with `root`, as a multiple of the LARD paper's disk of 1998.
    disk_speed: Option<f64>, range "0.001 to 1000000", example 1.0;
    /// Number of requests that programs serve at one time, running or waiting. Beyond it: 503.
    requests_max: usize = config.requests_max, range "1 to 1000000";
    /// Size of a request's body, which is read and ignored. Beyond it: 413.
    body_max: Size = Size(config.body_max), range "0B to 1GiB";
    /// Seed of drawn amounts, which also depend on the target.
    seed: u64 = config.seed;
}

/// An entry of `node.dynamic.handlers`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HandlerTable {
    /// Name of the program in `Cache-Status`: 1 to 64 letters, digits, `-` and `_`, beginning with a letter.
    /// Required.
    pub(crate) name: String,
    /// Patterns of the program's targets; "*" matches any run of bytes. A pattern with "?" is compared with path and
    /// query, else with the path. Required.
    #[schemars(extend("x-entries" = 64))]
    pub(crate) paths: Texts,
    /// CPU time of a request.
    #[serde(default = "no_time")]
    #[schemars(extend("x-range" = "0s to 60s"))]
    pub(crate) cpu: Between<Span>,
    /// Number of reads from the disk for a request, after its CPU time.
    #[serde(default)]
    #[schemars(extend("x-range" = "0 to 10000"))]
    pub(crate) reads: u32,
    /// Size of each read.
    #[serde(default = "read_size")]
    #[schemars(extend("x-range" = "1B to 64MiB"))]
    pub(crate) read_size: Size,
    /// Size of a reply.
    #[serde(default = "reply")]
    #[schemars(extend("x-range" = "0B to 16MiB"))]
    pub(crate) reply: Between<Size>,
    /// Time for which a reply to GET may be cached. Unset: no-store.
    #[serde(default)]
    #[schemars(extend("x-range" = "1s to 365d"))]
    pub(crate) cacheable: Option<Span>,
}

/// Returns an example of a program that needs no disk.
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

choice! {
    /// The words of `node.dynamic.cpu`.
    Cpu { Real, Modelled }
}

pub(crate) fn dynamic(raw: &DynamicSection, store: &StoreConfig) -> Result<DynamicConfig, Fault> {
    let handlers = raw.handlers.iter().enumerate().map(|(at, raw)| {
        let handler = handler(raw);
        let fault = |error: larder_node::ConfigError| {
            let key = error.field.strip_prefix("dynamic.handlers").unwrap_or_default();
            Fault::new(format!("node.dynamic.handlers[{at}]{key}"), "cannot be used").hint(error.expected)
        };
        handler.check().map(|()| handler).map_err(fault)
    });
    let config = DynamicConfig {
        handlers: handlers.collect::<Result<_, _>>()?,
        cpu: cpu(raw, store)?,
        turn: raw.turn.map(|turn| turn.0),
        disk: disk(raw)?,
        requests_max: raw.requests_max,
        body_max: raw.body_max.0,
        seed: raw.seed,
    };
    config.check(store).map_err(|error| {
        let given = raw.scratch.is_some() || raw.disk_speed.is_some();
        let (key, hint) = match error.field {
            "dynamic.disk" if raw.scratch.is_some() => ("dynamic.scratch", error.expected),
            "dynamic.disk" if given => ("dynamic.disk_speed", error.expected),
            "dynamic.disk" => {
                ("dynamic.handlers", "a handler reads: name a scratch directory, or a disk_speed")
            }
            field => (field, error.expected),
        };
        Fault::new(format!("node.{key}"), "contradicts another key of the node").hint(hint)
    })?;
    Ok(config)
}

fn handler(raw: &HandlerTable) -> HandlerConfig {
    HandlerConfig {
        name: raw.name.clone(),
        paths: raw.paths.0.clone(),
        cpu: Amount { least: raw.cpu.least.0, most: raw.cpu.most.0 },
        reads: raw.reads,
        read_bytes: raw.read_size.0,
        reply: Amount { least: raw.reply.least.0, most: raw.reply.most.0 },
        cacheable: raw.cacheable.map(|age| age.0),
    }
}

fn cpu(raw: &DynamicSection, store: &StoreConfig) -> Result<Option<CpuConfig>, Fault> {
    let modelled_store = matches!(store, StoreConfig::Model { processor: Some(_), .. });
    let real = CpuConfig::Real { processors: raw.processors, speed: raw.cpu_speed };
    match raw.cpu {
        Some(Cpu::Modelled) if raw.processors != 0 => {
            Err(Fault::new("node.dynamic.processors", "a modelled node has one processor")
                .hint("leave it out, or set cpu = \"real\""))
        }
        Some(Cpu::Modelled) => {
            Ok(Some(CpuConfig::Modelled(ProcessorModel { speed: raw.cpu_speed, ..Default::default() })))
        }
        Some(Cpu::Real) => Ok(Some(real)),
        None if !modelled_store => Ok(Some(real)),
        None if raw.processors != 0 => {
            Err(Fault::new("node.dynamic.processors", "the modelled store has one processor")
                .hint("leave it out"))
        }
        None if raw.cpu_speed != 1.0 => {
            Err(Fault::new("node.dynamic.cpu_speed", "the modelled store says how fast its processor is")
                .hint("leave it out: node.model.processor_speed counts for programs too"))
        }
        None => Ok(None),
    }
}

fn disk(raw: &DynamicSection) -> Result<Option<DynamicDisk>, Fault> {
    match (&raw.scratch, raw.disk_speed) {
        (Some(_), Some(_)) => Err(Fault::new("node.dynamic.disk_speed", "contradicts node.dynamic.scratch")
            .hint("keep scratch to read a real disk, or disk_speed for a modelled one")),
        (Some(directory), None) => {
            Ok(Some(DynamicDisk::Scratch { directory: PathBuf::from(directory), size: raw.scratch_size.0 }))
        }
        (None, Some(speed)) => Ok(Some(DynamicDisk::Modelled(DiskModel { speed, ..Default::default() }))),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Written;

    const HEAD: &str = "[node]\nlisten = \"127.0.0.1:1\"\nroot = \"/\"\n[node.dynamic]\n";
    const MODEL: &str = "[node]\nlisten = \"127.0.0.1:1\"\nmodel = { manifest = \"m\", processor_speed = 1.0 }\n\
                         [node.dynamic]\n";
    const LIGHT: &str = "{ name = \"light\", paths = \"/cgi/*\", cpu = \"1ms..5ms\", reads = 1 }";

    #[test]
    fn programs_have_the_stores_machine_or_their_own() {
        for (head, rest) in [
            (MODEL, ""),
            (HEAD, "scratch = \"/var/tmp\"\n"),
            (HEAD, "disk_speed = 10.0\ncpu = \"modelled\"\ncpu_speed = 3.0\nturn = \"10ms\"\n"),
        ] {
            let text = format!("{head}{rest}handlers = [{LIGHT}]\n");
            let config = Written::parse("f", &text).unwrap().validate().unwrap();
            assert_eq!(config.node.unwrap().node.dynamic.unwrap().handlers.len(), 1);
        }
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        let handler = |text: &str| format!("{HEAD}handlers = [\n{LIGHT},\n{{ {text} }},\n]\n");
        let with = |head: &str, text: &str| format!("{head}handlers = [{LIGHT}]\n{text}");
        let cases = [
            (handler("name = \"a b\", paths = \"/\""), 7, "node.dynamic.handlers[1].name", "letters"),
            (handler("name = \"a\", paths = \"cgi\""), 7, "node.dynamic.handlers[1].paths", "begin with"),
            (
                handler("name = \"a\", paths = \"/\", cpu = \"2s..1s\""),
                7,
                "node.dynamic.handlers[1].cpu",
                "least",
            ),
            (handler("name = \"a\", paths = \"/\", cpu = 5"), 7, "node.dynamic.handlers[1].cpu", "unit"),
            (
                handler("name = \"a\", path = \"/\""),
                7,
                "node.dynamic.handlers[1].path",
                "did you mean 'paths'",
            ),
            (handler("paths = \"/\""), 7, "node.dynamic.handlers[1]", "name"),
            (format!("{HEAD}seed = 1\n"), 4, "node.dynamic.handlers", "1 to 256"),
            (with(HEAD, ""), 5, "node.dynamic.handlers", "scratch"),
            (with(HEAD, "cpu = \"reel\"\ndisk_speed = 1.0\n"), 6, "node.dynamic.cpu", "did you mean 'real'"),
            (with(HEAD, "disk_speed = 0.0\n"), 6, "node.dynamic.disk_speed", "0.001"),
            (with(HEAD, "disk_speed = 1.0\nturn = \"1us\"\n"), 7, "node.dynamic.turn", "100us"),
            (with(HEAD, "disk_speed = 1.0\nscratch = \"/x\"\n"), 6, "node.dynamic.disk_speed", "scratch"),
            (with(MODEL, "scratch = \"/x\"\n"), 6, "node.dynamic.scratch", "modelled store"),
            (with(MODEL, "cpu_speed = 2.0\n"), 6, "node.dynamic.cpu_speed", "processor_speed"),
            (with(MODEL, "cpu = \"real\"\n"), 6, "node.dynamic.cpu", "absent"),
            (with(MODEL, "processors = 2\n"), 6, "node.dynamic.processors", "leave it out"),
        ];
        for (text, line, key, word) in cases {
            let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
            // One mistake may bring others about.
            let named = std::iter::once(&error).chain(&error.more);
            let mut named = named.filter(|error| (error.line, error.key.as_str()) == (Some(line), key));
            assert!(named.any(|error| error.to_string().contains(word)), "{text}\n{error}");
        }
    }
}
