//! Drives foca: feeds it datagrams and timers, and turns its notifications into changes of membership.

use super::Start;
use super::runtime::FocaRuntime;
use crate::config::GossipConfig;
use crate::counters::increment;
use crate::datagram::{
    self, BODY_BYTES_MAX, DATAGRAM_BYTES_MAX, Datagram, DatagramCipher, DatagramError, Identity,
    KnownIdentity, OpenedDatagram,
};
use crate::member::{Change, LeaveReason, Member};
use crate::name::Name;
use crate::seeds;
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use foca::{Foca, Identity as _, NoCustomBroadcast, OwnedNotification, PeriodicParams, PostcardCodec};
use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// Number of members asked for an indirect probe, and number of members each gossip round sends updates to.
const FANOUT: NonZeroUsize = NonZeroUsize::new(3).unwrap();
/// Maximum times that each member sends one update.
const TRANSMISSIONS_MAX: NonZeroU8 = NonZeroU8::new(10).unwrap();
/// Period of asking a member for the members that it knows.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(5);
/// Maximum addresses asked for their identity at a time: while this member is alone, and otherwise.
const DISCOVER_MAX: (usize, usize) = (32, 3);
/// Delay between two renewals. It doubles from the minimum to the maximum, and restarts after `RENEWAL_CALM` without a
/// renewal.
const RENEWAL_MIN: Duration = Duration::from_secs(1);
const RENEWAL_MAX: Duration = Duration::from_secs(10);
const RENEWAL_CALM: Duration = Duration::from_secs(30);
/// Minimum time between two log lines about another process of this name.
const NAME_CONFLICT_LOG_PERIOD: Duration = Duration::from_secs(60);
/// Delay between the two announcements of a leaving member.
const LEAVE_REPEAT_DELAY: Duration = Duration::from_millis(50);
/// Delay after an error of the socket.
const SOCKET_ERROR_DELAY: Duration = Duration::from_millis(20);

/// The membership task.
pub(super) struct Driver {
    start: Start,
    foca: Foca<Identity, PostcardCodec, Xoshiro256PlusPlus, NoCustomBroadcast>,
    runtime: FocaRuntime,
    random: Xoshiro256PlusPlus,
    /// Members that are up, by name.
    active_members: BTreeMap<Name, Identity>,
    view: watch::Sender<Arc<[Member]>>,
    /// Changes not delivered yet, at most two for each name.
    pending: VecDeque<Change>,
    /// The member whose leave is being processed.
    leaving: Option<Name>,
    /// Other members have declared this identity down.
    declared_down: bool,
    /// A newer process has this name.
    superseded: bool,
    renew_at: Option<Instant>,
    renewed_at: Option<Instant>,
    renewal_pause: Duration,
    conflict_logged_at: Option<Instant>,
    seek_at: Instant,
    resolved_at: Option<Instant>,
    resolving: Option<oneshot::Receiver<Vec<SocketAddr>>>,
    /// Resolved addresses of the seeds.
    seed_addresses: Vec<SocketAddr>,
}

impl Driver {
    pub(super) fn new(
        start: Start,
        socket: UdpSocket,
        view: watch::Sender<Arc<[Member]>>,
    ) -> io::Result<Self> {
        let mut seed = [0; 32];
        SystemRandom::new()
            .fill(&mut seed)
            .map_err(|_| io::Error::other("cannot read the system's random source"))?;
        let random = Xoshiro256PlusPlus::from_seed(seed);
        let identity = Identity {
            name: start.local.name.clone(),
            incarnation: start.local.incarnation(),
            renewal: 0,
            address: start.address,
        };
        let foca = Foca::new(identity, foca_config(&start.config), random.clone(), PostcardCodec);
        let runtime = FocaRuntime::new(
            socket,
            DatagramCipher::new(&start.keyring.current()),
            Arc::clone(&start.counters),
        );
        #[cfg(test)]
        let runtime = runtime.with_blocked(Arc::clone(&start.blocked));
        Ok(Self {
            foca,
            runtime,
            random,
            active_members: BTreeMap::new(),
            view,
            pending: VecDeque::new(),
            leaving: None,
            declared_down: false,
            superseded: false,
            renew_at: None,
            renewed_at: None,
            renewal_pause: RENEWAL_MIN,
            conflict_logged_at: None,
            seek_at: Instant::now(),
            resolved_at: None,
            resolving: None,
            seed_addresses: Vec::new(),
            start,
        })
    }

