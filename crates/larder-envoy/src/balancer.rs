//! The policy of a worker: it chooses a host for each attempt.

use crate::cluster::{Cluster, ClusterRef};
use crate::config::PolicyConfig;
use crate::filter_check::FilterCheck;
use crate::host::{Context, Hosts, PolicyMetrics};
use crate::log;
use crate::membership::{HostFacts, ViewId};
use crate::pending::{self, Pending};
use crate::prompt::{self, PlacedPrompt};
use larder_core::policy::ExcludedNodes;
use larder_core::rules::Head;
use larder_core::{Decision as CoreDecision, NodeId, Reason, TargetId, Time};
use larder_embed::{Decision, EmbedError, Embedded, NodeHandle, Outcome, Refusal, RequestFacts};
use larder_prompts::{PromptLease, has_prompt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The largest number of hosts that a request does not go to because it has been there before.
const EXCLUDE_MAX: usize = 8;

/// The reason for refusing a cluster without the filter.
pub(crate) const NO_FILTER: &str = "the policy needs the HTTP filter larder among the upstream filters of the cluster: add it to \
    http_filters of HttpProtocolOptions, before envoy.filters.http.upstream_codec";

/// The reason for refusing a cluster with several load balancers in a worker.
pub(crate) const SPLIT: &str = "the policy does not work below a policy that splits the cluster, such as subset; use several clusters instead";

/// The warning of a cluster that places prompts, if no filter has read the prompt of a completion.
const NO_READER: &str = "completions are not placed by their prompts: add the HTTP filter larder_prompts to http_filters of the listener, \
    before envoy.filters.http.router";

/// The time between two updates of the gauges.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// The metrics of a policy in Envoy's stats. Envoy's labels are not safe in several threads, so each reason has a counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metrics {
    envoy: PolicyMetrics,
    reasons: [Option<usize>; Reason::ALL.len()],
    refused_no_node: Option<usize>,
    refused_limit: Option<usize>,
    not_started: Option<usize>,
    fallback: Option<usize>,
    prompts: Option<usize>,
    prompt_tokens: Option<usize>,
    prompt_tokens_credited: Option<usize>,
    targets: Option<usize>,
    outstanding: Option<usize>,
    prompt_credits: Option<usize>,
}

impl Metrics {
    /// Defines the metrics, while Envoy creates the config.
    pub(crate) fn define(envoy: PolicyMetrics) -> Self {
        Self {
            envoy,
            reasons: Reason::ALL
                .map(|reason| envoy.define_counter(&format!("larder.decisions_{}", reason.name()))),
            refused_no_node: envoy.define_counter("larder.refused_no_node"),
            refused_limit: envoy.define_counter("larder.refused_limit"),
            not_started: envoy.define_counter("larder.not_started"),
            fallback: envoy.define_counter("larder.fallback"),
            prompts: envoy.define_counter("larder.prompts"),
            prompt_tokens: envoy.define_counter("larder.prompt_tokens"),
            prompt_tokens_credited: envoy.define_counter("larder.prompt_tokens_credited"),
            targets: envoy.define_gauge("larder.targets"),
            outstanding: envoy.define_gauge("larder.outstanding"),
            prompt_credits: envoy.define_gauge("larder.prompt_credits"),
        }
    }

    fn count(&self, counter: Option<usize>) {
        self.add(counter, 1);
    }

    fn add(&self, counter: Option<usize>, value: u64) {
        if let Some(counter) = counter {
            self.envoy.add(counter, value);
        }
    }

    /// Counts an attempt of a request with a prompt.
    fn count_prompt(&self, lease: &PromptLease) {
        self.count(self.prompts);
        self.add(self.prompt_tokens, lease.tokens());
        self.add(self.prompt_tokens_credited, lease.credited());
    }

    fn set(&self, gauge: Option<usize>, value: u64) {
        if let Some(gauge) = gauge {
            self.envoy.set(gauge, value);
        }
    }
}

/// Envoy's config of a policy: what its load balancers are made from.
#[derive(Debug)]
pub(crate) struct Policy {
    config: PolicyConfig,
    metrics: Metrics,
    /// The cluster, from the moment at which its name is known. All workers of this config share it.
    cluster: OnceLock<Arc<Cluster>>,
    /// Whether Envoy splits the cluster, so that its requests are refused.
    is_split: Arc<AtomicBool>,
    filter_check: Arc<FilterCheck>,
}

impl Policy {
    pub(crate) fn new(config: PolicyConfig, metrics: Metrics) -> Self {
        Self {
            config,
            metrics,
            cluster: OnceLock::new(),
            is_split: Arc::default(),
            filter_check: Arc::default(),
        }
    }

