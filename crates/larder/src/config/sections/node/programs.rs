//! `node.model.programs`.

use larder_node::ProgramConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::error::Fault;
use crate::config::sections::node::ModelSection;
use crate::config::text::{Size, Span, Texts};

/// An entry of `node.model.programs`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProgramTable {
    /// The program's name in `Cache-Status`.
    pub(crate) name: String,
    /// Patterns of its targets: "*" is any run of bytes; with a "?", path and query must match, else the path.
    #[schemars(extend("x-entries" = 64))]
    pub(crate) paths: Texts,
    /// CPU time of a reply at processor_speed 1.
    #[serde(default)]
    #[schemars(extend("x-range" = "0s to 60s"))]
    pub(crate) cpu: Span,
    /// Reads of 8KiB from the disk for a reply.
    #[serde(default)]
    #[schemars(extend("x-range" = "0 to 10000"))]
    pub(crate) reads: u32,
    /// Bytes of a reply.
    #[serde(default = "reply")]
    #[schemars(extend("x-range" = "0B to 16MiB"))]
    pub(crate) reply: Size,
}

/// The example of the reference.
pub(super) fn example() -> serde_json::Value {
    serde_json::json!([{ "name": "light", "paths": "/cgi-bin/*", "cpu": "5ms", "reply": "4KiB" }])
}

fn reply() -> Size {
    Size(ProgramConfig::new("", "").reply)
}

pub(super) fn programs(model: &ModelSection) -> Result<Vec<ProgramConfig>, Fault> {
    if model.processor_speed.is_none() && (!model.programs.is_empty() || model.turn.is_some()) {
        return Err(Fault::new(
            "node.model.processor_speed",
            "missing: programs and turn are of the modelled processor",
        )
        .hint("write processor_speed = 1.0"));
    }
    let program = |(at, raw): (usize, &ProgramTable)| {
        let ProgramTable { name, paths, cpu, reads, reply } = raw;
        let paths = paths.0.clone();
        let program = ProgramConfig { name: name.clone(), paths, cpu: cpu.0, reads: *reads, reply: reply.0 };
        let fault = |error: larder_node::ConfigError| {
            let key = error.field.strip_prefix("model.programs").unwrap_or_default();
            Fault::new(format!("node.model.programs[{at}]{key}"), "cannot be used").hint(error.expected)
        };
        program.check().map(|()| program).map_err(fault)
    };
    model.programs.iter().enumerate().map(program).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_node::StoreConfig;

    use crate::config::Written;

    const MODEL: &str =
        "[node]\nlisten = \"127.0.0.1:1\"\n[node.model]\nmanifest = \"m\"\nprocessor_speed = 1.0\n";
    const LIGHT: &str = "{ name = \"light\", paths = \"/cgi/*\", cpu = \"5ms\", reads = 1 }";

    #[test]
    fn programs_belong_to_the_modelled_store() {
        let text = format!("{MODEL}turn = \"10ms\"\nprograms = [{LIGHT}]\n");
        let config = Written::parse("f", &text).unwrap().validate().unwrap();
        let StoreConfig::Model(model) = config.node.unwrap().node.store else { panic!("it is modelled") };
        assert_eq!(model.turn, Some(Duration::from_millis(10)));
        let program = &model.programs[0];
        assert_eq!((program.cpu, program.reads, program.reply.0), (Duration::from_millis(5), 1, 4_096));
    }

    #[test]
    fn programs_need_a_modelled_processor() {
        let text = format!("{MODEL}programs = [{LIGHT}]\n").replace("processor_speed = 1.0\n", "");
        let error = Written::parse("f", &text).unwrap().validate().unwrap_err();
        assert_eq!(error.key, "node.model.processor_speed", "{error}");
        assert!(error.to_string().contains("write processor_speed = 1.0"), "{error}");
    }

    #[test]
    fn the_removed_table_is_refused_with_its_successor() {
        let text = format!("{MODEL}[node.dynamic]\nturn = \"10ms\"\nhandlers = [{LIGHT}]\n");
        let error = Written::parse("f", &text).unwrap_err();
        assert_eq!((error.line, error.key.as_str()), (Some(6), "node.dynamic"), "{error}");
        assert!(error.to_string().contains("use node.model.programs"), "{error}");
        assert!(error.more.is_empty(), "{error}");
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        let program = |text: &str| format!("{MODEL}programs = [\n{LIGHT},\n{{ {text} }},\n]\n");
        for (text, line, key, word) in [
            (program("name = \"a b\", paths = \"/\""), 8, "node.model.programs[1].name", "letters"),
            (program("name = \"a\", paths = \"cgi\""), 8, "node.model.programs[1].paths", "begin with"),
            (program("name = \"a\", paths = \"/\", cpu = \"61s\""), 8, "node.model.programs[1].cpu", "60s"),
            (
                program("name = \"a\", paths = \"/\", cpu = \"1ms..5ms\""),
                8,
                "node.model.programs[1].cpu",
                "unit",
            ),
            (program("name = \"a\", path = \"/\""), 8, "node.model.programs[1].path", "did you mean 'paths'"),
            (program("paths = \"/\""), 8, "node.model.programs[1]", "name"),
            (format!("{MODEL}turn = \"1us\"\n"), 6, "node.model.turn", "100us"),
        ] {
            let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
            // One mistake may bring others about.
            let named = std::iter::once(&error).chain(&error.more);
            let mut named = named.filter(|error| (error.line, error.key.as_str()) == (Some(line), key));
            assert!(named.any(|error| error.to_string().contains(word)), "{text}\n{error}");
        }
    }
}
