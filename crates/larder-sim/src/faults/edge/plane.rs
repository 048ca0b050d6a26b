//! The forwarding plane in the switch's kernel.

use super::super::outcome::Violation;
use super::super::simulation::{Id, Simulation};
use super::clients::ClientState;
use super::{ClientPort, EdgeWorld, Event, HandoffMode, SWITCH, index_of};
use larder_core::handoff::{ClientEnd, Flow, FlowAccount, FlowLookup, FlowTarget};
use larder_core::{NodeId, Time};
use std::collections::{BTreeMap, VecDeque};

/// Bytes that a client acknowledges with each reply.
const REPLY_BYTES: u32 = 1_000;

/// A packet of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientPacket {
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
pub(super) struct FlowEntry {
    pub(super) flow: Flow,
    /// The connection whose packets were seen last. A reset takes its numbers.
    pub(super) conn: Id,
    idle: bool,
    /// Whether the connection's end has been reported.
    reported: bool,
    /// The connection whose SYN has arrived. It begins once its first packet proves it.
    syn_of: Option<Id>,
    /// Whether the entry was learned from a node's list, which may be older than a connection of this host's
    /// TCP.
    listed: bool,
}

/// An event of the plane.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlaneEvent {
    Packet {
        key: ClientPort,
        first: bool,
        conn: Id,
        part: u32,
    },
    /// The plane has opened a connection by itself.
    Opened {
        key: ClientPort,
        node: NodeId,
    },
    Woke {
        key: ClientPort,
        node: NodeId,
    },
    Ended {
        key: ClientPort,
        end: ClientEnd,
        account: FlowAccount,
        at: Time,
    },
}

/// The forwarding plane.
#[derive(Debug, Default)]
pub(super) struct Plane {
    pub(super) entries: BTreeMap<ClientPort, FlowEntry>,
    /// Events that no process has read.
    pub(super) ring: VecDeque<PlaneEvent>,
}

/// A view of the plane at a given time.
pub(super) struct PlaneView<'p>(pub(super) &'p Plane, pub(super) Time);

impl FlowLookup<ClientPort> for PlaneView<'_> {
    fn flow(&self, key: ClientPort) -> Option<Flow> {
        self.0.entries.get(&key).map(|entry| entry.flow)
    }

    fn now(&self) -> Time {
        self.1
    }
}

impl Plane {
    fn entry(&mut self, key: ClientPort, conn: Id, to: FlowTarget, now: Time) -> &mut FlowEntry {
        self.entries.entry(key).or_insert(FlowEntry {
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
            reported: false,
            syn_of: None,
            listed: false,
        })
    }

    /// Directs the packets of a connection to `to` from now on.
    pub(super) fn point(&mut self, key: ClientPort, conn: Id, to: FlowTarget, now: Time) {
        self.entry(key, conn, to, now).flow.to = to;
    }

    pub(super) fn mark_idle(&mut self, key: ClientPort) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.idle = true;
        }
    }

    pub(super) fn mark_ended(&mut self, key: ClientPort) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.flow.fin, entry.reported) = (true, true);
        }
    }

    pub(super) fn mark_resumed(&mut self, key: ClientPort) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.flow.fin, entry.flow.reset, entry.reported, entry.idle) = (false, false, false, false);
        }
    }

    /// Adds a connection that a node has listed and the plane does not know.
    pub(super) fn learn(&mut self, key: ClientPort, conn: Id, node: NodeId, now: Time) {
        if !self.entries.contains_key(&key) {
            self.entry(key, conn, FlowTarget::Node(node), now).listed = true;
        }
    }

    /// Ends the entry of a connection whose addresses a new connection uses.
    fn replace(&mut self, key: ClientPort, now: Time) {
        if let Some(FlowEntry { flow, reported: false, .. }) = self.entries.remove(&key)
            && let FlowTarget::Node(_) = flow.to
        {
            let account = flow.account().unwrap_or_default();
            self.ring.push_back(PlaneEvent::Ended { key, end: ClientEnd::Replaced, account, at: now });
        }
    }
}

