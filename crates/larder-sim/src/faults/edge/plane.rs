//! The forwarding plane in the switch's kernel.

use super::super::ground::{Ground, Id};
use super::super::outcome::Violation;
use super::clients::Client;
use super::{Edge, Event, Key, Mode, SWITCH, place_of};
use larder_core::handoff::{Account, ClientEnd, Flow, To, View};
use larder_core::{NodeId, Time};
use std::collections::{BTreeMap, VecDeque};

/// Bytes that a client acknowledges with each reply.
const REPLY_BYTES: u32 = 1_000;

/// A packet of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Part `n` of the first request.
    Head(u32),
    /// A further request.
    Request,
    /// A probe without new data: the client's TCP asks whether the connection still exists.
    Probe,
    /// The acknowledgement of a reply.
    Ack,
    Fin,
    Reset,
}

/// A flow entry of the plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) flow: Flow,
    /// The connection whose packets were seen last. A reset takes its numbers.
    pub(super) conn: Id,
    idle: bool,
    /// Whether the connection's end has been reported.
    told: bool,
    /// The connection whose SYN has arrived. It begins once its first packet proves it.
    syn_of: Option<Id>,
    /// Whether the entry was learned from a node's list, which may be older than a connection of this host's
    /// TCP.
    listed: bool,
}

/// An event of the plane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Packet {
        key: Key,
        first: bool,
        conn: Id,
        part: u32,
    },
    /// The plane has opened a connection by itself.
    Opened {
        key: Key,
        node: NodeId,
    },
    Woke {
        key: Key,
        node: NodeId,
    },
    Ended {
        key: Key,
        end: ClientEnd,
        account: Account,
        at: Time,
    },
}

/// The forwarding plane.
#[derive(Debug, Default)]
pub(super) struct Plane {
    pub(super) entries: BTreeMap<Key, Entry>,
    /// Events that no process has read.
    pub(super) ring: VecDeque<Told>,
}

/// A view of the plane at a given time.
pub(super) struct Sight<'p>(pub(super) &'p Plane, pub(super) Time);

impl View<Key> for Sight<'_> {
    fn flow(&self, key: Key) -> Option<Flow> {
        self.0.entries.get(&key).map(|entry| entry.flow)
    }

    fn now(&self) -> Time {
        self.1
    }
}

impl Plane {
    fn entry(&mut self, key: Key, conn: Id, to: To, now: Time) -> &mut Entry {
        self.entries.entry(key).or_insert(Entry {
            flow: Flow {
                to,
                fin: false,
                reset: false,
                answered: false,
                denied: false,
                opened: now,
                seen: now,
                first_seq: conn as u32 + 1,
                first_ack: 0,
                last_ack: 0,
                asked_ack: 0,
                packets: 0,
                requests: 0,
            },
            conn,
            idle: false,
            told: false,
            syn_of: None,
            listed: false,
        })
    }

    /// Directs the packets of a connection to `to` from now on.
    pub(super) fn point(&mut self, key: Key, conn: Id, to: To, now: Time) {
        self.entry(key, conn, to, now).flow.to = to;
    }

    pub(super) fn mark_idle(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.idle = true;
        }
    }

    pub(super) fn mark_ended(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.flow.fin, entry.told) = (true, true);
        }
    }

    pub(super) fn mark_resumed(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.flow.fin, entry.flow.reset, entry.told, entry.idle) = (false, false, false, false);
        }
    }

    /// Adds a connection that a node has listed and the plane does not know.
    pub(super) fn learn(&mut self, key: Key, conn: Id, node: NodeId, now: Time) {
        if !self.entries.contains_key(&key) {
            self.entry(key, conn, To::Node(node), now).listed = true;
        }
    }

    /// Ends the entry of a connection whose addresses a new connection uses.
    fn replace(&mut self, key: Key, now: Time) {
        if let Some(Entry { flow, told: false, .. }) = self.entries.remove(&key)
            && let To::Node(_) = flow.to
        {
            let account = flow.account().unwrap_or_default();
            self.ring.push_back(Told::Ended { key, end: ClientEnd::Replaced, account, at: now });
        }
    }
}

