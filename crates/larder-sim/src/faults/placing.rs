//! The world of nodes whose requests are placed by a dispatcher (CARD) or by a routing table (WARD).
//!
//! Memories and their contents are not modelled.

mod machine;

use super::chance::Chance;
use super::ground::{Ground, Happening, Id, PATIENCE, Stage, World, peer};
use super::outcome::Violation;
use super::protocol::{Broken, Protocol};
use core::time::Duration;
use larder_core::Time;
use larder_core::peers::{Miscount, WardStatus};
use machine::{Done, Machine, Said, Token};
use std::collections::BTreeMap;

/// The flag of a request's number if its service node has asked for its placement
/// ([`BrokenRule::ForwardsAgain`]).
const AGAIN: u64 = 1 << 63;

/// An event of this world.
#[derive(Debug)]
pub(super) enum Event {
    /// A node has served a request of its own client.
    Served {
        request: Id,
        epoch: u64,
    },
    /// The reply's head, and its end, reach the initial node.
    Head {
        request: Id,
    },
    End {
        request: Id,
    },
}

/// The world of CARD or WARD.
#[derive(Debug)]
pub(super) struct Placing {
    protocol: Protocol,
    names: Vec<String>,
    targets: u64,
    /// The tokens that end the load of requests, by initial node and request.
    tokens: BTreeMap<(Id, Id), Token>,
}

impl Placing {
    pub(super) fn draw(protocol: Protocol, chance: &mut Chance, nodes: usize) -> Self {
        // Slots are not in the order of names.
        let turn = chance.below(nodes as u64) as usize;
        let names = (0..nodes).map(|node| format!("n{}", (node + turn) % nodes)).collect();
        Self { protocol, names, targets: 20 + chance.below(300), tokens: BTreeMap::new() }
    }
}

impl World for Placing {
    type Machine = Machine;
    type Message = Said;
    type Event = Event;

    fn converges_within(&self) -> Duration {
        self.protocol.converges_within()
    }

    fn machine(&self, me: Id, epoch: u64) -> Machine {
        Machine::new(self.protocol, me, &self.names[me], epoch)
    }

    /// Returns a target; some targets are requested far more often than others.
    fn target(&self, chance: &mut Chance) -> u64 {
        chance.below(self.targets).min(chance.below(self.targets))
    }

    fn place(ground: &Ground<'_, Self>, event: &Event) -> Option<Id> {
        let (Event::Served { request, .. } | Event::Head { request } | Event::End { request }) = event;
        Some(ground.requests[*request].initial)
    }

    fn happen(ground: &mut Ground<'_, Self>, event: Event) -> Result<(), Violation> {
        match event {
            Event::Served { request, epoch } => ground.served(request, epoch),
            Event::Head { request } => {
                ground.head(request);
                Ok(())
            }
            Event::End { request } => ground.end(request),
        }
    }

    fn asked(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation> {
        ground.ask(ground.requests[request].initial, request as u64, ground.requests[request].target)
    }

    fn forwarded(ground: &mut Ground<'_, Self>, request: Id, to: Id, there: bool) -> Result<(), Violation> {
        if there && ground.broken == Some(Broken::ForwardsAgain) {
            // The node asks as for a client's request; the answer may come later.
            return ground.ask(to, request as u64 | AGAIN, ground.requests[request].target);
        }
        if there {
            ground.answer(request, to);
        }
        Ok(())
    }

    /// Serves a request at its initial node and ends its load at the dispatcher. In the middle of a reply,
    /// the request is aborted.
    fn broken(ground: &mut Ground<'_, Self>, request: Id) -> Result<(), Violation> {
        let to = match ground.requests[request].stage {
            Stage::Sent { to, .. } => to,
            Stage::Begun { .. } => {
                ground.survived.aborted += 1;
                ground.say(|| format!("request {request} is aborted"));
                return ground.settle(request);
            }
            Stage::Waits | Stage::Here | Stage::Ended => return Ok(()),
        };
        ground.survived.taken_back += 1;
        let initial = ground.requests[request].initial;
        ground.nodes[initial].machine.unanswered(ground.now, peer(to));
        match ground.broken {
            Some(Broken::ForgetsRequests) => return Ok(()),
            Some(Broken::EndsTwice) => {
                ground.settle(request)?;
                return ground.settle(request);
            }
            _ => ground.end_token(request)?,
        }
        ground.serve_here(request);
        Ok(())
    }

    fn takes(ground: &mut Ground<'_, Self>, by: Id, of: Id, there: bool) -> Result<(), Violation> {
        let name = ground.own.names[of].clone();
        ground.act(by, |machine, now, done| {
            if there { machine.joined(now, peer(of), &name, done) } else { machine.left(now, peer(of), done) }
        })
    }

    fn hear(ground: &mut Ground<'_, Self>, to: Id, from: Id, said: Said) -> Result<(), Violation> {
        ground.act(to, |machine, now, done| machine.hear(now, peer(from), said, done))?;
        ground.counts(from, to)
    }

    fn due(ground: &Ground<'_, Self>, node: Id) -> Time {
        let stopped = ground.broken == Some(Broken::NeverAsks);
        if stopped { Time::MAX } else { ground.nodes[node].machine.due() }
    }

    fn tick(ground: &mut Ground<'_, Self>, node: Id) -> Result<(), Violation> {
        ground.act(node, Machine::tick)
    }

    fn doubt(ground: &mut Ground<'_, Self>) -> Option<String> {
        ground.leaders().or_else(|| ground.loads()).or_else(|| ground.tables())
    }
}

impl Ground<'_, Placing> {
    // -- requests

