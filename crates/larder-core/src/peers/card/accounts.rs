//! A distributor's accounts with all others, by node, by number and by when something is due: O(log nodes) each.

use super::account::Account;
use crate::NodeId;
use crate::time::Time;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// All accounts.
#[derive(Debug)]
pub(super) struct Accounts {
    patience: Duration,
    retry: Duration,
    by_node: BTreeMap<NodeId, Account>,
    /// Of those that have sent a batch.
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

    /// Whose account has this number.
    pub(super) fn owner(&self, id: u64) -> Option<NodeId> {
        self.by_id.get(&id).copied()
    }

    pub(super) fn insert(&mut self, node: NodeId, account: Account) {
        self.remove(node);
        self.enter(node, &account);
        self.by_node.insert(node, account);
    }

    pub(super) fn remove(&mut self, node: NodeId) -> Option<Account> {
        let account = self.by_node.remove(&node)?;
        self.strike(node, &account);
        Some(account)
    }

    /// Does something with an account, if there is one.
    pub(super) fn with<R>(&mut self, node: NodeId, act: impl FnOnce(&mut Account) -> R) -> Option<R> {
        let mut account = self.remove(node)?;
        let result = act(&mut account);
        self.insert(node, account);
        Some(result)
    }

    /// When something is due first.
    pub(super) fn first_due(&self) -> Option<Time> {
        self.due.first().map(|(at, _)| *at)
    }

    /// With whom something is due by now, by number.
    pub(super) fn due_by(&self, now: Time) -> BTreeSet<NodeId> {
        self.due.iter().take_while(|(at, _)| *at <= now).map(|(_, node)| *node).collect()
    }

    fn enter(&mut self, node: NodeId, account: &Account) {
        self.due.extend(account.due(self.patience, self.retry).map(|at| (at, node)));
        self.by_id.extend(account.number().map(|id| (id, node)));
    }

    fn strike(&mut self, node: NodeId, account: &Account) {
        if let Some(at) = account.due(self.patience, self.retry) {
            self.due.remove(&(at, node));
        }
        if let Some(id) = account.number() {
            self.by_id.remove(&id);
        }
    }
}
