//! The addresses of the dispatcher's nodes.
//!
//! The dispatcher knows nodes by id, and gateways know endpoints by address. Decisions read a snapshot that is replaced as a whole,
//! because the endpoints change rarely.

use arc_swap::{ArcSwap, Guard};
use larder_embed::NodeHandle;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The address of a node.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) node: NodeHandle,
    pub(crate) address: SocketAddr,
    /// The address as gateways read it.
    pub(crate) text: Arc<str>,
}

/// A snapshot of the endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndpointTable {
    /// The endpoints by the slot of their node.
    by_slot: Vec<Option<Endpoint>>,
    by_address: HashMap<SocketAddr, NodeHandle>,
    by_name: BTreeMap<String, NodeHandle>,
}

impl EndpointTable {
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the endpoint of a node; `None` if the node has joined or left just now.
    pub(crate) fn of(&self, node: NodeHandle) -> Option<&Endpoint> {
        self.by_slot.get(usize::from(node.slot()))?.as_ref().filter(|endpoint| endpoint.node == node)
    }

    /// Returns the endpoint in a slot.
    pub(crate) fn at(&self, slot: u16) -> Option<&Endpoint> {
        self.by_slot.get(usize::from(slot))?.as_ref()
    }

    /// Returns the endpoint at an address. If several have it, returns the one that joined last.
    pub(crate) fn find(&self, address: SocketAddr) -> Option<&Endpoint> {
        self.of(*self.by_address.get(&address)?)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Endpoint> {
        self.of(*self.by_name.get(name)?)
    }

    fn insert(&mut self, name: &str, node: NodeHandle, address: SocketAddr) {
        let slot = usize::from(node.slot());
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, || None);
        }
        self.by_slot[slot] = Some(Endpoint { node, address, text: address.to_string().into() });
        self.by_address.insert(address, node);
        self.by_name.insert(name.to_owned(), node);
    }

    /// Removes an endpoint. Another endpoint that has its address keeps it.
    fn remove(&mut self, name: &str) {
        let Some(node) = self.by_name.remove(name) else { return };
        let Some(endpoint) = self.by_slot.get_mut(usize::from(node.slot())).and_then(Option::take) else {
            return;
        };
        if self.by_address.get(&endpoint.address) == Some(&node) {
            self.by_address.remove(&endpoint.address);
            let other = self.by_slot.iter().flatten().find(|other| other.address == endpoint.address);
            if let Some(other) = other.cloned() {
                self.by_address.insert(other.address, other.node);
            }
        }
    }
}

/// The endpoints of a picker.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    current: ArcSwap<EndpointTable>,
    /// Held during a change, so that no change is lost.
    changing: Mutex<()>,
}

impl Endpoints {
    pub(crate) fn load(&self) -> Guard<Arc<EndpointTable>> {
        self.current.load()
    }

    /// Adds endpoints, or changes their addresses.
    pub(crate) fn insert<'a>(&self, all: impl IntoIterator<Item = (&'a str, NodeHandle, SocketAddr)>) {
        self.change(|table| {
            for (name, node, address) in all {
                table.remove(name);
                table.insert(name, node, address);
            }
        });
    }

    pub(crate) fn remove(&self, name: &str) {
        self.change(|table| table.remove(name));
    }

    fn change(&self, change: impl FnOnce(&mut EndpointTable)) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = EndpointTable::clone(&self.current.load());
        change(&mut table);
        self.current.store(Arc::new(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_two_endpoints_had_stays_with_the_other_one() {
        let endpoints = Endpoints::default();
        let node = |raw: u32| NodeHandle::from_raw(raw).expect("an id");
        let address: SocketAddr = "10.0.0.1:80".parse().expect("an address");
        endpoints.insert([("old", node(0x10000), address)]);
        endpoints.insert([("new", node(0x10001), address)]);
        let found = |address| endpoints.load().find(address).map(|endpoint| endpoint.node);
        assert_eq!(found(address), Some(node(0x10001)));
        endpoints.remove("new");
        assert_eq!(found(address), Some(node(0x10000)));
        let moved: SocketAddr = "10.0.0.2:80".parse().expect("an address");
        endpoints.insert([("old", node(0x10000), moved)]);
        assert_eq!((found(address), found(moved)), (None, Some(node(0x10000))));
        endpoints.remove("old");
        assert_eq!((found(moved), endpoints.load().len()), (None, 0));
    }
}
