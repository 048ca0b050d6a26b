//! The agent's main task. All inputs arrive here, and all actions start here.

use super::first_seqs::FirstSeqs;
use super::link::{InputSender, Link, LinkInput};
use super::listing::ListingJobs;
use super::outgoing::{OfferQueue, OutgoingHandoff};
use super::resolver::{HolderRequest, PendingRequests};
use super::shutdown::{ShutdownAck, ShutdownProgress};
use super::stash::{Stash, StashVerdict};
use super::switches::{KernelSettings, SwitchTable};
use super::{KernelEvent, NodeKernel, RestoreRequest, RestoredSink, stale};
use crate::channel::Timing;
use crate::channel::holders::HolderQuery;
use crate::channel::identity::PublicKey;
use crate::channel::message::{
    CLOSED_MAX, Connection, ConnectionId, FromNode, Handoff, Message as _, RESTORED_MAX, Refusal,
    SettingsStatus, ToNode, Welcome, truncate_text,
};
use crate::channel::server::{Server, SwitchConnection};
use larder_kernel::cpu::CpuMeter;
use larder_kernel::interface::Interface;
use larder_kernel::plane::now_ns;
use larder_kernel::{FlowKey, Readiness};
use larder_log::LogLimiters;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Interval at which the kernel is asked for closed connections, which are then reported together.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between two reports of restored connections. The first restore is reported at once; further ones
/// within this interval are reported together. Until the report arrives, the switch keeps its old socket, which a new
/// connection with the same addresses would hit.
const RESTORED_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between two load reports.
const LOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of queued messages from switches. If the queue is full, no more are read.
const INPUTS_MAX: usize = 256;
/// Maximum number of consecutive reads of kernel events, so that other inputs get their turn.
const DRAINS_MAX: usize = 8;
/// Maximum time to write the last messages when the agent stops.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of connected switches that wait to be admitted.
const NEW_SWITCHES_MAX: usize = 16;

/// A connected switch.
pub(super) struct ConnectedSwitch {
    pub(super) link: Link,
    /// Closed connections that were not reported yet.
    closed: Vec<ConnectionId>,
    /// Ids of restored handoffs that were not reported yet.
    restored: Vec<u64>,
    /// The last settings status that the switch was sent.
    settings: SettingsStatus,
}

pub(super) struct Core {
    welcome: Welcome,
    timing: Timing,
    pub(super) kernel: Option<Arc<dyn NodeKernel>>,
    restored_sink: Option<RestoredSink>,
    pub(super) switches: SwitchTable,
    /// Value of `AccessState::revocations` at the last check.
    pub(super) revocations: u64,
    pub(super) applied: KernelSettings,
    pub(super) connected: BTreeMap<PublicKey, ConnectedSwitch>,
    link_count: u64,
    pub(super) stash: Stash,
    pub(super) first_seqs: FirstSeqs,
    /// Connections that are being handed off to other nodes.
    pub(super) outgoing: HashMap<FlowKey, OutgoingHandoff>,
    holder_requests: PendingRequests,
    listings: ListingJobs,
    pub(super) shutdown: Option<ShutdownProgress>,
    pub(super) cpu: CpuMeter,
    /// Time of the next read of kernel events: a closed connection does not make the descriptor readable.
    drain_at: Instant,
    /// Set if the last read left events behind.
    more_events_at: Option<Instant>,
    /// Time of the next report of restored connections, and time of the last one.
    report_restored_at: Option<Instant>,
    restored_reported_at: Instant,
    report_load_at: Instant,
    heartbeat_at: Instant,
    /// Time of the next check for stale connections.
    check_stale_at: Instant,
}

impl Core {
    pub(super) fn new(
        name: String,
        services: Vec<std::net::SocketAddr>,
        timing: Timing,
        interface: Option<Interface>,
        kernel: Option<Arc<dyn NodeKernel>>,
        restored_sink: Option<RestoredSink>,
    ) -> io::Result<Self> {
        let mut incarnation = [0; 8];
        rustix::rand::getrandom(&mut incarnation, rustix::rand::GetRandomFlags::empty())?;
        let welcome = Welcome {
            name,
            incarnation: u64::from_ne_bytes(incarnation),
            cookie: kernel.as_ref().is_some_and(|kernel| kernel.accepts_cookies()),
            repair: kernel.is_some() && restored_sink.is_some(),
            lateral: false,
            mac: interface.and_then(|interface| interface.mac),
            mtu: interface.map_or(0, |interface| interface.mtu),
            settings: SettingsStatus::default(),
        };
        let applied = KernelSettings { rules: vec![None; services.len()], ..KernelSettings::default() };
        Ok(Self {
            welcome,
            timing,
            kernel,
            restored_sink,
            switches: SwitchTable::new(services),
            revocations: 0,
            applied,
            connected: BTreeMap::new(),
            link_count: 0,
            stash: Stash::default(),
            first_seqs: FirstSeqs::default(),
            holder_requests: PendingRequests::default(),
            listings: ListingJobs::default(),
            shutdown: None,
            outgoing: HashMap::new(),
            cpu: CpuMeter::default(),
            drain_at: Instant::now(),
            more_events_at: None,
            report_restored_at: None,
            restored_reported_at: Instant::now(),
            report_load_at: Instant::now(),
            heartbeat_at: Instant::now(),
            check_stale_at: Instant::now(),
        })
    }

