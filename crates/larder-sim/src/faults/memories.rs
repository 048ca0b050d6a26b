//! The world of PRESS: nodes that know each other's loads and memories.

use super::chance::Chance;
use super::ground::{Ground, Happening, Id, PATIENCE, Stage, World, peer};
use super::outcome::Violation;
use super::protocol::{Broken, Protocol};
use core::time::Duration;
use larder_core::cache::{ByteCache, CacheKind};
use larder_core::peers::{Message, Outgoing, Press, PressSettings, SharingSettings, To, Verdict};
use larder_core::{Bytes, NodeId, TargetId, Time};

const OBJECT_MAX: u64 = 100;

/// An event of this world.
#[derive(Debug)]
pub(super) enum Event {
    /// A node has the requested item, from memory or from disk.
    Ready {
        request: Id,
        node: Id,
        epoch: u64,
        missed: bool,
    },
    /// The reply's head, and its end, reach the initial node.
    Head {
        request: Id,
    },
    End {
        request: Id,
    },
    /// A node has sent the last byte, or has no node to send it to.
    Released {
        node: Id,
        epoch: u64,
    },
}

/// A node of PRESS with its memory.
#[derive(Debug)]
pub(super) struct Node {
    press: Press,
    memory: ByteCache<u64>,
    /// The node's actual load, for comparison with its count.
    under_way: u32,
}

/// The world of PRESS.
#[derive(Debug)]
pub(super) struct Memories {
    sizes: Vec<u64>,
    settings: PressSettings,
    says_sizes: bool,
}

impl Memories {
    pub(super) fn draw(chance: &mut Chance) -> Self {
        let targets = 20 + chance.below(300);
        let sizes = (0..targets).map(|_| if chance.permille(30) { OBJECT_MAX } else { 1 + chance.below(20) });
        let sizes: Vec<u64> = sizes.collect();
        let memory = Bytes(50 + chance.below(sizes.iter().sum::<u64>() / 2));
        let sharing = match chance.below(3) {
            0 => SharingSettings { on_permille: 50, off_permille: 25, off_windows: 1, window: 50 },
            1 => SharingSettings { on_permille: 400, off_permille: 300, off_windows: 2, window: 20 },
            _ => SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 100 },
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
        Self { sizes, settings, says_sizes: chance.permille(500) }
    }

    fn size(&self, target: TargetId) -> Bytes {
        Bytes(self.sizes[target.0 as usize])
    }

    /// Returns the size of a target, if nodes know sizes beforehand.
    fn said_size(&self, target: TargetId) -> Option<Bytes> {
        self.says_sizes.then(|| self.size(target))
    }
}

impl World for Memories {
    type Machine = Node;
    type Message = Message;
    type Event = Event;

    fn converges_within(&self) -> Duration {
        Protocol::Press.converges_within()
    }

    fn machine(&self, me: Id, epoch: u64) -> Node {
        Node {
            press: Press::new(peer(me), epoch, self.settings),
            memory: ByteCache::new(CacheKind::Lru, self.settings.memory, Bytes(OBJECT_MAX - 1)),
            under_way: 0,
        }
    }

    /// Returns a target; some targets are requested far more often than others.
    fn target(&self, chance: &mut Chance) -> u64 {
        let most = self.sizes.len() as u64;
        chance.below(most).min(chance.below(most)).min(chance.below(most))
    }

    fn place(ground: &Ground<'_, Self>, event: &Event) -> Option<Id> {
        match event {
            Event::Ready { node, .. } | Event::Released { node, .. } => Some(*node),
            Event::Head { request } | Event::End { request } => Some(ground.requests[*request].initial),
        }
    }

    fn happen(ground: &mut Ground<'_, Self>, event: Event) -> Result<(), Violation> {
        match event {
            Event::Ready { request, node, epoch, missed } if ground.lives(node, epoch) => {
                ground.ready(request, node, missed)
            }
            Event::Head { request } => {
                ground.head(request);
                Ok(())
            }
            Event::End { request } => ground.end(request),
            Event::Released { .. } if ground.broken == Some(Broken::ForgetsEnds) => Ok(()),
            Event::Released { node, epoch } if ground.lives(node, epoch) => ground.release(node),
            Event::Ready { .. } | Event::Released { .. } => Ok(()),
        }
    }

