//! The agent's one task: everything that happens comes here, and everything that is done is done from here.

use super::asker::{Ask, Waiting};
use super::ending::{Ending, Farewell};
use super::leaving::{Leavers, Leaving};
use super::link::{From, Input, Link};
use super::lists::{Asker, Listed, Lists};
use super::numbers::Numbers;
use super::stash::{Now, Stash};
use super::switches::{Switches, Wanted};
use super::{Forwarding, Moved, Seen, Sockets, vanished};
use crate::channel::Timing;
use crate::channel::identity::PublicKey;
use crate::channel::message::{
    Accepted, CLOSED_MAX, Connection, FromNode, Handoff, LIVE_MAX, Live, Load, Message as _, RESTORED_MAX,
    Refusal, Socket, ToNode, Welcome, clipped,
};
use crate::channel::server::{Peer, Server};
use crate::channel::whereabouts::Where;
use larder_kernel::interface::Interface;
use larder_kernel::load::CpuMeter;
use larder_kernel::plane::now_ns;
use larder_kernel::{FlowKey, Readiness};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The kernel is asked so often which connections have ended; they are told together.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Restored connections are told at once, and those of so long after together: until they are, the front-end keeps their old
/// sockets, which a new connection of the client with the same addresses would run into.
const RESTORED_AFTER: Duration = Duration::from_millis(5);
/// Time between two reports of load.
const LOAD_EVERY: Duration = Duration::from_secs(1);
/// Messages of front-ends that wait at most; then they are read no further.
const INPUTS_MAX: usize = 256;
/// Reads of the kernel's events before others have their turn.
const DRAINS_MAX: usize = 8;
/// How long the last messages may take to be written at the end.
const WRITTEN_WAIT: Duration = Duration::from_millis(500);
/// Front-ends that wait to be taken at most.
const PEERS_MAX: usize = 16;

/// A front-end that is connected.
pub(super) struct Front {
    pub(super) link: Link,
    /// Ended connections not told yet.
    closed: Vec<Socket>,
    /// Numbers of restored ones not told yet.
    restored: Vec<u64>,
    /// What it was told last of what holds.
    accepted: Accepted,
}

pub(super) struct Core {
    welcome: Welcome,
    timing: Timing,
    pub(super) forwarding: Option<Arc<dyn Forwarding>>,
    sockets: Option<Sockets>,
    pub(super) switches: Switches,
    /// How often keys of front-ends had been revoked when that was last looked at.
    pub(super) revocations: u64,
    in_kernel: Wanted,
    pub(super) fronts: BTreeMap<PublicKey, Front>,
    links: u64,
    pub(super) stash: Stash,
    pub(super) numbers: Numbers,
    /// Connections that are being given up.
    pub(super) leaving: HashMap<FlowKey, Leaving>,
    asked: Waiting,
    lists: Lists,
    pub(super) ending: Option<Ending>,
    cpu: CpuMeter,
    /// When the ends of connections are looked for, for they wake nobody.
    look_at: Instant,
    /// The kernel has more to tell than was read.
    more_at: Option<Instant>,
    /// When restored connections are told, and when they were last.
    restored_at: Option<Instant>,
    restored_told: Instant,
    load_at: Instant,
    beat_at: Instant,
    /// When connections that nobody has any more are looked for.
    silent_at: Instant,
}

