//! Keeps the nodes of a running switch as the sources say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use larder_switch::{NodeEntry, SwitchHandle};
use serde::Serialize;
use tokio::sync::Notify;

use super::dns::Dns;
use super::file::NodesFile;
use super::follow;
use super::kubernetes::Slices;
use super::{Change, Handed, Roster};
use crate::config::{Discover, Place};

/// What could not be done is tried again after this.
const RETRY: Duration = Duration::from_secs(2);
/// Numbers of the sources that are always there; those of the config follow.
const CONFIG: usize = 0;
const ADMIN: usize = 1;

/// What is looked at.
#[derive(Debug)]
enum Looker {
    Dns(Box<Dns>),
    Slices(Box<Slices>),
    File(NodesFile, Duration),
}

/// A source as it has been heard.
#[derive(Debug, Default)]
struct Heard {
    what: String,
    looks: u64,
    failures: u64,
    /// Why the last look found nothing.
    error: Option<String>,
    /// When it last said who there is.
    at: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    roster: Roster,
    /// By their numbers.
    heard: Vec<Heard>,
    /// What could not be done, by node.
    undone: BTreeMap<String, String>,
}

impl State {
    fn add(&mut self, what: String, hold: Duration) -> usize {
        self.heard.push(Heard { what, ..Heard::default() });
        self.roster.add(hold)
    }

    fn found(&mut self, source: usize, nodes: Vec<NodeEntry>, now: Instant) {
        self.roster.heard(source, nodes, now);
        self.looked(source, now);
    }

    /// What the source said before holds.
    fn looked(&mut self, source: usize, now: Instant) {
        let heard = &mut self.heard[source];
        if heard.error.take().is_some() {
            tracing::info!(source = heard.what, "node source: nodes found again");
        }
        (heard.looks, heard.at) = (heard.looks + 1, Some(now));
    }

    fn failed(&mut self, source: usize, error: String) {
        let heard = &mut self.heard[source];
        (heard.looks, heard.failures) = (heard.looks + 1, heard.failures + 1);
        if heard.error.as_ref() != Some(&error) {
            tracing::warn!(
                source = heard.what,
                error,
                "node source: no nodes found, those found before stay"
            );
            heard.error = Some(error);
        }
    }
}

/// The sources, looked at once: what a switch starts with.
#[derive(Debug)]
pub(crate) struct Found {
    state: State,
    /// Those of the config, in its order.
    listed: Vec<NodeEntry>,
    lookers: Vec<(usize, Looker)>,
    follow: Duration,
    /// The nodes of the process before.
    before: Vec<Handed>,
}

impl Found {
    /// Looks at all sources. What the DNS does not tell now it may tell later; what it told the process before counts until
    /// then. Who joined by hand there is a node here too.
    ///
    /// # Errors
    /// A file cannot be read or makes no sense, or the system's name servers are not known.
    pub(crate) async fn look(
        nodes: Vec<NodeEntry>,
        discover: &[Discover],
        follow: Duration,
        before: Vec<Handed>,
    ) -> anyhow::Result<Self> {
        let (mut state, mut lookers) = (State::default(), Vec::new());
        let named_before = |source: &str| -> Vec<NodeEntry> {
            before.iter().filter(|node| node.source == source).map(Handed::entry).collect()
        };
        let now = Instant::now();
        for what in ["config", "admin"] {
            state.add(what.to_owned(), Duration::ZERO);
        }
        state.found(CONFIG, nodes.clone(), now);
        let joined = named_before(&state.heard[ADMIN].what);
        if !joined.is_empty() {
            state.found(ADMIN, joined, now);
        }
        for source in discover {
            let number = state.add(source.to_string(), source.hold);
            let looker = match &source.place {
                Place::File(path) => {
                    let mut file = NodesFile::new(path.clone());
                    state.found(number, file.look()?.unwrap_or_default(), now);
                    Looker::File(file, source.period)
                }
                Place::Slices(service) => {
                    let slices = Slices::new(source.clone(), service.clone()).await;
                    let mut slices = slices.with_context(|| source.to_string())?;
                    match slices.first().await {
                        Ok(nodes) => state.found(number, nodes, now),
                        Err(error) => {
                            state.roster.heard(number, named_before(&state.heard[number].what), now);
                            state.failed(number, error.to_string());
                        }
                    }
                    Looker::Slices(Box::new(slices))
                }
                Place::Name(..) | Place::Service(_) => {
                    let dns = Dns::new(source.clone()).with_context(|| source.to_string())?;
                    match dns.look().await {
                        Ok(looked) => state.found(number, looked.nodes, now),
                        Err(error) => {
                            state.roster.heard(number, named_before(&state.heard[number].what), now);
                            state.failed(number, error.to_string());
                        }
                    }
                    Looker::Dns(Box::new(dns))
                }
            };
            lookers.push((number, looker));
        }
        if state.roster.wanted().is_empty() {
            tracing::warn!("node source: no nodes, requests are refused until there are some");
        }
        Ok(Self { state, listed: nodes, lookers, follow, before })
    }

