//! One world of nodes that are told where requests are served: by a dispatcher, CARD, or by a routing table, WARD.
//!
//! The troubles are those of the worlds of PRESS; memories and their contents play no part.

mod machine;

use super::chance::Chance;
use super::{Broken, Protocol, Survived, Violation};
use core::time::Duration;
use larder_core::{NodeId, Time};
use machine::{Done, Machine, Said, Token};
use std::collections::BTreeMap;

/// Time in which things go wrong.
const TROUBLE: Duration = Duration::from_secs(20);
/// How long an initial node waits for a forwarded reply.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at whether all is as it must be.
const LOOK: Duration = Duration::from_millis(100);

/// Marks the number of a request that its service node has asked about, where [`Broken::ForwardsAgain`].
const AGAIN: u64 = 1 << 63;

type Id = usize;

#[derive(Debug)]
enum Event {
    Client,
    Hear {
        to: Id,
        from: Id,
        said: Said,
    },
    Forwarded {
        request: Id,
    },
    /// A node has served a request that it got itself.
    Served {
        request: Id,
        epoch: u64,
    },
    /// The reply of a service node arrives.
    Reply {
        request: Id,
    },
    /// A service node does not answer.
    Broken {
        request: Id,
    },
    Tick {
        node: Id,
        epoch: u64,
    },
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
        epoch: u64,
    },
    Part,
    Heal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is not known yet where it is served.
    Waits,
    /// At its initial node.
    Here,
    /// Forwarded to a node, in this life of it.
    Sent(Id, u64),
    Ended,
}

#[derive(Debug)]
struct Request {
    initial: Id,
    target: u64,
    stage: Stage,
    token: Option<Token>,
    forwards: u32,
}

#[derive(Debug)]
struct Node {
    machine: Machine,
    epoch: u64,
    up: bool,
    paused: bool,
    backlog: Vec<Event>,
    sees: Vec<bool>,
    tick_at: Time,
}

/// The world.
pub(super) struct World<'t> {
    seed: u64,
    protocol: Protocol,
    chance: Chance,
    now: Time,
    seq: u64,
    queue: BTreeMap<(Time, u64), Event>,
    nodes: Vec<Node>,
    names: Vec<String>,
    requests: Vec<Request>,
    targets: u64,
    broken: Option<Broken>,
    loss_permille: u64,
    delay_us: u64,
    part: Option<Vec<bool>>,
    trouble: bool,
    survived: Survived,
    tell: Option<&'t mut dyn FnMut(String)>,
}