    /// Sets whether switches are told that this node fetches contents from other nodes.
    pub(super) fn set_lateral(&mut self, lateral: bool) {
        self.welcome.lateral = lateral;
    }

    /// Returns the readiness of kernel events, if there is a kernel.
    pub(super) fn events(&self) -> io::Result<Option<Readiness>> {
        self.kernel.as_ref().map(|kernel| Readiness::new(kernel.events_fd())).transpose()
    }

    /// Runs until `stop` fires.
    pub(super) async fn run(
        mut self,
        server: Server,
        events: Option<Readiness>,
        mut requests: mpsc::Receiver<HolderRequest>,
        offers: OfferQueue,
        mut shutdown_acks: mpsc::Receiver<ShutdownAck>,
        mut stop: oneshot::Receiver<()>,
    ) {
        let OfferQueue { mut offers, release } = offers;
        let (counters, access) = (server.handshake_counters(), server.access_control());
        let mut access_changes = access.watch();
        let (inputs_in, mut inputs) = mpsc::channel(INPUTS_MAX);
        let (new_switches_in, mut new_switches) = mpsc::channel(NEW_SWITCHES_MAX);
        let server_task = tokio::spawn(server.run(new_switches_in));
        loop {
            self.listings.start_next(self.kernel.as_ref(), self.switches.addresses());
            let due = self.next_deadline();
            tokio::select! {
                _ = &mut stop => break,
                ready = readable(events.as_ref()) => {
                    if let Err(error) = ready {
                        tracing::error!(%error, "agent: stopped, kernel events cannot be read");
                        break;
                    }
                    self.read_events();
                }
                Some(connection) = new_switches.recv() => self.admit(connection, &access, &inputs_in),
                Ok(()) = access_changes.changed() => {
                    let state = access_changes.borrow_and_update().clone();
                    self.revoke(&state, &counters);
                }
                Some(input) = inputs.recv() => {
                    if matches!(input.message, Some(ToNode::ReleaseIdle)) {
                        release.send_modify(|times| *times += 1);
                    }
                    self.handle_input(input);
                }
                (requester, listing) = self.listings.next() => {
                    let listing = self.remove_stale(listing);
                    requester.into_iter().for_each(|requester| self.send_listing(requester, &listing));
                }
                Some(request) = requests.recv() => self.ask_holders(request),
                Some(offer) = offers.recv() => self.accept_offer(offer),
                () = tokio::time::sleep_until(due.into()) => self.run_due(Instant::now()),
                Some(ack) = shutdown_acks.recv() => self.announce_shutdown(ack),
            }
        }
        self.read_events();
        self.report_closed();
        server_task.abort();
        std::mem::take(&mut self.listings).shut_down().await;
        let flush = async {
            for (_, switch) in std::mem::take(&mut self.connected) {
                switch.link.finish().await;
            }
        };
        // A switch that reads nothing must not delay the end.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, flush).await;
    }

    fn next_deadline(&self) -> Instant {
        // Without a switch nobody waits for closed connections.
        let drain_at = (!self.connected.is_empty()).then_some(self.drain_at);
        let others = drain_at
            .into_iter()
            .chain(self.more_events_at)
            .chain(self.report_restored_at)
            .chain(self.stash.next_deadline());
        others.fold(self.report_load_at.min(self.heartbeat_at).min(self.check_stale_at), Instant::min)
    }

