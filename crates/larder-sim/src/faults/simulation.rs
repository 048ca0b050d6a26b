//! The simulation of a world: a clock, an event queue, nodes that crash and restart, an unreliable network,
//! and clients.
//!
//! A [`World`] defines its nodes and their handling of requests and messages. This module handles all other
//! events. Random numbers are drawn in a fixed order. Events at equal times run in the order in which they
//! were scheduled. A seed therefore determines the run.

mod injection;

use super::outcome::{FaultStats, Violation};
use super::protocol::BrokenRule;
use super::rng::FaultRng;
use core::fmt::Debug;
use core::time::Duration;
use larder_core::{NodeId, Time};
use std::collections::BTreeMap;

/// The duration of the phase with faults.
const FAULT_PHASE: Duration = Duration::from_secs(20);
/// The time that an initial node waits for the head of a forwarded reply, and for its rest.
pub(super) const TIMEOUT: Duration = Duration::from_secs(1);
/// The period of the checks for convergence.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Returns the number of nodes: 2 to 6, or 7 to 15 for one seed in ten.
fn draw_node_count(seed: u64, rng: &mut FaultRng) -> usize {
    let few = 2 + rng.draw_below(5) as usize;
    if seed % 10 == 9 { 7 + rng.draw_below(9) as usize } else { few }
}

/// A node or a request, by its index in its list.
pub(super) type Id = usize;

/// Returns the node's id in the protocols.
pub(super) const fn node_id(node: Id) -> NodeId {
    NodeId(node as u16)
}

/// The part of a simulation that is specific to a protocol.
pub(super) trait World: Sized {
    /// The state machine of a node, and all other state that it loses in a crash.
    type Machine;
    /// A message between nodes.
    type Message: Clone + Debug;
    /// An event that only this world has.
    type Event;

