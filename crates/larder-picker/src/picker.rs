//! The picker: the dispatcher with the addresses of its nodes. All streams share it.

use crate::config::{FALLBACKS_MAX, PickerConfig};
use crate::counters::{Counters, RequestOutcome};
use crate::endpoints::{Endpoint, EndpointTable, Endpoints};
use crate::subset;
use larder_core::dispatch::SettingsError;
use larder_core::nodes::{GroupId, Nodes};
use larder_core::rules::Head;
use larder_core::{
    CacheResult, Decision as CoreDecision, DequeuedRequest, Dispatcher, NodeId, NodeSpec, NodeState, Reason,
    Request, RouteId, Time, Weight,
};
use larder_embed::{
    Decision, EmbedError, Embedded, EmbeddedConfig, Feedback, NodeHandle, Outcome, Refusal, RequestFacts,
};
use larder_peer_switches::{DispatcherHost, PeerSwitches, SwitchesStatus};
use larder_prompts::{HeldBody, Prompt, PromptConfig, PromptLease, PromptRoute};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tokio::sync::watch;

/// Maximum decisions for a request. A decision is repeated if its node has no address, because the node joins or leaves at this moment.
const DECISIONS_MAX: usize = 8;

/// The reason why a picker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PickerError {
    /// The policy needs signals that a picker does not get.
    #[error("policy: {0}")]
    Policy(String),
    /// The dispatcher refuses its settings or nodes.
    #[error(transparent)]
    Dispatcher(#[from] EmbedError),
    /// A setting of the peers is out of range.
    #[error("peers: {0}")]
    Peers(SettingsError),
    /// A setting of the prompts is out of range.
    #[error("prompts: {0}")]
    Prompts(String),
    /// The certificate cannot be made or read.
    #[error("TLS: {0}")]
    Tls(String),
}

/// An endpoint picker.
#[derive(Debug)]
pub struct Picker {
    pub(crate) config: PickerConfig,
    dispatcher: Embedded,
    endpoints: Endpoints,
    pub(crate) counters: Counters,
    start: Instant,
    /// Whether there have been endpoints, or it is known that there are none.
    ready: watch::Sender<bool>,
    /// The state of prompts; `None` if they are not placed.
    pub(crate) prompts: Option<Arc<PromptRoute>>,
    /// The other replicas; `None` if this one is alone.
    pub(crate) peers: Option<Arc<PeerSwitches>>,
}

/// The endpoints of a request.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    pub(crate) decision: Decision,
    /// The address of the chosen endpoint.
    pub(crate) address: SocketAddr,
    /// The addresses of all endpoints that the gateway may try, in order, with commas between them.
    pub(crate) list: String,
}

impl Picker {
    /// Creates a picker. The nodes are up and warm.
    ///
    /// # Errors
    /// The policy cannot run in a picker, or a setting or a node is wrong.
    pub fn new(config: PickerConfig, nodes: Vec<(NodeSpec, SocketAddr)>) -> Result<Self, PickerError> {
        if let Some(reason) = config.refusal() {
            return Err(PickerError::Policy(reason));
        }
        let (specs, addresses): (Vec<NodeSpec>, Vec<SocketAddr>) = nodes.into_iter().unzip();
        let embedded = EmbeddedConfig { settings: config.dispatcher_settings(), nodes: specs.clone() };
        let dispatcher = Embedded::new(embedded)?;
        // The dispatcher has one route, which has the name that it has in a switch.
        let routes = vec![(RouteId::DEFAULT, "default".to_owned())];
        let prompts = config.prompts.as_ref().map(prompt_route).transpose()?;
        let chains = prompts.iter().map(|prompts| (RouteId::DEFAULT, prompts.chains.clone())).collect();
        let peers = config.peers.clone();
        let peers =
            peers.map(|peers| PeerSwitches::new(peers, Time::ZERO, routes, chains, dispatcher.dispatcher()));
        let picker = Self {
            peers: peers.transpose().map_err(PickerError::Peers)?.map(Arc::new),
            config,
            prompts,
            dispatcher,
            endpoints: Endpoints::default(),
            counters: Counters::default(),
            start: Instant::now(),
            ready: watch::Sender::new(false),
        };
        let mut known = Vec::new();
        for (spec, address) in specs.iter().zip(addresses) {
            known.push((spec.name.as_str(), picker.dispatcher.find(&spec.name)?, address));
        }
        picker.endpoints.insert(known);
        picker.note_endpoints();
        Ok(picker)
    }

