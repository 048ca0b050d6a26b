//! Drives foca: datagrams and time go in, datagrams and changes come out.

use super::Start;
use super::outlet::Outlet;
use crate::config::GossipConfig;
use crate::counters::rise;
use crate::datagram::{self, BODY_BYTES_MAX, DATAGRAM_BYTES_MAX, Known, Life, Opened, Refused, Said, Seal};
use crate::member::{Change, Member, Why};
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

/// Members that are asked to probe for another, and that news is told to at once.
const FANOUT: NonZeroUsize = NonZeroUsize::new(3).unwrap();
/// How often one piece of news is told by each.
const TRANSMISSIONS: NonZeroU8 = NonZeroU8::new(10).unwrap();
/// Between two requests to a member for others it knows.
const ROSTER_PERIOD: Duration = Duration::from_secs(5);
/// Addresses knocked at in one go: while alone, and while there are others.
const KNOCKS_MAX: (usize, usize) = (32, 3);
/// Between two renewals: at first, and at most. After `RENEWAL_CALM` without one it is the first again.
const RENEWAL_MIN: Duration = Duration::from_secs(1);
const RENEWAL_MAX: Duration = Duration::from_secs(10);
const RENEWAL_CALM: Duration = Duration::from_secs(30);
/// Between two complaints about another process of this name.
const COMPLAINT_PERIOD: Duration = Duration::from_secs(60);
/// Between the two times that a leaving member says so.
const BYE_PAUSE: Duration = Duration::from_millis(50);
/// Pause after the socket has failed.
const SOCKET_PAUSE: Duration = Duration::from_millis(20);
pub(super) struct Driver {
    start: Start,
    foca: Foca<Life, PostcardCodec, Xoshiro256PlusPlus, NoCustomBroadcast>,
    outlet: Outlet,
    random: Xoshiro256PlusPlus,
    /// Active members.
    seen: BTreeMap<Name, Life>,
    view: watch::Sender<Arc<[Member]>>,
    /// Changes not given on yet: at most two a name.
    pending: VecDeque<Change>,
    /// The one that says that it leaves, while that is worked on.
    leaving: Option<Name>,
    /// Others have declared this life down.
    undead: bool,
    /// There is a newer process of this name.
    outdone: bool,
    renew_at: Option<Instant>,
    renewed_at: Option<Instant>,
    renewal_pause: Duration,
    complained_at: Option<Instant>,
    seek_at: Instant,
    resolved_at: Option<Instant>,
    resolving: Option<oneshot::Receiver<Vec<SocketAddr>>>,
    /// Addresses of the seeds.
    addresses: Vec<SocketAddr>,
}