    fn asked(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation> {
        ground.requests[request].stage = Stage::Here;
        let (initial, target) = (ground.requests[request].initial, ground.target(request));
        ground.count(initial, true)?;
        let size = ground.own.said_size(target);
        let verdict = ground.nodes[initial].machine.press.decide(ground.now, target, size);
        ground.act(initial, |press, now, out| press.reading(now, verdict, target, out));
        ground.go(request, initial, verdict)
    }

    fn forwarded(ground: &mut Ground<'_, Self>, request: Id, to: Id, there: bool) -> Result<(), Violation> {
        if !there {
            let wait = ground.travel();
            ground.after(wait, Happening::Broken { request });
            return Ok(());
        }
        ground.count(to, true)?;
        let target = ground.target(request);
        let size = ground.own.said_size(target);
        let press = &mut ground.nodes[to].machine.press;
        let verdict = match ground.broken {
            Some(Broken::ForwardsAgain) => press.decide(ground.now, target, size),
            _ => press.forwarded(target, size),
        };
        ground.go(request, to, verdict)
    }

    /// Serves a request at its initial node if no byte of its reply has arrived.
    fn broken(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation> {
        let (initial, target) = (ground.requests[request].initial, ground.target(request));
        match ground.requests[request].stage {
            Stage::Sent { to, .. } => {
                let press = &mut ground.nodes[initial].machine.press;
                press.unanswered(ground.now, peer(to), target, true);
                press.returned(peer(to));
                ground.survived.taken_back += 1;
                match ground.broken {
                    Some(Broken::ForgetsRequests) => return Ok(()),
                    Some(Broken::EndsTwice) => ground.settle(request)?,
                    _ => ground.requests[request].stage = Stage::Here,
                }
                ground.serve(request, initial);
            }
            Stage::Begun { .. } => {
                ground.survived.aborted += 1;
                ground.say(|| format!("request {request} is aborted"));
                ground.settle(request)?;
            }
            Stage::Waits | Stage::Here | Stage::Ended => {}
        }
        Ok(())
    }

    fn takes(ground: &mut Ground<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        ground.act(
            by,
            |press, now, out| if there { press.joined(now, peer(of), out) } else { press.left(peer(of)) },
        );
        Ok(())
    }

    fn hear(ground: &mut Ground<'_, Self>, to: Id, from: Id, message: Message) -> Result<(), Violation> {
        ground.act(to, |press, now, out| press.hear(now, peer(from), message, out));
        Ok(())
    }

    fn due(ground: &Ground<'_, Self>, node: Id) -> Time {
        ground.nodes[node].machine.press.due()
    }

    fn tick(ground: &mut Ground<'_, Self>, node: Id) -> Result<(), Violation> {
        ground.act(node, Press::tick);
        Ok(())
    }

    fn doubt(ground: &mut Ground<'_, Self>) -> Option<String> {
        ground.loads().or_else(|| ground.views())
    }
}

impl Ground<'_, Memories> {
    fn target(&self, request: Id) -> TargetId {
        TargetId(self.requests[request].target)
    }

    /// Returns a random travel time of a packet.
    fn travel(&mut self) -> Duration {
        self.chance.micros(10, self.delay_us + 10)
    }

    // -- requests

    /// Sends a request to the node of a verdict, or serves it at this node.
    fn go(&mut self, request: Id, at: Id, verdict: Verdict) -> Result<(), Violation> {
        self.say(|| format!("request {request} at {at}: {verdict:?}"));
        if verdict.node.index() == at {
            self.serve(request, at);
            return Ok(());
        }
        self.forward(request, verdict.node.index())
    }

    fn forward(&mut self, request: Id, to: Id) -> Result<(), Violation> {
        self.sent(request, to)?;
        let wait = self.travel();
        if self.reach(self.requests[request].initial, to) {
            self.after(wait, Happening::Forwarded { request });
            self.after(PATIENCE, Happening::Broken { request });
        } else {
            // If the host is there, it refuses at once; otherwise the connection times out.
            let wait = if self.chance.permille(500) { wait } else { PATIENCE };
            self.after(wait, Happening::Broken { request });
        }
        Ok(())
    }

    /// Looks a target up at a node, and reads it if it is not in memory.
    fn serve(&mut self, request: Id, node: Id) {
        let missed = !self.nodes[node].machine.memory.touch(&self.requests[request].target);
        let epoch = self.nodes[node].epoch;
        let wait = if missed { self.chance.micros(1_000, 50_000) } else { self.chance.micros(10, 2_000) };
        self.after(wait, Happening::Own(Event::Ready { request, node, epoch, missed }));
    }

    fn ready(&mut self, request: Id, node: Id, missed: bool) -> Result<(), Violation> {
        let (initial, target) = (self.requests[request].initial, self.target(request));
        if missed {
            self.keep(node, target);
        }
        if node == initial {
            // The client's connection takes the rest of the reply.
            let twice = self.broken == Some(Broken::EndsTwice);
            if self.requests[request].stage == Stage::Here || twice {
                self.served(request, missed)?;
            }
            return Ok(());
        }
        let (head, rest) = (self.travel(), self.chance.micros(100, 30_000));
        if self.reach(node, initial) {
            self.after(head, Happening::Own(Event::Head { request }));
            self.after(head + rest, Happening::Own(Event::End { request }));
        }
        let epoch = self.nodes[node].epoch;
        self.after(rest, Happening::Own(Event::Released { node, epoch }));
        Ok(())
    }

    fn keep(&mut self, node: Id, target: TargetId) {
        let mut evicted = Vec::new();
        let memory = &mut self.nodes[node].machine.memory;
        memory.insert(target.0, self.own.size(target), &mut evicted);
        let kept = memory.contains(&target.0);
        self.act(node, |press, now, out| {
            evicted.iter().for_each(|(gone, _)| press.noted(now, TargetId(*gone), false, out));
            if kept {
                press.noted(now, target, true, out);
            }
        });
    }

    fn head(&mut self, request: Id) {
        let initial = self.requests[request].initial;
        let Stage::Sent { to, epoch } = self.requests[request].stage else { return };
        if !self.reach(to, initial) || !self.lives(to, epoch) {
            return;
        }
        self.requests[request].stage = Stage::Begun { to, epoch };
        self.nodes[initial].machine.press.answered(peer(to));
        self.after(PATIENCE, Happening::Broken { request });
    }

    fn end(&mut self, request: Id) -> Result<(), Violation> {
        let Stage::Begun { to, epoch } = self.requests[request].stage else { return Ok(()) };
        if !self.reach(to, self.requests[request].initial) || !self.lives(to, epoch) {
            return Ok(());
        }
        self.served(request, false)
    }

    /// Ends a request whose client has the whole reply.
    fn served(&mut self, request: Id, missed: bool) -> Result<(), Violation> {
        let (initial, target) = (self.requests[request].initial, self.target(request));
        let size = self.own.size(target);
        self.act(initial, |press, now, out| press.served(now, target, size, missed, out));
        self.settle(request)
    }

    fn settle(&mut self, request: Id) -> Result<(), Violation> {
        let (initial, stage) = (self.requests[request].initial, self.requests[request].stage);
        self.ended(request)?;
        if let Stage::Begun { to, .. } = stage {
            self.nodes[initial].machine.press.returned(peer(to));
        }
        self.release(initial)
    }

    fn release(&mut self, node: Id) -> Result<(), Violation> {
        if self.nodes[node].machine.under_way == 0 {
            return Err(self.violation(format!("node {node} ends what it has not begun")));
        }
        self.count(node, false)
    }

    /// Counts one connection more or less at a node, and checks the node's own count.
    fn count(&mut self, node: Id, begins: bool) -> Result<(), Violation> {
        let under_way = &mut self.nodes[node].machine.under_way;
        *under_way = if begins { *under_way + 1 } else { *under_way - 1 };
        self.act(node, |press, now, out| if begins { press.begun(now, out) } else { press.ended(now, out) });
        if !begins && self.broken == Some(Broken::EndsCountTwice) {
            self.act(node, Press::ended);
        }
        let Node { press, under_way, .. } = &self.nodes[node].machine;
        if press.load() == *under_way {
            return Ok(());
        }
        Err(self.violation(format!("node {node} counts {}, and {under_way} are under way", press.load())))
    }

    /// Applies an input to a node's state machine and sends the resulting messages.
    fn act(&mut self, node: Id, act: impl FnOnce(&mut Press, Time, &mut Vec<Outgoing>)) {
        let mut out = Vec::new();
        act(&mut self.nodes[node].machine.press, self.now, &mut out);
        let asks = |message: &Message| matches!(message, Message::Ask { .. } | Message::AskList { .. });
        let mute = self.broken == Some(Broken::NeverAsks);
        for Outgoing { to, message } in out.into_iter().filter(|out| !(mute && asks(&out.message))) {
            // The message is encoded and decoded, as on the network.
            let message = Message::decode(&message.encode()).expect("what is sent can be read");
            match to {
                To::All => self.post_all(node, &message),
                To::One(to) => self.post(node, to.index(), &message),
            }
        }
        self.plan_tick(node);
    }

    // -- the conditions

    /// Returns a node that counts load without a cause, or that does not know another node.
    fn loads(&self) -> Option<String> {
        let nodes = || self.nodes.iter().enumerate().map(|(at, node)| (at, &node.machine));
        for (a, Node { press, under_way, .. }) in nodes() {
            if *under_way != 0 || press.load() != 0 {
                return Some(format!("node {a} counts {}, and {under_way} are under way", press.load()));
            }
            let unknown = |b: Id| !press.knows(peer(b)) || press.load_of(self.now, peer(b)) != Some(0);
            if let Some((b, _)) = nodes().find(|(b, node)| *b != a && node.press.shares() && unknown(*b)) {
                return Some(format!("node {a} does not know {b}"));
            }
        }
        None
    }

    /// Returns a node with a wrong view of the targets in memory somewhere. A node that forgets targets may
    /// know too little.
    fn views(&mut self) -> Option<String> {
        let forgets = self.own.settings.targets_max < self.own.sizes.len();
        for target in 0..self.own.sizes.len() as u64 {
            for a in 0..self.nodes.len() {
                let holds = |(b, node): (Id, &Node)| {
                    ((b == a || node.press.shares()) && node.memory.contains(&target)).then(|| peer(b))
                };
                let nodes = self.nodes.iter().map(|node| &node.machine).enumerate();
                let truth: Vec<NodeId> = nodes.filter_map(holds).collect();
                let believed = self.nodes[a].machine.press.servers(TargetId(target));
                let right =
                    if forgets { believed.iter().all(|b| truth.contains(b)) } else { believed == truth };
                if !right {
                    return Some(format!(
                        "node {a} takes {believed:?} for servers of {target}: they are {truth:?}"
                    ));
                }
            }
        }
        None
    }
}
