//! Accounts of a distributor with all other nodes, indexed by node, by number and by due time. Each operation takes
//! O(log nodes).

use super::account::Account;
use crate::NodeId;
use crate::time::Time;
use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

/// All accounts.
#[derive(Debug)]
pub(super) struct Accounts {
    patience: Duration,
    retry: Duration,
    by_node: BTreeMap<NodeId, Account>,
    /// Nodes by account number, for accounts that have sent a batch.
    by_id: BTreeMap<u64, NodeId>,
    due: BTreeSet<(Time, NodeId)>,
}

impl Accounts {
    pub(super) const fn new(patience: Duration, retry: Duration) -> Self {
        Self { patience, retry, by_node: BTreeMap::new(), by_id: BTreeMap::new(), due: BTreeSet::new() }
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Account> {
        self.by_node.get(&node)
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.by_node.contains_key(&node)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Account> {
        self.by_node.values()
    }

    /// Returns the node whose account has this number.
    pub(super) fn node_of(&self, id: u64) -> Option<NodeId> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn insert(&mut self, node: NodeId, account: Account) {
        self.remove(node);
        self.add_to_index(node, &account);
        self.by_node.insert(node, account);
    }

    pub(super) fn remove(&mut self, node: NodeId) -> Option<Account> {
        let account = self.by_node.remove(&node)?;
        self.remove_from_index(node, &account);
        Some(account)
    }

    /// Changes an account and updates the indexes. Returns `None` if there is none.
    pub(super) fn update<R>(&mut self, node: NodeId, act: impl FnOnce(&mut Account) -> R) -> Option<R> {
        let mut account = self.remove(node)?;
        let result = act(&mut account);
        self.insert(node, account);
        Some(result)
    }

    /// Returns the earliest due time.
    pub(super) fn first_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Returns the nodes whose accounts are due.
    pub(super) fn nodes_due(&self, now: Time) -> BTreeSet<NodeId> {
        self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, node)| *node).collect()
    }

    fn add_to_index(&mut self, node: NodeId, account: &Account) {
        self.due.extend(account.due(self.patience, self.retry).map(|at| (at, node)));
        self.by_id.extend(account.number().map(|id| (id, node)));
    }

    fn remove_from_index(&mut self, node: NodeId, account: &Account) {
        if let Some(at) = account.due(self.patience, self.retry) {
            self.due.remove(&(at, node));
        }
        if let Some(id) = account.number() {
            self.by_id.remove(&id);
        }
    }
}