impl Core {
    pub(super) fn new(
        name: String,
        services: Vec<std::net::SocketAddr>,
        timing: Timing,
        interface: Option<Interface>,
        forwarding: Option<Arc<dyn Forwarding>>,
        sockets: Option<Sockets>,
    ) -> io::Result<Self> {
        let mut incarnation = [0; 8];
        rustix::rand::getrandom(&mut incarnation, rustix::rand::GetRandomFlags::empty())?;
        let welcome = Welcome {
            name,
            incarnation: u64::from_ne_bytes(incarnation),
            cookie: forwarding.as_ref().is_some_and(|forwarding| forwarding.accepts_cookies()),
            repair: forwarding.is_some() && sockets.is_some(),
            lateral: false,
            mac: interface.and_then(|interface| interface.mac),
            mtu: interface.map_or(0, |interface| interface.mtu),
            accepted: Accepted::default(),
        };
        let in_kernel = Wanted { rules: vec![None; services.len()], ..Wanted::default() };
        Ok(Self {
            welcome,
            timing,
            forwarding,
            sockets,
            switches: Switches::new(services),
            revocations: 0,
            in_kernel,
            fronts: BTreeMap::new(),
            links: 0,
            stash: Stash::default(),
            numbers: Numbers::default(),
            asked: Waiting::default(),
            lists: Lists::default(),
            ending: None,
            leaving: HashMap::new(),
            cpu: CpuMeter::default(),
            look_at: Instant::now(),
            more_at: None,
            restored_at: None,
            restored_told: Instant::now(),
            load_at: Instant::now(),
            beat_at: Instant::now(),
            silent_at: Instant::now(),
        })
    }

    /// Whether front-ends are told that later requests lose little here.
    pub(super) fn set_lateral(&mut self, lateral: bool) {
        self.welcome.lateral = lateral;
    }

    /// What is readable when the kernel has something to tell.
    pub(super) fn events(&self) -> io::Result<Option<Readiness>> {
        self.forwarding.as_ref().map(|forwarding| Readiness::new(forwarding.events_fd())).transpose()
    }

    /// Works until it is stopped.
    pub(super) async fn run(
        mut self,
        server: Server,
        events: Option<Readiness>,
        mut asks: mpsc::Receiver<Ask>,
        leavers: Leavers,
        mut farewells: mpsc::Receiver<Farewell>,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let Leavers { mut leavers, release } = leavers;
        let (outcomes, admitted) = (server.outcomes(), server.admitted());
        let mut admission = admitted.watch();
        let (inputs_in, mut inputs) = mpsc::channel(INPUTS_MAX);
        let (peers_in, mut peers) = mpsc::channel(PEERS_MAX);
        let accepting = tokio::spawn(server.run(peers_in));
        loop {
            self.lists.begin(self.forwarding.as_ref(), self.switches.addresses());
            let due = self.due();
            tokio::select! {
                _ = &mut stopped => break,
                ready = readable(events.as_ref()) => {
                    if let Err(error) = ready {
                        tracing::error!(%error, "the kernel's events cannot be read any more");
                        break;
                    }
                    self.drain();
                }
                Some(peer) = peers.recv() => self.admit(peer, &admitted, &inputs_in),
                Ok(()) = admission.changed() => {
                    let now = admission.borrow_and_update().clone();
                    self.revoke(&now, &outcomes);
                }
                Some(input) = inputs.recv() => {
                    if matches!(input.message, Some(ToNode::Release)) {
                        release.send_modify(|times| *times += 1);
                    }
                    self.input(input);
                }
                (asker, listed) = self.lists.made() => {
                    let listed = self.without_vanished(listed);
                    asker.into_iter().for_each(|asker| self.tell_live(asker, &listed));
                }
                Some(ask) = asks.recv() => self.inquire(ask),
                Some(leaver) = leavers.recv() => self.leave(leaver),
                () = tokio::time::sleep_until(due.into()) => self.tick(Instant::now()),
                Some(farewell) = farewells.recv() => self.farewell(farewell),
            }
        }
        self.drain();
        self.flush_closed();
        accepting.abort();
        std::mem::take(&mut self.lists).end().await;
        let written = async {
            for (_, front) in std::mem::take(&mut self.fronts) {
                front.link.finish().await;
            }
        };
        // A front-end that takes nothing must not hold up the end.
        let _ = tokio::time::timeout(WRITTEN_WAIT, written).await;
    }

    fn due(&self) -> Instant {
        // Ends are for front-ends; without one nobody waits for them.
        let look_at = (!self.fronts.is_empty()).then_some(self.look_at);
        let others = look_at.into_iter().chain(self.more_at).chain(self.restored_at).chain(self.stash.due());
        others.fold(self.load_at.min(self.beat_at).min(self.silent_at), Instant::min)
    }

