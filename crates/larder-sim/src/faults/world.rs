//! One world: nodes, clients, a bad network, and the record of what must hold.

mod troubles;

use super::chance::Chance;
use super::{Broken, CONVERGES_WITHIN, Survived, Violation};
use core::time::Duration;
use larder_core::cache::{ByteCache, CacheKind};
use larder_core::peers::{Message, Outgoing, Press, PressSettings, SharingSettings, To, Verdict};
use larder_core::{Bytes, NodeId, TargetId, Time};
use std::collections::BTreeMap;

/// Time in which things go wrong.
const TROUBLE: Duration = Duration::from_secs(20);
/// How long an initial node waits for the head of a forwarded reply, and for the rest of one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at whether all views are exact.
const LOOK: Duration = Duration::from_millis(100);
const OBJECT_MAX: u64 = 100;

type Id = usize;

#[derive(Debug)]
enum Event {
    Client,
    Hear {
        to: Id,
        from: Id,
        message: Message,
    },
    /// A forwarded request reaches its service node.
    Forwarded {
        request: Id,
    },
    /// A node has what a request asks for: in memory, or read.
    Ready {
        request: Id,
        node: Id,
        epoch: u64,
        missed: bool,
    },
    /// The reply's head, and its end, reach the initial node.
    Head {
        request: Id,
        kept: bool,
    },
    End {
        request: Id,
    },
    /// A node has sent the last byte, or has nobody to send it to.
    Released {
        node: Id,
        epoch: u64,
    },
    /// The connection to a service node has broken, or it takes too long.
    Broken {
        request: Id,
    },
    Tick {
        node: Id,
        epoch: u64,
    },
    /// A node looks whether another is there.
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
    /// At its initial node.
    Here,
    /// Forwarded; no byte of the reply has come.
    Sent {
        to: Id,
        epoch: u64,
    },
    /// A part of the reply was sent to the client.
    Begun {
        to: Id,
        epoch: u64,
    },
    Ended,
}

#[derive(Debug)]
struct Request {
    initial: Id,
    epoch: u64,
    target: TargetId,
    stage: Stage,
    forwards: u32,
}

#[derive(Debug)]
struct Node {
    press: Press,
    epoch: u64,
    memory: ByteCache<u64>,
    up: bool,
    paused: bool,
    /// What happened to it while it stood still.
    backlog: Vec<Event>,
    /// Whom it takes for present.
    sees: Vec<bool>,
    /// What it should count as its load.
    under_way: u32,
    tick_at: Time,
}

/// The world.
pub(super) struct World<'t> {
    seed: u64,
    chance: Chance,
    now: Time,
    seq: u64,
    queue: BTreeMap<(Time, u64), Event>,
    nodes: Vec<Node>,
    requests: Vec<Request>,
    sizes: Vec<u64>,
    settings: PressSettings,
    says_sizes: bool,
    broken: Option<Broken>,
    loss_permille: u64,
    delay_us: u64,
    /// The nodes of one part, while the network has two.
    part: Option<Vec<bool>>,
    trouble: bool,
    survived: Survived,
    tell: Option<&'t mut dyn FnMut(String)>,
}