impl<'t> World<'t> {
    pub(super) fn new(
        protocol: Protocol,
        seed: u64,
        broken: Option<Broken>,
        tell: Option<&'t mut dyn FnMut(String)>,
    ) -> Self {
        let mut chance = Chance::new(seed);
        let count = 2 + chance.below(5) as usize;
        // Slots are not in the order of names.
        let turn = chance.below(count as u64) as usize;
        let names: Vec<String> = (0..count).map(|node| format!("n{}", (node + turn) % count)).collect();
        let node = |me: usize| Node {
            machine: Machine::new(protocol, me, &names[me], 1),
            epoch: 1,
            up: true,
            paused: false,
            backlog: Vec::new(),
            sees: vec![false; count],
            tick_at: Time::MAX,
        };
        let mut world = Self {
            seed,
            protocol,
            now: Time::ZERO,
            seq: 0,
            queue: BTreeMap::new(),
            nodes: (0..count).map(node).collect(),
            names,
            requests: Vec::new(),
            targets: 20 + chance.below(300),
            broken,
            loss_permille: chance.below(4) * 60,
            delay_us: 10_u64.pow(1 + chance.below(5) as u32),
            part: None,
            trouble: true,
            survived: Survived { nodes: count as u64, ..Survived::default() },
            tell,
            chance,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let count = self.nodes.len();
        for by in 0..count {
            self.plan_tick(by);
            for of in (0..count).filter(|of| *of != by) {
                let wait = self.chance.micros(0, 2_000_000);
                self.after(wait, Event::Sight { of, by, again: true });
            }
        }
        self.after(Duration::ZERO, Event::Client);
        let troubles: [fn() -> Event; 3] = [|| Event::Crash, || Event::Pause, || Event::Part];
        for make in troubles {
            for _ in 0..self.chance.below(4) {
                let wait = self.chance.micros(0, TROUBLE.as_micros() as u64);
                self.after(wait, make());
            }
        }
    }

    pub(super) fn run(mut self) -> Result<Survived, Violation> {
        let mut quiet_since = None;
        let mut look_at = Time::MAX;
        loop {
            let next = self.queue.first_key_value().map_or(Time::MAX, |((at, _), _)| *at);
            if next > look_at {
                self.now = look_at;
                let since = quiet_since.unwrap_or(self.now);
                let Some(doubt) = self.doubt() else {
                    self.survived.converged_ms = (self.now - since).as_millis() as u64;
                    return Ok(self.survived);
                };
                if self.now - since >= self.protocol.converges_within() {
                    return Err(self.violation(doubt));
                }
                look_at += LOOK;
                continue;
            }
            let Some(((at, _), event)) = self.queue.pop_first() else {
                return Err(self.violation("nothing is left to happen".to_owned()));
            };
            self.now = at;
            self.happen(event)?;
            let well = self.part.is_none() && self.nodes.iter().all(|node| node.up && !node.paused);
            if self.trouble && self.now >= Time::ZERO + TROUBLE && well {
                self.trouble = false;
                quiet_since = Some(self.now);
                look_at = self.now + LOOK;
                self.say(|| "no more troubles".to_owned());
            }
        }
    }

    fn violation(&self, what: String) -> Violation {
        Violation { seed: self.seed, at_ms: self.now.as_nanos() / 1_000_000, what }
    }

    fn say(&mut self, line: impl FnOnce() -> String) {
        if let Some(tell) = &mut self.tell {
            tell(format!("{:>9.3} ms  {}", self.now.as_nanos() as f64 / 1e6, line()));
        }
    }

    fn after(&mut self, wait: Duration, event: Event) {
        self.seq += 1;
        self.queue.insert((self.now + wait, self.seq), event);
    }

    /// Who is concerned by an event, if only one node is.
    fn place(&self, event: &Event) -> Option<Id> {
        match event {
            Event::Hear { to, .. } => Some(*to),
            Event::Tick { node, .. } => Some(*node),
            Event::Served { request, .. } | Event::Reply { request } | Event::Broken { request } => {
                Some(self.requests[*request].initial)
            }
            Event::Forwarded { request } => match self.requests[*request].stage {
                Stage::Sent(to, _) => Some(to),
                _ => None,
            },
            Event::Sight { by, .. } => Some(*by),
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        if let Some(node) = self.place(&event).filter(|node| self.nodes[*node].paused) {
            self.nodes[node].backlog.push(event);
            return Ok(());
        }
        match event {
            Event::Client => self.client()?,
            Event::Hear { to, from, said } => self.hear(to, from, said)?,
            Event::Forwarded { request } => self.forwarded(request)?,
            Event::Served { request, epoch } => {
                let initial = self.requests[request].initial;
                if self.nodes[initial].epoch == epoch && self.requests[request].stage == Stage::Here {
                    self.settle(request)?;
                }
            }
            Event::Reply { request } => self.reply(request)?,
            Event::Broken { request } => self.broken(request)?,
            Event::Tick { node, epoch } => self.tick(node, epoch)?,
            Event::Sight { of, by, again } => self.sight(of, by, again)?,
            Event::Crash => self.crash(),
            Event::Start { node } => self.start(node),
            Event::Pause => self.pause(),
            Event::Resume { node, epoch } => self.resume(node, epoch)?,
            Event::Part => self.fall_apart(),
            Event::Heal => self.part = None,
        }
        Ok(())
    }

    // -- requests

    fn client(&mut self) -> Result<(), Violation> {
        if !self.trouble {
            return Ok(());
        }
        let wait = self.chance.micros(100, 20_000);
        self.after(wait, Event::Client);
        let initial = self.chance.below(self.nodes.len() as u64) as Id;
        if !self.nodes[initial].up || self.nodes[initial].paused {
            return Ok(());
        }
        // Some are asked for far more often.
        let (a, b) = (self.chance.below(self.targets), self.chance.below(self.targets));
        let target = a.min(b);
        let request = self.requests.len();
        self.requests.push(Request { initial, target, stage: Stage::Waits, token: None, forwards: 0 });
        self.survived.requests += 1;
        self.act(initial, |machine, now, done| machine.ask(now, request as u64, target, done))
    }

    /// It is known where a request is served.
    fn placed(&mut self, request: Id, node: Id, token: Option<Token>) -> Result<(), Violation> {
        let Request { initial, stage, .. } = self.requests[request];
        if stage != Stage::Waits {
            return Err(self.violation(format!("request {request} is placed twice: {stage:?}")));
        }
        self.requests[request].token = token;
        self.say(|| format!("request {request} of {initial} is placed at {node}: {token:?}"));
        if node == initial {
            self.serve_here(request);
            return Ok(());
        }
        self.forward(request, initial, node)
    }

    fn forward(&mut self, request: Id, from: Id, to: Id) -> Result<(), Violation> {
        self.requests[request].forwards += 1;
        if self.requests[request].forwards > 1 {
            return Err(self.violation(format!("request {request} is forwarded twice")));
        }
        self.survived.forwarded += 1;
        self.requests[request].stage = Stage::Sent(to, self.nodes[to].epoch);
        if self.reach(from, to) {
            let wait = self.chance.micros(10, self.delay_us + 10);
            self.after(wait, Event::Forwarded { request });
        }
        self.after(PATIENCE, Event::Broken { request });
        Ok(())
    }

    fn serve_here(&mut self, request: Id) {
        self.requests[request].stage = Stage::Here;
        let epoch = self.nodes[self.requests[request].initial].epoch;
        let wait = self.chance.micros(10, 50_000);
        self.after(wait, Event::Served { request, epoch });
    }

    fn forwarded(&mut self, request: Id) -> Result<(), Violation> {
        let Request { stage: Stage::Sent(to, epoch), target, .. } = self.requests[request] else {
            return Ok(());
        };
        if self.nodes[to].epoch != epoch || !self.nodes[to].up {
            return Ok(());
        }
        if self.broken == Some(Broken::ForwardsAgain) {
            // As if a client had asked; the answer may come later.
            let again = request as u64 | AGAIN;
            return self.act(to, |machine, now, done| machine.ask(now, again, target, done));
        }
        self.answer(request, to);
        Ok(())
    }

    /// A service node serves, and replies.
    fn answer(&mut self, request: Id, to: Id) {
        let initial = self.requests[request].initial;
        let wait = self.chance.micros(10, 60_000);
        if self.reach(to, initial) {
            self.after(wait, Event::Reply { request });
        }
    }

    fn reply(&mut self, request: Id) -> Result<(), Violation> {
        let Request { initial, stage: Stage::Sent(to, epoch), .. } = self.requests[request] else {
            return Ok(());
        };
        if !self.reach(to, initial) || self.nodes[to].epoch != epoch {
            return Ok(());
        }
        self.nodes[initial].machine.replied(NodeId(to as u16));
        self.settle(request)
    }

    /// A service node has not answered: its request is served here, and what a dispatcher counts for it ends.
    fn broken(&mut self, request: Id) -> Result<(), Violation> {
        let Request { initial, stage: Stage::Sent(to, _), .. } = self.requests[request] else {
            return Ok(());
        };
        self.survived.taken_back += 1;
        self.nodes[initial].machine.unanswered(self.now, NodeId(to as u16));
        match self.broken {
            Some(Broken::ForgetsRequests) => return Ok(()),
            Some(Broken::EndsTwice) => self.settle(request)?,
            _ => self.end_token(request),
        }
        if self.requests[request].stage == Stage::Ended {
            return self.settle(request);
        }
        self.serve_here(request);
        Ok(())
    }

    /// A request ends at its initial node, once.
    fn settle(&mut self, request: Id) -> Result<(), Violation> {
        if self.requests[request].stage == Stage::Ended {
            return Err(self.violation(format!("request {request} ends twice")));
        }
        self.requests[request].stage = Stage::Ended;
        self.end_token(request);
        Ok(())
    }

    fn end_token(&mut self, request: Id) {
        let Request { initial, .. } = self.requests[request];
        let Some(token) = self.requests[request].token.take() else { return };
        self.say(|| format!("request {request} ends: {token:?}"));
        if self.broken != Some(Broken::ForgetsEnds) {
            self.nodes[initial].machine.ended(self.now, token);
            self.plan_tick(initial);
        }
    }

    // -- messages

    fn act(
        &mut self,
        node: Id,
        act: impl FnOnce(&mut Machine, Time, &mut Vec<Done>),
    ) -> Result<(), Violation> {
        let mut done = Vec::new();
        act(&mut self.nodes[node].machine, self.now, &mut done);
        for done in done {
            match done {
                Done::Send { to, said } => self.post(node, to, &said),
                Done::Tell(said) => {
                    let peers: Vec<Id> =
                        (0..self.nodes.len()).filter(|to| self.nodes[node].sees[*to]).collect();
                    peers.into_iter().for_each(|to| self.post(node, to, &said));
                }
                Done::Placed { request, node: at, .. } if request & AGAIN != 0 => {
                    let request = (request & !AGAIN) as Id;
                    if at != node {
                        self.forward(request, node, at)?;
                    } else if matches!(self.requests[request].stage, Stage::Sent(to, _) if to == node) {
                        self.answer(request, node);
                    }
                }
                Done::Placed { request, node: at, token } => self.placed(request as Id, at, token)?,
            }
        }
        self.plan_tick(node);
        Ok(())
    }

    fn post(&mut self, from: Id, to: Id, said: &Said) {
        let copies = if self.trouble && self.chance.permille(self.loss_permille / 4) { 2 } else { 1 };
        for _ in 0..copies {
            if !self.connected(from, to) || (self.trouble && self.chance.permille(self.loss_permille)) {
                self.survived.lost += 1;
                continue;
            }
            let wait = self.chance.micros(10, self.delay_us + 10);
            self.after(wait, Event::Hear { to, from, said: said.travelled() });
        }
    }

    fn hear(&mut self, to: Id, from: Id, said: Said) -> Result<(), Violation> {
        if !self.nodes[to].up {
            self.survived.lost += 1;
            return Ok(());
        }
        self.survived.heard += 1;
        self.say(|| format!("{from} to {to}: {said:?}"));
        self.act(to, |machine, now, done| machine.hear(now, NodeId(from as u16), said, done))
    }

    fn plan_tick(&mut self, node: Id) {
        let due = self.nodes[node].machine.due();
        if due == Time::MAX || self.broken == Some(Broken::NeverAsks) {
            return;
        }
        let due = due.max(self.now);
        if due < self.nodes[node].tick_at {
            self.nodes[node].tick_at = due;
            let epoch = self.nodes[node].epoch;
            self.after(due - self.now, Event::Tick { node, epoch });
        }
    }

    fn tick(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        let Node { up, epoch: now, tick_at, .. } = self.nodes[node];
        if !up || now != epoch || tick_at > self.now {
            return Ok(());
        }
        self.nodes[node].tick_at = Time::MAX;
        self.act(node, Machine::tick)
    }
}

mod troubles;