impl Driver {
    pub(super) fn new(
        start: Start,
        socket: UdpSocket,
        view: watch::Sender<Arc<[Member]>>,
    ) -> io::Result<Self> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| io::Error::other("no random numbers"))?;
        let random = Xoshiro256PlusPlus::from_seed(seed);
        let life = Life {
            name: start.own.name.clone(),
            incarnation: start.own.incarnation(),
            renewal: 0,
            address: start.address,
        };
        let foca = Foca::new(life, swim(&start.config), random.clone(), PostcardCodec);
        let outlet = Outlet::new(socket, Seal::new(&start.keyring.now()), Arc::clone(&start.counters));
        #[cfg(test)]
        let outlet = outlet.behind(Arc::clone(&start.gate));
        Ok(Self {
            foca,
            outlet,
            random,
            seen: BTreeMap::new(),
            view,
            pending: VecDeque::new(),
            leaving: None,
            undead: false,
            outdone: false,
            renew_at: None,
            renewed_at: None,
            renewal_pause: RENEWAL_MIN,
            complained_at: None,
            seek_at: Instant::now(),
            resolved_at: None,
            resolving: None,
            addresses: Vec::new(),
            start,
        })
    }

    pub(super) async fn run(
        mut self,
        changes: mpsc::Sender<Change>,
        mut leave: mpsc::Receiver<oneshot::Sender<()>>,
    ) {
        let socket = self.outlet.socket();
        let mut secrets = self.start.keyring.watch();
        // They may have changed since the seal was made.
        secrets.mark_changed();
        // One more than the longest: a longer one is cut by the socket, and must not pass for one that fits.
        let mut buffer = [0; DATAGRAM_BYTES_MAX + 1];
        loop {
            let due = [Some(self.seek_at), self.renew_at, self.outlet.next_due()].into_iter().flatten().min();
            tokio::select! {
                received = socket.recv_from(&mut buffer) => match received {
                    Ok((length, from)) => self.received(&mut buffer[..length], from),
                    Err(error) => {
                        tracing::warn!(%error, "the socket of membership failed");
                        sleep(SOCKET_PAUSE).await;
                    }
                },
                () = sleep_until(due.unwrap_or(self.seek_at)) => self.due(Instant::now()),
                found = resolved(&mut self.resolving) => {
                    self.resolving = None;
                    self.addresses = found;
                    self.seek(Instant::now());
                }
                permit = changes.reserve(), if !self.pending.is_empty() => match (permit, self.pending.pop_front()) {
                    (Ok(permit), Some(change)) => permit.send(change),
                    // Nobody listens: the network is gone.
                    (Err(_), _) => return,
                    (Ok(_), None) => {}
                },
                Ok(()) = secrets.changed() => {
                    self.outlet.set_seal(Seal::new(&secrets.borrow_and_update()));
                }
                Some(done) = leave.recv() => {
                    self.leave().await;
                    // Whoever asked may have gone.
                    let _ = done.send(());
                    return;
                }
            }
        }
    }
    /// All that is due by now.
    fn due(&mut self, now: Instant) {
        while let Some(timer) = self.outlet.take_due(now) {
            self.fire(timer);
        }
        if self.renew_at.is_some_and(|at| at <= now) {
            self.renew_at = None;
            self.renew(None);
        }
        if self.seek_at <= now {
            while let Some(timer) = self.outlet.take_forgotten(now) {
                self.fire(timer);
            }
            self.seek(now);
        }
    }

    fn fire(&mut self, timer: foca::Timer<Life>) {
        if let Err(error) = self.foca.handle_timer(timer, &mut self.outlet) {
            tracing::debug!(%error, "membership went on after a lapse");
        }
        self.notice(None);
    }

    fn received(&mut self, datagram: &mut [u8], from: SocketAddr) {
        if !self.outlet.passes(from) {
            return;
        }
        let counters = Arc::clone(&self.start.counters);
        rise(&counters.datagrams_in);
        let refused = match self.outlet.open(datagram) {
            Ok(Opened { plain, by_other }) => {
                if by_other {
                    rise(&counters.datagrams_other_secret);
                }
                match datagram::decode(plain) {
                    Ok(said) => return self.said(said, plain, from),
                    Err(refused) => refused,
                }
            }
            Err(refused) => refused,
        };
        rise(match refused {
            Refused::Forged => &counters.datagrams_forged,
            Refused::Malformed => &counters.datagrams_malformed,
        });
        tracing::trace!(%from, %refused, "a datagram was refused");
    }

    fn said(&mut self, said: Said, plain: &[u8], from: SocketAddr) {
        let own = self.foca.identity().clone();
        let source = match &said {
            Said::Swim(header, _) => &header.src,
            Said::Knock(life) | Said::Here(life, _) | Said::Bye(life) => life,
        };
        if source.name == own.name {
            // What it says to itself comes through seeds that name it too, and is nothing.
            if source.address != own.address {
                rise(&self.start.counters.datagrams_namesake);
                self.complain(source.address);
                self.reflect(&Known { life: source.clone(), active: true });
                if matches!(said, Said::Knock(_)) {
                    self.outlet.send(from, &Said::Here(own.clone(), Some(Known { life: own, active: true })));
                }
            }
            return;
        }
        match said {
            Said::Swim(header, members) => {
                let named = members.iter().map(foca::Member::id).chain([&header.src]);
                if self.has_room(named) {
                    if let Err(error) = self.foca.handle_data(datagram::body(plain), &mut self.outlet) {
                        tracing::debug!(%from, %error, "membership made nothing of a datagram");
                    }
                    self.notice(Some(&header.src));
                }
            }
            Said::Knock(life) => {
                let known = self.foca.iter_membership_state().find(|member| member.id().name == life.name);
                let known = known.map(|member| {
                    let active = member.state() != foca::State::Down;
                    Known { life: member.id().clone(), active }
                });
                self.outlet.send(from, &Said::Here(own, known));
            }
            Said::Here(life, known) => {
                if let Some(known) = known {
                    self.reflect(&known);
                }
                if self.has_room([&life].into_iter()) {
                    self.renew(Some(&life));
                    self.announce(life);
                }
            }
            Said::Bye(life) => {
                if self.seen.get(&life.name) == Some(&life) {
                    self.leaving = Some(life.name.clone());
                    let gone = std::iter::once(foca::Member::down(life));
                    if let Err(error) = self.foca.apply_many(gone, true, &mut self.outlet) {
                        tracing::debug!(%error, "a member's leave was not told on");
                    }
                    self.notice(None);
                    self.leaving = None;
                }
            }
        }
    }

    /// Whether all of these are known already, or there is room for them.
    fn has_room<'life>(&self, lives: impl Iterator<Item = &'life Life>) -> bool {
        let known = self.foca.iter_membership_state();
        let max = self.start.config.known_max;
        let lives: Vec<&Life> = lives.collect();
        if known.len() + lives.len() <= max {
            return true;
        }
        let known: std::collections::BTreeSet<&Name> = known.map(|member| &member.id().name).collect();
        let new: std::collections::BTreeSet<&Name> =
            lives.iter().map(|life| &life.name).filter(|name| !known.contains(name)).collect();
        let room = new.is_empty() || known.len() + new.len() <= max;
        if !room {
            rise(&self.start.counters.datagrams_full);
        }
        room
    }

    /// What another one knows of this name may be better than what this process knows of itself.
    fn reflect(&mut self, known: &Known) {
        let own = self.foca.identity().clone();
        if known.life.name != own.name || known.life == own {
            return;
        }
        let outranked = known.life.win_addr_conflict(&own);
        self.outdone = outranked && known.active && known.life.address != own.address;
        if self.outdone {
            self.complain(known.life.address);
        } else if outranked {
            // An earlier life of this one whose clock was ahead, or a process that has gone.
            let next = known.life.incarnation.saturating_add(1);
            tracing::warn!(
                incarnation = next,
                "this member's last life was newer by its clock; this one follows it"
            );
            self.start.own.set_incarnation(next);
            self.become_life(Life { incarnation: next, renewal: 0, ..own });
        }
    }

    fn complain(&mut self, address: SocketAddr) {
        let now = Instant::now();
        if self.complained_at.is_none_or(|at| now >= at + COMPLAINT_PERIOD) {
            self.complained_at = Some(now);
            let name = &self.start.own.name;
            tracing::error!(%name, other = %address, own = %self.start.address, outdone = self.outdone,
                "two processes have this name; the newer one is the member");
        }
    }

    /// Comes back after being declared down, if it is time; tells `toward`, who may be the only one to know.
    fn renew(&mut self, toward: Option<&Life>) {
        if !self.undead || self.outdone {
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
        rise(&self.start.counters.renewals);
        let own = self.foca.identity().clone();
        self.become_life(Life { renewal: own.renewal.saturating_add(1), ..own });
        if let Some(toward) = toward {
            self.announce(toward.clone());
        }
    }

    fn become_life(&mut self, life: Life) {
        self.undead = false;
        self.renew_at = None;
        tracing::info!(
            incarnation = life.incarnation,
            renewal = life.renewal,
            "membership: rejoining with a higher incarnation"
        );
        if let Err(error) = self.foca.change_identity(life, &mut self.outlet) {
            tracing::debug!(%error, "membership did not take the later life");
        }
        self.notice(None);
    }

    fn announce(&mut self, to: Life) {
        if let Err(error) = self.foca.announce(to, &mut self.outlet) {
            tracing::debug!(%error, "membership did not announce this member");
        }
        self.notice(None);
    }

    /// Takes what foca has noticed; `source` has sent what it did so by.
    fn notice(&mut self, source: Option<&Life>) {
        let mut defunct = false;
        while let Some(note) = self.outlet.take_note() {
            match note {
                OwnedNotification::MemberUp(life) => self.up(life),
                OwnedNotification::MemberDown(life) => {
                    let said = self.leaving.as_ref() == Some(&life.name);
                    self.down(&life.name, if said { Why::Said } else { Why::Lost });
                }
                OwnedNotification::Rename(before, after) => {
                    if self.seen.get(&before.name) == Some(&before) {
                        self.up(after);
                    }
                }
                OwnedNotification::Defunct => defunct = true,
                OwnedNotification::Active | OwnedNotification::Idle | OwnedNotification::Rejoin(_) => {}
            }
        }
        if defunct {
            self.undead = true;
            self.renew(source);
        }
    }

    fn up(&mut self, life: Life) {
        let same = self.seen.get(&life.name).map(|known| known.member() == life.member());
        match same {
            // Only renewed.
            Some(true) => {
                self.seen.insert(life.name.clone(), life);
                return;
            }
            Some(false) => self.down(&life.name, Why::Replaced),
            None => {}
        }
        let member = life.member();
        tracing::info!(name = %member.name, address = %member.address, "member: joined");
        rise(&self.start.counters.members_joined);
        self.seen.insert(life.name.clone(), life);
        self.changed(Change::Joined(member));
    }

    fn down(&mut self, name: &Name, why: Why) {
        let Some(life) = self.seen.remove(name) else { return };
        tracing::info!(%name, ?why, "member: left");
        rise(&self.start.counters.members_left);
        if self.seen.is_empty() {
            self.seek_at = self.seek_at.min(Instant::now() + self.start.config.seek_alone);
        }
        self.changed(Change::Left(life.member(), why));
    }

    fn changed(&mut self, change: Change) {
        self.start.counters.members.store(self.seen.len() as u64, Relaxed);
        self.view.send_replace(self.seen.values().map(Life::member).collect());
        enqueue(&mut self.pending, change);
    }

    /// Knocks where others may be, and has the seeds resolved when it is time.
    fn seek(&mut self, now: Instant) {
        let config = &self.start.config;
        let alone = self.seen.is_empty() || self.undead;
        let (period, resolve) =
            if alone { (config.seek_alone, config.resolve_alone) } else { (config.seek, config.resolve) };
        self.seek_at = now + period;
        let stale = self.resolved_at.is_none_or(|at| now >= at + resolve);
        if stale && self.resolving.is_none() && !self.start.seeds.is_empty() {
            self.resolved_at = Some(now);
            let (seeds, counters) = (self.start.seeds.clone(), Arc::clone(&self.start.counters));
            let (found, resolving) = oneshot::channel();
            tokio::spawn(async move {
                // The driver may have ended.
                let _ = found.send(seeds::resolve(&seeds, &counters).await);
            });
            self.resolving = Some(resolving);
        }
        let lost = self.foca.iter_membership_state().filter(|member| member.state() == foca::State::Down);
        let lost = lost.map(|member| member.id().address);
        let mut places: Vec<SocketAddr> = lost.chain(self.addresses.iter().copied()).collect();
        places.retain(|place| {
            *place != self.start.address && (alone || self.seen.values().all(|life| life.address != *place))
        });
        places.sort_unstable();
        places.dedup();
        let knock = Said::Knock(self.foca.identity().clone());
        for _ in 0..if alone { KNOCKS_MAX.0 } else { KNOCKS_MAX.1 } {
            if places.is_empty() {
                break;
            }
            let place = places.swap_remove(self.random.random_range(0..places.len()));
            self.outlet.send(place, &knock);
        }
    }

    /// Tells all others that this member leaves, twice: a datagram may be lost.
    async fn leave(&mut self) {
        let bye = Said::Bye(self.foca.identity().clone());
        for pause in [BYE_PAUSE, Duration::ZERO] {
            for life in self.seen.values() {
                self.outlet.send(life.address, &bye);
            }
            sleep(pause).await;
        }
        if let Err(error) = self.foca.leave_cluster(&mut self.outlet) {
            tracing::debug!(%error, "membership did not leave");
        }
    }
}