    /// The nodes to start with: those of the config in its order, then the others. Where there was a process before, only
    /// those that it had and that were warm: the others [join](Self::keep).
    pub(crate) fn nodes(&self) -> Vec<NodeEntry> {
        let wanted = self.state.roster.wanted().into_values();
        let others = wanted.filter(|(_, source)| *source != CONFIG).map(|(entry, _)| entry);
        let all: Vec<NodeEntry> = self.listed.iter().chain(others).cloned().collect();
        let founders: Vec<NodeEntry> = all.iter().filter(|entry| self.is_warm(entry)).cloned().collect();
        // Where nobody is left of the nodes before, all begin alike.
        if founders.is_empty() { all } else { founders }
    }

    fn is_warm(&self, entry: &NodeEntry) -> bool {
        self.before.iter().any(|node| node.standing.name == entry.spec.name && !node.standing.joining)
    }

    /// Keeps the nodes of the switch that was started with [these](Self::nodes) so. Blocks while names of nodes that join
    /// are resolved.
    pub(crate) fn keep(self, switch: SwitchHandle) -> Arc<RosterKeeper> {
        let started: BTreeSet<String> = self.nodes().into_iter().map(|entry| entry.spec.name).collect();
        let Self { mut state, lookers, follow, before, .. } = self;
        let changes = state.roster.changes();
        let there = changes.iter().filter(|change| started.contains(change.name()));
        there.for_each(|change| state.roster.done(change));
        let keeper = Arc::new(RosterKeeper {
            switch,
            state: Mutex::new(state),
            applying: Mutex::default(),
            news: Notify::new(),
        });
        keeper.apply();
        keeper.stand(&before);
        for (number, looker) in lookers {
            tokio::spawn(keeper.clone().look(number, looker));
        }
        tokio::spawn(keeper.clone().run());
        if !follow.is_zero() {
            tokio::spawn(keeper.clone().follow(follow));
        }
        keeper
    }
}

/// Keeps the nodes of a switch.
#[derive(Debug)]
pub(crate) struct RosterKeeper {
    switch: SwitchHandle,
    state: Mutex<State>,
    /// One at a time changes the switch, which may wait for a name; the state is free meanwhile.
    applying: Mutex<()>,
    news: Notify,
}

/// Why an operator's word is not followed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The name is another's.
    #[error("there is a node named '{0}' already, by {1}")]
    Taken(String, String),
    /// Who names it would bring it back.
    #[error("the node '{0}' is named by {1}")]
    Named(String, String),
    /// There is none.
    #[error("there is no node named '{0}'")]
    Unknown(String),
    /// It could not be done.
    #[error("{0}")]
    Undone(String),
}

/// All sources, for people.
#[derive(Debug, Serialize)]
pub(crate) struct RosterView {
    sources: Vec<SourceView>,
    /// What could not be done yet, by node; it is tried again.
    undone: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct SourceView {
    source: String,
    /// Nodes that it names.
    nodes: Vec<String>,
    /// Nodes that it named and that stay for its hold.
    held: Vec<String>,
    looks: u64,
    failures: u64,
    /// Why the last look found nothing; `null` if it did.
    error: Option<String>,
    /// Seconds since it last said who there is.
    age_s: Option<f64>,
}

impl RosterKeeper {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a source until the process ends.
    async fn look(self: Arc<Self>, number: usize, mut looker: Looker) {
        // It has been looked at at the start.
        let mut next = match &looker {
            Looker::Dns(dns) => dns.next(Instant::now(), Instant::now()),
            Looker::File(_, period) => Instant::now() + *period,
            Looker::Slices(_) => Instant::now(),
        };
        loop {
            tokio::time::sleep_until(next.into()).await;
            match &mut looker {
                // Tells by itself.
                Looker::Slices(slices) => match slices.next().await {
                    Ok(nodes) => self.state().found(number, nodes, Instant::now()),
                    Err(error) => self.state().failed(number, error.to_string()),
                },
                Looker::Dns(dns) => {
                    let looked = dns.look().await;
                    let now = Instant::now();
                    match looked {
                        Ok(looked) => {
                            next = dns.next(now, looked.until);
                            self.state().found(number, looked.nodes, now);
                        }
                        Err(error) => {
                            next = dns.next(now, now);
                            self.state().failed(number, error.to_string());
                        }
                    }
                }
                Looker::File(file, period) => {
                    next = Instant::now() + *period;
                    // Small, and mostly in the page cache.
                    let looked = file.look();
                    let now = Instant::now();
                    match looked {
                        Ok(Some(nodes)) => self.state().found(number, nodes, now),
                        Ok(None) => self.state().looked(number, now),
                        Err(error) => self.state().failed(number, error.to_string()),
                    }
                }
            }
            self.news.notify_one();
        }
    }