    /// Adds a node at an address.
    ///
    /// # Errors
    /// The name is taken or too long, or the table is full.
    pub fn join(&self, spec: NodeSpec, address: SocketAddr) -> Result<(), EmbedError> {
        let name = spec.name.clone();
        let node = self.dispatcher.add(self.clock(), spec)?;
        self.endpoints.insert([(name.as_str(), node, address)]);
        self.note_endpoints();
        Ok(())
    }

    /// Removes a node. Its requests in flight continue. Returns false if there is no such node.
    pub fn leave(&self, name: &str) -> bool {
        let Ok(node) = self.dispatcher.find(name) else { return false };
        let left = self.dispatcher.set_state(self.clock(), node, NodeState::Removed).unwrap_or(false);
        self.endpoints.remove(name);
        left
    }

    /// Changes the address of a node, which keeps its targets.
    ///
    /// # Errors
    /// There is no such node.
    pub fn move_to(&self, name: &str, address: SocketAddr) -> Result<(), EmbedError> {
        let node = self.dispatcher.find(name)?;
        self.endpoints.insert([(name, node, address)]);
        Ok(())
    }

    /// Changes the weight of a node.
    ///
    /// # Errors
    /// There is no such node.
    pub fn reweigh(&self, name: &str, weight: Weight) -> Result<(), EmbedError> {
        self.dispatcher.set_weight(self.clock(), self.dispatcher.find(name)?, weight).map(drop)
    }

    /// Makes a node a backup, or an ordinary node.
    ///
    /// # Errors
    /// There is no such node.
    pub fn set_backup(&self, name: &str, backup: bool) -> Result<(), EmbedError> {
        self.dispatcher.set_backup(self.clock(), self.dispatcher.find(name)?, backup).map(drop)
    }

    /// Returns the address of a node.
    pub fn address_of(&self, name: &str) -> Option<SocketAddr> {
        self.endpoints.load().named(name).map(|endpoint| endpoint.address)
    }

    /// Makes the picker ready, because all sources of endpoints have been read. Without endpoints, requests get 503.
    pub fn set_ready(&self) {
        self.ready.send_if_modified(|ready| !std::mem::replace(ready, true));
    }

    /// Returns whether the picker is ready: there have been endpoints, or it is known that there are none.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Completes when the picker is ready.
    pub(crate) async fn until_ready(&self) {
        // The sender lives as long as this picker.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Returns the state of the picker, as a JSON object.
    pub fn status(&self) -> Value {
        let (table, mut status) = (self.endpoints.load(), self.dispatcher.status(self.clock()));
        for node in status["nodes"].as_array_mut().into_iter().flatten() {
            let endpoint = node["name"].as_str().and_then(|name| table.named(name));
            node["address"] = endpoint.map(|endpoint| endpoint.text.as_ref()).into();
        }
        status["ready"] = self.is_ready().into();
        status["key"] = self.config.key.as_str().into();
        status["streams"] = self.counters.streams.load(Relaxed).into();
        status["connections"] = self.counters.connections.load(Relaxed).into();
        status["requests"] =
            self.counters.outcomes().map(|(name, count)| (name.to_owned(), json!(count))).collect();
        status
    }

    /// Returns the status of this replica and its peers; `None` if it is alone.
    pub fn peers_status(&self) -> Option<SwitchesStatus> {
        let peers = self.peers.as_ref()?;
        Some(peers.status(self.clock(), self.dispatcher.dispatcher()))
    }

    /// Returns the decision that a request would get now, as a JSON object. Changes nothing.
    ///
    /// # Errors
    /// As [`Embedded::explain`].
    pub fn explain(&self, head: &Head<'_>) -> Result<Value, EmbedError> {
        let (key, mut text) = (&self.config.key, Vec::new());
        key.render(head, &mut text);
        let mut explained = self.dispatcher.explain(self.clock(), &RequestFacts::new(key.id(head)))?;
        let address = explained["node"].as_str().and_then(|name| self.address_of(name));
        explained["key"] = String::from_utf8_lossy(&text).into();
        explained["endpoint"] = address.map(|address| address.to_string()).into();
        Ok(explained)
    }

    /// Returns the metrics in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let nodes = self.dispatcher.dispatcher().nodes().rows();
        let loads: Vec<(String, u32)> = nodes.iter().map(|row| (row.name.to_string(), row.load)).collect();
        let prompts = self.prompts.as_ref().map(|prompts| prompts.status());
        self.counters.text(self.endpoints.load().len(), self.dispatcher.targets_known(), &loads, prompts)
    }