    fn run_due(&mut self, now: Instant) {
        if self.report_restored_at.take_if(|at| *at <= now).is_some() {
            self.restored_reported_at = now;
            let keys: Vec<PublicKey> = self.connected.keys().copied().collect();
            keys.into_iter().for_each(|key| self.report_restored(key));
        }
        if self.more_events_at.is_some() || self.drain_at <= now {
            self.drain_at = now + DRAIN_INTERVAL;
            self.read_events();
            self.report_closed();
        }
        while let Some((key, packets)) = self.stash.pop_expired(now) {
            tracing::debug!(client = %key.client, packets = packets.len(), "handoff: early packets dropped, their connection was not handed off");
        }
        if self.report_load_at <= now {
            self.report_load_at = now + LOAD_INTERVAL;
            self.report_load();
            self.expire_outgoing(now);
        }
        if self.check_stale_at <= now {
            self.check_stale_at = now + stale::CHECK_INTERVAL;
            self.listings.request_check();
        }
        if self.heartbeat_at <= now {
            self.heartbeat_at = now + self.timing.ping;
            self.send_heartbeats();
        }
    }

    /// Sends every switch a heartbeat, which does not depend on whether its pings arrive.
    fn send_heartbeats(&mut self) {
        let keys: Vec<PublicKey> = self.connected.keys().copied().collect();
        keys.into_iter().for_each(|key| self.send(key, &FromNode::Pong(0)));
    }

    pub(super) fn switch_connected(&mut self, peer: SwitchConnection, inputs: &mpsc::Sender<LinkInput>) {
        self.link_count += 1;
        let SwitchConnection { key, address, hello, sender, receiver } = peer;
        tracing::info!(%address, name = %hello.name, "switch: connected");
        self.switches.connect(key, hello);
        let to = InputSender { key, number: self.link_count, core: inputs.clone() };
        let link = Link::new(address, sender, receiver, self.timing, to);
        // An older link of the same switch ends here.
        self.connected.insert(
            key,
            ConnectedSwitch {
                link,
                closed: Vec::new(),
                restored: Vec::new(),
                settings: SettingsStatus::default(),
            },
        );
        self.apply_settings(Some(key));
        let status = self.switches.status_for(key, &self.applied);
        if let Some(switch) = self.connected.get_mut(&key) {
            switch.settings.clone_from(&status);
        }
        self.send(key, &FromNode::Welcome(Welcome { settings: status, ..self.welcome.clone() }));
        self.listings.request((key, self.link_count));
        self.resend_offers(key);
        self.announce_shutdown_to(key);
    }

    fn handle_input(&mut self, input: LinkInput) {
        let LinkInput { key, number, message } = input;
        if self.connected.get(&key).is_none_or(|switch| switch.link.number != number) {
            return;
        }
        match message {
            None => self.switch_disconnected(key),
            Some(ToNode::Keys(keys)) => {
                self.switches.set_keys(key, keys);
                self.apply_settings(Some(key));
                self.send_settings(key);
            }
            Some(ToNode::Services(services)) => {
                self.switches.set_services(key, services);
                self.apply_settings(Some(key));
                self.send_settings(key);
            }
            Some(ToNode::Tag(tag)) => {
                self.switches.set_tag(key, tag);
                self.apply_settings(Some(key));
                self.send_settings(key);
            }
            Some(ToNode::ListConnections) => self.listings.request((key, number)),
            Some(ToNode::Handoff(handoff)) => self.handle_handoff(key, &handoff),
            Some(ToNode::CancelHandoff(connection)) => {
                if let Some(flow) = self.flow_key(key, connection) {
                    self.stash.remove(flow);
                }
            }
            Some(ToNode::Holders(has)) => self.holder_requests.complete(key, has),
            Some(ToNode::ShutdownAcknowledged) => self.shutdown_acknowledged(key),
            Some(ToNode::Ping(number)) => self.send(key, &FromNode::Pong(number)),
            Some(message @ (ToNode::RequestState(_) | ToNode::Transferred(_) | ToNode::Keep(_))) => {
                // Puts packets that arrived before this message into the stash.
                self.read_events();
                self.handle_migration(key, &message);
            }
            // The link rejects a second hello. The main loop handles ReleaseIdle.
            Some(ToNode::Hello(_) | ToNode::ReleaseIdle) => {}
        }
    }

    fn switch_disconnected(&mut self, key: PublicKey) {
        self.remove_switch(key);
        self.withdraw_offers(key);
        self.apply_settings(None);
    }

    pub(super) fn remove_switch(&mut self, key: PublicKey) {
        self.connected.remove(&key);
        self.switches.disconnect(key);
        self.holder_requests.remove_switch(key);
        self.shutdown_acknowledged(key);
    }

    /// Sends a holder query to a switch that has the listen address. If there is none, the answer's sender is dropped,
    /// which the caller sees as no answer.
    fn ask_holders(&mut self, request: HolderRequest) {
        let HolderRequest { service, request, answer } = request;
        let switch = self.connected.keys().find(|key| self.switches.serves(**key, service)).copied();
        if let Some(switch) = switch {
            let id = self.holder_requests.insert(switch, answer);
            self.send(switch, &FromNode::FindHolders(HolderQuery { id, request }));
        }
    }