    fn tick(&mut self, now: Instant) {
        if self.restored_at.take_if(|at| *at <= now).is_some() {
            self.restored_told = now;
            let keys: Vec<PublicKey> = self.fronts.keys().copied().collect();
            keys.into_iter().for_each(|key| self.flush_restored(key));
        }
        if self.more_at.is_some() || self.look_at <= now {
            self.look_at = now + LOOK_EVERY;
            self.drain();
            self.flush_closed();
        }
        while let Some((key, packets)) = self.stash.overdue(now) {
            tracing::debug!(client = %key.client, packets = packets.len(), "their connection has not come: dropped");
        }
        if self.load_at <= now {
            self.load_at = now + LOAD_EVERY;
            self.report_load();
            self.expire_leaving(now);
        }
        if self.silent_at <= now {
            self.silent_at = now + vanished::LOOK_EVERY;
            self.lists.look();
        }
        if self.beat_at <= now {
            self.beat_at = now + self.timing.ping;
            self.beat();
        }
    }

    /// Front-ends hear that the node is there, whether or not their pings get through.
    fn beat(&mut self) {
        let keys: Vec<PublicKey> = self.fronts.keys().copied().collect();
        keys.into_iter().for_each(|key| self.tell(key, &FromNode::Pong(0)));
    }

    pub(super) fn connected(&mut self, peer: Peer, inputs: &mpsc::Sender<Input>) {
        self.links += 1;
        let Peer { key, address, hello, sender, receiver } = peer;
        tracing::info!(%address, name = %hello.name, "switch: connected");
        self.switches.hello(key, hello);
        let to = From { key, number: self.links, core: inputs.clone() };
        let link = Link::new(address, sender, receiver, self.timing, to);
        // An older connection of the same front-end ends here.
        self.fronts.insert(
            key,
            Front { link, closed: Vec::new(), restored: Vec::new(), accepted: Accepted::default() },
        );
        self.apply(Some(key));
        let accepted = self.switches.accepted(key, &self.in_kernel);
        if let Some(front) = self.fronts.get_mut(&key) {
            front.accepted.clone_from(&accepted);
        }
        self.tell(key, &FromNode::Welcome(Welcome { accepted, ..self.welcome.clone() }));
        self.lists.ask((key, self.links));
        self.ask_again(key);
        self.tell_ending(key);
    }

    fn input(&mut self, input: Input) {
        let Input { key, number, message } = input;
        if self.fronts.get(&key).is_none_or(|front| front.link.number != number) {
            return;
        }
        match message {
            None => self.disconnected(key),
            Some(ToNode::Keys(keys)) => {
                self.switches.set_keys(key, keys);
                self.apply(Some(key));
                self.tell_accepted(key);
            }
            Some(ToNode::Services(services)) => {
                self.switches.set_services(key, services);
                self.apply(Some(key));
                self.tell_accepted(key);
            }
            Some(ToNode::Tag(tag)) => {
                self.switches.set_tag(key, tag);
                self.apply(Some(key));
                self.tell_accepted(key);
            }
            Some(ToNode::Live) => self.lists.ask((key, number)),
            Some(ToNode::Handoff(handoff)) => self.handoff(key, &handoff),
            Some(ToNode::Forget(connection)) => {
                if let Some(flow) = self.flow(key, connection) {
                    self.stash.take(flow);
                }
            }
            Some(ToNode::Has(has)) => self.asked.answered(key, has),
            Some(ToNode::Noted) => self.noted(key),
            Some(ToNode::Ping(number)) => self.tell(key, &FromNode::Pong(number)),
            Some(message @ (ToNode::Give(_) | ToNode::Taken(_) | ToNode::Keep(_))) => {
                // What came before it is in the stash then.
                self.drain();
                self.passed(key, &message);
            }
            // The link lets no second hello through; who waits for a release is told by the loop.
            Some(ToNode::Hello(_) | ToNode::Release) => {}
        }
    }