impl Simulation<'_, EdgeWorld> {
    /// Schedules the reading of the plane's events.
    pub(super) fn schedule_plane_read(&mut self) {
        let epoch = self.nodes[SWITCH].epoch;
        self.schedule_between(0, self.world.lag_us, Event::Read { epoch });
    }

    /// Handles a client's SYN. The old connection is not given up for it, because the SYN may be forged or
    /// late.
    pub(super) fn receive_syn(&mut self, key: ClientPort, conn: Id) {
        if let Some(entry) = self.world.plane.entries.get_mut(&key) {
            entry.syn_of = Some(conn);
        }
    }

    /// Returns whether a packet belongs to a new connection on the addresses of a known one, or the entry is
    /// older than a connection of this host's TCP.
    fn is_replaced(&self, entry: &FlowEntry, conn: Id, sent: ClientPacket) -> bool {
        let proves = match self.world.mode {
            // The packet acknowledges the answer of this host's TCP.
            HandoffMode::Stack => matches!(sent, ClientPacket::Head(_)),
            // The packet proves a cookie.
            HandoffMode::Cookie | HandoffMode::Repair => sent == ClientPacket::Head(0),
        };
        let begins = entry.syn_of == Some(conn) || entry.flow.has_ended();
        let outdated =
            self.world.mode == HandoffMode::Stack && entry.listed && self.world.conns[conn].here.is_some();
        entry.flow.first_seq != conn as u32 + 1 && proves && begins || outdated
    }

    /// Handles a client's packet at the switch's host.
    pub(super) fn receive_packet(&mut self, conn: Id, sent: ClientPacket) -> Result<(), Violation> {
        let (key, now, mode) = (self.world.conns[conn].key, self.now, self.world.mode);
        if self.is_packet_lost() || self.world.latest.get(&key) != Some(&conn) {
            return Ok(());
        }
        let known = self.world.plane.entries.get(&key);
        if known.is_some_and(|entry| self.is_replaced(entry, conn, sent)) {
            self.world.plane.replace(key, now);
            self.schedule_plane_read();
        }
        let Some(entry) = self.world.plane.entries.get_mut(&key) else {
            match sent {
                // The host's own TCP has the connection, or knows none.
                _ if mode == HandoffMode::Stack => return self.deliver_locally(conn, sent),
                ClientPacket::Head(0) if self.is_opened_by_plane(conn) => {
                    let Some((node, _)) = self.world.reusable else { return Ok(()) };
                    self.world.plane.entry(key, conn, FlowTarget::Node(node), now);
                    self.world.plane.ring.push_back(PlaneEvent::Opened { key, node });
                    self.schedule_plane_read();
                    return self.receive_packet(conn, sent);
                }
                ClientPacket::Head(0) => {
                    self.world.plane.entry(key, conn, FlowTarget::Held, now);
                    self.world.plane.ring.push_back(PlaneEvent::Packet { key, first: true, conn, part: 0 });
                    self.schedule_plane_read();
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
            FlowTarget::Held => {
                if let ClientPacket::Head(part) = sent {
                    self.world.plane.ring.push_back(PlaneEvent::Packet { key, first: false, conn, part });
                } else if sent == ClientPacket::Reset {
                    self.end_flow(key, ClientEnd::Reset);
                }
                self.schedule_plane_read();
                Ok(())
            }
            FlowTarget::Here => {
                let ended = matches!(sent, ClientPacket::Fin | ClientPacket::Reset);
                if ended {
                    self.world.plane.entries.remove(&key);
                }
                self.deliver_locally(conn, sent)
            }
            FlowTarget::Reset => {
                self.reset_client(conn);
                Ok(())
            }
            FlowTarget::Node(node) => {
                flow.packets += 1;
                match sent {
                    ClientPacket::Head(_) | ClientPacket::Request => {
                        flow.requests += 1;
                        flow.asked_ack = flow.last_ack;
                    }
                    ClientPacket::Ack => {
                        flow.answered = true;
                        flow.last_ack = flow.last_ack.wrapping_add(REPLY_BYTES);
                    }
                    ClientPacket::Probe | ClientPacket::Fin | ClientPacket::Reset => {}
                }
                self.report_packet(key, node, sent);
                self.deliver_to_node(index_of(node), conn, sent)
            }
        }
    }

    /// Returns whether the plane opens a connection to the node of the latest decision. Its request must be
    /// in one packet.
    fn is_opened_by_plane(&mut self, conn: Id) -> bool {
        let lasts = self.world.reusable.is_some_and(|(_, until)| self.now < until);
        lasts && self.world.conns[conn].parts == 1 && self.rng.draw_permille(300)
    }

    /// Reports a forwarded packet, if it changes the connection's state.
    fn report_packet(&mut self, key: ClientPort, node: NodeId, sent: ClientPacket) {
        let Some(entry) = self.world.plane.entries.get_mut(&key) else { return };
        let answered = entry.flow.answered;
        if sent != ClientPacket::Probe && core::mem::replace(&mut entry.idle, false) {
            self.world.plane.ring.push_back(PlaneEvent::Woke { key, node });
            self.schedule_plane_read();
        }
        match sent {
            ClientPacket::Fin => self.end_flow(key, ClientEnd::Fin { answered }),
            ClientPacket::Reset => self.end_flow(key, ClientEnd::Reset),
            _ => {}
        }
    }

    /// Records the client's end, and reports it once.
    fn end_flow(&mut self, key: ClientPort, end: ClientEnd) {
        let now = self.now;
        let Some(entry) = self.world.plane.entries.get_mut(&key) else { return };
        match end {
            ClientEnd::Reset => entry.flow.reset = true,
            ClientEnd::Fin { .. } | ClientEnd::Replaced => entry.flow.fin = true,
        }
        if !core::mem::replace(&mut entry.reported, true) {
            let account = entry.flow.account().unwrap_or_default();
            self.world.plane.ring.push_back(PlaneEvent::Ended { key, end, account, at: now });
            self.schedule_plane_read();
        }
    }

    /// Delivers a reset to a client.
    pub(super) fn reset_client(&mut self, conn: Id) {
        if self.world.conns[conn].client == ClientState::Open {
            self.log(|| format!("the client of {conn} is reset"));
            self.world.conns[conn].client = ClientState::Told;
            self.stats.aborted += 1;
        }
    }
}