impl<'t> World<'t> {
    pub(super) fn new(seed: u64, broken: Option<Broken>, tell: Option<&'t mut dyn FnMut(String)>) -> Self {
        let mut chance = Chance::new(seed);
        let count = 2 + chance.below(5) as usize;
        let targets = 20 + chance.below(300);
        let sizes = (0..targets).map(|_| if chance.permille(30) { OBJECT_MAX } else { 1 + chance.below(20) });
        let sizes: Vec<u64> = sizes.collect();
        let memory = Bytes(50 + chance.below(sizes.iter().sum::<u64>() / 2));
        let sharing = match chance.below(3) {
            0 => SharingSettings { on_permille: 50, off_permille: 25, window: 50 },
            1 => SharingSettings { on_permille: 400, off_permille: 300, window: 20 },
            _ => SharingSettings { on_permille: 0, off_permille: 0, window: 100 },
        };
        let settings = PressSettings {
            overload: 2 + chance.below(10) as u32,
            large_min: Bytes(OBJECT_MAX),
            load_step: 1 + chance.below(4) as u32,
            gather: chance.micros(0, 1).saturating_mul(20_000),
            assumed_for: Duration::from_secs(2),
            targets_max: if chance.permille(250) { 16 } else { 10_000 },
            log_max: if chance.permille(500) { 64 } else { 8_192 },
            memory,
            sharing,
            ..PressSettings::default()
        };
        let node = |me: usize| Node {
            press: Press::new(NodeId(me as u16), 1, settings),
            epoch: 1,
            memory: ByteCache::new(CacheKind::Lru, memory, Bytes(OBJECT_MAX - 1)),
            up: true,
            paused: false,
            backlog: Vec::new(),
            sees: vec![false; count],
            under_way: 0,
            tick_at: Time::MAX,
        };
        let mut world = Self {
            seed,
            now: Time::ZERO,
            seq: 0,
            queue: BTreeMap::new(),
            nodes: (0..count).map(node).collect(),
            requests: Vec::new(),
            sizes,
            settings,
            says_sizes: chance.permille(500),
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
                let doubt = self.doubt();
                if doubt.is_none() {
                    self.survived.converged_ms = (self.now - since).as_millis() as u64;
                    return Ok(self.survived);
                }
                if self.now - since >= CONVERGES_WITHIN {
                    return Err(self.violation(doubt.unwrap_or_default()));
                }
                look_at += LOOK;
                continue;
            }
            let Some(((at, _), event)) = self.queue.pop_first() else {
                return Err(self.violation("nothing is left to happen".to_owned()));
            };
            self.now = at;
            self.happen(event)?;
            if self.trouble && self.now >= Time::ZERO + TROUBLE && self.all_is_well() {
                self.trouble = false;
                quiet_since = Some(self.now);
                look_at = self.now + LOOK;
                self.say(|| "no more troubles".to_owned());
            }
        }
    }

    fn all_is_well(&self) -> bool {
        self.part.is_none() && self.nodes.iter().all(|node| node.up && !node.paused)
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
            Event::Ready { node, .. } | Event::Released { node, .. } | Event::Tick { node, .. } => {
                Some(*node)
            }
            Event::Head { request, .. } | Event::End { request } | Event::Broken { request } => {
                Some(self.requests[*request].initial)
            }
            Event::Forwarded { request } => match self.requests[*request].stage {
                Stage::Sent { to, .. } => Some(to),
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
            Event::Hear { to, from, message } => self.hear(to, from, message),
            Event::Forwarded { request } => self.forwarded(request)?,
            Event::Ready { request, node, epoch, missed } => self.ready(request, (node, epoch), missed)?,
            Event::Head { request, kept } => self.head(request, kept),
            Event::End { request } => self.end(request)?,
            Event::Released { .. } if self.broken == Some(Broken::ForgetsEnds) => {}
            Event::Released { node, epoch } => self.release(node, epoch)?,
            Event::Broken { request } => self.broken(request)?,
            Event::Tick { node, epoch } => self.tick(node, epoch),
            Event::Sight { of, by, again } => self.sight(of, by, again),
            Event::Crash => self.crash(),
            Event::Start { node } => self.start(node),
            Event::Pause => self.pause(),
            Event::Resume { node, epoch } => self.resume(node, epoch)?,
            Event::Part => self.fall_apart(),
            Event::Heal => self.heal(),
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
        // Some are asked for far more often than others.
        let most = self.sizes.len() as u64;
        let rank = self.chance.below(most).min(self.chance.below(most)).min(self.chance.below(most));
        let target = TargetId(rank);
        let epoch = self.nodes[initial].epoch;
        let request = self.requests.len();
        self.requests.push(Request { initial, epoch, target, stage: Stage::Here, forwards: 0 });
        self.survived.requests += 1;
        let size = self.says_sizes.then(|| Bytes(self.sizes[rank as usize]));
        self.count(initial, true);
        let verdict = self.nodes[initial].press.decide(self.now, target, size);
        self.nodes_out(initial, |press, now, out| press.reading(now, verdict, target, out));
        self.go(request, initial, verdict)
    }

    /// A request goes where the node that has it decides, at every node anew.
    fn go(&mut self, request: Id, at: Id, verdict: Verdict) -> Result<(), Violation> {
        self.say(|| format!("request {request} at {at}: {verdict:?}"));
        if verdict.node.index() == at {
            self.serve(request, at);
            return Ok(());
        }
        self.forward(request, verdict.node.index())
    }

    fn forward(&mut self, request: Id, to: Id) -> Result<(), Violation> {
        let (initial, epoch) = (self.requests[request].initial, self.nodes[to].epoch);
        self.requests[request].forwards += 1;
        self.survived.forwarded += 1;
        if self.requests[request].forwards > 1 {
            return Err(self.violation(format!("request {request} is forwarded twice")));
        }
        self.requests[request].stage = Stage::Sent { to, epoch };
        let wait = self.chance.micros(10, self.delay_us + 10);
        if self.reach(initial, to) {
            self.after(wait, Event::Forwarded { request });
            self.after(PATIENCE, Event::Broken { request });
        } else {
            // Refused at once where the host is there, after a while where it is not.
            let wait = if self.chance.permille(500) { wait } else { PATIENCE };
            self.after(wait, Event::Broken { request });
        }
        Ok(())
    }

    fn forwarded(&mut self, request: Id) -> Result<(), Violation> {
        let Request { target, stage: Stage::Sent { to, epoch }, .. } = self.requests[request] else {
            return Ok(());
        };
        if !self.nodes[to].up || self.nodes[to].epoch != epoch {
            let wait = self.chance.micros(10, self.delay_us + 10);
            self.after(wait, Event::Broken { request });
            return Ok(());
        }
        self.count(to, true);
        let size = self.says_sizes.then(|| Bytes(self.sizes[target.0 as usize]));
        let press = &mut self.nodes[to].press;
        let verdict = match self.broken {
            Some(Broken::ForwardsAgain) => press.decide(self.now, target, size),
            _ => press.forwarded(target, size),
        };
        self.go(request, to, verdict)
    }

    /// A node looks for what is asked for, and reads it if it is not in memory.
    fn serve(&mut self, request: Id, node: Id) {
        let target = self.requests[request].target;
        let missed = !self.nodes[node].memory.touch(&target.0);
        let epoch = self.nodes[node].epoch;
        let wait = if missed { self.chance.micros(1_000, 50_000) } else { self.chance.micros(10, 2_000) };
        self.after(wait, Event::Ready { request, node, epoch, missed });
    }

    fn ready(&mut self, request: Id, (node, epoch): (Id, u64), missed: bool) -> Result<(), Violation> {
        if self.nodes[node].epoch != epoch {
            return Ok(());
        }
        let Request { initial, target, .. } = self.requests[request];
        let size = Bytes(self.sizes[target.0 as usize]);
        if missed {
            self.keep(node, target, size);
        }
        if node == initial {
            // The client's connection takes the rest.
            let twice = self.broken == Some(Broken::EndsTwice);
            if self.requests[request].stage == Stage::Here || twice {
                self.nodes_out(node, |press, now, out| press.served(now, target, size, missed, out));
                self.settle(request)?;
            }
            return Ok(());
        }
        let (head, rest) = (self.chance.micros(10, self.delay_us + 10), self.chance.micros(100, 30_000));
        let kept = self.nodes[node].memory.contains(&target.0);
        if self.reach(node, initial) {
            self.after(head, Event::Head { request, kept });
            self.after(head + rest, Event::End { request });
        }
        self.after(rest, Event::Released { node, epoch });
        Ok(())
    }

    fn keep(&mut self, node: Id, target: TargetId, size: Bytes) {
        let mut evicted = Vec::new();
        let memory = &mut self.nodes[node].memory;
        memory.insert(target.0, size, &mut evicted);
        let kept = memory.contains(&target.0);
        self.nodes_out(node, |press, now, out| {
            evicted.iter().for_each(|(gone, _)| press.noted(now, TargetId(*gone), false, out));
            if kept {
                press.noted(now, target, true, out);
            }
        });
    }

    fn head(&mut self, request: Id, kept: bool) {
        let Request { initial, target, stage: Stage::Sent { to, epoch }, .. } = self.requests[request] else {
            return;
        };
        if !self.reach(to, initial) || self.nodes[to].epoch != epoch {
            return;
        }
        self.requests[request].stage = Stage::Begun { to, epoch };
        self.nodes[initial].press.answered(NodeId(to as u16));
        if !kept {
            self.nodes[initial].press.not_kept(NodeId(to as u16), target);
        }
        self.after(PATIENCE, Event::Broken { request });
    }

    fn end(&mut self, request: Id) -> Result<(), Violation> {
        let Request { initial, target, stage: Stage::Begun { to, epoch }, .. } = self.requests[request]
        else {
            return Ok(());
        };
        if !self.reach(to, initial) || self.nodes[to].epoch != epoch {
            return Ok(());
        }
        let size = Bytes(self.sizes[target.0 as usize]);
        self.nodes_out(initial, |press, now, out| press.served(now, target, size, false, out));
        self.settle(request)
    }

    /// The service node is not there, or takes too long. What was not begun the initial node serves itself.
    fn broken(&mut self, request: Id) -> Result<(), Violation> {
        let Request { initial, target, stage, .. } = self.requests[request];
        match stage {
            Stage::Sent { to, .. } => {
                self.nodes[initial].press.unanswered(self.now, NodeId(to as u16), target, true);
                self.nodes[initial].press.returned(NodeId(to as u16));
                self.survived.taken_back += 1;
                match self.broken {
                    Some(Broken::ForgetsRequests) => return Ok(()),
                    Some(Broken::EndsTwice) => self.settle(request)?,
                    _ => self.requests[request].stage = Stage::Here,
                }
                self.serve(request, initial);
            }
            Stage::Begun { .. } => {
                self.survived.aborted += 1;
                self.say(|| format!("request {request} is aborted"));
                self.settle(request)?;
            }
            Stage::Here | Stage::Ended => {}
        }
        Ok(())
    }

    /// A request ends at its initial node, once.
    fn settle(&mut self, request: Id) -> Result<(), Violation> {
        let Request { initial, epoch, stage, .. } = self.requests[request];
        if stage == Stage::Ended {
            return Err(self.violation(format!("request {request} ends twice")));
        }
        if let Stage::Begun { to, .. } = stage {
            self.nodes[initial].press.returned(NodeId(to as u16));
        }
        self.requests[request].stage = Stage::Ended;
        self.release(initial, epoch)
    }

    fn release(&mut self, node: Id, epoch: u64) -> Result<(), Violation> {
        if self.nodes[node].epoch != epoch {
            return Ok(());
        }
        if self.nodes[node].under_way == 0 {
            return Err(self.violation(format!("node {node} ends what it has not begun")));
        }
        self.count(node, false);
        Ok(())
    }

    fn count(&mut self, node: Id, begins: bool) {
        let under_way = &mut self.nodes[node].under_way;
        *under_way = if begins { *under_way + 1 } else { *under_way - 1 };
        self.nodes_out(
            node,
            |press, now, out| if begins { press.begun(now, out) } else { press.ended(now, out) },
        );
    }

    // -- messages

    fn nodes_out(&mut self, node: Id, act: impl FnOnce(&mut Press, Time, &mut Vec<Outgoing>)) {
        let mut out = Vec::new();
        act(&mut self.nodes[node].press, self.now, &mut out);
        let asks = |message: &Message| matches!(message, Message::Ask { .. } | Message::AskList { .. });
        let mute = self.broken == Some(Broken::NeverAsks);
        for Outgoing { to, message } in out.into_iter().filter(|out| !(mute && asks(&out.message))) {
            // As they travel.
            let message = Message::decode(&message.encode()).expect("what is sent can be read");
            let all = 0..self.nodes.len();
            let to: Vec<Id> = match to {
                To::All => all.filter(|to| self.nodes[node].sees[*to]).collect(),
                To::One(to) => vec![to.index()],
            };
            to.into_iter().for_each(|to| self.post(node, to, &message));
        }
        self.plan_tick(node);
    }

    fn post(&mut self, from: Id, to: Id, message: &Message) {
        let copies = if self.trouble && self.chance.permille(self.loss_permille / 4) { 2 } else { 1 };
        for _ in 0..copies {
            if !self.connected(from, to) || (self.trouble && self.chance.permille(self.loss_permille)) {
                self.survived.lost += 1;
                continue;
            }
            let wait = self.chance.micros(10, self.delay_us + 10);
            self.after(wait, Event::Hear { to, from, message: message.clone() });
        }
    }

    fn hear(&mut self, to: Id, from: Id, message: Message) {
        if !self.nodes[to].up {
            self.survived.lost += 1;
            return;
        }
        self.survived.heard += 1;
        self.say(|| format!("{from} to {to}: {message:?}"));
        self.nodes_out(to, |press, now, out| press.hear(now, NodeId(from as u16), message, out));
    }

    fn plan_tick(&mut self, node: Id) {
        let due = self.nodes[node].press.due().max(self.now);
        if due < self.nodes[node].tick_at {
            self.nodes[node].tick_at = due;
            let epoch = self.nodes[node].epoch;
            self.after(due - self.now, Event::Tick { node, epoch });
        }
    }

    fn tick(&mut self, node: Id, epoch: u64) {
        if self.nodes[node].up && self.nodes[node].epoch == epoch && self.nodes[node].tick_at <= self.now {
            self.nodes[node].tick_at = Time::MAX;
            self.nodes_out(node, Press::tick);
        }
    }
}
