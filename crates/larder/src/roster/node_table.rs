//! The nodes of a running process, which the manager of the sources changes.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use larder_core::Weight;
use larder_picker::Picker;
use larder_switch::{NodeEntry, SwitchHandle};

use super::{InheritedNode, resolve};

/// The nodes of a running switch or picker. A method returns the reason why a change is not possible; it is tried again.
pub(crate) trait NodeTable: Debug + Send + Sync + 'static {
    /// Adds a node. Blocks while its name is resolved.
    fn join(&self, entry: &NodeEntry) -> Result<(), String>;

    /// Removes a node, which completes its requests. A node that is missing already needs no change.
    fn leave(&self, name: &str);

    /// Changes the address of a node, which keeps its targets.
    fn move_to(&self, name: &str, address: &str, resolved: SocketAddr) -> Result<(), String>;

    /// Changes the weight of a node.
    fn reweigh(&self, name: &str, weight: Weight) -> Result<(), String>;

    /// Makes a node a backup, or an ordinary node.
    fn set_backup(&self, name: &str, backup: bool) -> Result<(), String>;

    /// Returns the resolved address of a node; `None` if there is no such node.
    fn address_of(&self, name: &str) -> Option<SocketAddr>;

    /// Restores the state that a node had in the previous process.
    fn restore(&self, inherited: &InheritedNode, entry: &NodeEntry);

    /// Notes that each source has been read, and its nodes have been applied. Called again after later changes.
    fn sources_read(&self);
}

impl NodeTable for SwitchHandle {
    fn join(&self, entry: &NodeEntry) -> Result<(), String> {
        Self::join(self, entry).map_err(|error| error.to_string())
    }

    fn leave(&self, name: &str) {
        let _ = Self::leave(self, name);
    }

    fn move_to(&self, name: &str, address: &str, resolved: SocketAddr) -> Result<(), String> {
        Self::move_to(self, name, address, resolved).map_err(|error| error.to_string())
    }

    fn reweigh(&self, name: &str, weight: Weight) -> Result<(), String> {
        Self::reweigh(self, name, weight).map_err(|error| error.to_string())
    }

    fn set_backup(&self, name: &str, backup: bool) -> Result<(), String> {
        Self::set_backup(self, name, backup).map_err(|error| error.to_string())
    }

    fn address_of(&self, name: &str) -> Option<SocketAddr> {
        Self::address_of(self, name).ok()
    }

    fn restore(&self, inherited: &InheritedNode, entry: &NodeEntry) {
        inherited.restore(self, entry);
    }

    /// A switch serves, and refuses requests, without nodes.
    fn sources_read(&self) {}
}

impl NodeTable for Arc<Picker> {
    fn join(&self, entry: &NodeEntry) -> Result<(), String> {
        let address = resolve(&entry.address)?;
        Picker::join(self, entry.spec.clone(), address).map_err(|error| error.to_string())?;
        tracing::info!(node = entry.spec.name, %address, "endpoint: joined");
        Ok(())
    }

    fn leave(&self, name: &str) {
        if Picker::leave(self, name) {
            tracing::info!(node = name, "endpoint: left");
        }
    }

    fn move_to(&self, name: &str, _address: &str, resolved: SocketAddr) -> Result<(), String> {
        Picker::move_to(self, name, resolved).map_err(|error| error.to_string())?;
        tracing::info!(node = name, address = %resolved, "endpoint: moved");
        Ok(())
    }

    fn reweigh(&self, name: &str, weight: Weight) -> Result<(), String> {
        Picker::reweigh(self, name, weight).map_err(|error| error.to_string())
    }

    fn set_backup(&self, name: &str, backup: bool) -> Result<(), String> {
        Picker::set_backup(self, name, backup).map_err(|error| error.to_string())
    }

    fn address_of(&self, name: &str) -> Option<SocketAddr> {
        Picker::address_of(self, name)
    }

    /// A picker has no previous process.
    fn restore(&self, _inherited: &InheritedNode, _entry: &NodeEntry) {}

    fn sources_read(&self) {
        self.set_ready();
    }
}