    /// Refuses all requests of the cluster, because Envoy has more than one load balancer for it in a worker.
    pub(crate) fn refuse_split(&self) {
        self.is_split.store(true, Ordering::Relaxed);
    }
}

/// A healthy host of this worker's view.
#[derive(Clone, Debug)]
struct HealthyHost {
    node: NodeHandle,
    name: Arc<str>,
    place: Place,
}

/// The place of a healthy host in Envoy's lists.
#[derive(Clone, Copy, Debug)]
struct Place {
    priority: u32,
    /// The index among the healthy hosts of the priority level. Envoy wants this one as the result.
    healthy_index: u32,
    /// The index among all hosts of the priority level.
    index: usize,
}

/// The load balancer of a worker for a cluster.
#[derive(Debug)]
pub(crate) struct Balancer {
    cluster: ClusterRef,
    view: ViewId,
    metrics: Metrics,
    is_split: Arc<AtomicBool>,
    filter_check: Arc<FilterCheck>,
    /// The healthy hosts, by the slots of their nodes.
    healthy: Vec<Option<HealthyHost>>,
    gauges_at: Option<Time>,
}

impl Balancer {
    /// Creates the load balancer of a worker, with the hosts that the cluster has now.
    pub(crate) fn new(policy: &Policy, hosts: Hosts<'_>) -> Self {
        let cluster = policy.cluster.get_or_init(|| Cluster::open(&hosts.cluster_name(), &policy.config));
        let cluster = ClusterRef::new(Arc::clone(cluster));
        let view = cluster.new_view();
        let mut balancer = Self {
            cluster,
            view,
            metrics: policy.metrics,
            is_split: Arc::clone(&policy.is_split),
            filter_check: Arc::clone(&policy.filter_check),
            healthy: Vec::new(),
            gauges_at: None,
        };
        balancer.update(hosts);
        balancer
    }

    /// Reads the hosts again after a change. O(hosts).
    pub(crate) fn update(&mut self, hosts: Hosts<'_>) {
        let mut facts = Vec::new();
        let mut healthy = Vec::new();
        for priority in 0..hosts.priorities() {
            let first = facts.len();
            for index in 0..hosts.count(priority) {
                let Some(name) = hosts.address(priority, index).map(name) else { continue };
                let weight = hosts.weight(priority, index);
                facts.push(HostFacts { name, priority, weight, healthy: false });
            }
            let mut unplaced = first;
            for healthy_index in 0..hosts.healthy_count(priority) {
                let Some(address) = hosts.healthy_address(priority, healthy_index) else { continue };
                // Both lists have the same order, so that the search is short.
                let is_it = |host: &HostFacts| host.name.as_bytes() == address;
                let found = facts[unplaced..].iter().position(is_it).map(|at| unplaced + at);
                let found =
                    found.or_else(|| facts[first..unplaced].iter().position(is_it).map(|at| first + at));
                if let Some(at) = found {
                    facts[at].healthy = true;
                    let healthy_index = u32::try_from(healthy_index).unwrap_or(u32::MAX);
                    let place = Place { priority, healthy_index, index: at - first };
                    healthy.push((Arc::clone(&facts[at].name), place));
                    unplaced = at + 1;
                }
            }
        }
        let nodes = self.cluster.set_view(self.view, facts);
        self.healthy.clear();
        for (name, place) in healthy {
            let Some(&node) = nodes.get(&name) else { continue };
            let slot = usize::from(node.slot());
            if self.healthy.len() <= slot {
                self.healthy.resize(slot + 1, None);
            }
            self.healthy[slot] = Some(HealthyHost { node, name, place });
        }
    }

    /// Chooses a host for an attempt. Returns its priority level and its index among the healthy hosts of that level. `None` if the
    /// request is refused; Envoy then replies 503.
    pub(crate) fn choose(&mut self, hosts: Hosts<'_>, context: Option<Context<'_>>) -> Option<(u32, u32)> {
        let Some((context, path)) = context.and_then(|context| Some((context, context.header(":path")?)))
        else {
            log::limited_error!(
                "cluster {}: larder balances HTTP requests, and this connection has none; use another policy",
                self.cluster.name()
            );
            return None;
        };
        // Without an attempt for it, the last decision must not meet the filter of this request.
        if let Some(mut untaken) = pending::take() {
            untaken.filter_check.note_untaken();
            untaken.abandon();
            self.metrics.count(self.metrics.not_started);
        }
        let cluster = self.cluster.clone();
        if !self.is_usable() {
            return None;
        }
        let Some(dispatcher) = cluster.dispatcher() else { return self.fall_back(hosts, TargetId::of(path)) };
        let now = crate::now();
        if self.gauges_at.is_none_or(|at| now.since(at) >= GAUGE_INTERVAL) {
            self.gauges_at = Some(now);
            self.tend(hosts, dispatcher);
        }
        let prompt = cluster.prompts().and_then(|prompts| Some((prompts, prompt::of(context)?)));
        let (target, choice) = match prompt {
            Some((prompts, named)) => {
                let placed = PlacedPrompt::new(prompts, dispatcher.dispatcher().nodes(), &named);
                let facts = RequestFacts::new(named.prompt.target());
                (facts.target, self.decide_prompt((dispatcher, now), (hosts, context), facts, placed))
            }
            None => {
                let facts = self.facts(context, path);
                (facts.target, self.decide((dispatcher, now), (hosts, context), facts))
            }
        };
        match choice {
            Choice::Decided(Decided { host, decision, prompt }) => {
                self.metrics.count(self.metrics.reasons[decision.reason as usize]);
                let filter_check = Arc::clone(&self.filter_check);
                let pending = Pending { cluster, decision, prompt, at: now, filter_check, host: host.name };
                pending::put(pending);
                Some((host.place.priority, host.place.healthy_index))
            }
            Choice::NoNode => self.fall_back(hosts, target),
            Choice::Refused => None,
        }
    }

