//! Events of the network, in a guaranteed order: a member joins first, its links come up and go down after that, messages
//! arrive only while the inbound link is up, and a member leaves last.

use crate::control_links::{LinkEvent, OutboundLink};
use crate::member::{Change, LeaveReason, Member, PeerId};
use crate::name::Name;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Direction of a control link with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkDirection {
    /// Carries messages to the member.
    Outbound,
    /// Carries messages from the member.
    Inbound,
}

/// An event of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member joined.
    Joined(Member),
    /// A member left. Its links are down.
    Left(Member, LeaveReason),
    /// A control link is up. No message of an earlier link in the same direction is delivered on it, so both sides must
    /// send their state again.
    LinkUp(PeerId, LinkDirection),
    /// A control link is down. The last messages on it may be lost.
    LinkDown(PeerId, LinkDirection),
    /// A member sent a message.
    Message(PeerId, Bytes),
}

/// Receiver of the network's events.
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<LinkEvent>,
    sequencer: EventSequencer,
}

impl Events {
    pub(crate) fn new(receiver: mpsc::Receiver<LinkEvent>) -> Self {
        Self { receiver, sequencer: EventSequencer::default() }
    }

    /// Waits for the next event; `None` when the network has ended. Cancel safe. Messages to a member are accepted from the
    /// return of [`Event::LinkUp`] with [`LinkDirection::Outbound`] on.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, link)) = self.sequencer.ready.pop_front() {
                if let Some(link) = link {
                    link.open();
                }
                return Some(event);
            }
            self.sequencer.push(self.receiver.recv().await?);
        }
    }
}

/// Puts the events of membership and of links into the guaranteed order.
#[derive(Debug, Default)]
struct EventSequencer {
    /// Members that have joined, each with the number of its joining.
    members: BTreeMap<Name, (PeerId, u64)>,
    /// Links that are up, by link id.
    links: BTreeMap<u64, (PeerId, LinkDirection)>,
    /// Events to deliver, each with the link that opens when the event is delivered.
    ready: VecDeque<(Event, Option<Arc<OutboundLink>>)>,
}

impl EventSequencer {
    /// Adds an event, or drops it if its link or member is gone.
    fn push(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Membership(Change::Joined(member), epoch) => {
                self.members.insert(member.name.clone(), (member.id(), epoch));
                self.ready.push_back((Event::Joined(member), None));
            }
            LinkEvent::Membership(Change::Left(member, reason), _) => {
                self.members.remove(&member.name);
                self.end_links(|(peer, _)| peer.name == member.name);
                self.ready.push_back((Event::Left(member, reason), None));
            }
            LinkEvent::OutboundUp { id, peer, link } => {
                if self.members.get(&peer.name).is_some_and(|(known, _)| *known == peer) {
                    self.add_link(id, peer, LinkDirection::Outbound, Some(link));
                }
            }
            LinkEvent::InboundUp { id, peer, epoch } => {
                if self.members.get(&peer.name) == Some(&(peer.clone(), epoch)) {
                    self.add_link(id, peer, LinkDirection::Inbound, None);
                }
            }
            LinkEvent::Message { id, message } => {
                if let Some((peer, _)) = self.links.get(&id) {
                    self.ready.push_back((Event::Message(peer.clone(), message), None));
                }
            }
            LinkEvent::Down { id } => {
                if let Some((peer, direction)) = self.links.remove(&id) {
                    self.ready.push_back((Event::LinkDown(peer, direction), None));
                }
            }
        }
    }

    /// Adds a link. There is one link in each direction, so a newer one, with a higher id, ends the older one.
    fn add_link(&mut self, id: u64, peer: PeerId, direction: LinkDirection, link: Option<Arc<OutboundLink>>) {
        if self.links.range(id..).any(|(_, (other, its))| *other == peer && *its == direction) {
            return;
        }
        self.end_links(|(other, its)| *other == peer && *its == direction);
        self.links.insert(id, (peer.clone(), direction));
        self.ready.push_back((Event::LinkUp(peer, direction), link));
    }

    /// Ends the links for which `selected` is true.
    fn end_links(&mut self, selected: impl Fn(&(PeerId, LinkDirection)) -> bool) {
        let ready = &mut self.ready;
        self.links.retain(|_, link| {
            let ends = selected(link);
            if ends {
                ready.push_back((Event::LinkDown(link.0.clone(), link.1), None));
            }
            !ends
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, incarnation: u64) -> Member {
        let address = "127.0.0.1:1".parse().expect("an address");
        Member { name: name.parse().expect("a name"), incarnation, address }
    }

    #[test]
    fn links_are_up_only_while_their_member_is_joined() {
        let mut sequencer = EventSequencer::default();
        let (a, message) = (member("a", 1), Bytes::from_static(b"said"));
        let peer = a.id();
        let up = |id, epoch| LinkEvent::InboundUp { id, peer: peer.clone(), epoch };
        for event in [
            up(1, 7),
            LinkEvent::Message { id: 1, message: message.clone() },
            LinkEvent::Membership(Change::Joined(a.clone()), 7),
            up(2, 6),
            up(3, 7),
            LinkEvent::Message { id: 3, message: message.clone() },
            LinkEvent::Message { id: 1, message: message.clone() },
            up(5, 7),
            LinkEvent::Message { id: 3, message: message.clone() },
            LinkEvent::Down { id: 3 },
            // It was accepted before the current one.
            up(4, 7),
            LinkEvent::Message { id: 4, message: message.clone() },
            LinkEvent::Membership(Change::Left(a.clone(), LeaveReason::Lost), 0),
            LinkEvent::Message { id: 5, message: message.clone() },
            LinkEvent::Down { id: 5 },
        ] {
            sequencer.push(event);
        }
        let events: Vec<Event> = sequencer.ready.into_iter().map(|(event, _)| event).collect();
        let (up, down) = (
            Event::LinkUp(peer.clone(), LinkDirection::Inbound),
            Event::LinkDown(peer.clone(), LinkDirection::Inbound),
        );
        let expected = [
            Event::Joined(a.clone()),
            up.clone(),
            Event::Message(peer, message),
            down.clone(),
            up,
            down,
            Event::Left(a, LeaveReason::Lost),
        ];
        assert_eq!(events, expected);
        assert!(sequencer.links.is_empty() && sequencer.members.is_empty());
    }
}
