//! What each front-end wants of the node, and what comes of it when they want different things.
//!
//! A listen address is looked after if any front-end asks for it and the node's config names it; its rules are those of
//! all front-ends together. There is room for the two live keys of one secret: those of the front-end that has been
//! connected longest, and of all that have a key in common with it, as they do while keys change. Current keys come first,
//! then the keys before. A front-end with another secret is told that its keys do not hold, and hands nothing over; one that
//! uses no cookies needs none. A tag is used if all connected front-ends give the same. Tunnels are those of all
//! front-ends.

use super::Rules;
use crate::channel::identity::PublicKey;
use crate::channel::message::{Accepted, Hello, Keys, Service};
use larder_kernel::CookieKey;
use larder_kernel::guard::Tunnel;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// What is to be in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// By the number of the node's listen address; `None`: not to be looked after.
    pub(super) rules: Vec<Option<Rules>>,
    /// None before the first front-end.
    pub(super) keys: Option<[CookieKey; 2]>,
    /// 0: none.
    pub(super) tag: u8,
    /// Each once.
    pub(super) tunnels: Vec<Tunnel>,
}

#[derive(Debug)]
struct Told {
    up: bool,
    services: Vec<Service>,
    keys: Keys,
    tag: u8,
    tunnel: Option<Tunnel>,
    /// Which hello it was, of all.
    since: u64,
}

impl Told {
    fn uses_cookies(&self) -> bool {
        self.services.iter().any(|service| service.cookie)
    }

    fn both(&self) -> [CookieKey; 2] {
        [self.keys.current(), self.keys.other()]
    }
}

/// The front-ends that have been here since the start.
#[derive(Debug)]
pub(super) struct Switches {
    /// The node's listen addresses; their places are the node's numbers for them.
    addresses: Vec<SocketAddr>,
    told: BTreeMap<PublicKey, Told>,
    hellos: u64,
}

