//! The simulation of a world: a clock, an event queue, nodes that crash and restart, an unreliable network,
//! and clients.
//!
//! A [`World`] defines its nodes and their handling of requests and messages. This module handles all other
//! events. Random numbers are drawn in a fixed order. Events at equal times run in the order in which they
//! were scheduled. A seed therefore determines the run.

mod troubles;

use super::chance::Chance;
use super::outcome::{Survived, Violation};
use super::protocol::Broken;
use core::fmt::Debug;
use core::time::Duration;
use larder_core::{NodeId, Time};
use std::collections::BTreeMap;

/// The duration of the phase with faults.
const TROUBLE: Duration = Duration::from_secs(20);
/// The time that an initial node waits for the head of a forwarded reply, and for its rest.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The period of the checks for convergence.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the number of nodes: 2 to 6, or 7 to 15 for one seed in ten.
fn size(seed: u64, chance: &mut Chance) -> usize {
    let few = 2 + chance.below(5) as usize;
    if seed % 10 == 9 { 7 + chance.below(9) as usize } else { few }
}

/// A node or a request, by its index in its list.
pub(super) type Id = usize;

/// Returns the node's id in the protocols.
pub(super) const fn peer(node: Id) -> NodeId {
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
    fn converges_within(&self) -> Duration;
    /// Creates the process of a node.
    fn machine(&self, me: Id, epoch: u64) -> Self::Machine;
    /// Returns the target of a client's request.
    fn target(&self, chance: &mut Chance) -> u64;
    /// Schedules the world's first events.
    fn begin(_: &mut Ground<'_, Self>) {}
    /// Returns the node that handles an event; the event waits while that node is paused.
    fn place(ground: &Ground<'_, Self>, event: &Self::Event) -> Option<Id>;
    /// Handles an event of this world.
    fn happen(ground: &mut Ground<'_, Self>, event: Self::Event) -> Result<(), Violation>;
    /// Handles a client's request at its initial node; the request is at [`RequestStage::Waits`].
    fn asked(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation>;
    /// Handles a forwarded request at its service node. `there` is false if the node's process at the time of
    /// forwarding is gone.
    fn forwarded(ground: &mut Ground<'_, Self>, request: Id, to: Id, there: bool) -> Result<(), Violation>;
    /// Handles a broken connection to a service node, or the timeout of a reply.
    fn broken(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation>;
    /// Handles a change of a node's view of another node: present or gone.
    fn takes(ground: &mut Ground<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation>;
    /// Returns the downtime of a node that crashes now.
    fn away(ground: &mut Ground<'_, Self>, _: Id) -> Duration {
        ground.chance.micros(10_000, 5_000_000)
    }
    /// Handles the effects of a node's crash.
    fn dies(ground: &mut Ground<'_, Self>, node: Id) {
        ground.cut(node);
    }
    /// Handles the restart of a node.
    fn starts(_: &mut Ground<'_, Self>, _: Id) {}
    /// Handles a message that a node receives.
    fn hear(ground: &mut Ground<'_, Self>, to: Id, from: Id, message: Self::Message)
    -> Result<(), Violation>;
    /// Returns the latest time of the node's next tick.
    fn due(ground: &Ground<'_, Self>, node: Id) -> Time;
    /// Handles a tick of a node.
    fn tick(ground: &mut Ground<'_, Self>, node: Id) -> Result<(), Violation>;
    /// Returns the first condition that does not hold, after every request has ended and every node sees
    /// every other; `None` if all hold.
    fn doubt(ground: &mut Ground<'_, Self>) -> Option<String>;
}

/// An event of the simulation.
pub(super) enum Happening<W: World> {
    Own(W::Event),
    Client,
    Hear {
        to: Id,
        from: Id,
        message: W::Message,
    },
    /// A forwarded request reaches its service node.
    Forwarded {
        request: Id,
    },
    /// The connection to a service node has broken, or its reply has timed out.
    Broken {
        request: Id,
    },
    Tick {
        node: Id,
        epoch: u64,
    },
    /// A node checks whether another node is present.
    Sight {
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
    Part,
    Heal,
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
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
    pub(super) stage: Stage,
    forwards: u32,
}

/// A node of a world.
pub(super) struct Standing<W: World> {
    pub(super) machine: W::Machine,
    /// The number of the node's current life.
    pub(super) epoch: u64,
    pub(super) up: bool,
    paused: bool,
    /// Events for the node that occurred while it was paused.
    backlog: Vec<Happening<W>>,
    /// The nodes that this node takes for present.
    pub(super) sees: Vec<bool>,
    tick_at: Time,
}

/// The simulation of a world.
pub(super) struct Ground<'t, W: World> {
    pub(super) own: W,
    pub(super) chance: Chance,
    pub(super) now: Time,
    pub(super) nodes: Vec<Standing<W>>,
    pub(super) requests: Vec<Request>,
    pub(super) broken: Option<Broken>,
    pub(super) delay_us: u64,
    pub(super) survived: Survived,
    seed: u64,
    seq: u64,
    queue: BTreeMap<(Time, u64), Happening<W>>,
    loss_permille: u64,
    /// The side of each node, while the network is partitioned.
    part: Option<Vec<bool>>,
    pub(super) trouble: bool,
    tell: Option<&'t mut dyn FnMut(String)>,
}

impl<'t, W: World> Ground<'t, W> {
    /// Creates a simulation of 2 to 15 nodes. `draw` creates the world for this number of nodes.
    pub(super) fn new(
        seed: u64,
        broken: Option<Broken>,
        tell: Option<&'t mut dyn FnMut(String)>,
        draw: impl FnOnce(&mut Chance, usize) -> W,
    ) -> Self {
        let mut chance = Chance::new(seed);
        let count = size(seed, &mut chance);
        let own = draw(&mut chance, count);
        let mut ground = Self {
            nodes: (0..count).map(|me| Standing::new(own.machine(me, 1), 1, count)).collect(),
            own,
            now: Time::ZERO,
            requests: Vec::new(),
            broken,
            survived: Survived { nodes: count as u64, ..Survived::default() },
            seed,
            seq: 0,
            queue: BTreeMap::new(),
            loss_permille: chance.below(4) * 60,
            delay_us: 10_u64.pow(1 + chance.below(5) as u32),
            part: None,
            trouble: true,
            tell,
            chance,
        };
        ground.begin();
        ground
    }

    fn begin(&mut self) {
        let count = self.nodes.len();
        for by in 0..count {
            self.plan_tick(by);
            for of in (0..count).filter(|of| *of != by) {
                let wait = self.chance.micros(0, 2_000_000);
                self.after(wait, Happening::Sight { of, by, again: true });
            }
        }
        self.after(Duration::ZERO, Happening::Client);
        self.plan_troubles();
        W::begin(self);
    }

    /// Runs until all conditions hold after the last fault.
    pub(super) fn run(mut self) -> Result<Survived, Violation> {
        let (mut quiet_since, mut look_at) = (Time::ZERO, Time::MAX);
        loop {
            let next = self.queue.first_key_value().map_or(Time::MAX, |((at, _), _)| *at);
            if next > look_at {
                self.now = look_at;
                let Some(doubt) = self.doubt() else {
                    self.survived.converged_ms = (self.now - quiet_since).as_millis() as u64;
                    return Ok(self.survived);
                };
                if self.now - quiet_since >= self.own.converges_within() {
                    return Err(self.violation(doubt));
                }
                look_at += LOOK;
                continue;
            }
            let Some(((at, _), happening)) = self.queue.pop_first() else {
                return Err(self.violation("nothing is left to happen".to_owned()));
            };
            self.now = at;
            self.happen(happening)?;
            if self.trouble && self.now >= Time::ZERO + TROUBLE && self.all_is_well() {
                self.trouble = false;
                quiet_since = self.now;
                look_at = self.now + LOOK;
                self.say(|| "no more troubles".to_owned());
            }
        }
    }

    /// Returns the first condition that does not hold; `None` if all hold.
    fn doubt(&mut self) -> Option<String> {
        if let Some(request) = self.requests.iter().position(|request| request.stage != Stage::Ended) {
            return Some(format!("request {request} has not ended: {:?}", self.requests[request]));
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if let Some(unseen) = (0..self.nodes.len()).find(|of| *of != at && !node.sees[*of]) {
                return Some(format!("node {at} does not see {unseen}"));
            }
        }
        W::doubt(self)
    }

    pub(super) fn violation(&self, what: String) -> Violation {
        Violation { seed: self.seed, at_ms: self.now.as_nanos() / 1_000_000, what }
    }

    pub(super) fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(tell) = &mut self.tell {
            tell(format!("{:>9.3} ms  {}", self.now.as_nanos() as f64 / 1e6, line()));
        }
    }

    pub(super) fn after(&mut self, wait: Duration, happening: Happening<W>) {
        self.seq += 1;
        self.queue.insert((self.now + wait, self.seq), happening);
    }

    /// Returns the node that handles an event, if it is a single node.
    fn place(&self, happening: &Happening<W>) -> Option<Id> {
        match happening {
            Happening::Own(event) => W::place(self, event),
            Happening::Hear { to, .. } => Some(*to),
            Happening::Tick { node, .. } => Some(*node),
            Happening::Broken { request } => Some(self.requests[*request].initial),
            Happening::Forwarded { request } => match self.requests[*request].stage {
                Stage::Sent { to, .. } => Some(to),
                _ => None,
            },
            Happening::Sight { by, .. } => Some(*by),
            _ => None,
        }
    }

    fn happen(&mut self, happening: Happening<W>) -> Result<(), Violation> {
        if let Some(node) = self.place(&happening).filter(|node| self.nodes[*node].paused) {
            self.nodes[node].backlog.push(happening);
            return Ok(());
        }
        match happening {
            Happening::Own(event) => W::happen(self, event)?,
            Happening::Client => self.client()?,
            Happening::Hear { to, from, message } => self.hear(to, from, message)?,
            Happening::Forwarded { request } => self.forwarded(request)?,
            Happening::Broken { request } => W::broken(self, request)?,
            Happening::Tick { node, epoch } => self.tick(node, epoch)?,
            Happening::Sight { of, by, again } => self.sight(of, by, again)?,
            Happening::Crash => self.crash(),
            Happening::Start { node } => self.start(node),
            Happening::Pause => self.pause(),
            Happening::Resume { node } => self.resume(node)?,
            Happening::Part => self.fall_apart(),
            Happening::Heal => self.heal(),
        }
        Ok(())
    }

    // -- requests

    fn client(&mut self) -> Result<(), Violation> {
        if !self.trouble {
            return Ok(());
        }
        let wait = self.chance.micros(100, 20_000);
        self.after(wait, Happening::Client);
        let initial = self.chance.below(self.nodes.len() as u64) as Id;
        if !self.nodes[initial].runs() {
            return Ok(());
        }
        let target = self.own.target(&mut self.chance);
        self.requests.push(Request { initial, target, stage: Stage::Waits, forwards: 0 });
        self.survived.requests += 1;
        W::asked(self, self.requests.len() - 1)
    }

    /// Marks a request as forwarded. A request is forwarded at most once.
    pub(super) fn sent(&mut self, request: Id, to: Id) -> Result<(), Violation> {
        self.requests[request].forwards += 1;
        self.survived.forwarded += 1;
        if self.requests[request].forwards > 1 {
            return Err(self.violation(format!("request {request} is forwarded twice")));
        }
        self.requests[request].stage = Stage::Sent { to, epoch: self.nodes[to].epoch };
        Ok(())
    }

    fn forwarded(&mut self, request: Id) -> Result<(), Violation> {
        let Stage::Sent { to, epoch } = self.requests[request].stage else { return Ok(()) };
        W::forwarded(self, request, to, self.lives(to, epoch))
    }

    /// Ends a request at its initial node. A request ends only once.
    pub(super) fn ended(&mut self, request: Id) -> Result<(), Violation> {
        if self.requests[request].stage == Stage::Ended {
            return Err(self.violation(format!("request {request} ends twice")));
        }
        self.requests[request].stage = Stage::Ended;
        Ok(())
    }

    // -- the network

    /// Returns whether a node is up and in this life.
    pub(super) fn lives(&self, node: Id, epoch: u64) -> bool {
        self.nodes[node].up && self.nodes[node].epoch == epoch
    }

    /// Returns whether packets pass between two nodes.
    fn connected(&self, a: Id, b: Id) -> bool {
        self.nodes[a].up && self.nodes[b].up && self.way(a, b)
    }

    /// Returns whether there is a path between the hosts of two nodes.
    pub(super) fn way(&self, a: Id, b: Id) -> bool {
        self.part.as_ref().is_none_or(|part| part[a] == part[b])
    }

    /// Returns whether one node answers the other.
    pub(super) fn reach(&self, a: Id, b: Id) -> bool {
        self.connected(a, b) && !self.nodes[a].paused && !self.nodes[b].paused
    }

    /// Sends a message to a node over the unreliable network.
    pub(super) fn post(&mut self, from: Id, to: Id, message: &W::Message) {
        let copies = if self.trouble && self.chance.permille(self.loss_permille / 4) { 2 } else { 1 };
        for _ in 0..copies {
            if !self.connected(from, to) || (self.trouble && self.chance.permille(self.loss_permille)) {
                self.survived.lost += 1;
                continue;
            }
            let wait = self.chance.micros(10, self.delay_us + 10);
            self.after(wait, Happening::Hear { to, from, message: message.clone() });
        }
    }

    /// Sends a message to all nodes that a node sees.
    pub(super) fn post_all(&mut self, from: Id, message: &W::Message) {
        for to in 0..self.nodes.len() {
            if self.nodes[from].sees[to] {
                self.post(from, to, message);
            }
        }
    }

    fn hear(&mut self, to: Id, from: Id, message: W::Message) -> Result<(), Violation> {
        if !self.nodes[to].up {
            self.survived.lost += 1;
            return Ok(());
        }
        self.survived.heard += 1;
        self.say(|| format!("{from} to {to}: {message:?}"));
        W::hear(self, to, from, message)
    }

    // -- ticks

    /// Schedules the node's next tick. Called after each input to the node's state machine.
    pub(super) fn plan_tick(&mut self, node: Id) {
        let due = W::due(self, node).max(self.now);
        if due < self.nodes[node].tick_at {
            self.nodes[node].tick_at = due;
            let epoch = self.nodes[node].epoch;
            self.after(due - self.now, Happening::Tick { node, epoch });
        }
    }

    fn tick(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        if !self.lives(node, epoch) || self.nodes[node].tick_at > self.now {
            return Ok(());
        }
        self.nodes[node].tick_at = Time::MAX;
        W::tick(self, node)
    }
}

impl<W: World> Standing<W> {
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

    pub(super) fn runs(&self) -> bool {
        self.up && !self.paused
    }
}