    /// Returns the facts of a request that is placed by its head.
    fn facts(&self, context: Context<'_>, path: &[u8]) -> RequestFacts<'static> {
        let key = &self.cluster.config.key;
        let has_prompts = self.cluster.prompts().is_some();
        let needs_method = has_prompts || key.as_str().contains("{method}");
        let method = if needs_method { context.header(":method") } else { None };
        let host = context.header(":authority").unwrap_or_default();
        // A retry comes after the route has rewritten the path.
        let path = context.header("x-envoy-original-path").unwrap_or(path);
        let head = Head::new(method.unwrap_or_default(), host, path, &context);
        if has_prompts && has_prompt(&head) {
            log::limited_warn!("cluster {}: {NO_READER}", self.cluster.name());
        }
        RequestFacts { lasting: context.header("upgrade").is_some(), ..RequestFacts::new(key.id(&head)) }
    }

    /// Returns whether the cluster's config fits the policy, as far as its requests show.
    fn is_usable(&self) -> bool {
        let name = self.cluster.name();
        if self.is_split.load(Ordering::Relaxed) {
            log::limited_error!("cluster {name}: {SPLIT}");
            return false;
        }
        if self.filter_check.refuses() {
            log::limited_error!("cluster {name}: {NO_FILTER}");
            return false;
        }
        true
    }

    /// Chooses a host without the dispatcher, which may know no host that this worker has: while many hosts are being replaced, or
    /// because there was no room for them. A host that Envoy sees as healthy is better than none.
    fn fall_back(&self, hosts: Hosts<'_>, target: TargetId) -> Option<(u32, u32)> {
        for priority in 0..hosts.priorities() {
            let count = hosts.healthy_count(priority) as u64;
            if count > 0 {
                self.metrics.count(self.metrics.fallback);
                return u32::try_from(target.0 % count).ok().map(|index| (priority, index));
            }
        }
        self.metrics.count(self.metrics.refused_no_node);
        None
    }

    /// Decides by a prompt. If no host that this worker has can take it, the policy decides.
    fn decide_prompt(
        &mut self,
        (dispatcher, now): (&Embedded, Time),
        (hosts, context): (Hosts<'_>, Context<'_>),
        facts: RequestFacts<'_>,
        mut placed: PlacedPrompt,
    ) -> Choice {
        let nodes = dispatcher.dispatcher().nodes();
        let (mut refusals_left, mut excluded) = (context.selection_retries(), ExcludedNodes::NONE);
        for _ in 0..EXCLUDE_MAX {
            let Some(node) = placed.lease.node() else { break };
            let host = self.healthy.get(node.index()).and_then(Option::as_ref).map(|host| host.node);
            let host = host.and_then(|node| self.current_host(hosts, node));
            let is_refused = refusals_left > 0
                && host
                    .as_ref()
                    .is_some_and(|host| context.refuses(hosts, host.place.priority, host.place.index));
            if let Some(host) = host.filter(|_| !is_refused) {
                match self.started(dispatcher.start_at(now, &facts, host.node)) {
                    Ok(mut decision) => {
                        let chosen = CoreDecision { node, reason: Reason::Placed };
                        decision.reason = placed.lease.adopt(nodes, chosen).reason;
                        return self.decided(host, decision, placed);
                    }
                    Err(Choice::NoNode) => {}
                    Err(choice) => return choice,
                }
            }
            refusals_left -= u32::from(is_refused);
            excluded = excluded.with(node);
            placed.lease.retry(nodes, excluded);
        }
        match self.decide((dispatcher, now), (hosts, context), facts) {
            Choice::Decided(Decided { host, decision, .. }) => {
                let node = NodeId(decision.node.slot());
                placed.lease.adopt(nodes, CoreDecision { node, reason: decision.reason });
                self.decided(host, decision, placed)
            }
            choice => choice,
        }
    }

    fn decided(&self, host: HealthyHost, decision: Decision, placed: PlacedPrompt) -> Choice {
        self.metrics.count_prompt(&placed.lease);
        Choice::Decided(Decided { host, decision, prompt: Some(Box::new(placed)) })
    }

    /// Returns the decision of a request that has started, or why it has not.
    fn started(&self, outcome: Result<Outcome, EmbedError>) -> Result<Decision, Choice> {
        match outcome {
            Ok(Outcome::Start(decision)) => Ok(decision),
            Ok(Outcome::Refused(Refusal::NoNode)) => Err(Choice::NoNode),
            Ok(Outcome::Refused(Refusal::Limit)) => {
                self.metrics.count(self.metrics.refused_limit);
                Err(Choice::Refused)
            }
            Err(error) => {
                log::limited_error!("cluster {}: cannot decide: {error}", self.cluster.name());
                Err(Choice::Refused)
            }
        }
    }

    /// Decides until the node is a host that this worker has and that the request's retry policy accepts.
    fn decide(
        &mut self,
        (dispatcher, now): (&Embedded, Time),
        (hosts, context): (Hosts<'_>, Context<'_>),
        facts: RequestFacts<'_>,
    ) -> Choice {
        let mut refusals_left = context.selection_retries();
        let mut excluded = Vec::new();
        let mut has_refused = false;
        loop {
            let outcome = dispatcher.decide(now, &RequestFacts { exclude: &excluded, ..facts });
            let decision = match self.started(outcome) {
                Ok(decision) => decision,
                Err(Choice::NoNode) if has_refused => {
                    // No other host is left. As Envoy's own policies do, return to one that the retry policy refuses.
                    (refusals_left, has_refused) = (0, false);
                    excluded.clear();
                    continue;
                }
                Err(choice) => return choice,
            };
            let host = self.current_host(hosts, decision.node);
            let can_exclude = excluded.len() < EXCLUDE_MAX;
            let is_refused = can_exclude
                && refusals_left > 0
                && host
                    .as_ref()
                    .is_some_and(|host| context.refuses(hosts, host.place.priority, host.place.index));
            if let Some(host) = host.filter(|_| !is_refused) {
                return Choice::Decided(Decided { host, decision, prompt: None });
            }
            self.cluster.end(now, &decision, None);
            if !can_exclude {
                return Choice::NoNode;
            }
            excluded.push(decision.node);
            if is_refused {
                (refusals_left, has_refused) = (refusals_left - 1, true);
            }
        }
    }

    /// Returns a node's host; `None` if this worker does not have the host, or another worker knows more of it. Reads the hosts again
    /// if Envoy's list is not the one that was read.
    fn current_host(&mut self, hosts: Hosts<'_>, node: NodeHandle) -> Option<HealthyHost> {
        let known = self.host(node)?;
        let now = hosts.healthy_address(known.place.priority, known.place.healthy_index as usize);
        if now.is_some_and(|address| address == known.name.as_bytes()) {
            return Some(known.clone());
        }
        self.update(hosts);
        self.host(node).cloned()
    }

    fn host(&self, node: NodeHandle) -> Option<&HealthyHost> {
        let host = self.healthy.get(usize::from(node.slot()))?.as_ref();
        host.filter(|host| host.node == node)
    }

    /// Updates the gauges, and tries again to add hosts for which there was no room.
    fn tend(&mut self, hosts: Hosts<'_>, dispatcher: &Embedded) {
        self.metrics.set(self.metrics.targets, dispatcher.targets_known() as u64);
        self.metrics.set(self.metrics.outstanding, u64::from(dispatcher.outstanding()));
        if let Some(prompts) = self.cluster.prompts() {
            self.metrics.set(self.metrics.prompt_credits, prompts.route.status().credits as u64);
        }
        if self.cluster.is_incomplete() {
            self.update(hosts);
        }
    }
}

/// The result of the dispatcher's decision for this worker.
enum Choice {
    Decided(Decided),
    /// The dispatcher knows no host that this worker has.
    NoNode,
    /// The policy refuses the request.
    Refused,
}

/// A request that has started at a host.
struct Decided {
    host: HealthyHost,
    decision: Decision,
    prompt: Option<Box<PlacedPrompt>>,
}

impl Drop for Balancer {
    fn drop(&mut self) {
        if let Some(mut pending) = pending::take() {
            pending.abandon();
        }
        self.cluster.remove_view(self.view);
    }
}

/// Returns the name of the node at an address.
fn name(address: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(address).into()
}
