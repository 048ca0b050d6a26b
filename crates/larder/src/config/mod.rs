//! The config, which is read as [`Sections`] and validated into [`Config`].

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "documentation of keys is the file's reference: [switch] is a section"
)]

mod changes;
mod check;
mod error;
mod explain;
mod faults;
#[cfg(test)]
mod inherit_tests;
mod keys;
mod migrate;
mod moved;
#[cfg(test)]
mod moved_tests;
mod nodes_file;
#[cfg(test)]
mod page;
mod range;
mod reference;
mod schema;
mod sections;
mod source;
mod suggest;
mod text;
mod valid;
mod values;
mod words;

pub(crate) use changes::Changes;
pub(crate) use error::{ConfigError, Fault};
pub(crate) use migrate::migrate;
pub(crate) use moved::in_comments;
pub(crate) use nodes_file::{node, nodes_in};
pub(crate) use reference::defaults;
pub(crate) use schema::schema;
pub(crate) use sections::Sections;
pub(crate) use sections::agent::{AgentRole, HandoffRole};
pub(crate) use sections::node::peers::PeersRole;
pub(crate) use sections::node::peers_handoff::PeersHandoffRole;
pub(crate) use sections::node::peers_policy::{PeersPolicy, PeersWard};
pub(crate) use sections::node::{ModelSection, NodeRole, NodeSection};
pub(crate) use sections::picker::PickerRole;
pub(crate) use sections::policy::threshold::{HighKey, LowKey};
pub(crate) use sections::switch::SwitchRole;
#[cfg(feature = "kubernetes")]
pub(crate) use sections::switch::discover::ServicePort;
#[cfg(test)]
pub(crate) use sections::switch::discover::discover_of;
pub(crate) use sections::switch::discover::{Discover, Place, PoolRef, ServiceSlices};
pub(crate) use sections::switch::nodes::NodeKey;
pub(crate) use sections::switch::process::{RunAs, may};
pub(crate) use sections::switch::section::SwitchSection;
pub(crate) use sections::switch::switches::SwitchesRole;
pub(crate) use sections::switch::ward::{Refresh, TableFile, WardNode, WardRole};
pub use text::Size;
pub(crate) use text::{Span, Texts};
pub(crate) use valid::{AdminListen, Config, Role};

use std::path::Path;

use serde::Deserialize as _;
use toml::de::Deserializer;

use source::Source;

/// Size limit of a config file. Bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads the text of a config file, or of a file that a config names.
///
/// # Errors
/// It cannot be read, or is too large.
pub(crate) fn text_of(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error: &std::io::Error| Source::unreadable(path, error);
    let size = std::fs::metadata(path).map_err(|error| unreadable(&error))?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable(&std::io::Error::other("larger than 16 MiB")));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(&error))
}

/// The reader of a config file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// A command that examines the file alone.
    Check,
    /// A role, whose command line may set keys that are missing in the file.
    Role,
}

/// Keys that a role requires and that its command line can set.
const OF_COMMAND_LINE: [&str; 4] = ["switch.listen", "switch.nodes", "node.listen", "node.root"];

/// The remedy for old spellings.
const MIGRATE: &str =
    "`larder check --migrate --write FILE` rewrites the file; the next release refuses old spellings";

/// Checks a config file as `larder switch` and `larder node` do when they start.
///
/// # Errors
/// The text states the fault, its place and the remedy.
pub fn check_file(file: &Path) -> Result<(), String> {
    let config = Written::read_or_empty(Some(file)).and_then(|written| written.validate());
    config.map(drop).map_err(|error| error.to_string())
}

/// A config as written, with its text.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    origin: String,
    text: String,
    reader: Reader,
    /// Warnings about old spellings in the text.
    moved: Vec<ConfigError>,
    /// The values that were read. The command line may change them before validation.
    pub(crate) raw: Sections,
}