    /// Does what is to be done when it is.
    async fn run(self: Arc<Self>) {
        loop {
            let due = {
                let state = self.state();
                let retry = (!state.undone.is_empty()).then(|| Instant::now() + RETRY);
                state.roster.due().into_iter().chain(retry).min()
            };
            let sleep = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep => {}
                () = self.news.notified() => {}
            }
            let keeper = self.clone();
            // A node's name is resolved, which may wait.
            if let Err(error) = tokio::task::spawn_blocking(move || keeper.apply()).await {
                tracing::error!(%error, "the nodes could not be changed");
            }
        }
    }

    /// Does what is to be done now; what could not be done, by node.
    fn apply(&self) -> BTreeMap<String, String> {
        let _one = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = {
            let mut state = self.state();
            state.roster.forget(Instant::now());
            state.roster.changes()
        };
        let mut undone = BTreeMap::new();
        for change in changes {
            let done = self.carry_out(&change);
            match done {
                Ok(()) => self.state().roster.done(&change),
                Err(error) => {
                    undone.insert(change.name().to_owned(), error);
                }
            }
        }
        let before = std::mem::replace(&mut self.state().undone, undone.clone());
        for (node, error) in undone.iter().filter(|(node, error)| before.get(*node) != Some(*error)) {
            tracing::warn!(node, error, "a node could not be changed; it is tried again");
        }
        undone
    }

    fn carry_out(&self, change: &Change) -> Result<(), String> {
        match change {
            Change::Join(entry) => self.switch.join(entry).map_err(|error| error.to_string()),
            Change::Leave(name) => {
                // One that is not there is what was wanted.
                let _ = self.switch.leave(name);
                Ok(())
            }
            Change::Move(entry) => {
                let resolved = resolve(&entry.address)?;
                self.switch.move_to(&entry.spec.name, &entry.address, resolved).map_err(|e| e.to_string())
            }
            Change::Reweigh(name, weight) => self.switch.reweigh(name, *weight).map_err(|e| e.to_string()),
            Change::Backup(name, backup) => self.switch.set_backup(name, *backup).map_err(|e| e.to_string()),
        }
    }

