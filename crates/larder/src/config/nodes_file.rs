//! Nodes outside of the config: those of a file of nodes, and a node in a request to the admin interface.

use std::path::Path;

use larder_switch::NodeEntry;
use serde::Deserialize;

use super::error::{ConfigError, Fault};
use super::sections::switch::nodes::{NodeKey, node_entries};
use super::source::Source;

/// Contents of a file of nodes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesFile {
    nodes: Vec<NodeKey>,
}

/// Parses the nodes of a file; `path` names it in errors.
///
/// # Errors
/// The text is invalid; the error has the line.
pub(crate) fn nodes_in(path: &Path, text: &str) -> Result<Vec<NodeEntry>, ConfigError> {
    let origin = path.display().to_string();
    let source = Source::new(&origin, text);
    let file: NodesFile = toml::from_str(text).map_err(|error| source.refused(&error))?;
    node_entries("nodes", &file.nodes).map_err(|fault| source.locate(fault))
}

/// Parses one node that does not come from a file.
///
/// # Errors
/// The node is invalid.
pub(crate) fn node(raw: &NodeKey) -> Result<NodeEntry, ConfigError> {
    let one = node_entries("nodes", std::slice::from_ref(raw))
        .map_err(|fault| Source::new("request", "").locate(fault))?;
    one.into_iter().next().ok_or_else(|| Source::new("request", "").locate(Fault::new("nodes", "none")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_nodes_as_the_config_does() {
        let path = Path::new("/etc/nodes.toml");
        let nodes = nodes_in(path, "nodes = [\"a:1\", { address = \"b:2\", backup = true }]").unwrap();
        assert_eq!((nodes.len(), nodes[1].address.as_str()), (2, "b:2"));
        assert_eq!((nodes[0].spec.backup, nodes[1].spec.backup), (false, true));
        assert_eq!(nodes_in(path, "nodes = []").unwrap(), []);
        for (text, complaint) in [
            ("", "missing: the key 'nodes'"),
            ("nodes = [\n\"a:1\",\n\"b\"]", "/etc/nodes.toml:3:1: nodes[1]: 'b' "),
            ("nodes = [\"a:1\", \"a:1\"]", "is that of nodes[0] already"),
            ("node = []", "node"),
        ] {
            let error = nodes_in(path, text).expect_err(text).to_string();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }
}