impl Written {
    /// Reads a file that the command line adds nothing to.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse_for(Reader::Check, &path.display().to_string(), &text_of(path)?)
    }

    /// Reads a text that the command line may add keys to; `origin` names it in errors.
    pub(crate) fn parse(origin: &str, text: &str) -> Result<Self, ConfigError> {
        Self::parse_for(Reader::Role, origin, text)
    }

    fn parse_for(reader: Reader, origin: &str, text: &str) -> Result<Self, ConfigError> {
        let source = Source::new(origin, text);
        let (raw, moved) = read(source).map_err(|error| with_the_rest(reader, source, error))?;
        Ok(Self { origin: origin.to_owned(), text: text.to_owned(), reader, moved, raw })
    }

    /// Reads the file if one is given, else creates an empty config for the command line.
    pub(crate) fn read_or_empty(path: Option<&Path>) -> Result<Self, ConfigError> {
        match path {
            Some(path) => Self::parse(&path.display().to_string(), &text_of(path)?),
            None => Self::parse("command line", ""),
        }
    }

    /// Validates the config. Errors contain their place.
    pub(crate) fn validate(&self) -> Result<Config, ConfigError> {
        let error = |fault| with_the_rest(self.reader, self.source(), self.source().locate(fault));
        Config::new(&self.raw).map_err(error)
    }

    /// Validates everything except files and accounts of this machine. `None` means that only a required file, such as a
    /// certificate, is missing.
    pub(crate) fn validate_alone(&self) -> Result<Option<Config>, ConfigError> {
        match self.validate() {
            Ok(config) => Ok(Some(config)),
            Err(error) => error.without_machine().map_or(Ok(None), Err),
        }
    }

    /// Returns the config for display. Values of header fields for the collector of traces and for the origin are
    /// removed, because they may be keys.
    pub(crate) fn shown(&self) -> serde_json::Result<serde_json::Value> {
        let mut raw = serde_json::to_value(&self.raw)?;
        for role in ["/switch", "/node"] {
            // One is written without brackets.
            let fields = match raw.pointer_mut(&format!("{role}/traces/headers")) {
                Some(serde_json::Value::Array(fields)) => fields.as_mut_slice(),
                Some(field) => std::slice::from_mut(field),
                None => continue,
            };
            for field in fields {
                let name = field.as_str().and_then(|text| text.split(':').next()).unwrap_or_default();
                *field = format!("{name}: (not shown)").into();
            }
        }
        if let Some(fields) =
            raw.pointer_mut("/node/origin/headers").and_then(serde_json::Value::as_object_mut)
        {
            for value in fields.values_mut().filter(|value| value.is_string()) {
                *value = "(not shown)".into();
            }
        }
        without_nulls(&mut raw);
        Ok(raw)
    }

    /// Returns warnings: old spellings, and valid settings that are probably mistakes.
    pub(crate) fn warnings(&self, config: &Config) -> Vec<ConfigError> {
        let odd = config.warnings.iter().map(|fault| self.place(fault.clone()));
        self.moved.iter().cloned().chain(odd).collect()
    }

    /// Returns the path of the file, or a path that does not exist if the config is no file.
    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.origin)
    }

    /// Returns the fault with its place in the file.
    pub(crate) fn place(&self, fault: Fault) -> ConfigError {
        self.source().locate(fault)
    }

    /// Checks that every file exists that a role requires at its start.
    pub(crate) fn present(&self, config: &Config) -> Result<(), ConfigError> {
        config.absent.first().map_or(Ok(()), |fault| Err(self.source().locate(fault.clone())))
    }

    /// Whether the text sets this key, so that it is no default.
    pub(crate) fn gives(&self, path: &[&str]) -> bool {
        self.source().gives(path)
    }

    /// Returns the error for keys that a reload of a node cannot apply.
    pub(crate) fn needs_restart(&self, keys: &[String]) -> ConfigError {
        let named = keys.iter().map(|key| {
            let line = self.source().locate(Fault::new(key, "")).line;
            let given = self.gives(&key.split('.').collect::<Vec<_>>());
            line.filter(|_| given).map_or_else(|| key.clone(), |line| format!("{key} (line {line})"))
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let what = format!("the node runs with other values of {named}: restart the node for these");
        let hint = Some("nothing of the file is applied while they differ".into());
        ConfigError { hint, ..ConfigError::of_file(&self.origin, what) }
    }

    /// Returns the name of the config in errors, and its text, for another process that [parses](Self::parse) them.
    pub(crate) fn text(&self) -> (&str, &str) {
        (&self.origin, &self.text)
    }

    fn source(&self) -> Source<'_> {
        Source::new(&self.origin, &self.text)
    }
}