    /// Looks up the names in nodes' addresses until the process ends.
    async fn follow(self: Arc<Self>, every: Duration) {
        let mut troubled = BTreeMap::new();
        loop {
            tokio::time::sleep(every).await;
            let named: Vec<NodeEntry> = {
                let state = self.state();
                state
                    .roster
                    .applied
                    .values()
                    .filter(|entry| follow::is_name(&entry.address))
                    .cloned()
                    .collect()
            };
            troubled.retain(|name, _| named.iter().any(|entry| entry.spec.name == *name));
            for entry in named {
                let name = &entry.spec.name;
                let Ok(now_at) = self.switch.address_of(name) else { continue };
                match follow::look(&entry.address, now_at).await {
                    Ok(None) => drop(troubled.remove(name)),
                    Ok(Some(resolved)) => {
                        troubled.remove(name);
                        let (keeper, entry) = (self.clone(), entry.clone());
                        let moved =
                            tokio::task::spawn_blocking(move || keeper.relocate(&entry, resolved)).await;
                        if let Err(error) = moved {
                            tracing::error!(%error, "a node could not be moved");
                        }
                    }
                    Err(error) if troubled.get(name) != Some(&error) => {
                        tracing::warn!(
                            node = name,
                            error,
                            "its name could not be looked up: it stays at {now_at}"
                        );
                        troubled.insert(name.clone(), error);
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// A node's name leads elsewhere.
    fn relocate(&self, entry: &NodeEntry, resolved: SocketAddr) {
        let _one = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let name = &entry.spec.name;
        if self.state().roster.applied.get(name) != Some(entry) {
            return;
        }
        let done = if entry.handoff.is_some() {
            let _ = self.switch.leave(name);
            self.switch.join(entry).map_err(|error| error.to_string())
        } else {
            self.switch.move_to(name, &entry.address, resolved).map_err(|error| error.to_string())
        };
        if let Err(error) = done {
            tracing::warn!(node = name, error, "a node could not be moved; it is tried again");
            let mut state = self.state();
            state.roster.done(&Change::Leave(name.clone()));
            state.undone.insert(name.clone(), error);
            drop(state);
            self.news.notify_one();
        }
    }

    /// Lets nodes stand as they did in the process before.
    pub(crate) fn stand(&self, before: &[Handed]) {
        let applied = self.state().roster.applied.clone();
        for node in before {
            if let Some(entry) = applied.get(&node.standing.name) {
                node.stand(&self.switch, entry);
            }
        }
    }

    /// The nodes as they are, for the process that takes over.
    pub(crate) fn handed(&self) -> Vec<Handed> {
        let node_reload_states = self.switch.node_reload_states();
        let state = self.state();
        let wanted = state.roster.wanted();
        let handed = node_reload_states.into_iter().filter_map(|standing| {
            let (entry, source) = wanted.get(standing.name.as_str())?;
            Some(Handed {
                source: state.heard[*source].what.clone(),
                named_weight_milli: entry.spec.weight.milli(),
                backup: entry.spec.backup,
                cache_bytes: entry.spec.cache.get(),
                groups: entry.groups.clone(),
                standing,
            })
        });
        handed.collect()
    }

    /// A node joins at an operator's word, and stays until he says otherwise or this process ends.
    ///
    /// # Errors
    /// Its name is taken, or it cannot join: its address leads nowhere, no route uses its group, the table is full.
    pub(crate) fn join(&self, entry: NodeEntry) -> Result<(), Refused> {
        let name = entry.spec.name.clone();
        self.change_admin(|state| {
            if let Some(by) = state.roster.named_by(&name) {
                return Err(Refused::Taken(name.clone(), state.heard[by].what.clone()));
            }
            Ok(state.roster.of(ADMIN).into_iter().chain([entry]).collect())
        })?;
        match self.apply().remove(&name) {
            None => Ok(()),
            Some(error) => {
                self.change_admin(|state| Ok(without(state, &name)))?;
                self.apply();
                Err(Refused::Undone(error))
            }
        }
    }

    /// A node that joined at an operator's word leaves.
    ///
    /// # Errors
    /// There is none, or another source names it.
    pub(crate) fn leave(&self, name: &str) -> Result<(), Refused> {
        self.change_admin(|state| match state.roster.named_by(name) {
            None => Err(Refused::Unknown(name.chars().take(80).collect())),
            Some(ADMIN) => Ok(without(state, name)),
            Some(by) => Err(Refused::Named(name.to_owned(), state.heard[by].what.clone())),
        })?;
        self.apply();
        Ok(())
    }

    fn change_admin(
        &self,
        change: impl FnOnce(&State) -> Result<Vec<NodeEntry>, Refused>,
    ) -> Result<(), Refused> {
        let mut state = self.state();
        let nodes = change(&state)?;
        state.found(ADMIN, nodes, Instant::now());
        Ok(())
    }

    /// All sources.
    pub(crate) fn view(&self) -> RosterView {
        let (state, now) = (self.state(), Instant::now());
        let view = |(heard, source): (&Heard, &super::Source)| SourceView {
            source: heard.what.clone(),
            nodes: source.named.keys().cloned().collect(),
            held: source.missed.keys().cloned().collect(),
            looks: heard.looks,
            failures: heard.failures,
            error: heard.error.clone(),
            age_s: heard.at.map(|at| now.duration_since(at).as_secs_f64()),
        };
        RosterView {
            sources: state.heard.iter().zip(&state.roster.sources).map(view).collect(),
            undone: state.undone.clone(),
        }
    }
}

fn without(state: &State, name: &str) -> Vec<NodeEntry> {
    state.roster.of(ADMIN).into_iter().filter(|entry| entry.spec.name != name).collect()
}

fn resolve(address: &str) -> Result<SocketAddr, String> {
    let mut found = address.to_socket_addrs().map_err(|error| format!("'{address}': {error}"))?;
    found.next().ok_or_else(|| format!("'{address}': the name has no address"))
}
