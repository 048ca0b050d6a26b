//! The settings that each switch wants on the node, and their combination if the switches differ.
//!
//! - The node serves a listen address if any switch asks for it and the node's config names it. Its rules are the union
//!   of all switches' rules.
//! - The kernel has room for the two live cookie keys of one secret. The node takes the keys of the switch that has
//!   been connected longest, and of all switches that share a key with it, as they do while keys rotate. Current keys
//!   come first, then the other ones. A switch with another secret is told that its keys do not apply, and hands
//!   nothing off. A switch that uses no cookies needs no keys.
//! - The node uses a tag if all connected switches give the same one.
//! - The node accepts the tunnels of all switches.

use super::ServiceRules;
use crate::channel::identity::PublicKey;
use crate::channel::message::{CookieKeys, Hello, Service, SettingsStatus};
use larder_kernel::CookieKey;
use larder_kernel::guard::InboundTunnel;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Settings for the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelSettings {
    /// Indexed by the node's service number; `None` if no switch asks for the address.
    pub(super) rules: Vec<Option<ServiceRules>>,
    /// `None` before the first switch connects.
    pub(super) keys: Option<[CookieKey; 2]>,
    /// 0 for none.
    pub(super) tag: u8,
    /// Without duplicates.
    pub(super) tunnels: Vec<InboundTunnel>,
}

/// The settings of one switch.
#[derive(Debug)]
struct SwitchSettings {
    connected: bool,
    services: Vec<Service>,
    keys: CookieKeys,
    tag: u8,
    tunnel: Option<InboundTunnel>,
    /// Position of its latest hello among the hellos of all switches.
    hello_number: u64,
}

impl SwitchSettings {
    fn uses_cookies(&self) -> bool {
        self.services.iter().any(|service| service.cookie)
    }

    fn key_pair(&self) -> [CookieKey; 2] {
        [self.keys.current(), self.keys.other()]
    }
}

/// The settings of every switch that has connected since the start.
#[derive(Debug)]
pub(super) struct SwitchTable {
    /// The node's listen addresses. The index is the node's service number.
    addresses: Vec<SocketAddr>,
    by_key: BTreeMap<PublicKey, SwitchSettings>,
    hellos: u64,
}