    fn disconnected(&mut self, key: PublicKey) {
        self.forget(key);
        self.unasked(key);
        self.apply(None);
    }

    pub(super) fn forget(&mut self, key: PublicKey) {
        self.fronts.remove(&key);
        self.switches.gone(key);
        self.asked.gone(key);
        self.noted(key);
    }

    /// Passes a question on to a front-end that has the listen address. Where there is none the answer's sender is dropped,
    /// which is the answer.
    fn inquire(&mut self, ask: Ask) {
        let Ask { service, asked, answer } = ask;
        let front = self.fronts.keys().find(|key| self.switches.has(**key, service)).copied();
        if let Some(front) = front {
            let id = self.asked.begin(front, answer);
            self.tell(front, &FromNode::Where(Where { id, asked }));
        }
    }

    /// A connection by the node's numbers.
    pub(super) fn flow(&self, key: PublicKey, connection: Connection) -> Option<FlowKey> {
        self.switches.ours(key, connection.service).map(|ours| FlowKey::new(connection.client, ours))
    }

    fn handoff(&mut self, key: PublicKey, handoff: &Handoff) {
        // What came before the connection is in the stash then.
        self.drain();
        let answer = match self.take(key, handoff) {
            // Nobody waits for it: the connection lives here, and the front-end only keeps what it would need otherwise.
            Ok(()) => return self.restored(key, handoff.id),
            Err((why, detail)) => {
                tracing::warn!(client = %handoff.connection.client, ?why, %detail, "a connection was not taken");
                if let Some(flow) = self.flow(key, handoff.connection) {
                    self.stash.take(flow);
                }
                FromNode::Refused { id: handoff.id, why, detail: clipped(detail) }
            }
        };
        self.tell(key, &answer);
    }

    /// Told with the others.
    fn restored(&mut self, key: PublicKey, id: u64) {
        let Some(front) = self.fronts.get_mut(&key) else { return };
        front.restored.push(id);
        self.restored_at.get_or_insert(self.restored_told + RESTORED_AFTER);
        if front.restored.len() >= RESTORED_MAX {
            self.flush_restored(key);
        }
    }

    fn flush_restored(&mut self, key: PublicKey) {
        let ids = self.fronts.get_mut(&key).map(|front| std::mem::take(&mut front.restored));
        if let Some(ids) = ids.filter(|ids| !ids.is_empty()) {
            self.tell(key, &FromNode::Restored { ids });
        }
    }

    fn take(&mut self, key: PublicKey, handoff: &Handoff) -> Result<(), (Refusal, String)> {
        let no = |why| (why, String::new());
        let (Some(forwarding), Some(sockets)) = (self.forwarding.clone(), self.sockets.clone()) else {
            return Err(no(Refusal::Unsupported));
        };
        let flow = self.flow(key, handoff.connection).ok_or(no(Refusal::Service))?;
        let server = self.switches.address(flow.service).ok_or(no(Refusal::Service))?;
        let place = sockets.reserve().map_err(no)?;
        let (checkpoint, request) = (&handoff.checkpoint.0, &handoff.request.0);
        // First, so that nothing that its packets say of it is overwritten.
        forwarding.begun(flow);
        let restored = forwarding.restore(Moved { client: flow.client, server, checkpoint, request });
        let mut restored = restored.inspect_err(|_| forwarding.forget(flow))?;
        let now = now_ns();
        self.numbers.begin(flow, handoff.first_seq, now);
        let packets = self.stash.restored(Instant::now(), now, flow);
        // The client's end comes first: nothing it sends later has new bytes.
        let injected = restored.inject.take().map_or(Ok(()), |packet| forwarding.inject(&packet));
        given(&injected);
        packets.iter().for_each(|packet| given(&forwarding.give_back(packet)));
        place.send(restored);
        Ok(())
    }

