//! The shared state of an upstream: its dispatcher, its servers, and the requests of each worker.

use crate::config::PolicyConfig;
use crate::ledger::Ledger;
use crate::record::ZoneSink;
use crate::zone::Worker;
use larder_core::policy::LearnedState;
use larder_core::{NodeSpec, NodeState, Reason, ServiceClass, Settings, TargetId, Time, Weight};
use larder_embed::{
    Decision, Embedded, EmbeddedConfig, Feedback, NodeHandle, Outcome, Refusal, RequestFacts,
};
use serde_json::{Value, json};
use std::time::Duration;

/// A server of the upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// The address, which is the node's name.
    pub(crate) name: String,
    pub(crate) weight: Weight,
    pub(crate) backup: bool,
    /// Whether the config takes it out of service.
    pub(crate) down: bool,
}

impl Server {
    fn spec(&self) -> NodeSpec {
        NodeSpec { weight: self.weight, backup: self.backup, ..NodeSpec::named(self.name.as_str()) }
    }
}

/// A started request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    pub(crate) decision: Decision,
    pub(crate) at: Time,
}

/// The health of a server, as the end of a request shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Unknown,
    /// The server has failed so often that nginx does not use it for this time (`max_fails`, `fail_timeout`).
    Failed(Duration),
    /// The server has replied.
    Healthy,
}

/// A node that nginx has marked as failed.
#[derive(Clone, Copy, Debug)]
struct Failing {
    since: Time,
    fail_timeout: Duration,
    /// The time at which a request may try the node.
    retry_at: Time,
    /// Whether the next request at the node is that request.
    is_open: bool,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    node: NodeHandle,
    weight: Weight,
    backup: bool,
    down: bool,
    failing: Option<Failing>,
}

/// The shared state.
#[derive(Debug)]
pub(crate) struct State {
    /// The settings of the config.
    settings: Settings,
    dispatcher: Embedded,
    /// By the slots of the nodes.
    members: Vec<Option<Member>>,
    /// By worker: its short-lived requests, and its long-lived ones.
    ledgers: Vec<[Ledger; 2]>,
    /// The earliest time at which a failing node may be tried.
    probe_at: Time,
    decisions: [u64; Reason::ALL.len()],
    refused_no_node: u64,
    refused_limit: u64,
}

/// The time that never comes.
const NEVER: Time = Time::MAX;

impl State {
    /// Creates the state. `None` if the dispatcher cannot be created, for which the config was checked before.
    pub(crate) fn new(
        config: &PolicyConfig,
        servers: &[Server],
        targets_max: usize,
        record: Option<ZoneSink>,
    ) -> Option<Self> {
        let own = config.settings.clone();
        let mut settings = own.clone();
        settings.targets_max = targets_max;
        let servers = &servers[..servers.len().min(usize::from(settings.nodes_max))];
        let nodes = servers.iter().map(Server::spec).collect();
        let dispatcher = Embedded::with_record_sink(EmbeddedConfig { settings, nodes }, |header| {
            record.filter(|record| record.begin(header)).map(|record| Box::new(record) as _)
        });
        let dispatcher = dispatcher.ok()?;
        let mut state = Self {
            settings: own,
            dispatcher,
            members: Vec::new(),
            ledgers: Vec::new(),
            probe_at: NEVER,
            decisions: [0; Reason::ALL.len()],
            refused_no_node: 0,
            refused_limit: 0,
        };
        for server in servers {
            let node = state.dispatcher.find(&server.name).ok()?;
            let (weight, backup) = (server.weight, server.backup);
            state.store(Member { node, weight, backup, down: false, failing: None });
        }
        state.set_servers(crate::now(), servers);
        Some(state)
    }

    /// Returns whether the state was created with these settings.
    pub(crate) fn has(&self, settings: &Settings) -> bool {
        self.settings == *settings
    }

    /// Makes these servers the members. Returns the number of servers for which there is no room.
    pub(crate) fn set_servers(&mut self, now: Time, servers: &[Server]) -> usize {
        let listed: Vec<NodeHandle> = servers.iter().filter_map(|server| self.node(&server.name)).collect();
        for place in &mut self.members {
            if let Some(member) = place.take_if(|member| !listed.contains(&member.node)) {
                let _ = self.dispatcher.set_state(now, member.node, NodeState::Removed);
            }
        }
        servers.iter().filter(|server| !self.set_server(now, server)).count()
    }