impl SwitchTable {
    /// Creates an empty table for a node that serves `addresses` and no others.
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self { addresses, by_key: BTreeMap::new(), hellos: 0 }
    }

    /// Takes the settings of a switch that has connected.
    pub(super) fn connect(&mut self, key: PublicKey, hello: Hello) {
        let Hello { keys, services, tag, tunnel, .. } = hello;
        self.hellos += 1;
        let settings =
            SwitchSettings { connected: true, services, keys, tag, tunnel, hello_number: self.hellos };
        self.by_key.insert(key, settings);
    }

    /// Marks a switch as disconnected. Its settings stay.
    pub(super) fn disconnect(&mut self, key: PublicKey) {
        if let Some(switch) = self.by_key.get_mut(&key) {
            switch.connected = false;
        }
    }

    /// Returns all switches, connected or not.
    pub(super) fn known(&self) -> impl Iterator<Item = PublicKey> {
        self.by_key.keys().copied()
    }

    /// Removes a switch and its settings.
    pub(super) fn remove(&mut self, key: PublicKey) {
        self.by_key.remove(&key);
    }

    pub(super) fn set_keys(&mut self, key: PublicKey, keys: CookieKeys) {
        if let Some(switch) = self.by_key.get_mut(&key) {
            switch.keys = keys;
        }
    }

    pub(super) fn set_tag(&mut self, key: PublicKey, tag: u8) {
        if let Some(switch) = self.by_key.get_mut(&key) {
            switch.tag = tag;
        }
    }

    pub(super) fn set_services(&mut self, key: PublicKey, services: Vec<Service>) {
        if let Some(switch) = self.by_key.get_mut(&key) {
            switch.services = services;
        }
    }

    /// Returns the address with the node's service number `service`.
    pub(super) fn address(&self, service: u16) -> Option<SocketAddr> {
        self.addresses.get(usize::from(service)).copied()
    }

    /// Translates a switch's service number into the node's.
    pub(super) fn node_service(&self, key: PublicKey, switch_service: u16) -> Option<u16> {
        let services = &self.by_key.get(&key)?.services;
        let service = services.iter().find(|service| service.id == switch_service)?;
        self.service_of(service.address)
    }

    /// Translates the node's service number into a switch's. Returns `None` if the switch does not have the address.
    pub(super) fn switch_service(&self, key: PublicKey, node_service: u16) -> Option<u16> {
        let address = self.address(node_service)?;
        let services = &self.by_key.get(&key)?.services;
        services.iter().find(|service| service.address == address).map(|service| service.id)
    }

    /// Whether a switch has this listen address.
    pub(super) fn serves(&self, key: PublicKey, address: SocketAddr) -> bool {
        let serves =
            |switch: &SwitchSettings| switch.services.iter().any(|service| service.address == address);
        self.by_key.get(&key).is_some_and(serves)
    }

    /// Combines the settings of all switches.
    pub(super) fn kernel_settings(&self) -> KernelSettings {
        let mut rules = vec![None; self.addresses.len()];
        for service in self.by_key.values().flat_map(|switch| &switch.services) {
            let index = self.service_of(service.address).map(usize::from);
            if let Some(entry) = index.and_then(|index| rules.get_mut(index)) {
                let union: &mut ServiceRules = entry.get_or_insert_default();
                union.cookie |= service.cookie;
                union.stash |= service.stash;
                union.grace |= service.grace;
            }
        }
        let mut tunnels: Vec<InboundTunnel> = Vec::new();
        for tunnel in self.by_key.values().filter_map(|switch| switch.tunnel) {
            if !tunnels.contains(&tunnel) {
                tunnels.push(tunnel);
            }
        }
        KernelSettings { rules, keys: self.keys(), tag: self.tag(), tunnels }
    }

    /// Returns which of a switch's settings are in effect, given the settings that the kernel has accepted.
    pub(super) fn status_for(&self, key: PublicKey, applied: &KernelSettings) -> SettingsStatus {
        let Some(switch) = self.by_key.get(&key) else { return SettingsStatus::default() };
        let rules_of = |service: &Service| -> Option<ServiceRules> {
            let index = self.service_of(service.address).map(usize::from);
            index.and_then(|index| applied.rules.get(index).copied().flatten())
        };
        let conflicts =
            |service: &Service| !service.cookie && rules_of(service).is_some_and(|rules| rules.cookie);
        let same_secret =
            applied.keys.is_some_and(|keys| switch.key_pair().iter().any(|key| keys.contains(key)));
        SettingsStatus {
            services: switch
                .services
                .iter()
                .filter(|service| rules_of(service).is_some())
                .map(|service| service.id)
                .collect(),
            keys: !switch.uses_cookies()
                || applied.keys.is_some_and(|keys| keys.contains(&switch.keys.current())),
            tag: applied.tag == switch.tag,
            tunnel: switch.tunnel.is_none_or(|tunnel| applied.tunnels.contains(&tunnel)),
            cookie_conflict: same_secret && switch.services.iter().any(conflicts),
        }
    }

    /// Returns the node's listen addresses. The index is the node's service number.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the node's service number of a listen address.
    pub(super) fn service_of(&self, address: SocketAddr) -> Option<u16> {
        let index = self.addresses.iter().position(|&other| other == address)?;
        u16::try_from(index).ok()
    }

    fn keys(&self) -> Option<[CookieKey; 2]> {
        let mut switches: Vec<&SwitchSettings> = self.by_key.values().collect();
        switches.sort_by_key(|switch| (!switch.uses_cookies(), !switch.connected, switch.hello_number));
        let oldest = switches.first()?.key_pair();
        switches.retain(|switch| switch.key_pair().iter().any(|key| oldest.contains(key)));
        let current = switches.iter().map(|switch| switch.keys.current());
        let mut keys = current.chain(switches.iter().map(|switch| switch.keys.other()));
        let first = keys.next()?;
        let second = keys.find(|&key| key != first).unwrap_or(first);
        Some([first, second])
    }

    fn tag(&self) -> u8 {
        let mut tags = self.by_key.values().filter(|switch| switch.connected).map(|switch| switch.tag);
        let Some(first) = tags.next() else {
            // If no switch is connected, the connections keep their tag.
            return self.by_key.values().next().map_or(0, |switch| switch.tag);
        };
        if tags.all(|tag| tag == first) { first } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_kernel::guard::InboundTunnelKind;

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
        let keys = CookieKeys::new([cookie_key(current), cookie_key(current + 1)], 0);
        Hello { name: String::new(), tag, keys, services: services.to_vec(), tunnel: None }
    }

    #[test]
    fn switches_share_addresses_under_their_own_numbers() {
        let mut switches = SwitchTable::new(vec![address(80), address(81)]);
        assert_eq!(
            switches.kernel_settings(),
            KernelSettings { rules: vec![None, None], ..KernelSettings::default() }
        );
        switches.connect(A, hello(1, &[service(7, 81), service(8, 99)], 4));
        switches.connect(B, hello(1, &[Service { cookie: false, stash: true, ..service(0, 81) }], 4));
        let settings = switches.kernel_settings();
        let rules = ServiceRules { cookie: true, stash: true, grace: false };
        assert_eq!((&settings.rules, settings.tag), (&vec![None, Some(rules)], 4));
        assert_eq!((switches.node_service(A, 7), switches.node_service(B, 0)), (Some(1), Some(1)));
        assert_eq!((switches.switch_service(A, 1), switches.switch_service(B, 1)), (Some(7), Some(0)));
        assert_eq!(
            (switches.node_service(A, 8), switches.node_service(A, 0), switches.switch_service(C, 1)),
            (None, None, None)
        );
        let accepted = switches.status_for(A, &settings);
        assert_eq!(
            accepted,
            SettingsStatus { services: vec![7], keys: true, tag: true, tunnel: true, cookie_conflict: false },
            "port 99 is not an address of the node"
        );
        let services = switches.status_for(B, &KernelSettings::default()).services;
        assert!(services.is_empty(), "the kernel rejected the settings, not {services:?}");
    }

    #[test]
    fn settings_stay_after_a_disconnect_until_the_next_hello() {
        let mut switches = SwitchTable::new(vec![address(80)]);
        switches.connect(A, hello(1, &[service(0, 80)], 4));
        let settings = switches.kernel_settings();
        switches.disconnect(A);
        assert_eq!(switches.kernel_settings(), settings);
        switches.connect(A, hello(5, &[], 4));
        assert_eq!(switches.kernel_settings().rules, [None]);
        assert_eq!(switches.kernel_settings().keys, Some([cookie_key(5), cookie_key(6)]));
        switches.set_services(A, vec![service(3, 80)]);
        switches.set_keys(A, CookieKeys::new([cookie_key(5), cookie_key(7)], 1));
        assert_eq!(
            (switches.node_service(A, 3), switches.kernel_settings().keys),
            (Some(0), Some([cookie_key(7), cookie_key(5)]))
        );
    }

    #[test]
    fn keys_of_one_secret_apply_and_other_switches_learn_it() {
        let all = [service(0, 80)];
        let mut switches = SwitchTable::new(vec![address(80)]);
        let applied_keys = |switches: &SwitchTable| {
            let settings = switches.kernel_settings();
            ([A, B, C].map(|key| switches.status_for(key, &settings).keys), settings.keys)
        };
        switches.connect(B, hello(10, &all, 1));
        switches.connect(A, hello(20, &all, 1));
        switches.connect(C, hello(30, &[Service { cookie: false, ..service(0, 80) }], 1));
        let first = Some([cookie_key(10), cookie_key(11)]);
        assert_eq!(
            applied_keys(&switches),
            ([false, true, true], first),
            "B connected first, and C has no cookies"
        );
        // Clocks differ a little: B has the next key before C, and both keys apply.
        switches.set_keys(B, CookieKeys::new([cookie_key(12), cookie_key(11)], 0));
        switches.set_services(C, all.to_vec());
        switches.set_keys(C, CookieKeys::new([cookie_key(10), cookie_key(11)], 1));
        let both = Some([cookie_key(12), cookie_key(11)]);
        assert_eq!(applied_keys(&switches), ([false, true, true], both));
        switches.disconnect(B);
        assert_eq!(applied_keys(&switches).0, [true, false, false], "A has been connected longest");
        switches.disconnect(A);
        assert_eq!(applied_keys(&switches).1, Some([cookie_key(11), cookie_key(12)]), "only C is connected");
    }

    #[test]
    fn a_switch_without_cookies_learns_of_a_cookie_conflicts() {
        let by_state = |port| Service { cookie: false, stash: true, ..service(1, port) };
        let cookie_conflicts = |same: u64, port| {
            let mut switches = SwitchTable::new(vec![address(80), address(81)]);
            switches.connect(A, hello(10, &[service(0, 80)], 1));
            switches.connect(B, hello(same, &[by_state(port)], 1));
            let settings = switches.kernel_settings();
            [A, B].map(|key| switches.status_for(key, &settings).cookie_conflict)
        };
        assert_eq!(cookie_conflicts(10, 80), [false, true]);
        assert_eq!(cookie_conflicts(20, 80), [false, false], "its cookie keys do not apply");
        assert_eq!(cookie_conflicts(10, 81), [false, false], "another address");
    }

    #[test]
    fn tunnels_of_all_switches_are_accepted_until_their_next_hello() {
        let tunnel = |last: u8, port| InboundTunnel {
            kind: InboundTunnelKind::Gue { port },
            local: [10, 9, 1, 11].into(),
            remote: Some([10, 9, 0, last].into()),
        };
        let with = |tunnel| Hello { tunnel, ..hello(1, &[], 1) };
        let mut switches = SwitchTable::new(Vec::new());
        switches.connect(A, with(Some(tunnel(1, 6080))));
        switches.connect(B, with(Some(tunnel(1, 6080))));
        assert_eq!(switches.kernel_settings().tunnels, [tunnel(1, 6080)]);
        switches.connect(B, with(Some(tunnel(2, 6080))));
        switches.disconnect(A);
        assert_eq!(
            switches.kernel_settings().tunnels,
            [tunnel(1, 6080), tunnel(2, 6080)],
            "A's connections continue"
        );
        let applied = KernelSettings { tunnels: vec![tunnel(1, 6080)], ..switches.kernel_settings() };
        assert_eq!([A, B].map(|key| switches.status_for(key, &applied).tunnel), [true, false]);
        switches.connect(A, with(None));
        assert_eq!(switches.kernel_settings().tunnels, [tunnel(2, 6080)]);
        assert!(switches.status_for(A, &KernelSettings::default()).tunnel, "it has no tunnel");
    }

    #[test]
    fn different_tags_cancel_each_other() {
        let mut switches = SwitchTable::new(Vec::new());
        switches.connect(A, hello(1, &[], 4));
        switches.connect(B, hello(1, &[], 5));
        let settings = switches.kernel_settings();
        assert_eq!((settings.tag, switches.status_for(A, &settings).tag), (0, false));
        switches.disconnect(B);
        assert_eq!(switches.kernel_settings().tag, 4);
        switches.disconnect(A);
        assert_eq!(switches.kernel_settings().tag, 4);
    }
}
