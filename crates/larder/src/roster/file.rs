//! Node sources in files, which a person or a program such as a template engine writes.
//!
//! The file is read periodically instead of watched. Therefore a replaced file, a changed symbolic link (as
//! of a Kubernetes `ConfigMap`) and a change on a network file system are noticed.

use std::path::PathBuf;

use larder_switch::NodeEntry;

use crate::config::{self, ConfigError};

/// A file that lists nodes.
#[derive(Debug)]
pub(super) struct NodesFile {
    path: PathBuf,
    /// Content at the last successful read.
    text: Option<String>,
}

impl NodesFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, text: None }
    }

    /// Returns the nodes, or `None` if the file is unchanged.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is invalid.
    pub(super) fn read_if_changed(&mut self) -> Result<Option<Vec<NodeEntry>>, ConfigError> {
        let text = config::text_of(&self.path)?;
        if self.text.as_ref() == Some(&text) {
            return Ok(None);
        }
        let nodes = config::nodes_in(&self.path, &text)?;
        self.text = Some(text);
        Ok(Some(nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_returned_when_a_valid_file_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.toml");
        let mut file = NodesFile::new(path.clone());
        assert!(file.read_if_changed().is_err(), "it is not there yet");
        std::fs::write(&path, "nodes = [\"a:1\"]").unwrap();
        assert_eq!(file.read_if_changed().unwrap().map(|nodes| nodes.len()), Some(1));
        assert!(file.read_if_changed().unwrap().is_none());
        std::fs::write(&path, "nodes = [\"a:1\", ").unwrap();
        assert!(
            file.read_if_changed().is_err() && file.read_if_changed().is_err(),
            "said as long as it is wrong"
        );
        std::fs::write(&path, "nodes = [\"a:1\"]").unwrap();
        assert!(file.read_if_changed().unwrap().is_none(), "as before");
        std::fs::write(&path, "nodes = []").unwrap();
        assert_eq!(file.read_if_changed().unwrap(), Some(vec![]));
    }
}