    fn ask(&mut self, node: Id, request: u64, target: u64) -> Result<(), Violation> {
        self.act(node, |machine, now, done| machine.ask(now, request, target, done))
    }

    /// Serves or forwards a request whose placement is known.
    fn placed(&mut self, request: Id, node: Id, token: Option<Token>) -> Result<(), Violation> {
        let (initial, stage) = (self.requests[request].initial, self.requests[request].stage);
        if stage != Stage::Waits {
            return Err(self.violation(format!("request {request} is placed twice: {stage:?}")));
        }
        self.own.tokens.extend(token.map(|token| ((initial, request), token)));
        self.say(|| format!("request {request} of {initial} is placed at {node}: {token:?}"));
        if node == initial {
            self.serve_here(request);
            return Ok(());
        }
        self.forward(request, node)
    }

    fn forward(&mut self, request: Id, to: Id) -> Result<(), Violation> {
        self.sent(request, to)?;
        if self.reach(self.requests[request].initial, to) {
            let wait = self.chance.micros(10, self.delay_us + 10);
            self.after(wait, Happening::Forwarded { request });
        }
        self.after(PATIENCE, Happening::Broken { request });
        Ok(())
    }

    fn serve_here(&mut self, request: Id) {
        self.requests[request].stage = Stage::Here;
        let epoch = self.nodes[self.requests[request].initial].epoch;
        let wait = self.chance.micros(10, 50_000);
        self.after(wait, Happening::Own(Event::Served { request, epoch }));
    }

    fn served(&mut self, request: Id, epoch: u64) -> Result<(), Violation> {
        if self.lives(self.requests[request].initial, epoch) && self.requests[request].stage == Stage::Here {
            self.settle(request)?;
        }
        Ok(())
    }

    /// Serves a request at its service node, and replies.
    fn answer(&mut self, request: Id, to: Id) {
        let wait = self.chance.micros(10, 60_000);
        let rest = self.chance.micros(10, 30_000);
        if self.reach(to, self.requests[request].initial) {
            self.after(wait, Happening::Own(Event::Head { request }));
            self.after(wait + rest, Happening::Own(Event::End { request }));
        }
    }

    fn head(&mut self, request: Id) {
        let Stage::Sent { to, epoch } = self.requests[request].stage else { return };
        let initial = self.requests[request].initial;
        if !self.reach(to, initial) || !self.lives(to, epoch) {
            return;
        }
        self.requests[request].stage = Stage::Begun { to, epoch };
        self.nodes[initial].machine.replied(peer(to));
        self.after(PATIENCE, Happening::Broken { request });
    }

    fn end(&mut self, request: Id) -> Result<(), Violation> {
        let Stage::Begun { to, epoch } = self.requests[request].stage else { return Ok(()) };
        if !self.reach(to, self.requests[request].initial) || !self.lives(to, epoch) {
            return Ok(());
        }
        self.settle(request)
    }

    fn settle(&mut self, request: Id) -> Result<(), Violation> {
        self.ended(request)?;
        self.end_token(request)
    }

