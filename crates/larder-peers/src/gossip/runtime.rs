//! foca's runtime: it sends datagrams, keeps timers and collects notifications.

#[cfg(test)]
use super::BlockedAddresses;
use crate::counters::{Counters, increment};
use crate::datagram::{self, Datagram, DatagramCipher, DatagramError, Identity, OpenedDatagram};
use crate::name::Name;
use foca::{Notification, OwnedNotification, Runtime, Timer};
use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::Instant;

/// Implements [`foca::Runtime`] on a UDP socket.
pub(super) struct FocaRuntime {
    socket: Arc<UdpSocket>,
    cipher: DatagramCipher,
    counters: Arc<Counters>,
    /// Timers in the order of their deadlines; timers with equal deadlines in the order in which they were set.
    timers: BTreeMap<(Instant, u64), Timer<Identity>>,
    timers_set: u64,
    /// The time at which each member that has left is forgotten.
    expirations: BTreeMap<Name, (Instant, Identity)>,
    notifications: VecDeque<OwnedNotification<Identity>>,
    plain: Vec<u8>,
    encrypted: Vec<u8>,
    #[cfg(test)]
    blocked: BlockedAddresses,
}

impl FocaRuntime {
    pub(super) fn new(socket: UdpSocket, cipher: DatagramCipher, counters: Arc<Counters>) -> Self {
        Self {
            socket: Arc::new(socket),
            cipher,
            counters,
            timers: BTreeMap::new(),
            timers_set: 0,
            expirations: BTreeMap::new(),
            notifications: VecDeque::new(),
            plain: Vec::new(),
            encrypted: Vec::new(),
            #[cfg(test)]
            blocked: BlockedAddresses::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn with_blocked(self, blocked: BlockedAddresses) -> Self {
        Self { blocked, ..self }
    }

    #[cfg(test)]
    pub(super) fn allows(&self, address: SocketAddr) -> bool {
        !self.blocked.lock().expect("no panic").contains(&address)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests block some addresses")]
    pub(super) const fn allows(&self, _address: SocketAddr) -> bool {
        true
    }

    pub(super) fn socket(&self) -> Arc<UdpSocket> {
        Arc::clone(&self.socket)
    }

    pub(super) fn decrypt<'datagram>(
        &self,
        datagram: &'datagram mut [u8],
    ) -> Result<OpenedDatagram<'datagram>, DatagramError> {
        self.cipher.decrypt(datagram)
    }

    pub(super) fn set_cipher(&mut self, cipher: DatagramCipher) {
        self.cipher = cipher;
    }

    pub(super) fn send(&mut self, to: SocketAddr, datagram: &Datagram) {
        let plain = datagram::encode(datagram);
        self.send_plain(to, &plain);
    }

    /// Encrypts and sends a datagram. If the socket's buffer is full, the datagram is dropped.
    fn send_plain(&mut self, to: SocketAddr, plain: &[u8]) {
        if !self.allows(to) {
            return;
        }
        let sent = self.cipher.encrypt(plain, &mut self.encrypted)
            && self.socket.try_send_to(&self.encrypted, to).is_ok_and(|sent| sent == self.encrypted.len());
        increment(if sent { &self.counters.datagrams_out } else { &self.counters.datagrams_unsent });
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<Timer<Identity>> {
        let first = self.timers.first_entry().filter(|timer| timer.key().0 <= now);
        first.map(OccupiedEntry::remove)
    }

    /// Takes the expiration of a member that left long ago. The caller polls this, because nothing depends on its time.
    pub(super) fn take_expired(&mut self, now: Instant) -> Option<Timer<Identity>> {
        let expired =
            self.expirations.iter().find(|(_, (at, _))| *at <= now).map(|(name, _)| name.clone())?;
        self.expirations.remove(&expired).map(|(_, identity)| Timer::RemoveDown(identity))
    }

    pub(super) fn take_notification(&mut self) -> Option<OwnedNotification<Identity>> {
        self.notifications.pop_front()
    }
}

impl Runtime<Identity> for FocaRuntime {
    fn notify(&mut self, notification: Notification<'_, Identity>) {
        self.notifications.push_back(notification.to_owned());
    }

    fn send_to(&mut self, to: Identity, data: &[u8]) {
        let mut plain = std::mem::take(&mut self.plain);
        datagram::encode_swim(data, &mut plain);
        self.send_plain(to.address, &plain);
        self.plain = plain;
    }

    fn submit_after(&mut self, event: Timer<Identity>, after: Duration) {
        let at = Instant::now() + after;
        if let Timer::RemoveDown(identity) = event {
            self.expirations.insert(identity.name.clone(), (at, identity));
            return;
        }
        self.timers_set += 1;
        self.timers.insert((at, self.timers_set), event);
    }
}
