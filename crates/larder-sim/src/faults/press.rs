//! The world of PRESS: nodes that know each other's loads and memories.

use super::outcome::Violation;
use super::protocol::{BrokenRule, Protocol};
use super::rng::FaultRng;
use super::simulation::{Id, RequestStage, SimEvent, Simulation, TIMEOUT, World, node_id};
use core::time::Duration;
use larder_core::cache::{ByteCache, CacheKind};
use larder_core::peers::{
    Press, PressDecision, PressMessage, PressOutput, PressSettings, Recipient, SharingSettings,
};
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
pub(super) struct PressNode {
    press: Press,
    memory: ByteCache<u64>,
    /// The node's actual load, for comparison with its count.
    under_way: u32,
}

/// The world of PRESS.
#[derive(Debug)]
pub(super) struct PressWorld {
    sizes: Vec<u64>,
    settings: PressSettings,
    states_sizes: bool,
}

impl PressWorld {
    pub(super) fn draw(rng: &mut FaultRng) -> Self {
        let targets = 20 + rng.draw_below(300);
        let sizes =
            (0..targets).map(|_| if rng.draw_permille(30) { OBJECT_MAX } else { 1 + rng.draw_below(20) });
        let sizes: Vec<u64> = sizes.collect();
        let memory = Bytes(50 + rng.draw_below(sizes.iter().sum::<u64>() / 2));
        let sharing = match rng.draw_below(3) {
            0 => SharingSettings { on_permille: 50, off_permille: 25, off_windows: 1, window: 50 },
            1 => SharingSettings { on_permille: 400, off_permille: 300, off_windows: 2, window: 20 },
            _ => SharingSettings { on_permille: 0, off_permille: 0, off_windows: 1, window: 100 },
        };
        let settings = PressSettings {
            overload: 2 + rng.draw_below(10) as u32,
            large_min: Bytes(OBJECT_MAX),
            load_step: 1 + rng.draw_below(4) as u32,
            gather: rng.draw_micros(0, 1).saturating_mul(20_000),
            assumed_for: Duration::from_secs(2),
            targets_max: if rng.draw_permille(250) { 16 } else { 10_000 },
            log_max: if rng.draw_permille(500) { 64 } else { 8_192 },
            memory,
            sharing,
            ..PressSettings::default()
        };
        Self { sizes, settings, states_sizes: rng.draw_permille(500) }
    }

    fn size(&self, target: TargetId) -> Bytes {
        Bytes(self.sizes[target.0 as usize])
    }

    /// Returns the size of a target, if nodes know sizes beforehand.
    fn stated_size(&self, target: TargetId) -> Option<Bytes> {
        self.states_sizes.then(|| self.size(target))
    }
}

impl World for PressWorld {
    type Machine = PressNode;
    type Message = PressMessage;
    type Event = Event;

    fn convergence_time(&self) -> Duration {
        Protocol::Press.convergence_time()
    }

    fn create_machine(&self, me: Id, epoch: u64) -> PressNode {
        PressNode {
            press: Press::new(node_id(me), epoch, self.settings),
            memory: ByteCache::new(CacheKind::Lru, self.settings.memory, Bytes(OBJECT_MAX - 1)),
            under_way: 0,
        }
    }

    /// Returns a target; some targets are requested far more often than others.
    fn draw_target(&self, rng: &mut FaultRng) -> u64 {
        let most = self.sizes.len() as u64;
        rng.draw_below(most).min(rng.draw_below(most)).min(rng.draw_below(most))
    }

    fn node_of_event(sim: &Simulation<'_, Self>, event: &Event) -> Option<Id> {
        match event {
            Event::Ready { node, .. } | Event::Released { node, .. } => Some(*node),
            Event::Head { request } | Event::End { request } => Some(sim.requests[*request].initial),
        }
    }

    fn handle_event(sim: &mut Simulation<'_, Self>, event: Event) -> Result<(), Violation> {
        match event {
            Event::Ready { request, node, epoch, missed } if sim.is_alive(node, epoch) => {
                sim.send_reply(request, node, missed)
            }
            Event::Head { request } => {
                sim.begin_reply(request);
                Ok(())
            }
            Event::End { request } => sim.finish_reply(request),
            Event::Released { .. } if sim.broken_rule == Some(BrokenRule::ForgetsEnds) => Ok(()),
            Event::Released { node, epoch } if sim.is_alive(node, epoch) => sim.release_connection(node),
            Event::Ready { .. } | Event::Released { .. } => Ok(()),
        }
    }