    /// Returns the time since the start.
    pub(crate) fn clock(&self) -> Time {
        Time::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Decides which endpoint serves a request, and counts the request as its load.
    ///
    /// # Errors
    /// No endpoint takes the request, or the admission limit is reached. Nothing is counted.
    pub(crate) fn pick(
        &self,
        now: Time,
        facts: &RequestFacts<'_>,
        permitted: Option<&[SocketAddr]>,
    ) -> Result<Pick, Refusal> {
        let table = self.endpoints.load();
        let pick = match permitted {
            None => self.pick_any(now, facts, &table),
            Some(permitted) => self.pick_among(now, facts, &table, permitted),
        };
        match &pick {
            Ok(pick) => self.counters.decide(pick.decision.reason),
            Err(refusal) => self.count(*refusal),
        }
        pick
    }

    fn count(&self, refusal: Refusal) {
        self.counters.end(match refusal {
            Refusal::NoNode => RequestOutcome::NoEndpoint,
            Refusal::Limit => RequestOutcome::Limit,
        });
    }

    /// Decides which endpoint serves a prompt. If the chain dispatcher knows none, the policy decides.
    ///
    /// # Errors
    /// As [`Self::pick`].
    pub(crate) fn pick_prompt(
        &self,
        now: Time,
        facts: &RequestFacts<'_>,
        lease: &mut PromptLease,
        permitted: Option<&[SocketAddr]>,
    ) -> Result<Pick, Refusal> {
        let (nodes, table) = (self.nodes(), self.endpoints.load());
        let first = lease.node().and_then(|node| table.at(node.0));
        let started = first.map(|first| (first, self.start_at(now, facts, first.node)));
        let Some((first, started)) = started.filter(|(_, started)| *started != Err(Refusal::NoNode)) else {
            let mut pick = self.pick(now, facts, permitted)?;
            let node = NodeId(pick.decision.node.slot());
            pick.decision.reason =
                lease.adopt(nodes, CoreDecision { node, reason: pick.decision.reason }).reason;
            return Ok(pick);
        };
        let mut decision = started.inspect_err(|refusal| self.count(*refusal))?;
        let chosen = CoreDecision { node: NodeId(decision.node.slot()), reason: Reason::Placed };
        decision.reason = lease.adopt(nodes, chosen).reason;
        self.counters.decide(decision.reason);
        let mut list = first.text.to_string();
        match permitted {
            None => self.add_fallbacks(now, facts, &table, first, &mut list),
            Some(permitted) => {
                let others = permitted.iter().filter(|other| **other != first.address);
                let others = others.filter_map(|address| table.find(*address)).take(self.config.fallbacks);
                for endpoint in others {
                    let _ = write!(list, ",{}", endpoint.text);
                }
            }
        }
        Ok(Pick { decision, address: first.address, list })
    }

    /// Places a prompt, and returns its lease.
    pub(crate) fn place_prompt(
        &self,
        route: &Arc<PromptRoute>,
        prompt: &Prompt,
        held: HeldBody,
        permitted: Option<&[SocketAddr]>,
    ) -> PromptLease {
        let table = self.endpoints.load();
        let slot = |address: &SocketAddr| Some(NodeId(table.find(*address)?.node.slot()));
        let permitted: Option<Vec<NodeId>> =
            permitted.map(|permitted| permitted.iter().filter_map(slot).collect());
        PromptLease::place(route.clone(), self.nodes(), prompt.blocks(), held, permitted.as_deref())
    }

    /// Returns the nodes of the dispatcher.
    pub(crate) fn nodes(&self) -> &Nodes {
        self.dispatcher.dispatcher().nodes()
    }

    /// Decides among all endpoints.
    fn pick_any(&self, now: Time, facts: &RequestFacts<'_>, table: &EndpointTable) -> Result<Pick, Refusal> {
        let mut unknown = Vec::new();
        for _ in 0..DECISIONS_MAX {
            let decision = self.decide(now, &RequestFacts { exclude: &unknown, ..*facts })?;
            // A node that has joined just now may be missing in the snapshot that was read before.
            let newer;
            let known = match table.of(decision.node) {
                Some(endpoint) => Some(endpoint),
                None => {
                    newer = self.endpoints.load();
                    newer.of(decision.node)
                }
            };
            if let Some(endpoint) = known {
                let mut list = endpoint.text.to_string();
                self.add_fallbacks(now, facts, table, endpoint, &mut list);
                return Ok(Pick { decision, address: endpoint.address, list });
            }
            self.end(now, &decision, None);
            unknown.push(decision.node);
        }
        Err(Refusal::NoNode)
    }

    /// Appends the endpoints that the policy would choose if the first ones failed.
    fn add_fallbacks(
        &self,
        now: Time,
        facts: &RequestFacts<'_>,
        table: &EndpointTable,
        first: &Endpoint,
        list: &mut String,
    ) {
        let mut request = Request::new(facts.target).with_lasting(facts.lasting);
        request.exclude = request.exclude.with(NodeId(first.node.slot()));
        for _ in 0..self.config.fallbacks.min(FALLBACKS_MAX) {
            let next = self.dispatcher.dispatcher().explain_request(now, &request).decision;
            let Some(node) = next.map(|decision| decision.node) else { return };
            request.exclude = request.exclude.with(node);
            if let Some(endpoint) = table.at(node.0) {
                // Writing to a `String` cannot fail.
                let _ = write!(list, ",{}", endpoint.text);
            }
        }
    }

    /// Decides among the permitted endpoints.
    fn pick_among(
        &self,
        now: Time,
        facts: &RequestFacts<'_>,
        table: &EndpointTable,
        permitted: &[SocketAddr],
    ) -> Result<Pick, Refusal> {
        let dispatcher = self.dispatcher.dispatcher();
        let explained =
            dispatcher.explain_request(now, &Request::new(facts.target).with_lasting(facts.lasting));
        let servers = explained.known.map(|known| known.servers).unwrap_or_default();
        let ranked = subset::rank(dispatcher, table, permitted, (facts.target, &servers));
        let wanted = explained.decision.and_then(|decision| table.at(decision.node.0));
        let is_permitted = |node: NodeHandle| ranked.iter().any(|endpoint| endpoint.node == node);
        let mut chosen = None;
        if wanted.is_some_and(|endpoint| is_permitted(endpoint.node)) {
            let decision = self.decide(now, facts)?;
            // The load may have changed since.
            if is_permitted(decision.node) {
                chosen = Some(decision);
            } else {
                self.end(now, &decision, None);
            }
        }
        let decision = match (chosen, ranked.first()) {
            (Some(decision), _) => decision,
            (None, None) => return Err(Refusal::NoNode),
            (None, Some(best)) => self.start_at(now, facts, best.node)?,
        };
        let Some(first) = table.of(decision.node).filter(|first| is_permitted(first.node)) else {
            // The endpoint has left just now.
            self.end(now, &decision, None);
            return Err(Refusal::NoNode);
        };
        let others = ranked.iter().filter(|endpoint| endpoint.node != first.node).take(self.config.fallbacks);
        let mut list = first.text.to_string();
        for endpoint in others {
            let _ = write!(list, ",{}", endpoint.text);
        }
        Ok(Pick { decision, address: first.address, list })
    }

    fn decide(&self, now: Time, facts: &RequestFacts<'_>) -> Result<Decision, Refusal> {
        started(self.dispatcher.decide(now, facts))
    }

    fn start_at(&self, now: Time, facts: &RequestFacts<'_>, node: NodeHandle) -> Result<Decision, Refusal> {
        started(self.dispatcher.start_at(now, facts, node))
    }

    /// Moves a request to the endpoint that has served it, because the chosen endpoint has failed. Returns the new decision; `None` if no
    /// node has the address.
    pub(crate) fn serve_elsewhere(
        &self,
        now: Time,
        (failed, at): (&Decision, Time),
        address: SocketAddr,
    ) -> Option<Decision> {
        let node = self.endpoints.load().find(address)?.node;
        let facts = RequestFacts::new(failed.target);
        let decision = started(self.dispatcher.start_again_at(now, &facts, node)).ok()?;
        let feedback = Feedback { elapsed: now.since(at), failed: true, ..Feedback::default() };
        self.end(now, failed, Some(&feedback));
        self.counters.served_elsewhere.fetch_add(1, Relaxed);
        Some(decision)
    }

    /// Takes a tunnel, such as a WebSocket, out of the admission limit.
    pub(crate) fn become_long_lived(&self, now: Time, decision: &mut Decision) {
        if let Ok(Some(long_lived)) = self.dispatcher.become_long_lived(now, decision) {
            *decision = long_lived;
        }
    }

    /// Ends a request that has started.
    pub(crate) fn end(&self, now: Time, decision: &Decision, feedback: Option<&Feedback>) {
        if let Some(Feedback { bytes, cache, .. }) = feedback {
            self.counters.bytes.fetch_add(*bytes, Relaxed);
            match cache {
                Some(CacheResult::Hit) => self.counters.hits.fetch_add(1, Relaxed),
                Some(CacheResult::Miss) => self.counters.misses.fetch_add(1, Relaxed),
                None => 0,
            };
        }
        match self.dispatcher.done(now, decision, feedback) {
            // The node has left, and another has its slot.
            Ok(()) | Err(EmbedError::RemovedNode(_)) => {}
            Err(error) => {
                larder_log::limited_warn!(%error, "request: its end was not counted, which is a bug");
            }
        }
    }

    fn note_endpoints(&self) {
        if self.endpoints.load().len() > 0 {
            self.set_ready();
        }
    }
}

impl DispatcherHost for Picker {
    fn now(&self) -> Time {
        self.clock()
    }

    fn dispatcher(&self) -> &Dispatcher {
        self.dispatcher.dispatcher()
    }

    /// Requests do not queue.
    fn deliver(&self, _now: Time, _started: Vec<DequeuedRequest>) {}
}

fn prompt_route(config: &PromptConfig) -> Result<Arc<PromptRoute>, PickerError> {
    config.validate().map_err(PickerError::Prompts)?;
    let route = PromptRoute::new(config, GroupId::ALL);
    route.map(Arc::new).map_err(|error| PickerError::Prompts(error.to_string()))
}

/// Returns the decision of a request that has started. Wrong arguments are bugs, and refuse the request.
fn started(outcome: Result<Outcome, EmbedError>) -> Result<Decision, Refusal> {
    match outcome {
        Ok(Outcome::Start(decision)) => Ok(decision),
        Ok(Outcome::Refused(refusal)) => Err(refusal),
        Err(error) => {
            larder_log::limited_warn!(%error, "request: no decision, which is a bug");
            Err(Refusal::NoNode)
        }
    }
}

/// Returns the name of a decision's reason.
pub(crate) fn reason(decision: &Decision) -> &'static str {
    let reason: Reason = decision.reason;
    reason.name()
}