    /// Adds or changes a server. Returns false if there is no room.
    fn set_server(&mut self, now: Time, server: &Server) -> bool {
        let dispatcher = &self.dispatcher;
        let Server { weight, backup, down, .. } = *server;
        let known = dispatcher.find(&server.name).ok().and_then(|node| Some((node, *self.member(node)?)));
        let Some((node, member)) = known else {
            let Ok(node) = dispatcher.add(now, server.spec()) else { return false };
            if down {
                let _ = dispatcher.set_state(now, node, NodeState::Down);
            }
            self.store(Member { node, weight, backup, down, failing: None });
            return true;
        };
        if member.weight != weight {
            let _ = dispatcher.set_weight(now, node, weight);
        }
        if member.backup != backup {
            let _ = dispatcher.set_backup(now, node, backup);
        }
        if member.down != down {
            let state = if down { NodeState::Down } else { NodeState::Up };
            let _ = dispatcher.set_state(now, node, state);
        }
        let failing = member.failing.filter(|_| member.down == down);
        self.store(Member { node, weight, backup, down, failing });
        true
    }

    /// Stores a member in the place of its slot.
    fn store(&mut self, member: Member) {
        let slot = usize::from(member.node.slot());
        if self.members.len() <= slot {
            self.members.resize(slot + 1, None);
        }
        self.members[slot] = Some(member);
    }

    fn member(&self, node: NodeHandle) -> Option<&Member> {
        let member = self.members.get(usize::from(node.slot()))?.as_ref();
        member.filter(|member| member.node == node)
    }

    fn member_mut(&mut self, node: NodeHandle) -> Option<&mut Member> {
        let member = self.members.get_mut(usize::from(node.slot()))?.as_mut();
        member.filter(|member| member.node == node)
    }

    /// Decides which node serves a request of a worker.
    pub(crate) fn decide(
        &mut self,
        now: Time,
        worker: Worker,
        (target, lasting): (TargetId, bool),
        exclude: &[NodeHandle],
    ) -> Outcome {
        if now >= self.probe_at {
            self.open_failing(now);
        }
        let facts = RequestFacts { lasting, exclude, ..RequestFacts::new(target) };
        // An error means that a node of `exclude` has never existed, which its epoch excludes.
        let outcome = self.dispatcher.decide(now, &facts).unwrap_or(Outcome::Refused(Refusal::NoNode));
        match outcome {
            Outcome::Start(decision) => {
                self.decisions[decision.reason as usize] += 1;
                self.ledgers(worker)[0].add(decision.node);
                self.note_probe(now, decision.node);
            }
            Outcome::Refused(Refusal::NoNode) => self.refused_no_node += 1,
            Outcome::Refused(Refusal::Limit) => self.refused_limit += 1,
        }
        outcome
    }

    /// Ends a request of a worker. Returns false if it has no such request.
    pub(crate) fn done(
        &mut self,
        now: Time,
        worker: Worker,
        started: &Started,
        (feedback, verdict): (Option<&Feedback>, Verdict),
    ) -> bool {
        let node = started.decision.node;
        if !self.ledgers(worker)[usize::from(started.decision.long_lived)].remove(node) {
            return false;
        }
        let ended = self.dispatcher.done(now, &started.decision, feedback).is_ok();
        self.judge(now, started, verdict);
        ended
    }

    /// Marks a request as one that lasts, such as a WebSocket. Returns the decision with which it ends; `None` if nothing has changed.
    pub(crate) fn become_long_lived(
        &mut self,
        now: Time,
        worker: Worker,
        decision: &Decision,
    ) -> Option<Decision> {
        let long_lived = self.dispatcher.become_long_lived(now, decision).ok().flatten()?;
        let [short, long] = self.ledgers(worker);
        if short.remove(decision.node) {
            long.add(decision.node);
        }
        Some(long_lived)
    }

    /// Ends all requests of a worker that has gone. Returns their number.
    pub(crate) fn release(&mut self, now: Time, worker: Worker) -> u32 {
        let ledgers = std::mem::take(self.ledgers(worker));
        let mut released = 0;
        for (mut ledger, long_lived) in ledgers.into_iter().zip([false, true]) {
            ledger.clear(|node| {
                let (target, class, reason) = (TargetId(0), ServiceClass::N, Reason::Local);
                let _ =
                    self.dispatcher.done(now, &Decision { target, node, reason, class, long_lived }, None);
                released += 1;
            });
        }
        released
    }