impl Ground<'_, Edge> {
    /// Schedules the reading of the plane's events.
    pub(super) fn told(&mut self) {
        let epoch = self.nodes[SWITCH].epoch;
        self.later(0, self.own.lag_us, Event::Read { epoch });
    }

    /// Handles a client's SYN. The old connection is not given up for it, because the SYN may be forged or
    /// late.
    pub(super) fn syn(&mut self, key: Key, conn: Id) {
        if let Some(entry) = self.own.plane.entries.get_mut(&key) {
            entry.syn_of = Some(conn);
        }
    }

    /// Returns whether a packet belongs to a new connection on the addresses of a known one, or the entry is
    /// older than a connection of this host's TCP.
    fn is_replaced(&self, entry: &Entry, conn: Id, sent: Sent) -> bool {
        let proves = match self.own.mode {
            // The packet acknowledges the answer of this host's TCP.
            Mode::Stack => matches!(sent, Sent::Head(_)),
            // The packet proves a cookie.
            Mode::Cookie | Mode::Repair => sent == Sent::Head(0),
        };
        let begins = entry.syn_of == Some(conn) || entry.flow.has_ended();
        let outdated = self.own.mode == Mode::Stack && entry.listed && self.own.conns[conn].here.is_some();
        entry.flow.first_seq != conn as u32 + 1 && proves && begins || outdated
    }

    /// Handles a client's packet at the switch's host.
    pub(super) fn packet(&mut self, conn: Id, sent: Sent) -> Result<(), Violation> {
        let (key, now, mode) = (self.own.conns[conn].key, self.now, self.own.mode);
        if self.loses() || self.own.latest.get(&key) != Some(&conn) {
            return Ok(());
        }
        let known = self.own.plane.entries.get(&key);
        if known.is_some_and(|entry| self.is_replaced(entry, conn, sent)) {
            self.own.plane.replace(key, now);
            self.told();
        }
        let Some(entry) = self.own.plane.entries.get_mut(&key) else {
            match sent {
                // The host's own TCP has the connection, or knows none.
                _ if mode == Mode::Stack => return self.local(conn, sent),
                Sent::Head(0) if self.opens_by_itself(conn) => {
                    let Some((node, _)) = self.own.reusable else { return Ok(()) };
                    self.own.plane.entry(key, conn, To::Node(node), now);
                    self.own.plane.ring.push_back(Told::Opened { key, node });
                    self.told();
                    return self.packet(conn, sent);
                }
                Sent::Head(0) => {
                    self.own.plane.entry(key, conn, To::Held, now);
                    self.own.plane.ring.push_back(Told::Packet { key, first: true, conn, part: 0 });
                    self.told();
                }
                // The connection is unknown: its client retransmits the first packet.
                _ => {}
            }
            return Ok(());
        };
        (entry.conn, entry.listed) = (conn, false);
        let flow = &mut entry.flow;
        flow.seen = now;
        match flow.to {
            To::Held => {
                if let Sent::Head(part) = sent {
                    self.own.plane.ring.push_back(Told::Packet { key, first: false, conn, part });
                } else if sent == Sent::Reset {
                    self.end_flow(key, ClientEnd::Reset);
                }
                self.told();
                Ok(())
            }
            To::Here => {
                let ended = matches!(sent, Sent::Fin | Sent::Reset);
                if ended {
                    self.own.plane.entries.remove(&key);
                }
                self.local(conn, sent)
            }
            To::Reset => {
                self.hears_reset(conn);
                Ok(())
            }
            To::Node(node) => {
                flow.packets += 1;
                match sent {
                    Sent::Head(_) | Sent::Request => {
                        flow.requests += 1;
                        flow.asked_ack = flow.last_ack;
                    }
                    Sent::Ack => {
                        flow.answered = true;
                        flow.last_ack = flow.last_ack.wrapping_add(REPLY_BYTES);
                    }
                    Sent::Probe | Sent::Fin | Sent::Reset => {}
                }
                self.tells(key, node, sent);
                self.comes_to_node(place_of(node), conn, sent)
            }
        }
    }

    /// Returns whether the plane opens a connection to the node of the latest decision. Its request must be
    /// in one packet.
    fn opens_by_itself(&mut self, conn: Id) -> bool {
        let lasts = self.own.reusable.is_some_and(|(_, until)| self.now < until);
        lasts && self.own.conns[conn].parts == 1 && self.chance.permille(300)
    }

    /// Reports a forwarded packet, if it changes the connection's state.
    fn tells(&mut self, key: Key, node: NodeId, sent: Sent) {
        let Some(entry) = self.own.plane.entries.get_mut(&key) else { return };
        let answered = entry.flow.answered;
        if sent != Sent::Probe && core::mem::replace(&mut entry.idle, false) {
            self.own.plane.ring.push_back(Told::Woke { key, node });
            self.told();
        }
        match sent {
            Sent::Fin => self.end_flow(key, ClientEnd::Fin { answered }),
            Sent::Reset => self.end_flow(key, ClientEnd::Reset),
            _ => {}
        }
    }

    /// Records the client's end, and reports it once.
    fn end_flow(&mut self, key: Key, end: ClientEnd) {
        let now = self.now;
        let Some(entry) = self.own.plane.entries.get_mut(&key) else { return };
        match end {
            ClientEnd::Reset => entry.flow.reset = true,
            ClientEnd::Fin { .. } | ClientEnd::Replaced => entry.flow.fin = true,
        }
        if !core::mem::replace(&mut entry.told, true) {
            let account = entry.flow.account().unwrap_or_default();
            self.own.plane.ring.push_back(Told::Ended { key, end, account, at: now });
            self.told();
        }
    }

    /// Delivers a reset to a client.
    pub(super) fn hears_reset(&mut self, conn: Id) {
        if self.own.conns[conn].client == Client::Open {
            self.say(|| format!("the client of {conn} is told"));
            self.own.conns[conn].client = Client::Told;
            self.survived.aborted += 1;
        }
    }
}
