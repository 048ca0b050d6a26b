//! Nodes by a file that somebody writes: a person, or a program such as a template engine.
//!
//! It is looked at anew, not watched: that also notices a file that is replaced, linked elsewhere (as a Kubernetes `ConfigMap`
//! is) or on a network file system.

use std::path::PathBuf;

use larder_switch::NodeEntry;

use crate::config::{self, ConfigError};

/// A file of nodes.
#[derive(Debug)]
pub(super) struct NodesFile {
    path: PathBuf,
    /// What it held when it was last read whole.
    text: Option<String>,
}

impl NodesFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, text: None }
    }

    /// Its nodes; `None` if it holds what it held.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub(super) fn look(&mut self) -> Result<Option<Vec<NodeEntry>>, ConfigError> {
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
    fn a_file_is_read_when_it_has_changed_and_makes_sense() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nodes.toml");
        let mut file = NodesFile::new(path.clone());
        assert!(file.look().is_err(), "it is not there yet");
        std::fs::write(&path, "nodes = [\"a:1\"]").unwrap();
        assert_eq!(file.look().unwrap().map(|nodes| nodes.len()), Some(1));
        assert!(file.look().unwrap().is_none());
        std::fs::write(&path, "nodes = [\"a:1\", ").unwrap();
        assert!(file.look().is_err() && file.look().is_err(), "said as long as it is wrong");
        std::fs::write(&path, "nodes = [\"a:1\"]").unwrap();
        assert!(file.look().unwrap().is_none(), "as before");
        std::fs::write(&path, "nodes = []").unwrap();
        assert_eq!(file.look().unwrap(), Some(vec![]));
    }
}
