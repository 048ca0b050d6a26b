//! What the network's user is told, in an order it can rely on: a member joins, then its links come up and go down,
//! messages come only between the two, and a member leaves last.

use crate::control::{Heard, Outgoing};
use crate::member::{Change, Member, Peer, Why};
use crate::name::Name;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Which of the two control links with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// The one that messages to it take.
    To,
    /// The one that messages from it take.
    From,
}

/// What happens in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member has come.
    Joined(Member),
    /// A member has gone. Its links are down.
    Left(Member, Why),
    /// A control link is up. `To`: messages to the member go now; it has none of the earlier ones. `From`: what it says
    /// now it says afresh.
    Up(Peer, Way),
    /// A control link is down. Of the last messages on it some may be lost.
    Down(Peer, Way),
    /// A member says something.
    Message(Peer, Bytes),
}

/// The network's events.
#[derive(Debug)]
pub struct Events {
    heard: mpsc::Receiver<Heard>,
    order: Order,
}

impl Events {
    pub(crate) fn new(heard: mpsc::Receiver<Heard>) -> Self {
        Self { heard, order: Order::default() }
    }

    /// The next event; `None` when the network has ended. Dropping the future loses none. From the return of `Up` with
    /// [`Way::To`] on, messages to that member are taken.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, link)) = self.order.ready.pop_front() {
                if let Some(link) = link {
                    link.open();
                }
                return Some(event);
            }
            self.order.take(self.heard.recv().await?);
        }
    }
}

/// Puts what is heard into order.
#[derive(Debug, Default)]
struct Order {
    /// With the number of its coming.
    members: BTreeMap<Name, (Peer, u64)>,
    links: BTreeMap<u64, (Peer, Way)>,
    ready: VecDeque<(Event, Option<Arc<Outgoing>>)>,
}

impl Order {
    fn take(&mut self, heard: Heard) {
        match heard {
            Heard::Changed(Change::Joined(member), epoch) => {
                self.members.insert(member.name.clone(), (member.peer(), epoch));
                self.ready.push_back((Event::Joined(member), None));
            }
            Heard::Changed(Change::Left(member, why), _) => {
                self.members.remove(&member.name);
                self.end(|(peer, _)| peer.name == member.name);
                self.ready.push_back((Event::Left(member, why), None));
            }
            Heard::OutUp { id, peer, link } => {
                if self.members.get(&peer.name).is_some_and(|(known, _)| *known == peer) {
                    self.up(id, peer, Way::To, Some(link));
                }
            }
            Heard::InUp { id, peer, epoch } => {
                if self.members.get(&peer.name) == Some(&(peer.clone(), epoch)) {
                    self.up(id, peer, Way::From, None);
                }
            }
            Heard::Message { id, message } => {
                if let Some((peer, _)) = self.links.get(&id) {
                    self.ready.push_back((Event::Message(peer.clone(), message), None));
                }
            }
            Heard::Down { id } => {
                if let Some((peer, way)) = self.links.remove(&id) {
                    self.ready.push_back((Event::Down(peer, way), None));
                }
            }
        }
    }

    /// One link each way: a newer one ends the older.
    fn up(&mut self, id: u64, peer: Peer, way: Way, link: Option<Arc<Outgoing>>) {
        self.end(|(other, its)| *other == peer && *its == way);
        self.links.insert(id, (peer.clone(), way));
        self.ready.push_back((Event::Up(peer, way), link));
    }

    fn end(&mut self, which: impl Fn(&(Peer, Way)) -> bool) {
        let ready = &mut self.ready;
        self.links.retain(|_, link| {
            let ends = which(link);
            if ends {
                ready.push_back((Event::Down(link.0.clone(), link.1), None));
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
    fn links_live_within_their_members_coming_and_going() {
        let mut order = Order::default();
        let (a, message) = (member("a", 1), Bytes::from_static(b"said"));
        let peer = a.peer();
        let up = |id, epoch| Heard::InUp { id, peer: peer.clone(), epoch };
        for heard in [
            up(1, 7),
            Heard::Message { id: 1, message: message.clone() },
            Heard::Changed(Change::Joined(a.clone()), 7),
            up(2, 6),
            up(3, 7),
            Heard::Message { id: 3, message: message.clone() },
            Heard::Message { id: 1, message: message.clone() },
            up(4, 7),
            Heard::Message { id: 3, message: message.clone() },
            Heard::Down { id: 3 },
            Heard::Changed(Change::Left(a.clone(), Why::Lost), 0),
            Heard::Message { id: 4, message: message.clone() },
            Heard::Down { id: 4 },
        ] {
            order.take(heard);
        }
        let events: Vec<Event> = order.ready.into_iter().map(|(event, _)| event).collect();
        let (up, down) = (Event::Up(peer.clone(), Way::From), Event::Down(peer.clone(), Way::From));
        let expected = [
            Event::Joined(a.clone()),
            up.clone(),
            Event::Message(peer, message),
            down.clone(),
            up,
            down,
            Event::Left(a, Why::Lost),
        ];
        assert_eq!(events, expected);
        assert!(order.links.is_empty() && order.members.is_empty());
    }
}
