//! What foca acts through: the socket, the clock, and what it has noticed.

#[cfg(test)]
use super::Gate;
use crate::counters::{Counters, rise};
use crate::datagram::{self, Life, Opened, Refused, Said, Seal};
use crate::name::Name;
use foca::{Notification, OwnedNotification, Runtime, Timer};
use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::Instant;

pub(super) struct Outlet {
    socket: Arc<UdpSocket>,
    seal: Seal,
    counters: Arc<Counters>,
    /// Timers in the order in which they are due; equal times in the order in which they were set.
    timers: BTreeMap<(Instant, u64), Timer<Life>>,
    timers_set: u64,
    /// When members that have gone are forgotten: one time a name, the last.
    forget: BTreeMap<Name, (Instant, Life)>,
    notes: VecDeque<OwnedNotification<Life>>,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    #[cfg(test)]
    gate: Gate,
}

impl Outlet {
    pub(super) fn new(socket: UdpSocket, seal: Seal, counters: Arc<Counters>) -> Self {
        Self {
            socket: Arc::new(socket),
            seal,
            counters,
            timers: BTreeMap::new(),
            timers_set: 0,
            forget: BTreeMap::new(),
            notes: VecDeque::new(),
            plain: Vec::new(),
            sealed: Vec::new(),
            #[cfg(test)]
            gate: Gate::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn behind(self, gate: Gate) -> Self {
        Self { gate, ..self }
    }

    #[cfg(test)]
    pub(super) fn passes(&self, address: SocketAddr) -> bool {
        !self.gate.lock().expect("no panic").contains(&address)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests cut the way to some addresses")]
    pub(super) const fn passes(&self, _address: SocketAddr) -> bool {
        true
    }

    pub(super) fn socket(&self) -> Arc<UdpSocket> {
        Arc::clone(&self.socket)
    }

    pub(super) fn open<'datagram>(
        &self,
        datagram: &'datagram mut [u8],
    ) -> Result<Opened<'datagram>, Refused> {
        self.seal.open(datagram)
    }

    /// Replaces the secrets.
    pub(super) fn set_seal(&mut self, seal: Seal) {
        self.seal = seal;
    }

    pub(super) fn send(&mut self, to: SocketAddr, said: &Said) {
        let plain = datagram::encode(said);
        self.send_plain(to, &plain);
    }

    /// Seals and sends. A datagram that the socket does not take now is lost, as on the way.
    fn send_plain(&mut self, to: SocketAddr, plain: &[u8]) {
        if !self.passes(to) {
            return;
        }
        let sent = self.seal.seal(plain, &mut self.sealed)
            && self.socket.try_send_to(&self.sealed, to).is_ok_and(|sent| sent == self.sealed.len());
        rise(if sent { &self.counters.datagrams_out } else { &self.counters.datagrams_unsent });
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<Timer<Life>> {
        let first = self.timers.first_entry().filter(|timer| timer.key().0 <= now);
        first.map(OccupiedEntry::remove)
    }

    /// A member to be forgotten. Asked for now and then, since nothing waits for it.
    pub(super) fn take_forgotten(&mut self, now: Instant) -> Option<Timer<Life>> {
        let forgotten = self.forget.iter().find(|(_, (at, _))| *at <= now).map(|(name, _)| name.clone())?;
        self.forget.remove(&forgotten).map(|(_, life)| Timer::RemoveDown(life))
    }

    pub(super) fn take_note(&mut self) -> Option<OwnedNotification<Life>> {
        self.notes.pop_front()
    }
}

impl Runtime<Life> for Outlet {
    fn notify(&mut self, notification: Notification<'_, Life>) {
        self.notes.push_back(notification.to_owned());
    }

    fn send_to(&mut self, to: Life, data: &[u8]) {
        let mut plain = std::mem::take(&mut self.plain);
        datagram::swim(data, &mut plain);
        self.send_plain(to.address, &plain);
        self.plain = plain;
    }

    fn submit_after(&mut self, event: Timer<Life>, after: Duration) {
        let at = Instant::now() + after;
        if let Timer::RemoveDown(life) = event {
            self.forget.insert(life.name.clone(), (at, life));
            return;
        }
        self.timers_set += 1;
        self.timers.insert((at, self.timers_set), event);
    }
}