    /// Translates a connection from a switch's service number to the node's.
    pub(super) fn flow_key(&self, key: PublicKey, connection: Connection) -> Option<FlowKey> {
        self.switches
            .node_service(key, connection.service)
            .map(|service| FlowKey::new(connection.client, service))
    }

    fn handle_handoff(&mut self, key: PublicKey, handoff: &Handoff) {
        // Puts packets that arrived before this message into the stash.
        self.read_events();
        let answer = match self.restore_handoff(key, handoff) {
            // The report can be delayed: the connection is here, and the switch only keeps its old socket a little
            // longer.
            Ok(()) => return self.queue_restored(key, handoff.id),
            Err((reason, detail)) => {
                // One for each reason.
                static LIMITERS: LogLimiters<5> = LogLimiters::new();
                if let Some(times) = LIMITERS.due(reason as usize) {
                    let client = handoff.connection.client;
                    tracing::warn!(times, %client, ?reason, %detail, "handoff: refused, the connection stays where it was");
                }
                if let Some(flow) = self.flow_key(key, handoff.connection) {
                    self.stash.remove(flow);
                }
                FromNode::Refused { id: handoff.id, reason, detail: truncate_text(detail) }
            }
        };
        self.send(key, &answer);
    }

    /// Queues the report of a restored handoff.
    fn queue_restored(&mut self, key: PublicKey, id: u64) {
        let Some(switch) = self.connected.get_mut(&key) else { return };
        switch.restored.push(id);
        self.report_restored_at.get_or_insert(self.restored_reported_at + RESTORED_INTERVAL);
        if switch.restored.len() >= RESTORED_MAX {
            self.report_restored(key);
        }
    }

    pub(super) fn report_restored(&mut self, key: PublicKey) {
        let ids = self.connected.get_mut(&key).map(|switch| std::mem::take(&mut switch.restored));
        if let Some(ids) = ids.filter(|ids| !ids.is_empty()) {
            self.send(key, &FromNode::Restored { ids });
        }
    }

    fn restore_handoff(&mut self, key: PublicKey, handoff: &Handoff) -> Result<(), (Refusal, String)> {
        let refuse = |reason| (reason, String::new());
        let (Some(kernel), Some(sink)) = (self.kernel.clone(), self.restored_sink.clone()) else {
            return Err(refuse(Refusal::Unsupported));
        };
        let flow = self.flow_key(key, handoff.connection).ok_or(refuse(Refusal::UnknownService))?;
        let server = self.switches.address(flow.service).ok_or(refuse(Refusal::UnknownService))?;
        let reservation = sink.reserve().map_err(refuse)?;
        let (checkpoint, request) = (&handoff.checkpoint.0, &handoff.request.0);
        // Added before the restore, so that the entry does not overwrite what the first packets note in it.
        kernel.add_connection(flow);
        let restored =
            kernel.restore(RestoreRequest { client: flow.client, server, checkpoint, received: request });
        let mut restored = restored.inspect_err(|_| kernel.remove_connection(flow))?;
        let now = now_ns();
        self.first_seqs.insert(flow, handoff.first_seq, now);
        let packets = self.stash.mark_restored(Instant::now(), now, flow);
        // The FIN goes first: no packet after it has new data.
        let injected = restored.fin_packet.take().map_or(Ok(()), |packet| kernel.inject(&packet));
        log_injection(&injected);
        packets.iter().for_each(|packet| log_injection(&kernel.reinject(packet)));
        reservation.send(restored);
        Ok(())
    }

    /// Reads and handles pending kernel events.
    fn read_events(&mut self) {
        let Some(kernel) = self.kernel.clone() else { return };
        let now = Instant::now();
        for _ in 0..DRAINS_MAX {
            let read = kernel.read_events(&mut |event| match event {
                KernelEvent::EarlyPacket { key, at_ns, packet } => {
                    if self.stash.push(now, key, at_ns, packet) == StashVerdict::Inject {
                        log_injection(&kernel.reinject(packet));
                    }
                }
                KernelEvent::Closed { key, first_seq, at_ns } => self.closed(key, first_seq, at_ns),
            });
            if read == 0 {
                self.more_events_at = None;
                return;
            }
        }
        // Other inputs get their turn. The remaining events do not make the descriptor readable again.
        self.more_events_at = Some(now);
    }