    fn accept_request(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation> {
        sim.requests[request].stage = RequestStage::Here;
        let (initial, target) = (sim.requests[request].initial, sim.target(request));
        sim.count_connection(initial, true)?;
        let size = sim.world.stated_size(target);
        let verdict = sim.nodes[initial].machine.press.decide(sim.now, target, size);
        sim.act_on_press(initial, |press, now, out| press.begin_read(now, verdict, target, out));
        sim.route(request, initial, verdict)
    }

    fn receive_forwarded(
        sim: &mut Simulation<'_, Self>,
        request: Id,
        to: Id,
        there: bool,
    ) -> Result<(), Violation> {
        if !there {
            let wait = sim.draw_delay();
            sim.schedule(wait, SimEvent::ConnectionBroken { request });
            return Ok(());
        }
        sim.count_connection(to, true)?;
        let target = sim.target(request);
        let size = sim.world.stated_size(target);
        let press = &mut sim.nodes[to].machine.press;
        let verdict = match sim.broken_rule {
            Some(BrokenRule::ForwardsAgain) => press.decide(sim.now, target, size),
            _ => press.decide_forwarded(target, size),
        };
        sim.route(request, to, verdict)
    }

    /// Serves a request at its initial node if no byte of its reply has arrived.
    fn handle_broken_connection(sim: &mut Simulation<'_, Self>, request: Id) -> Result<(), Violation> {
        let (initial, target) = (sim.requests[request].initial, sim.target(request));
        match sim.requests[request].stage {
            RequestStage::Sent { to, .. } => {
                let press = &mut sim.nodes[initial].machine.press;
                press.record_failure(sim.now, node_id(to), target, true);
                press.record_return(node_id(to));
                sim.stats.taken_back += 1;
                match sim.broken_rule {
                    Some(BrokenRule::ForgetsRequests) => return Ok(()),
                    Some(BrokenRule::EndsTwice) => sim.end_request(request)?,
                    _ => sim.requests[request].stage = RequestStage::Here,
                }
                sim.serve(request, initial);
            }
            RequestStage::Begun { .. } => {
                sim.stats.aborted += 1;
                sim.log(|| format!("request {request} is aborted"));
                sim.end_request(request)?;
            }
            RequestStage::Waits | RequestStage::Here | RequestStage::Ended => {}
        }
        Ok(())
    }

    fn update_liveness(sim: &mut Simulation<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        sim.act_on_press(by, |press, now, out| {
            if there { press.add_peer(now, node_id(of), out) } else { press.remove_peer(node_id(of)) }
        });
        Ok(())
    }

    fn receive(
        sim: &mut Simulation<'_, Self>,
        to: Id,
        from: Id,
        message: PressMessage,
    ) -> Result<(), Violation> {
        sim.act_on_press(to, |press, now, out| press.receive(now, node_id(from), message, out));
        Ok(())
    }

    fn next_tick(sim: &Simulation<'_, Self>, node: Id) -> Time {
        sim.nodes[node].machine.press.due()
    }

    fn tick(sim: &mut Simulation<'_, Self>, node: Id) -> Result<(), Violation> {
        sim.act_on_press(node, Press::tick);
        Ok(())
    }

    fn unmet_condition(sim: &mut Simulation<'_, Self>) -> Option<String> {
        sim.find_load_mismatch().or_else(|| sim.find_view_mismatch())
    }
}

impl Simulation<'_, PressWorld> {
    fn target(&self, request: Id) -> TargetId {
        TargetId(self.requests[request].target)
    }

    /// Returns a random travel time of a packet.
    fn draw_delay(&mut self) -> Duration {
        self.rng.draw_micros(10, self.delay_us + 10)
    }

    // -- requests

