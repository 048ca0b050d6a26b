//! `[node.dynamic]`, checked and turned into what the node is told.

use std::path::PathBuf;

use larder_node::{
    Amount, CpuConfig, DiskModel, DynamicConfig, DynamicDisk, HandlerConfig, ProcessorModel, StoreConfig,
};

use super::error::Fault;
use super::explain::suggest;
use super::raw_dynamic::{RawDynamic, RawHandler};

pub(super) fn dynamic(raw: &RawDynamic, store: &StoreConfig) -> Result<DynamicConfig, Fault> {
    let handlers = raw.handlers.iter().enumerate().map(|(at, raw)| {
        let handler = handler(raw);
        let fault = |error: larder_node::ConfigError| {
            let key = error.field.trim_start_matches("dynamic.handlers").replace("read_bytes", "read_size");
            Fault::out_of_range(format!("node.dynamic.handlers[{at}]{key}"), error.expected)
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
        let key = match error.field {
            "processor.speed" | "dynamic.speed" => "dynamic.cpu_speed",
            "disk.speed" => "dynamic.disk_speed",
            "dynamic.disk" if raw.scratch.is_some() => "dynamic.scratch",
            "dynamic.disk" if raw.disk_speed.is_some() => "dynamic.disk_speed",
            "dynamic.disk" => "dynamic.handlers",
            other => other,
        };
        let hint = match (error.field, raw.scratch.is_some() || raw.disk_speed.is_some()) {
            ("dynamic.disk", false) => "a handler reads: name a scratch directory, or a disk_speed",
            _ => error.expected,
        };
        Fault::of_value(format!("node.{key}"), "is out of range, or contradicts another key of node.dynamic")
            .hint(hint)
    })?;
    Ok(config)
}

fn handler(raw: &RawHandler) -> HandlerConfig {
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

fn cpu(raw: &RawDynamic, store: &StoreConfig) -> Result<Option<CpuConfig>, Fault> {
    let modelled_store = matches!(store, StoreConfig::Model { processor: Some(_), .. });
    let real = CpuConfig::Real { processors: raw.processors, speed: raw.cpu_speed };
    match raw.cpu.as_deref() {
        Some("modelled") if raw.processors != 0 => {
            Err(Fault::new("node.dynamic.processors", "a modelled node has one processor")
                .hint("leave it out, or set cpu = \"real\""))
        }
        Some("modelled") => {
            Ok(Some(CpuConfig::Modelled(ProcessorModel { speed: raw.cpu_speed, ..Default::default() })))
        }
        Some("real") => Ok(Some(real)),
        Some(other) => Err(Fault::new("node.dynamic.cpu", format!("unknown value '{other}'"))
            .hint(suggest(other, &["real", "modelled"]))),
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

fn disk(raw: &RawDynamic) -> Result<Option<DynamicDisk>, Fault> {
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
    use super::super::Written;

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
            (with(HEAD, "disk_speed = 1.0\nturn = \"1us\"\n"), 7, "node.dynamic.turn", "100 us"),
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