    /// Takes what the kernel has to tell.
    fn drain(&mut self) {
        let Some(forwarding) = self.forwarding.clone() else { return };
        let now = Instant::now();
        for _ in 0..DRAINS_MAX {
            let read = forwarding.read_events(&mut |seen| match seen {
                Seen::Early { key, at_ns, packet } => {
                    if self.stash.early(now, key, at_ns, packet) == Now::Inject {
                        given(&forwarding.give_back(packet));
                    }
                }
                Seen::Closed { key, first_seq, at_ns } => self.closed(key, first_seq, at_ns),
            });
            if read == 0 {
                self.more_at = None;
                return;
            }
        }
        // Others have their turn; the rest does not make the descriptor readable again.
        self.more_at = Some(now);
    }

    pub(super) fn closed(&mut self, flow: FlowKey, first_seq: u32, at_ns: u64) {
        let first_seq = self.numbers.end(flow, first_seq, at_ns);
        let mut full = false;
        for (&key, front) in &mut self.fronts {
            if let Some(theirs) = self.switches.theirs(key, flow.service) {
                let connection = Connection { client: flow.client, service: theirs };
                front.closed.push(Socket { connection, first_seq });
                full |= front.closed.len() >= CLOSED_MAX;
            }
        }
        if full {
            self.flush_closed();
        }
    }

    fn flush_closed(&mut self) {
        let taken = |(key, front): (&PublicKey, &mut Front)| (*key, std::mem::take(&mut front.closed));
        let all: Vec<(PublicKey, Vec<Socket>)> = self.fronts.iter_mut().map(taken).collect();
        for (key, closed) in all {
            // One that has ended already was restored before.
            self.flush_restored(key);
            if !closed.is_empty() {
                self.tell(key, &FromNode::Closed(closed));
            }
        }
    }

    /// Brings what front-ends want into the kernel, and tells all but `but` whose lot has changed.
    pub(super) fn apply(&mut self, but: Option<PublicKey>) {
        let wanted = self.switches.wanted();
        if let Some(forwarding) = self.forwarding.clone() {
            self.apply_rules(&*forwarding, &wanted);
            if let Some(keys) = wanted.keys.filter(|keys| Some(*keys) != self.in_kernel.keys)
                && succeeded("keys", &forwarding.set_keys(&keys))
            {
                self.in_kernel.keys = Some(keys);
            }
            if wanted.tag != self.in_kernel.tag && succeeded("tag", &forwarding.set_tag(wanted.tag)) {
                self.in_kernel.tag = wanted.tag;
            }
            self.apply_tunnels(&*forwarding, &wanted);
        }
        let changed = |(&key, front): (&PublicKey, &Front)| {
            let now = self.switches.accepted(key, &self.in_kernel);
            (Some(key) != but && now != front.accepted).then_some(key)
        };
        let changed: Vec<PublicKey> = self.fronts.iter().filter_map(changed).collect();
        changed.into_iter().for_each(|key| self.tell_accepted(key));
    }

    fn apply_rules(&mut self, forwarding: &dyn Forwarding, wanted: &Wanted) {
        for (ours, (&rules, held)) in (0..).zip(wanted.rules.iter().zip(&mut self.in_kernel.rules)) {
            let Some(address) = self.switches.address(ours).filter(|_| rules != *held) else { continue };
            let done = match rules {
                Some(rules) => forwarding.set_service(ours, address, rules),
                None => forwarding.remove_service(address),
            };
            if succeeded("listen address", &done) {
                *held = rules;
            }
        }
    }

    fn apply_tunnels(&mut self, forwarding: &dyn Forwarding, wanted: &Wanted) {
        let held = &mut self.in_kernel.tunnels;
        held.retain(|tunnel| {
            wanted.tunnels.contains(tunnel) || !succeeded("old tunnel", &forwarding.remove_tunnel(tunnel))
        });
        for tunnel in &wanted.tunnels {
            if !held.contains(tunnel) && succeeded("tunnel", &forwarding.add_tunnel(tunnel)) {
                held.push(*tunnel);
            }
        }
    }