    /// Sends a request to the node of a verdict, or serves it at this node.
    fn route(&mut self, request: Id, at: Id, verdict: PressDecision) -> Result<(), Violation> {
        self.log(|| format!("request {request} at {at}: {verdict:?}"));
        if verdict.node.index() == at {
            self.serve(request, at);
            return Ok(());
        }
        self.forward(request, verdict.node.index())
    }

    fn forward(&mut self, request: Id, to: Id) -> Result<(), Violation> {
        self.mark_forwarded(request, to)?;
        let wait = self.draw_delay();
        if self.can_communicate(self.requests[request].initial, to) {
            self.schedule(wait, SimEvent::Forwarded { request });
            self.schedule(TIMEOUT, SimEvent::ConnectionBroken { request });
        } else {
            // If the host is there, it refuses at once; otherwise the connection times out.
            let wait = if self.rng.draw_permille(500) { wait } else { TIMEOUT };
            self.schedule(wait, SimEvent::ConnectionBroken { request });
        }
        Ok(())
    }

    /// Looks a target up at a node, and reads it if it is not in memory.
    fn serve(&mut self, request: Id, node: Id) {
        let missed = !self.nodes[node].machine.memory.touch(&self.requests[request].target);
        let epoch = self.nodes[node].epoch;
        let wait = if missed { self.rng.draw_micros(1_000, 50_000) } else { self.rng.draw_micros(10, 2_000) };
        self.schedule(wait, SimEvent::World(Event::Ready { request, node, epoch, missed }));
    }

    fn send_reply(&mut self, request: Id, node: Id, missed: bool) -> Result<(), Violation> {
        let (initial, target) = (self.requests[request].initial, self.target(request));
        if missed {
            self.keep(node, target);
        }
        if node == initial {
            // The client's connection takes the rest of the reply.
            let twice = self.broken_rule == Some(BrokenRule::EndsTwice);
            if self.requests[request].stage == RequestStage::Here || twice {
                self.complete_request(request, missed)?;
            }
            return Ok(());
        }
        let (head, rest) = (self.draw_delay(), self.rng.draw_micros(100, 30_000));
        if self.can_communicate(node, initial) {
            self.schedule(head, SimEvent::World(Event::Head { request }));
            self.schedule(head + rest, SimEvent::World(Event::End { request }));
        }
        let epoch = self.nodes[node].epoch;
        self.schedule(rest, SimEvent::World(Event::Released { node, epoch }));
        Ok(())
    }

    fn keep(&mut self, node: Id, target: TargetId) {
        let mut evicted = Vec::new();
        let memory = &mut self.nodes[node].machine.memory;
        memory.insert(target.0, self.world.size(target), &mut evicted);
        let kept = memory.contains(&target.0);
        self.act_on_press(node, |press, now, out| {
            evicted.iter().for_each(|(gone, _)| press.set_cached(now, TargetId(*gone), false, out));
            if kept {
                press.set_cached(now, target, true, out);
            }
        });
    }

    fn begin_reply(&mut self, request: Id) {
        let initial = self.requests[request].initial;
        let RequestStage::Sent { to, epoch } = self.requests[request].stage else { return };
        if !self.can_communicate(to, initial) || !self.is_alive(to, epoch) {
            return;
        }
        self.requests[request].stage = RequestStage::Begun { to, epoch };
        self.nodes[initial].machine.press.record_reply(node_id(to));
        self.schedule(TIMEOUT, SimEvent::ConnectionBroken { request });
    }

    fn finish_reply(&mut self, request: Id) -> Result<(), Violation> {
        let RequestStage::Begun { to, epoch } = self.requests[request].stage else { return Ok(()) };
        if !self.can_communicate(to, self.requests[request].initial) || !self.is_alive(to, epoch) {
            return Ok(());
        }
        self.complete_request(request, false)
    }

    /// Ends a request whose client has the whole reply.
    fn complete_request(&mut self, request: Id, missed: bool) -> Result<(), Violation> {
        let (initial, target) = (self.requests[request].initial, self.target(request));
        let size = self.world.size(target);
        self.act_on_press(initial, |press, now, out| press.record_served(now, target, size, missed, out));
        self.end_request(request)
    }

