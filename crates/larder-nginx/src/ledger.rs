//! The requests that a worker has in progress, so that they can be ended if the worker dies.

use larder_embed::NodeHandle;

/// The numbers of a worker's requests in progress, by node.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// By the slots of the nodes.
    slots: Vec<Option<Entry>>,
    /// Nodes whose slots other nodes have by now.
    earlier: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    node: NodeHandle,
    requests: u32,
}

impl Ledger {
    /// Notes that a request has started at a node.
    pub(crate) fn add(&mut self, node: NodeHandle) {
        let slot = usize::from(node.slot());
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        match &mut self.slots[slot] {
            Some(entry) if entry.node == node => entry.requests += 1,
            place => {
                let before = place.replace(Entry { node, requests: 1 });
                self.earlier.extend(before.filter(|entry| entry.requests > 0));
            }
        }
    }

    /// Notes that a request has ended. Returns false if the node has none.
    pub(crate) fn remove(&mut self, node: NodeHandle) -> bool {
        let current = self.slots.get_mut(usize::from(node.slot())).and_then(Option::as_mut);
        if let Some(entry) = current.filter(|entry| entry.node == node && entry.requests > 0) {
            entry.requests -= 1;
            return true;
        }
        let Some(at) = self.earlier.iter().position(|entry| entry.node == node) else { return false };
        self.earlier[at].requests -= 1;
        if self.earlier[at].requests == 0 {
            self.earlier.swap_remove(at);
        }
        true
    }

    /// Removes all requests. Calls `end` with the node of each.
    pub(crate) fn clear(&mut self, mut end: impl FnMut(NodeHandle)) {
        let current = self.slots.drain(..).flatten();
        for entry in current.chain(self.earlier.drain(..)) {
            (0..entry.requests).for_each(|_| end(entry.node));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_for_each_node_that_a_slot_has_had() {
        let node = |generation: u32, slot: u32| NodeHandle::from_raw(generation << 16 | slot).expect("not 0");
        let mut ledger = Ledger::default();
        for node in [node(1, 0), node(1, 3), node(1, 3), node(2, 3), node(2, 3)] {
            ledger.add(node);
        }
        assert!(ledger.remove(node(1, 3)) && ledger.remove(node(2, 3)));
        assert!(!ledger.remove(node(2, 0)) && !ledger.remove(node(1, 9)));
        let mut ended = Vec::new();
        ledger.clear(|node| ended.push(node.get()));
        ended.sort_unstable();
        assert_eq!(ended, [0x1_0000, 0x1_0003, 0x2_0003]);
        ledger.clear(|node| panic!("{node} was ended twice"));
    }
}