    fn tell_accepted(&mut self, key: PublicKey) {
        let accepted = self.switches.accepted(key, &self.in_kernel);
        let Some(front) = self.fronts.get_mut(&key) else { return };
        front.accepted.clone_from(&accepted);
        self.tell(key, &FromNode::Accepted(accepted));
    }

    fn tell_live(&mut self, (key, number): Asker, listed: &Listed) {
        if self.fronts.get(&key).is_none_or(|front| front.link.number != number) {
            return;
        }
        // What is restored but not in the list has ended.
        self.flush_restored(key);
        let Listed { connections: known, sockets, .. } = listed;
        let mut connections = Vec::with_capacity(known.len());
        for &(flow, first_seq) in known {
            if let Some(service) = self.switches.theirs(key, flow.service) {
                let connection = Connection { client: flow.client, service };
                // Of restored ones the kernel does not know it.
                let first_seq = if first_seq == 0 { self.numbers.of(flow) } else { first_seq };
                connections.push(Socket { connection, first_seq });
            }
        }
        let mut named: HashSet<Connection> = connections.iter().map(|socket| socket.connection).collect();
        for &(local, client) in sockets {
            let service = self.switches.place(local).and_then(|ours| self.switches.theirs(key, ours));
            let Some(service) = service else { continue };
            let connection = Connection { client, service };
            if named.insert(connection) {
                connections.push(Socket { connection, first_seq: 0 });
            }
        }
        let mut rest = &connections[..];
        loop {
            let (piece, later) = rest.split_at(rest.len().min(LIVE_MAX));
            rest = later;
            let last = rest.is_empty();
            self.tell(key, &FromNode::Live(Live { connections: piece.to_vec(), last }));
            if last {
                return;
            }
        }
    }

    fn report_load(&mut self) {
        let mut counts = vec![0_u32; self.in_kernel.rules.len()];
        if let Some(forwarding) = self.forwarding.as_ref().filter(|_| !self.fronts.is_empty()) {
            forwarding.each_connection(&mut |flow, _| {
                if let Some(count) = counts.get_mut(usize::from(flow.service)) {
                    *count = count.saturating_add(1);
                }
            });
        }
        let cpu_permille = self.cpu.permille();
        let stashed = u32::try_from(self.stash.len()).unwrap_or(u32::MAX);
        let keys: Vec<PublicKey> = self.fronts.keys().copied().collect();
        for key in keys {
            let of_its = |(ours, &count): (u16, &u32)| self.switches.theirs(key, ours).map_or(0, |_| count);
            let connections = (0..).zip(&counts).map(of_its).fold(0, u32::saturating_add);
            self.tell(key, &FromNode::Load(Load { connections, cpu_permille, stashed }));
        }
    }

    pub(super) fn tell(&mut self, key: PublicKey, message: &FromNode) {
        let Some(front) = self.fronts.get(&key) else { return };
        let sent = match message.encode() {
            Ok(bytes) => front.link.send(bytes),
            Err(error) => {
                tracing::error!(%error, "a message that cannot be sent");
                return;
            }
        };
        if !sent {
            tracing::warn!(address = %front.link.address, "switch: disconnected, because it reads messages too slowly");
            self.forget(key);
        }
    }
}

/// Whether a packet was given to the stack; if not, the client will send it again.
fn given(done: &io::Result<()>) {
    if let Err(error) = done {
        tracing::warn!(%error, "a packet could not be given to the stack");
    }
}

fn succeeded(what: &'static str, done: &io::Result<()>) -> bool {
    if let Err(error) = done {
        tracing::error!(%error, what, "the kernel refuses");
    }
    done.is_ok()
}

/// Waits until there is something to read; for ever without a place to read from.
async fn readable(events: Option<&Readiness>) -> io::Result<()> {
    match events {
        Some(events) => events.readable().await,
        None => std::future::pending().await,
    }
}