    fn end_request(&mut self, request: Id) -> Result<(), Violation> {
        let (initial, stage) = (self.requests[request].initial, self.requests[request].stage);
        self.mark_ended(request)?;
        if let RequestStage::Begun { to, .. } = stage {
            self.nodes[initial].machine.press.record_return(node_id(to));
        }
        self.release_connection(initial)
    }

    fn release_connection(&mut self, node: Id) -> Result<(), Violation> {
        if self.nodes[node].machine.under_way == 0 {
            return Err(self.violation(format!("node {node} ends a request that it has not begun")));
        }
        self.count_connection(node, false)
    }

    /// Counts one connection more or less at a node, and checks the node's own count.
    fn count_connection(&mut self, node: Id, begins: bool) -> Result<(), Violation> {
        let under_way = &mut self.nodes[node].machine.under_way;
        *under_way = if begins { *under_way + 1 } else { *under_way - 1 };
        self.act_on_press(node, |press, now, out| {
            if begins { press.begin_connection(now, out) } else { press.end_connection(now, out) }
        });
        if !begins && self.broken_rule == Some(BrokenRule::EndsCountTwice) {
            self.act_on_press(node, Press::end_connection);
        }
        let PressNode { press, under_way, .. } = &self.nodes[node].machine;
        if press.load() == *under_way {
            return Ok(());
        }
        Err(self.violation(format!("node {node} counts {}, but {under_way} are in flight", press.load())))
    }

    /// Applies an input to a node's state machine and sends the resulting messages.
    fn act_on_press(&mut self, node: Id, act: impl FnOnce(&mut Press, Time, &mut Vec<PressOutput>)) {
        let mut out = Vec::new();
        act(&mut self.nodes[node].machine.press, self.now, &mut out);
        let asks = |message: &PressMessage| {
            matches!(message, PressMessage::ChangesRequest { .. } | PressMessage::ListRequest { .. })
        };
        let mute = self.broken_rule == Some(BrokenRule::NeverAsks);
        for PressOutput { to, message } in out.into_iter().filter(|out| !(mute && asks(&out.message))) {
            // The message is encoded and decoded, as on the network.
            let message = PressMessage::decode(&message.encode()).expect("what is sent can be read");
            match to {
                Recipient::All => self.broadcast(node, &message),
                Recipient::One(to) => self.post_message(node, to.index(), &message),
            }
        }
        self.schedule_tick(node);
    }

    // -- the conditions

    /// Returns a node that counts load without a cause, or that does not know another node.
    fn find_load_mismatch(&self) -> Option<String> {
        let nodes = || self.nodes.iter().enumerate().map(|(at, node)| (at, &node.machine));
        for (a, PressNode { press, under_way, .. }) in nodes() {
            if *under_way != 0 || press.load() != 0 {
                return Some(format!("node {a} counts {}, but {under_way} are in flight", press.load()));
            }
            let unknown =
                |b: Id| !press.is_current(node_id(b)) || press.peer_load(self.now, node_id(b)) != Some(0);
            if let Some((b, _)) = nodes().find(|(b, node)| *b != a && node.press.is_sharing() && unknown(*b))
            {
                return Some(format!("node {a} does not know {b}"));
            }
        }
        None
    }

    /// Returns a node with a wrong view of the targets in memory somewhere. A node that forgets targets may
    /// know too little.
    fn find_view_mismatch(&mut self) -> Option<String> {
        let forgets = self.world.settings.targets_max < self.world.sizes.len();
        for target in 0..self.world.sizes.len() as u64 {
            for a in 0..self.nodes.len() {
                let holds = |(b, node): (Id, &PressNode)| {
                    ((b == a || node.press.is_sharing()) && node.memory.contains(&target)).then(|| node_id(b))
                };
                let nodes = self.nodes.iter().map(|node| &node.machine).enumerate();
                let truth: Vec<NodeId> = nodes.filter_map(holds).collect();
                let believed = self.nodes[a].machine.press.servers(TargetId(target));
                let right =
                    if forgets { believed.iter().all(|b| truth.contains(b)) } else { believed == truth };
                if !right {
                    return Some(format!(
                        "node {a} believes that {believed:?} serve {target}, but {truth:?} do"
                    ));
                }
            }
        }
        None
    }
}