/// Parses a text. Returns warnings about its old spellings too.
fn read(source: Source<'_>) -> Result<(Sections, Vec<ConfigError>), ConfigError> {
    let (table, moved) = source.table().map_err(|error| source.refused(&error))?;
    if let Some(error) = moved.iter().find_map(|moved| source.twice(moved)) {
        return Err(error);
    }
    let raw = Sections::deserialize(Deserializer::from(table)).map_err(|error| source.refused(&error))?;
    let warning = |(i, moved)| source.old_spelling(moved, (i == 0).then_some(MIGRATE));
    Ok((raw, moved.iter().enumerate().map(warning).collect()))
}

/// Removes keys that are not set.
fn without_nulls(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(keys) => {
            keys.retain(|_, value| !value.is_null());
            keys.values_mut().for_each(without_nulls);
        }
        serde_json::Value::Array(entries) => entries.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

/// Adds the other faults of the file, in the order of the file. A role is not told about missing keys that its command
/// line can set.
fn with_the_rest(reader: Reader, source: Source<'_>, error: ConfigError) -> ConfigError {
    let given = |key: &str| reader == Reader::Role && OF_COMMAND_LINE.contains(&key) && !source.has(key);
    let other = |fault: &ConfigError| fault.key != error.key && !given(&fault.key);
    let mut all: Vec<ConfigError> = faults::all(source).into_iter().filter(other).collect();
    all.push(error);
    all.sort_by_key(|fault| (fault.line, fault.column));
    let first = all.remove(0);
    ConfigError { more: all.into(), ..first }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> ConfigError {
        match Written::parse("larder.toml", text).and_then(|written| written.validate()) {
            Ok(config) => panic!("must not be valid: {config:?}"),
            Err(error) => error,
        }
    }

    #[test]
    fn five_lines_are_a_switch() {
        let text = "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"127.0.0.1:9001\"]\n";
        let config = Written::parse("f", text).unwrap().validate().unwrap();
        assert_eq!(config.switch.unwrap().switch.nodes.len(), 1);
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        let head = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"127.0.0.1:9001\"]\n";
        let cases = [
            ("[swich]\n", 1, "swich", "did you mean 'switch'"),
            (&format!("{head}polcy = \"lard\"\n"), 4, "switch.polcy", "did you mean 'policy'"),
            (&format!("{head}policy = \"lard-rr\"\n"), 4, "switch.policy", "did you mean 'lard-r'"),
            (&format!("{head}policies.lard.t_low = 70\n"), 4, "switch.policies.lard.t_low", "t_high"),
            (
                &format!("{head}admission.queue_timeout = 10\n"),
                4,
                "switch.admission.queue_timeout",
                "span of time",
            ),
            (&format!("{head}process.shards = 63\n"), 4, "switch.process.shards", "power of two"),
            (&format!("{head}admission.limit = \"many\"\n"), 4, "switch.admission.limit", "derived"),
            ("[switch]\nlisten = \"127.0.0.1:80\"\n", 1, "switch.nodes", "missing"),
            ("[switch]\nlisten = \"here\"\nnodes = [\"a:1\"]\n", 2, "switch.listen", "port"),
            ("[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\",\n\"b\"]\n", 4, "switch.nodes[1]", "port"),
            ("[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\",\n\"a:1\"]\n", 4, "switch.nodes[1]", "name"),
            (
                "[switch]\nlisten = \"[::]:80\"\nnodes = [\n{ address = \"a:1\", weigth = 2 }]\n",
                4,
                "switch.nodes[0].weigth",
                "did you mean 'weight'",
            ),
            ("[node]\nlisten = \"[::]:1\"\n", 1, "node.root", "missing"),
            (
                "[node]\nroot = \"/\"\nlisten = \"[::]:1\"\ncache = { size = \"big\" }\n",
                4,
                "node.cache.size",
                "size",
            ),
            (
                "[node]\nroot = \"/\"\nlisten = \"[::]:1\"\n[node.model]\nmanifest = \"m\"\n",
                4,
                "node.model",
                "root",
            ),
            ("[admin]\nlisten = \"nowhere\"\n", 2, "admin.listen", "off"),
            ("[switch\n", 1, "", ""),
        ];
        for (text, line, key, word) in cases {
            let error = error(text);
            assert_eq!((error.line, error.key.as_str()), (Some(line), key), "{text}\n{error}");
            assert!(error.to_string().contains(word), "{text}\n{error}");
        }
    }

    #[test]
    fn keys_for_a_collector_are_not_shown() {
        let text = |fields| {
            format!(
                "[switch]\nlisten = \":80\"\nnodes = [\"n:80\"]\n[switch.traces]\nendpoint = \"http://c:1\"\nheaders = {fields}\n"
            )
        };
        for (fields, shown) in [
            ("\"x-key: 1234\"", serde_json::json!("x-key: (not shown)")),
            ("[\"x-key: 1234\", \"x-a:b\"]", serde_json::json!(["x-key: (not shown)", "x-a: (not shown)"])),
        ] {
            let json = Written::parse("larder.toml", &text(fields)).unwrap().shown().unwrap();
            assert_eq!(json["switch"]["traces"]["headers"], shown, "{fields}");
        }
    }

    #[test]
    fn values_of_fields_for_the_origin_are_not_shown() {
        let text = "[node]\nlisten = \":80\"\n[node.origin]\nurl = \"http://o\"\n[node.origin.headers]\nA = \"1234\"\n\
                    B = { file = \"/b\" }\n";
        let json = Written::parse("larder.toml", text).unwrap().shown().unwrap();
        let expected = serde_json::json!({ "A": "(not shown)", "B": { "file": "/b" } });
        assert_eq!(json["node"]["origin"]["headers"], expected);
    }

    #[test]
    fn the_reference_loads_and_is_the_defaults() {
        let text = defaults().unwrap();
        let mut written = Written::parse("larder.toml", &text).unwrap();
        written.validate().unwrap();
        let (switch, node) = (written.raw.switch.as_mut().unwrap(), written.raw.node.as_mut().unwrap());
        (switch.listen, switch.nodes, node.listen, node.root) = Default::default();
        let standard = Sections {
            switch: Some(SwitchSection::default()),
            node: Some(NodeSection::default()),
            ..Sections::default()
        };
        assert_eq!(serde_json::to_value(&written.raw).unwrap(), serde_json::to_value(standard).unwrap());
    }

    #[test]
    fn the_examples_are_current() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        if std::env::var_os("LARDER_WRITE").is_some() {
            std::fs::write(examples.join("larder.toml"), defaults().unwrap()).unwrap();
        }
        let kept = std::fs::read_to_string(examples.join("larder.toml")).unwrap();
        assert!(
            kept == defaults().unwrap(),
            "run: larder check --defaults > examples/larder.toml, or this test with LARDER_WRITE=1"
        );
        for entry in std::fs::read_dir(&examples).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ext| ext == "toml") {
                let written = Written::read(&path).unwrap();
                written.validate().unwrap();
                assert!(written.moved.is_empty(), "{}: {:?}", path.display(), written.moved);
            }
        }
    }
}