    pub(super) fn closed(&mut self, flow: FlowKey, first_seq: u32, at_ns: u64) {
        let first_seq = self.first_seqs.take_closed(flow, first_seq, at_ns);
        let mut full = false;
        for (&key, switch) in &mut self.connected {
            if let Some(service) = self.switches.switch_service(key, flow.service) {
                let connection = Connection { client: flow.client, service };
                switch.closed.push(ConnectionId { connection, first_seq });
                full |= switch.closed.len() >= CLOSED_MAX;
            }
        }
        if full {
            self.report_closed();
        }
    }

    fn report_closed(&mut self) {
        let taken =
            |(key, switch): (&PublicKey, &mut ConnectedSwitch)| (*key, std::mem::take(&mut switch.closed));
        let all: Vec<(PublicKey, Vec<ConnectionId>)> = self.connected.iter_mut().map(taken).collect();
        for (key, closed) in all {
            // A closed connection may have been restored just before.
            self.report_restored(key);
            if !closed.is_empty() {
                self.send(key, &FromNode::Closed(closed));
            }
        }
    }

    /// Applies the combined settings of all switches to the kernel. Tells every switch but `except` if its settings
    /// status has changed.
    pub(super) fn apply_settings(&mut self, except: Option<PublicKey>) {
        let settings = self.switches.kernel_settings();
        if let Some(kernel) = self.kernel.clone() {
            self.apply_services(&*kernel, &settings);
            if let Some(keys) = settings.keys.filter(|keys| Some(*keys) != self.applied.keys)
                && accepted("cookie keys", &kernel.set_keys(&keys))
            {
                self.applied.keys = Some(keys);
            }
            if settings.tag != self.applied.tag && accepted("tag", &kernel.set_tag(settings.tag)) {
                self.applied.tag = settings.tag;
            }
            self.apply_tunnels(&*kernel, &settings);
        }
        let changed = |(&key, switch): (&PublicKey, &ConnectedSwitch)| {
            let now = self.switches.status_for(key, &self.applied);
            (Some(key) != except && now != switch.settings).then_some(key)
        };
        let changed: Vec<PublicKey> = self.connected.iter().filter_map(changed).collect();
        changed.into_iter().for_each(|key| self.send_settings(key));
    }

    fn apply_services(&mut self, kernel: &dyn NodeKernel, settings: &KernelSettings) {
        for (service, (&rules, held)) in (0..).zip(settings.rules.iter().zip(&mut self.applied.rules)) {
            let Some(address) = self.switches.address(service).filter(|_| rules != *held) else { continue };
            let done = match rules {
                Some(rules) => kernel.set_service(service, address, rules),
                None => kernel.remove_service(address),
            };
            if accepted("listen address", &done) {
                *held = rules;
            }
        }
    }

    fn apply_tunnels(&mut self, kernel: &dyn NodeKernel, settings: &KernelSettings) {
        let held = &mut self.applied.tunnels;
        held.retain(|tunnel| {
            settings.tunnels.contains(tunnel) || !accepted("old tunnel", &kernel.remove_tunnel(tunnel))
        });
        for tunnel in &settings.tunnels {
            if !held.contains(tunnel) && accepted("tunnel", &kernel.add_tunnel(tunnel)) {
                held.push(*tunnel);
            }
        }
    }

    fn send_settings(&mut self, key: PublicKey) {
        let status = self.switches.status_for(key, &self.applied);
        let Some(switch) = self.connected.get_mut(&key) else { return };
        switch.settings.clone_from(&status);
        self.send(key, &FromNode::Settings(status));
    }

    pub(super) fn send(&mut self, key: PublicKey, message: &FromNode) {
        let Some(switch) = self.connected.get(&key) else { return };
        let sent = match message.encode() {
            Ok(bytes) => switch.link.send(bytes),
            Err(error) => {
                larder_log::limited_warn!(%error, "control channel: message not sent, it exceeds a limit");
                return;
            }
        };
        if !sent {
            tracing::warn!(address = %switch.link.address, "switch: disconnected, it reads messages too slowly");
            self.remove_switch(key);
        }
    }
}

/// Logs a failed injection. The client will retransmit the packet.
fn log_injection(done: &io::Result<()>) {
    if let Err(error) = done {
        larder_log::limited_warn!(%error, "handoff: packet not injected, the client must retransmit it");
    }
}

fn accepted(setting: &'static str, done: &io::Result<()>) -> bool {
    if let Err(error) = done {
        tracing::error!(%error, setting, "kernel programs: setting rejected, handoff is limited");
    }
    done.is_ok()
}

/// Waits for kernel events. Never returns without a kernel.
async fn readable(events: Option<&Readiness>) -> io::Result<()> {
    match events {
        Some(events) => events.readable().await,
        None => std::future::pending().await,
    }
}