    fn ledgers(&mut self, worker: Worker) -> &mut [Ledger; 2] {
        if self.ledgers.len() <= worker.index() {
            self.ledgers.resize_with(worker.index() + 1, Default::default);
        }
        &mut self.ledgers[worker.index()]
    }

    /// Lets requests try the failing nodes whose time has come.
    fn open_failing(&mut self, now: Time) {
        self.probe_at = NEVER;
        for member in self.members.iter_mut().flatten() {
            let Some(failing) = &mut member.failing else { continue };
            if failing.retry_at > now {
                self.probe_at = self.probe_at.min(failing.retry_at);
            } else if !failing.is_open {
                failing.is_open = true;
                if !member.down {
                    let _ = self.dispatcher.set_state(now, member.node, NodeState::Up);
                }
            }
        }
    }

    /// As nginx does, lets only one request try a failing node.
    fn note_probe(&mut self, now: Time, node: NodeHandle) {
        let failing = self.member_mut(node).and_then(|member| member.failing.as_mut());
        if let Some(failing) = failing.filter(|failing| failing.is_open) {
            let retry_at = now + failing.fail_timeout;
            (failing.is_open, failing.retry_at) = (false, retry_at);
            self.probe_at = self.probe_at.min(retry_at);
            let _ = self.dispatcher.set_state(now, node, NodeState::Down);
        }
    }

    /// Takes the health of a node from the end of a request.
    fn judge(&mut self, now: Time, started: &Started, verdict: Verdict) {
        let node = started.decision.node;
        let Some(member) = self.member_mut(node).filter(|member| !member.down) else { return };
        match (verdict, member.failing) {
            (Verdict::Failed(fail_timeout), _) => {
                let retry_at = now + fail_timeout;
                member.failing = Some(Failing { since: now, fail_timeout, retry_at, is_open: false });
                self.probe_at = self.probe_at.min(retry_at);
                let _ = self.dispatcher.set_state(now, node, NodeState::Down);
            }
            (Verdict::Healthy, Some(failing)) if started.at >= failing.since => {
                member.failing = None;
                let _ = self.dispatcher.set_state(now, node, NodeState::Up);
            }
            _ => {}
        }
    }

    /// Returns the node with this name.
    pub(crate) fn node(&self, name: &str) -> Option<NodeHandle> {
        self.dispatcher.find(name).ok()
    }

    /// Returns the learned state as bytes.
    pub(crate) fn save(&self) -> Vec<u8> {
        self.dispatcher.save()
    }

    /// Decodes learned state. The machine, and with it the clock, may have been restarted since it was saved. The text of an error
    /// names the cause.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<LearnedState, String> {
        let learned = self.dispatcher.decode(bytes).map_err(|error| error.to_string())?;
        Ok(learned.not_after(crate::now()))
    }

    /// Restores learned state, and returns the number of targets.
    pub(crate) fn restore(&mut self, learned: &LearnedState) -> u64 {
        self.dispatcher.restore(learned)
    }

    /// Returns the state as JSON.
    pub(crate) fn status(&self, now: Time) -> Value {
        let mut status = self.dispatcher.status(now);
        let decisions = Reason::ALL.iter().zip(self.decisions).filter(|(_, count)| *count > 0);
        status["decisions"] =
            decisions.map(|(reason, count)| (reason.name().to_owned(), Value::from(count))).collect();
        status["refused"] = json!({ "no_node": self.refused_no_node, "limit": self.refused_limit });
        status
    }

    /// Returns the node for a target now, and why, as JSON.
    pub(crate) fn explain(&self, now: Time, target: TargetId) -> Value {
        let explained = self.dispatcher.explain(now, &RequestFacts::new(target));
        explained.unwrap_or_else(|error| json!({ "error": error.to_string() }))
    }
}

/// Uses a dispatcher once, so that this thread has what a dispatcher needs of it.
pub(crate) fn exercise(now: Time) {
    let Ok(config) = "policy = \"lard-r\"\nnodes = [\"a\"]\n".parse() else { return };
    let Ok(dispatcher) = Embedded::new(config) else { return };
    if let Ok(Outcome::Start(decision)) = dispatcher.decide(now, &RequestFacts::new(TargetId(1))) {
        let _ = dispatcher.done(now, &decision, None);
    }
    let _ = dispatcher.save();
}