impl Switches {
    /// Nobody yet. The node looks after these addresses and no others.
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, told: BTreeMap::new(), hellos: 0 }
    }

    /// A front-end is there.
    pub(super) fn hello(&mut self, key: PublicKey, hello: Hello) {
        let Hello { keys, services, tag, tunnel, .. } = hello;
        self.hellos += 1;
        self.told.insert(key, Told { up: true, services, keys, tag, tunnel, since: self.hellos });
    }

    /// It is gone. What it wanted stays.
    pub(super) fn gone(&mut self, key: PublicKey) {
        if let Some(told) = self.told.get_mut(&key) {
            told.up = false;
        }
    }

    /// All front-ends that have been here, connected or not.
    pub(super) fn known(&self) -> impl Iterator<Item = PublicKey> {
        self.told.keys().copied()
    }

    /// Its key is revoked. Nothing that it wanted stays.
    pub(super) fn revoked(&mut self, key: PublicKey) {
        self.told.remove(&key);
    }

    pub(super) fn set_keys(&mut self, key: PublicKey, keys: Keys) {
        if let Some(told) = self.told.get_mut(&key) {
            told.keys = keys;
        }
    }

    pub(super) fn set_tag(&mut self, key: PublicKey, tag: u8) {
        if let Some(told) = self.told.get_mut(&key) {
            told.tag = tag;
        }
    }

    pub(super) fn set_services(&mut self, key: PublicKey, services: Vec<Service>) {
        if let Some(told) = self.told.get_mut(&key) {
            told.services = services;
        }
    }

    /// The address with this number of the node's.
    pub(super) fn address(&self, ours: u16) -> Option<SocketAddr> {
        self.addresses.get(usize::from(ours)).copied()
    }

    /// The node's number for what a front-end calls `theirs`.
    pub(super) fn ours(&self, key: PublicKey, theirs: u16) -> Option<u16> {
        let service = self.told.get(&key)?.services.iter().find(|service| service.id == theirs)?;
        self.place(service.address)
    }

    /// A front-end's number for what the node calls `ours`; `None` if it is none of its addresses.
    pub(super) fn theirs(&self, key: PublicKey, ours: u16) -> Option<u16> {
        let address = self.address(ours)?;
        let services = &self.told.get(&key)?.services;
        services.iter().find(|service| service.address == address).map(|service| service.id)
    }

    /// Whether a front-end has this listen address.
    pub(super) fn has(&self, key: PublicKey, address: SocketAddr) -> bool {
        let has = |told: &Told| told.services.iter().any(|service| service.address == address);
        self.told.get(&key).is_some_and(has)
    }

    /// What is to be in the kernel now.
    pub(super) fn wanted(&self) -> Wanted {
        let mut rules = vec![None; self.addresses.len()];
        for service in self.told.values().flat_map(|told| &told.services) {
            let place = self.place(service.address).and_then(|ours| rules.get_mut(usize::from(ours)));
            if let Some(place) = place {
                let all: &mut Rules = place.get_or_insert_default();
                all.cookie |= service.cookie;
                all.stash |= service.stash;
                all.grace |= service.grace;
            }
        }
        let mut tunnels: Vec<Tunnel> = Vec::new();
        for tunnel in self.told.values().filter_map(|told| told.tunnel) {
            if !tunnels.contains(&tunnel) {
                tunnels.push(tunnel);
            }
        }
        Wanted { rules, keys: self.keys(), tag: self.tag(), tunnels }
    }

    /// What a front-end is told, if `in_kernel` is what the kernel has taken.
    pub(super) fn accepted(&self, key: PublicKey, in_kernel: &Wanted) -> Accepted {
        let Some(told) = self.told.get(&key) else { return Accepted::default() };
        let taken = |service: &&Service| {
            let rules = self.place(service.address).and_then(|ours| in_kernel.rules.get(usize::from(ours)));
            rules.is_some_and(Option::is_some)
        };
        let others = |service: &Service| {
            let rules = self.place(service.address).and_then(|ours| in_kernel.rules.get(usize::from(ours)));
            !service.cookie && rules.is_some_and(|rules| rules.is_some_and(|rules| rules.cookie))
        };
        let believed = in_kernel.keys.is_some_and(|keys| told.both().iter().any(|key| keys.contains(key)));
        Accepted {
            services: told.services.iter().filter(taken).map(|service| service.id).collect(),
            keys: !told.uses_cookies()
                || in_kernel.keys.is_some_and(|keys| keys.contains(&told.keys.current())),
            tag: in_kernel.tag == told.tag,
            tunnel: told.tunnel.is_none_or(|tunnel| in_kernel.tunnels.contains(&tunnel)),
            mixed: believed && told.services.iter().any(others),
        }
    }

    /// Listen addresses by their places.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The node's number for a listen address.
    pub(super) fn place(&self, address: SocketAddr) -> Option<u16> {
        let place = self.addresses.iter().position(|&one| one == address)?;
        u16::try_from(place).ok()
    }

    fn keys(&self) -> Option<[CookieKey; 2]> {
        let mut told: Vec<&Told> = self.told.values().collect();
        told.sort_by_key(|told| (!told.uses_cookies(), !told.up, told.since));
        let first = told.first()?.both();
        told.retain(|told| told.both().iter().any(|key| first.contains(key)));
        let current = told.iter().map(|told| told.keys.current());
        let mut keys = current.chain(told.iter().map(|told| told.keys.other()));
        let first = keys.next()?;
        let second = keys.find(|&key| key != first).unwrap_or(first);
        Some([first, second])
    }

    fn tag(&self) -> u8 {
        let mut tags = self.told.values().filter(|told| told.up).map(|told| told.tag);
        let Some(first) = tags.next() else {
            // Nobody is there: connections keep what they have.
            return self.told.values().next().map_or(0, |told| told.tag);
        };
        if tags.all(|tag| tag == first) { first } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_kernel::guard::TunnelKind;

    const A: PublicKey = PublicKey([1; 32]);
    const B: PublicKey = PublicKey([2; 32]);
    const C: PublicKey = PublicKey([3; 32]);

    fn address(port: u16) -> SocketAddr {
        ([10, 9, 0, 100], port).into()
    }

    fn service(id: u16, port: u16) -> Service {
        Service { id, address: address(port), cookie: true, stash: false, grace: false }
    }

    fn cookie_key(number: u64) -> CookieKey {
        CookieKey([number; 2])
    }

    fn hello(current: u64, services: &[Service], tag: u8) -> Hello {
        let keys = Keys::new([cookie_key(current), cookie_key(current + 1)], 0);
        Hello { name: String::new(), tag, keys, services: services.to_vec(), tunnel: None }
    }

    #[test]
    fn front_ends_share_addresses_by_their_own_numbers() {
        let mut switches = Switches::new(vec![address(80), address(81)]);
        assert_eq!(switches.wanted(), Wanted { rules: vec![None, None], ..Wanted::default() });
        switches.hello(A, hello(1, &[service(7, 81), service(8, 99)], 4));
        switches.hello(B, hello(1, &[Service { cookie: false, stash: true, ..service(0, 81) }], 4));
        let wanted = switches.wanted();
        let rules = Rules { cookie: true, stash: true, grace: false };
        assert_eq!((&wanted.rules, wanted.tag), (&vec![None, Some(rules)], 4));
        assert_eq!((switches.ours(A, 7), switches.ours(B, 0)), (Some(1), Some(1)));
        assert_eq!((switches.theirs(A, 1), switches.theirs(B, 1)), (Some(7), Some(0)));
        assert_eq!((switches.ours(A, 8), switches.ours(A, 0), switches.theirs(C, 1)), (None, None, None));
        let accepted = switches.accepted(A, &wanted);
        assert_eq!(
            accepted,
            Accepted { services: vec![7], keys: true, tag: true, tunnel: true, mixed: false },
            "99 is not the node's"
        );
        assert_eq!(switches.accepted(B, &Wanted::default()).services, [], "the kernel has refused");
    }

    #[test]
    fn what_a_front_end_wanted_outlives_it_until_it_says_otherwise() {
        let mut switches = Switches::new(vec![address(80)]);
        switches.hello(A, hello(1, &[service(0, 80)], 4));
        let wanted = switches.wanted();
        switches.gone(A);
        assert_eq!(switches.wanted(), wanted);
        switches.hello(A, hello(5, &[], 4));
        assert_eq!(switches.wanted().rules, [None]);
        assert_eq!(switches.wanted().keys, Some([cookie_key(5), cookie_key(6)]));
        switches.set_services(A, vec![service(3, 80)]);
        switches.set_keys(A, Keys::new([cookie_key(5), cookie_key(7)], 1));
        assert_eq!(
            (switches.ours(A, 3), switches.wanted().keys),
            (Some(0), Some([cookie_key(7), cookie_key(5)]))
        );
    }

    #[test]
    fn one_secret_is_believed_and_others_are_told() {
        let all = [service(0, 80)];
        let mut switches = Switches::new(vec![address(80)]);
        let believed = |switches: &Switches| {
            let wanted = switches.wanted();
            ([A, B, C].map(|key| switches.accepted(key, &wanted).keys), wanted.keys)
        };
        switches.hello(B, hello(10, &all, 1));
        switches.hello(A, hello(20, &all, 1));
        switches.hello(C, hello(30, &[Service { cookie: false, ..service(0, 80) }], 1));
        let first = Some([cookie_key(10), cookie_key(11)]);
        assert_eq!(believed(&switches), ([false, true, true], first), "B was first, C has no cookies");
        // Clocks differ a little: B has the next key before C, and both are believed.
        switches.set_keys(B, Keys::new([cookie_key(12), cookie_key(11)], 0));
        switches.set_services(C, all.to_vec());
        switches.set_keys(C, Keys::new([cookie_key(10), cookie_key(11)], 1));
        let both = Some([cookie_key(12), cookie_key(11)]);
        assert_eq!(believed(&switches), ([false, true, true], both));
        switches.gone(B);
        assert_eq!(believed(&switches).0, [true, false, false], "A has been there longest");
        switches.gone(A);
        assert_eq!(believed(&switches).1, Some([cookie_key(11), cookie_key(12)]), "C alone is there");
    }

    #[test]
    fn who_moves_states_of_the_secret_by_which_another_uses_cookies_is_told() {
        let by_state = |port| Service { cookie: false, stash: true, ..service(1, port) };
        let mixed = |same: u64, port| {
            let mut switches = Switches::new(vec![address(80), address(81)]);
            switches.hello(A, hello(10, &[service(0, 80)], 1));
            switches.hello(B, hello(same, &[by_state(port)], 1));
            let wanted = switches.wanted();
            [A, B].map(|key| switches.accepted(key, &wanted).mixed)
        };
        assert_eq!(mixed(10, 80), [false, true]);
        assert_eq!(mixed(20, 80), [false, false], "its cookies are not believed");
        assert_eq!(mixed(10, 81), [false, false], "another address");
    }

    #[test]
    fn tunnels_are_those_of_all_and_change_with_the_next_hello() {
        let tunnel = |last: u8, port| Tunnel {
            kind: TunnelKind::Gue { port },
            local: [10, 9, 1, 11].into(),
            remote: Some([10, 9, 0, last].into()),
        };
        let with = |tunnel| Hello { tunnel, ..hello(1, &[], 1) };
        let mut switches = Switches::new(Vec::new());
        switches.hello(A, with(Some(tunnel(1, 6080))));
        switches.hello(B, with(Some(tunnel(1, 6080))));
        assert_eq!(switches.wanted().tunnels, [tunnel(1, 6080)]);
        switches.hello(B, with(Some(tunnel(2, 6080))));
        switches.gone(A);
        assert_eq!(switches.wanted().tunnels, [tunnel(1, 6080), tunnel(2, 6080)], "A's connections go on");
        let in_kernel = Wanted { tunnels: vec![tunnel(1, 6080)], ..switches.wanted() };
        assert_eq!([A, B].map(|key| switches.accepted(key, &in_kernel).tunnel), [true, false]);
        switches.hello(A, with(None));
        assert_eq!(switches.wanted().tunnels, [tunnel(2, 6080)]);
        assert!(switches.accepted(A, &Wanted::default()).tunnel, "it has none");
    }

    #[test]
    fn two_tags_at_once_are_none() {
        let mut switches = Switches::new(Vec::new());
        switches.hello(A, hello(1, &[], 4));
        switches.hello(B, hello(1, &[], 5));
        let wanted = switches.wanted();
        assert_eq!((wanted.tag, switches.accepted(A, &wanted).tag), (0, false));
        switches.gone(B);
        assert_eq!(switches.wanted().tag, 4);
        switches.gone(A);
        assert_eq!(switches.wanted().tag, 4);
    }
}