    /// Runs until the receiver of changes is dropped or this member leaves.
    pub(super) async fn run(
        mut self,
        changes: mpsc::Sender<Change>,
        mut leave: mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        let socket = self.runtime.socket();
        let mut secrets = self.start.keyring.subscribe();
        // The secrets may have changed since the cipher was created.
        secrets.mark_changed();
        // One byte more than the longest datagram, so that a truncated one is recognised as too long.
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        loop {
            let due =
                [Some(self.seek_at), self.renew_at, self.runtime.next_due()].into_iter().flatten().min();
            tokio::select! {
                received = socket.recv_from(&mut buffer) => match received {
                    Ok((length, from)) => self.handle_datagram(&mut buffer[..length], from),
                    Err(error) => {
                        larder_log::limited_warn!(%error, "membership: receive failed");
                        sleep(SOCKET_ERROR_DELAY).await;
                    }
                },
                () = sleep_until(due.unwrap_or(self.seek_at)) => self.run_timers(Instant::now()),
                addresses = resolved(&mut self.resolving) => {
                    self.resolving = None;
                    self.seed_addresses = addresses;
                    self.seek(Instant::now());
                }
                permit = changes.reserve(), if !self.pending.is_empty() => match (permit, self.pending.pop_front()) {
                    (Ok(permit), Some(change)) => permit.send(change),
                    // The network was dropped.
                    (Err(_), _) => return,
                    (Ok(_), None) => {}
                },
                Ok(()) = secrets.changed() => {
                    self.runtime.set_cipher(DatagramCipher::new(&secrets.borrow_and_update()));
                }
                Some(done) = leave.recv() => {
                    self.leave().await;
                    // The caller may have stopped waiting.
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    /// Runs all timers that are due.
    fn run_timers(&mut self, now: Instant) {
        while let Some(timer) = self.runtime.take_due(now) {
            self.handle_timer(timer);
        }
        if self.renew_at.is_some_and(|at| at <= now) {
            self.renew_at = None;
            self.rejoin(None);
        }
        if self.seek_at <= now {
            while let Some(timer) = self.runtime.take_expired(now) {
                self.handle_timer(timer);
            }
            self.seek(now);
        }
    }

    fn handle_timer(&mut self, timer: foca::Timer<Identity>) {
        if let Err(error) = self.foca.handle_timer(timer, &mut self.runtime) {
            tracing::debug!(%error, "membership: timer ignored");
        }
        self.apply_notifications(None);
    }

    fn handle_datagram(&mut self, datagram: &mut [u8], from: SocketAddr) {
        if !self.runtime.allows(from) {
            return;
        }
        let counters = Arc::clone(&self.start.counters);
        increment(&counters.datagrams_in);
        let error = match self.runtime.decrypt(datagram) {
            Ok(OpenedDatagram { plain, other_secret }) => {
                if other_secret {
                    increment(&counters.datagrams_other_secret);
                }
                match datagram::decode(plain) {
                    Ok(datagram) => return self.handle_decoded(datagram, plain, from),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        increment(match error {
            DatagramError::Unauthenticated => &counters.datagrams_forged,
            DatagramError::Malformed => &counters.datagrams_malformed,
        });
        tracing::debug!(%from, %error, "membership: datagram dropped");
    }

    fn handle_decoded(&mut self, datagram: Datagram, plain: &[u8], from: SocketAddr) {
        let own = self.foca.identity().clone();
        let source = match &datagram {
            Datagram::Swim(header, _) => &header.src,
            Datagram::Discover(identity)
            | Datagram::DiscoverReply(identity, _)
            | Datagram::Leave(identity) => identity,
        };
        if source.name == own.name {
            // A seed can be this member's own address, so it may receive its own datagrams.
            if source.address != own.address {
                increment(&self.start.counters.datagrams_namesake);
                self.log_name_conflict(source.address);
                self.compare_identity(&KnownIdentity { identity: source.clone(), active: true });
                if matches!(datagram, Datagram::Discover(_)) {
                    self.runtime.send(
                        from,
                        &Datagram::DiscoverReply(
                            own.clone(),
                            Some(KnownIdentity { identity: own, active: true }),
                        ),
                    );
                }
            }
            return;
        }
        match datagram {
            Datagram::Swim(header, members) => {
                let named = members.iter().map(foca::Member::id).chain([&header.src]);
                if self.has_room(named) {
                    if let Err(error) = self.foca.handle_data(datagram::body(plain), &mut self.runtime) {
                        tracing::debug!(%from, %error, "membership: datagram rejected");
                    }
                    self.apply_notifications(Some(&header.src));
                }
            }
            Datagram::Discover(identity) => {
                let known =
                    self.foca.iter_membership_state().find(|member| member.id().name == identity.name);
                let known = known.map(|member| {
                    let active = member.state() != foca::State::Down;
                    KnownIdentity { identity: member.id().clone(), active }
                });
                self.runtime.send(from, &Datagram::DiscoverReply(own, known));
            }
            Datagram::DiscoverReply(identity, known) => {
                if let Some(known) = known {
                    self.compare_identity(&known);
                }
                if self.has_room([&identity].into_iter()) {
                    self.rejoin(Some(&identity));
                    self.announce(identity);
                }
            }
            Datagram::Leave(identity) => {
                if self.active_members.get(&identity.name) == Some(&identity) {
                    self.leaving = Some(identity.name.clone());
                    let down = std::iter::once(foca::Member::down(identity));
                    if let Err(error) = self.foca.apply_many(down, true, &mut self.runtime) {
                        tracing::debug!(%error, "membership: leave not applied");
                    }
                    self.apply_notifications(None);
                    self.leaving = None;
                }
            }
        }
    }

    /// Whether all of these members are known, or `known_max` allows the new ones.
    fn has_room<'identity>(&self, identities: impl Iterator<Item = &'identity Identity>) -> bool {
        let known = self.foca.iter_membership_state();
        let max = self.start.config.known_max;
        let identities: Vec<&Identity> = identities.collect();
        if known.len() + identities.len() <= max {
            return true;
        }
        let known: std::collections::BTreeSet<&Name> = known.map(|member| &member.id().name).collect();
        let new: std::collections::BTreeSet<&Name> =
            identities.iter().map(|identity| &identity.name).filter(|name| !known.contains(name)).collect();
        let room = new.is_empty() || known.len() + new.len() <= max;
        if !room {
            increment(&self.start.counters.datagrams_full);
        }
        room
    }

    /// Compares what another member knows about this member's name with this process's own identity. If the other member
    /// knows a newer process, this one stays outside; if that process is gone, this one takes a higher incarnation.
    fn compare_identity(&mut self, known: &KnownIdentity) {
        let own = self.foca.identity().clone();
        if known.identity.name != own.name || known.identity == own {
            return;
        }
        let outranked = known.identity.win_addr_conflict(&own);
        self.superseded = outranked && known.active && known.identity.address != own.address;
        if self.superseded {
            self.log_name_conflict(known.identity.address);
        } else if outranked {
            // A predecessor whose clock was ahead, or a newer process that has left.
            let next = known.identity.incarnation.saturating_add(1);
            tracing::warn!(incarnation = next, "membership: clock was behind, incarnation raised");
            self.start.local.set_incarnation(next);
            self.change_identity(Identity { incarnation: next, renewal: 0, ..own });
        }
    }

    /// Logs that another process has this name, at a limited rate.
    fn log_name_conflict(&mut self, address: SocketAddr) {
        let now = Instant::now();
        if self.conflict_logged_at.is_none_or(|at| now >= at + NAME_CONFLICT_LOG_PERIOD) {
            self.conflict_logged_at = Some(now);
            let name = &self.start.local.name;
            tracing::error!(%name, other = %address, own = %self.start.address, superseded = self.superseded,
                "membership: two processes have the same name, the newer one is the member");
        }
    }

    /// Rejoins after this member was declared down, unless the last renewal is too recent. Announces itself to `toward`,
    /// which may be the only member that knows of the declaration.
    fn rejoin(&mut self, toward: Option<&Identity>) {
        if !self.declared_down || self.superseded {
            return;
        }
        let now = Instant::now();
        if let Some(last) = self.renewed_at {
            if now >= last + RENEWAL_CALM {
                self.renewal_pause = RENEWAL_MIN;
            } else if now < last + self.renewal_pause {
                self.renew_at = Some(last + self.renewal_pause);
                return;
            } else {
                self.renewal_pause = (self.renewal_pause * 2).min(RENEWAL_MAX);
            }
        }
        self.renewed_at = Some(now);
        increment(&self.start.counters.renewals);
        let own = self.foca.identity().clone();
        self.change_identity(Identity { renewal: own.renewal.saturating_add(1), ..own });
        if let Some(toward) = toward {
            self.announce(toward.clone());
        }
    }

    /// Continues under another identity.
    fn change_identity(&mut self, identity: Identity) {
        self.declared_down = false;
        self.renew_at = None;
        tracing::info!(
            incarnation = identity.incarnation,
            renewal = identity.renewal,
            "membership: rejoining with a higher incarnation"
        );
        if let Err(error) = self.foca.change_identity(identity, &mut self.runtime) {
            tracing::debug!(%error, "membership: identity not changed");
        }
        self.apply_notifications(None);
    }

    /// Asks a member to add this one.
    fn announce(&mut self, to: Identity) {
        if let Err(error) = self.foca.announce(to, &mut self.runtime) {
            tracing::debug!(%error, "membership: announcement not sent");
        }
        self.apply_notifications(None);
    }

    /// Applies foca's notifications. `source` sent the datagram that caused them.
    fn apply_notifications(&mut self, source: Option<&Identity>) {
        let mut defunct = false;
        while let Some(notification) = self.runtime.take_notification() {
            match notification {
                OwnedNotification::MemberUp(identity) => self.member_up(identity),
                OwnedNotification::MemberDown(identity) => {
                    let announced = self.leaving.as_ref() == Some(&identity.name);
                    self.member_down(
                        &identity.name,
                        if announced { LeaveReason::Announced } else { LeaveReason::Lost },
                    );
                }
                OwnedNotification::Rename(before, after) => {
                    if self.active_members.get(&before.name) == Some(&before) {
                        self.member_up(after);
                    }
                }
                OwnedNotification::Defunct => defunct = true,
                OwnedNotification::Active | OwnedNotification::Idle | OwnedNotification::Rejoin(_) => {}
            }
        }
        if defunct {
            self.declared_down = true;
            self.rejoin(source);
        }
    }

    fn member_up(&mut self, identity: Identity) {
        let same = self.active_members.get(&identity.name).map(|known| known.member() == identity.member());
        match same {
            // The same process with a higher renewal number: no change for users.
            Some(true) => {
                self.active_members.insert(identity.name.clone(), identity);
                return;
            }
            Some(false) => self.member_down(&identity.name, LeaveReason::Replaced),
            None => {}
        }
        let member = identity.member();
        tracing::info!(name = %member.name, address = %member.address, "member: joined");
        increment(&self.start.counters.members_joined);
        self.active_members.insert(identity.name.clone(), identity);
        self.publish(Change::Joined(member));
    }

    fn member_down(&mut self, name: &Name, reason: LeaveReason) {
        let Some(identity) = self.active_members.remove(name) else { return };
        match reason {
            LeaveReason::Lost => tracing::info!(%name, "member: failed"),
            LeaveReason::Announced | LeaveReason::Replaced => tracing::info!(%name, ?reason, "member: left"),
        }
        increment(&self.start.counters.members_left);
        if self.active_members.is_empty() {
            self.seek_at = self.seek_at.min(Instant::now() + self.start.config.seek_alone);
        }
        self.publish(Change::Left(identity.member(), reason));
    }

    /// Updates the view and queues the change.
    fn publish(&mut self, change: Change) {
        self.start.counters.members.store(self.active_members.len() as u64, Relaxed);
        self.view.send_replace(self.active_members.values().map(Identity::member).collect());
        enqueue(&mut self.pending, change);
    }

    /// Sends discovery datagrams to lost members and seeds, and resolves the seeds' names if the addresses are old.
    fn seek(&mut self, now: Instant) {
        let config = &self.start.config;
        let alone = self.active_members.is_empty() || self.declared_down;
        let (period, resolve) =
            if alone { (config.seek_alone, config.resolve_alone) } else { (config.seek, config.resolve) };
        self.seek_at = now + period;
        let stale = self.resolved_at.is_none_or(|at| now >= at + resolve);
        if stale && self.resolving.is_none() && !self.start.seeds.is_empty() {
            self.resolved_at = Some(now);
            let (seeds, counters) = (self.start.seeds.clone(), Arc::clone(&self.start.counters));
            let (sender, resolving) = oneshot::channel();
            tokio::spawn(async move {
                // The driver may have stopped.
                let _ = sender.send(seeds::resolve(&seeds, &counters).await);
            });
            self.resolving = Some(resolving);
        }
        let lost = self.foca.iter_membership_state().filter(|member| member.state() == foca::State::Down);
        let lost = lost.map(|member| member.id().address);
        let mut candidates: Vec<SocketAddr> = lost.chain(self.seed_addresses.iter().copied()).collect();
        candidates.retain(|candidate| {
            *candidate != self.start.address
                && (alone || self.active_members.values().all(|identity| identity.address != *candidate))
        });
        candidates.sort_unstable();
        candidates.dedup();
        let discover = Datagram::Discover(self.foca.identity().clone());
        for _ in 0..if alone { DISCOVER_MAX.0 } else { DISCOVER_MAX.1 } {
            if candidates.is_empty() {
                break;
            }
            let candidate = candidates.swap_remove(self.random.random_range(0..candidates.len()));
            self.runtime.send(candidate, &discover);
        }
    }

    /// Announces to all others that this member leaves, twice because a datagram may be lost.
    async fn leave(&mut self) {
        let leave = Datagram::Leave(self.foca.identity().clone());
        for delay in [LEAVE_REPEAT_DELAY, Duration::ZERO] {
            for identity in self.active_members.values() {
                self.runtime.send(identity.address, &leave);
            }
            sleep(delay).await;
        }
        if let Err(error) = self.foca.leave_cluster(&mut self.runtime) {
            tracing::debug!(%error, "membership: leave not applied");
        }
    }
}

fn foca_config(config: &GossipConfig) -> foca::Config {
    foca::Config {
        probe_period: config.probe_period,
        probe_rtt: config.probe_timeout,
        num_indirect_probes: FANOUT,
        max_transmissions: TRANSMISSIONS_MAX,
        suspect_to_down_after: config.suspicion,
        remove_down_after: Some(config.remember),
        max_packet_size: NonZeroUsize::new(BODY_BYTES_MAX).unwrap_or(NonZeroUsize::MIN),
        notify_down_members: true,
        periodic_announce: Some(PeriodicParams {
            frequency: ANNOUNCE_PERIOD,
            num_members: NonZeroUsize::MIN,
        }),
        // `seek` finds lost members by their addresses, also while this member is alone.
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams { frequency: config.gossip_period, num_members: FANOUT }),
    }
}

/// Queues a change. If the receiver has not taken the join of the member that leaves, the two cancel out.
fn enqueue(pending: &mut VecDeque<Change>, change: Change) {
    if let Change::Left(member, _) = &change {
        let same_member = |waiting: &Change| matches!(waiting, Change::Joined(joined) if joined == member);
        if let Some(at) = pending.iter().position(same_member) {
            pending.remove(at);
            return;
        }
    }
    pending.push_back(change);
}

/// Waits for the result of a resolution; never returns if none is running.
async fn resolved(resolving: &mut Option<oneshot::Receiver<Vec<SocketAddr>>>) -> Vec<SocketAddr> {
    match resolving {
        // Fails only if the runtime shuts down.
        Some(receiver) => receiver.await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}