fn swim(config: &GossipConfig) -> foca::Config {
    foca::Config {
        probe_period: config.probe_period,
        probe_rtt: config.probe_timeout,
        num_indirect_probes: FANOUT,
        max_transmissions: TRANSMISSIONS,
        suspect_to_down_after: config.suspicion,
        remove_down_after: Some(config.remember),
        max_packet_size: NonZeroUsize::new(BODY_BYTES_MAX).unwrap_or(NonZeroUsize::MIN),
        notify_down_members: true,
        periodic_announce: Some(PeriodicParams { frequency: ROSTER_PERIOD, num_members: NonZeroUsize::MIN }),
        // Members that were lost are sought by their addresses, while alone too.
        periodic_announce_to_down_members: None,
        periodic_gossip: Some(PeriodicParams { frequency: config.gossip_period, num_members: FANOUT }),
    }
}

/// Adds a change for whoever is slow to take them: a coming and going that nobody has seen is none.
fn enqueue(pending: &mut VecDeque<Change>, change: Change) {
    if let Change::Left(member, _) = &change {
        let unseen = |waiting: &Change| matches!(waiting, Change::Joined(joined) if joined == member);
        if let Some(at) = pending.iter().position(unseen) {
            pending.remove(at);
            return;
        }
    }
    pending.push_back(change);
}

async fn resolved(resolving: &mut Option<oneshot::Receiver<Vec<SocketAddr>>>) -> Vec<SocketAddr> {
    match resolving {
        // Fails only with the runtime.
        Some(found) => found.await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}