    fn end_token(&mut self, request: Id) -> Result<(), Violation> {
        let initial = self.requests[request].initial;
        let Some(token) = self.own.tokens.remove(&(initial, request)) else { return Ok(()) };
        self.say(|| format!("request {request} ends: {token:?}"));
        let times = match self.broken {
            Some(Broken::ForgetsEnds) => 0,
            Some(Broken::EndsCountTwice) => 2,
            _ => 1,
        };
        (0..times).for_each(|_| self.nodes[initial].machine.ended(self.now, token));
        self.plan_tick(initial);
        self.counts(initial, initial)
    }

    /// Applies an input to a node's state machine and executes the resulting actions.
    fn act(
        &mut self,
        node: Id,
        act: impl FnOnce(&mut Machine, Time, &mut Vec<Done>),
    ) -> Result<(), Violation> {
        let mut done = Vec::new();
        act(&mut self.nodes[node].machine, self.now, &mut done);
        for done in done {
            match done {
                Done::Send { to, said } => self.post(node, to, &said.travelled()),
                Done::Tell(said) => self.post_all(node, &said.travelled()),
                Done::Placed { request, node: at, token } if request & AGAIN != 0 => {
                    let request = (request & !AGAIN) as Id;
                    token.into_iter().for_each(|token| self.nodes[node].machine.ended(self.now, token));
                    if at != node {
                        self.forward(request, at)?;
                    } else if matches!(self.requests[request].stage, Stage::Sent { to, .. } if to == node) {
                        self.answer(request, node);
                    }
                }
                Done::Placed { request, node: at, token } => self.placed(request as Id, at, token)?,
            }
        }
        self.plan_tick(node);
        Ok(())
    }

    // -- the conditions

    /// Returns a node that takes another node than the first by name for the dispatcher or table maker.
    fn leaders(&self) -> Option<String> {
        let first = (0..self.nodes.len()).min_by_key(|node| &self.own.names[*node])?;
        let mut leaders = self.nodes.iter().map(|node| node.machine.leader()).enumerate();
        leaders
            .find(|(_, leader)| leader.index() != first)
            .map(|(at, leader)| format!("node {at} takes {leader:?} for the first, not {first}"))
    }

    /// Returns an error if a node's desk counts a wrong load for another node, as far as the two have no
    /// messages for each other.
    fn counts(&self, desk: Id, asker: Id) -> Result<(), Violation> {
        let (Machine::Card(at), Machine::Card(of)) = (&self.nodes[desk].machine, &self.nodes[asker].machine)
        else {
            return Ok(());
        };
        let tokens = self.own.tokens.range((asker, 0)..=(asker, Id::MAX));
        // Requests that were cut off with their node do not count.
        let out = tokens.filter(|((_, request), _)| self.requests[*request].stage != Stage::Ended);
        match at.miscount(of, out.map(|(_, token)| *token)) {
            None => Ok(()),
            Some(Miscount { counted, under_way }) => Err(self.violation(format!(
                "the desk of node {desk} counts {counted} for node {asker}, and {under_way} are under way"
            ))),
        }
    }

    /// Returns a dispatcher that counts load without a cause.
    fn loads(&self) -> Option<String> {
        for (at, node) in self.nodes.iter().enumerate() {
            let Machine::Card(card) = &node.machine else { continue };
            if card.waiting() > 0 {
                return Some(format!("{} requests wait at node {at}", card.waiting()));
            }
            for of in 0..self.nodes.len() {
                let load = card.load_at_desk(peer(of));
                if load > 0 {
                    return Some(format!(
                        "the desk of node {at} counts {load} at {of}, and none are under way"
                    ));
                }
            }
        }
        None
    }

    /// Returns a node without a table, or with a different table. There is no table if the nodes that had one
    /// crashed and too few requests have arrived since; the maker has then tried to make one.
    fn tables(&self) -> Option<String> {
        let mut tables = self.nodes.iter().enumerate().filter_map(|(at, node)| match &node.machine {
            Machine::Ward(ward, _) => Some((at, ward.status())),
            Machine::Card(_) => None,
        });
        let tried = |status: &WardStatus| status.unmade > 0;
        let (_, first) = tables.next()?;
        let all = core::iter::once((0, first.clone())).chain(tables).collect::<Vec<_>>();
        if first.id.is_none() && !all.iter().any(|(_, status)| tried(status)) {
            return Some("node 0 has no table".to_owned());
        }
        let mut tables = all.into_iter();
        tables
            .find(|(_, status)| status.id != first.id)
            .map(|(at, status)| format!("node {at} goes by {:?}, node 0 by {:?}", status.id, first.id))
    }
}