    /// Returns the time after the last fault within which all views must be exact.
    fn convergence_time(&self) -> Duration;
    /// Creates the process of a node.
    fn create_machine(&self, me: Id, epoch: u64) -> Self::Machine;
    /// Returns the target of a client's request.
    fn draw_target(&self, _: &mut FaultRng) -> u64 {
        0
    }
    /// Schedules the world's first events.
    fn begin(_: &mut Simulation<'_, Self>) {}
    /// Returns the node that handles an event; the event waits while that node is paused.
    fn node_of_event(sim: &Simulation<'_, Self>, event: &Self::Event) -> Option<Id>;
    /// Handles an event of this world.
    fn handle_event(sim: &mut Simulation<'_, Self>, event: Self::Event) -> Result<(), Violation>;
    /// Handles a client's request at its initial node; the request is at [`RequestStage::Waits`].
    fn accept_request(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation>;
    /// Handles a forwarded request at its service node. `_there` is false if the node's process at the time of
    /// forwarding is gone.
    fn receive_forwarded(_: &mut Simulation<'_, Self>, _: Id, _: Id, _there: bool) -> Result<(), Violation> {
        Ok(())
    }
    /// Handles a broken connection to a service node, or the timeout of a reply.
    fn handle_broken_connection(_: &mut Simulation<'_, Self>, _: Id) -> Result<(), Violation> {
        Ok(())
    }
    /// Handles a change of a node's view of another node: present or gone.
    fn update_liveness(sim: &mut Simulation<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation>;
    /// Returns the downtime of a node that crashes now.
    fn draw_downtime(sim: &mut Simulation<'_, Self>, _: Id) -> Duration {
        sim.rng.draw_micros(10_000, 5_000_000)
    }
    /// Handles the effects of a node's crash.
    fn handle_crash(sim: &mut Simulation<'_, Self>, node: Id) {
        sim.end_requests_of(node);
    }
    /// Handles the restart of a node.
    fn handle_restart(_: &mut Simulation<'_, Self>, _: Id) {}
    /// Handles a message that a node receives.
    fn receive(_: &mut Simulation<'_, Self>, _to: Id, _from: Id, _: Self::Message) -> Result<(), Violation> {
        Ok(())
    }
    /// Returns the latest time of the node's next tick.
    fn next_tick(_: &Simulation<'_, Self>, _: Id) -> Time {
        Time::MAX
    }
    /// Handles a tick of a node.
    fn tick(_: &mut Simulation<'_, Self>, _: Id) -> Result<(), Violation> {
        Ok(())
    }
    /// Returns the first condition that does not hold, after every request has ended and every node sees
    /// every other; `None` if all hold.
    fn unmet_condition(sim: &mut Simulation<'_, Self>) -> Option<String>;
}

/// An event of the simulation.
pub(super) enum SimEvent<W: World> {
    World(W::Event),
    Client,
    Deliver {
        to: Id,
        from: Id,
        message: W::Message,
    },
    /// A forwarded request reaches its service node.
    Forwarded {
        request: Id,
    },
    /// The connection to a service node has broken, or its reply has timed out.
    ConnectionBroken {
        request: Id,
    },
    Tick {
        node: Id,
        epoch: u64,
    },
    /// A node checks whether another node is present.
    Observe {
        of: Id,
        by: Id,
        again: bool,
    },
    Crash,
    Start {
        node: Id,
    },
    Pause,
    Resume {
        node: Id,
    },
    Partition,
    Heal,
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStage {
    /// The request waits for its placement.
    Waits,
    /// The initial node serves the request.
    Here,
    /// The request was forwarded to this process of a node, and no byte of the reply has arrived.
    Sent {
        to: Id,
        epoch: u64,
    },
    /// A part of the reply has been sent to the client.
    Begun {
        to: Id,
        epoch: u64,
    },
    Ended,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) initial: Id,
    pub(super) target: u64,
    pub(super) stage: RequestStage,
    forwards: u32,
}

/// A node of a world.
pub(super) struct WorldNode<W: World> {
    pub(super) machine: W::Machine,
    /// The number of the node's current life.
    pub(super) epoch: u64,
    pub(super) up: bool,
    paused: bool,
    /// Events for the node that occurred while it was paused.
    backlog: Vec<SimEvent<W>>,
    /// The nodes that this node takes for present.
    pub(super) sees: Vec<bool>,
    tick_at: Time,
}

/// The simulation of a world.
pub(super) struct Simulation<'t, W: World> {
    pub(super) world: W,
    pub(super) rng: FaultRng,
    pub(super) now: Time,
    pub(super) nodes: Vec<WorldNode<W>>,
    pub(super) requests: Vec<Request>,
    pub(super) broken_rule: Option<BrokenRule>,
    pub(super) delay_us: u64,
    pub(super) stats: FaultStats,
    seed: u64,
    seq: u64,
    queue: BTreeMap<(Time, u64), SimEvent<W>>,
    loss_permille: u64,
    /// The side of each node, while the network is partitioned.
    partition: Option<Vec<bool>>,
    pub(super) faults_enabled: bool,
    log_sink: Option<&'t mut dyn FnMut(String)>,
}

impl<'t, W: World> Simulation<'t, W> {
    /// Creates a simulation of 2 to 15 nodes. `draw` creates the world for this number of nodes.
    pub(super) fn new(
        seed: u64,
        broken_rule: Option<BrokenRule>,
        log_sink: Option<&'t mut dyn FnMut(String)>,
        draw: impl FnOnce(&mut FaultRng, usize) -> W,
    ) -> Self {
        let mut rng = FaultRng::new(seed);
        let count = draw_node_count(seed, &mut rng);
        let world = draw(&mut rng, count);
        let mut sim = Self {
            nodes: (0..count).map(|me| WorldNode::new(world.create_machine(me, 1), 1, count)).collect(),
            world,
            now: Time::ZERO,
            requests: Vec::new(),
            broken_rule,
            stats: FaultStats { nodes: count as u64, ..FaultStats::default() },
            seed,
            seq: 0,
            queue: BTreeMap::new(),
            loss_permille: rng.draw_below(4) * 60,
            delay_us: 10_u64.pow(1 + rng.draw_below(5) as u32),
            partition: None,
            faults_enabled: true,
            log_sink,
            rng,
        };
        sim.begin();
        sim
    }

    fn begin(&mut self) {
        let count = self.nodes.len();
        for by in 0..count {
            self.schedule_tick(by);
            for of in (0..count).filter(|of| *of != by) {
                let wait = self.rng.draw_micros(0, 2_000_000);
                self.schedule(wait, SimEvent::Observe { of, by, again: true });
            }
        }
        self.schedule(Duration::ZERO, SimEvent::Client);
        self.schedule_faults();
        W::begin(self);
    }

    /// Runs until all conditions hold after the last fault.
    pub(super) fn run(mut self) -> Result<FaultStats, Violation> {
        let (mut fault_free_since, mut check_at) = (Time::ZERO, Time::MAX);
        loop {
            let next = self.queue.first_key_value().map_or(Time::MAX, |((at, _), _)| *at);
            if next > check_at {
                self.now = check_at;
                let Some(condition) = self.unmet_condition() else {
                    self.stats.converged_ms = (self.now - fault_free_since).as_millis() as u64;
                    return Ok(self.stats);
                };
                if self.now - fault_free_since >= self.world.convergence_time() {
                    return Err(self.violation(condition));
                }
                check_at += CHECK_INTERVAL;
                continue;
            }
            let Some(((at, _), sim_event)) = self.queue.pop_first() else {
                return Err(self.violation("no events are left".to_owned()));
            };
            self.now = at;
            self.handle(sim_event)?;
            if self.faults_enabled && self.now >= Time::ZERO + FAULT_PHASE && self.is_fault_free() {
                self.faults_enabled = false;
                fault_free_since = self.now;
                check_at = self.now + CHECK_INTERVAL;
                self.log(|| "no more faults".to_owned());
            }
        }
    }

    /// Returns the first condition that does not hold; `None` if all hold.
    fn unmet_condition(&mut self) -> Option<String> {
        if let Some(request) = self.requests.iter().position(|request| request.stage != RequestStage::Ended) {
            return Some(format!("request {request} has not ended: {:?}", self.requests[request]));
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(unseen) = (0..self.nodes.len()).find(|of| *of != at && !node.sees[*of]) {
                return Some(format!("node {at} does not see {unseen}"));
            }
        }
        W::unmet_condition(self)
    }

    pub(super) fn violation(&self, what: String) -> Violation {
        Violation { seed: self.seed, at_ms: self.now.as_nanos() / 1_000_000, what }
    }

    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(log_sink) = &mut self.log_sink {
            log_sink(format!("{:>9.3} ms  {}", self.now.as_nanos() as f64 / 1e6, line()));
        }
    }

    pub(super) fn schedule(&mut self, wait: Duration, sim_event: SimEvent<W>) {
        self.seq += 1;
        self.queue.insert((self.now + wait, self.seq), sim_event);
    }

    /// Returns the node that handles an event, if it is a single node.
    fn target_node(&self, sim_event: &SimEvent<W>) -> Option<Id> {
        match sim_event {
            SimEvent::World(event) => W::node_of_event(self, event),
            SimEvent::Deliver { to, .. } => Some(*to),
            SimEvent::Tick { node, .. } => Some(*node),
            SimEvent::ConnectionBroken { request } => Some(self.requests[*request].initial),
            SimEvent::Forwarded { request } => match self.requests[*request].stage {
                RequestStage::Sent { to, .. } => Some(to),
                _ => None,
            },
            SimEvent::Observe { by, .. } => Some(*by),
            _ => None,
        }
    }

    fn handle(&mut self, sim_event: SimEvent<W>) -> Result<(), Violation> {
        if let Some(node) = self.target_node(&sim_event).filter(|node| self.nodes[*node].paused) {
            self.nodes[node].backlog.push(sim_event);
            return Ok(());
        }
        match sim_event {
            SimEvent::World(event) => W::handle_event(self, event)?,
            SimEvent::Client => self.open_request()?,
            SimEvent::Deliver { to, from, message } => self.deliver_message(to, from, message)?,
            SimEvent::Forwarded { request } => self.deliver_forwarded(request)?,
            SimEvent::ConnectionBroken { request } => W::handle_broken_connection(self, request)?,
            SimEvent::Tick { node, epoch } => self.expire_tick(node, epoch)?,
            SimEvent::Observe { of, by, again } => self.observe(of, by, again)?,
            SimEvent::Crash => self.inject_crash(),
            SimEvent::Start { node } => self.restart_node(node),
            SimEvent::Pause => self.inject_pause(),
            SimEvent::Resume { node } => self.resume_node(node)?,
            SimEvent::Partition => self.inject_partition(),
            SimEvent::Heal => self.heal_partition(),
        }
        Ok(())
    }

    // -- requests

    fn open_request(&mut self) -> Result<(), Violation> {
        if !self.faults_enabled {
            return Ok(());
        }
        let wait = self.rng.draw_micros(100, 20_000);
        self.schedule(wait, SimEvent::Client);
        let initial = self.rng.draw_below(self.nodes.len() as u64) as Id;
        if !self.nodes[initial].is_running() {
            return Ok(());
        }
        let target = self.world.draw_target(&mut self.rng);
        self.requests.push(Request { initial, target, stage: RequestStage::Waits, forwards: 0 });
        self.stats.requests += 1;
        W::accept_request(self, self.requests.len() - 1)
    }

    /// Marks a request as forwarded. A request is forwarded at most once.
    pub(super) fn mark_forwarded(&mut self, request: Id, to: Id) -> Result<(), Violation> {
        self.requests[request].forwards += 1;
        self.stats.forwarded += 1;
        if self.requests[request].forwards > 1 {
            return Err(self.violation(format!("request {request} is forwarded twice")));
        }
        self.requests[request].stage = RequestStage::Sent { to, epoch: self.nodes[to].epoch };
        Ok(())
    }

    fn deliver_forwarded(&mut self, request: Id) -> Result<(), Violation> {
        let RequestStage::Sent { to, epoch } = self.requests[request].stage else { return Ok(()) };
        W::receive_forwarded(self, request, to, self.is_alive(to, epoch))
    }

    /// Ends a request at its initial node. A request ends only once.
    pub(super) fn mark_ended(&mut self, request: Id) -> Result<(), Violation> {
        if self.requests[request].stage == RequestStage::Ended {
            return Err(self.violation(format!("request {request} ends twice")));
        }
        self.requests[request].stage = RequestStage::Ended;
        Ok(())
    }

    // -- the network

    /// Returns whether a node is up and in this life.
    pub(super) fn is_alive(&self, node: Id, epoch: u64) -> bool {
        self.nodes[node].up && self.nodes[node].epoch == epoch
    }

    /// Returns whether packets pass between two nodes.
    fn is_connected(&self, a: Id, b: Id) -> bool {
        self.nodes[a].up && self.nodes[b].up && self.has_path(a, b)
    }

    /// Returns whether there is a path between the hosts of two nodes.
    pub(super) fn has_path(&self, a: Id, b: Id) -> bool {
        self.partition.as_ref().is_none_or(|partition| partition[a] == partition[b])
    }

    /// Returns whether one node answers the other.
    pub(super) fn can_communicate(&self, a: Id, b: Id) -> bool {
        self.is_connected(a, b) && !self.nodes[a].paused && !self.nodes[b].paused
    }

    /// Sends a message to a node over the unreliable network.
    pub(super) fn post_message(&mut self, from: Id, to: Id, message: &W::Message) {
        let copies =
            if self.faults_enabled && self.rng.draw_permille(self.loss_permille / 4) { 2 } else { 1 };
        for _ in 0..copies {
            if !self.is_connected(from, to)
                || (self.faults_enabled && self.rng.draw_permille(self.loss_permille))
            {
                self.stats.lost += 1;
                continue;
            }
            let wait = self.rng.draw_micros(10, self.delay_us + 10);
            self.schedule(wait, SimEvent::Deliver { to, from, message: message.clone() });
        }
    }

    /// Sends a message to all nodes that a node sees.
    pub(super) fn broadcast(&mut self, from: Id, message: &W::Message) {
        for to in 0..self.nodes.len() {
            if self.nodes[from].sees[to] {
                self.post_message(from, to, message);
            }
        }
    }

    fn deliver_message(&mut self, to: Id, from: Id, message: W::Message) -> Result<(), Violation> {
        if !self.nodes[to].up {
            self.stats.lost += 1;
            return Ok(());
        }
        self.stats.heard += 1;
        self.log(|| format!("{from} to {to}: {message:?}"));
        W::receive(self, to, from, message)
    }

    // -- ticks

    /// Schedules the node's next tick. Called after each input to the node's state machine.
    pub(super) fn schedule_tick(&mut self, node: Id) {
        let due = W::next_tick(self, node).max(self.now);
        if due < self.nodes[node].tick_at {
            self.nodes[node].tick_at = due;
            let epoch = self.nodes[node].epoch;
            self.schedule(due - self.now, SimEvent::Tick { node, epoch });
        }
    }

    fn expire_tick(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        if !self.is_alive(node, epoch) || self.nodes[node].tick_at > self.now {
            return Ok(());
        }
        self.nodes[node].tick_at = Time::MAX;
        W::tick(self, node)
    }
}

impl<W: World> WorldNode<W> {
    fn new(machine: W::Machine, epoch: u64, nodes: usize) -> Self {
        Self {
            machine,
            epoch,
            up: true,
            paused: false,
            backlog: Vec::new(),
            sees: vec![false; nodes],
            tick_at: Time::MAX,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.up && !self.paused
    }
}
