//! Made-up machines.

use super::*;
use crate::netns::{INTERFACE, Topology, TopologySpec, or_skip};
use crate::probe::{Capabilities, Route};
use std::collections::BTreeMap;
use std::time::Duration;

const VIP: &str = "10.9.0.100";

fn subject(role: Role) -> Subject {
    Subject {
        role,
        interface: Some("eth0".to_owned()),
        services: vec![format!("{VIP}:80").parse().expect("an address")],
        nodes: if role == Role::Switch { vec!["10.9.0.11".parse().expect("an address")] } else { Vec::new() },
        tunnels: false,
    }
}

/// A machine on which all works, as switch and as node.
fn whole() -> Facts {
    let sysctl = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Facts {
        kernel: "6.18.1".to_owned(),
        capabilities: Capabilities {
            net_admin: true,
            bpf: true,
            perfmon: true,
            net_raw: true,
            sys_admin: true,
        },
        btf: Ok(()),
        functions: super::super::kernel::FUNCTIONS.iter().map(|f| ((*f).to_owned(), true)).collect(),
        load: Ok(()),
        bpffs: true,
        tun: Ok(()),
        tcp_repair: Ok(()),
        sock_destroy: Ok(()),
        mptcp_sockets: Some(0),
        sysctls: [
            ("net.core.somaxconn", "16384"),
            ("net.ipv4.ip_local_port_range", "32768\t60999"),
            ("net.ipv4.tcp_rfc1337", "0"),
            ("net.ipv4.tcp_sack", "1"),
            ("net.ipv4.tcp_syncookies", "1"),
            ("net.ipv4.tcp_timestamps", "1"),
            ("net.ipv4.tcp_window_scaling", "1"),
            ("net.ipv4.tcp_tw_reuse", "1"),
            ("net.ipv4.conf.all.arp_ignore", "0"),
            ("net.ipv4.conf.eth0.arp_ignore", "1"),
            ("net.ipv4.conf.all.arp_announce", "2"),
            ("net.ipv4.conf.eth0.rp_filter", "0"),
        ]
        .map(sysctl)
        .into(),
        interface: Some(Ok(InterfaceFacts {
            mtu: 1500,
            up: true,
            xdp: Some(Xdp::Native),
            xdp_program: 0,
            lro: Some(false),
        })),
        addresses: Ok(vec![(VIP.parse().expect("an address"), "lo".to_owned())]),
        routes: vec![(
            "10.9.0.11".parse().expect("an address"),
            Ok(Route { interface: "eth0".to_owned(), on_link: true }),
        )],
        clients: vec![(
            "198.51.100.1".parse().expect("an address"),
            Ok(Route { interface: "eth0".to_owned(), on_link: false }),
        )],
        idle: Idle::Machine,
    }
}

fn no(what: &str) -> Result<(), String> {
    Err(format!("no {what}"))
}

#[test]
fn a_whole_machine_hands_off_by_cookie() {
    for role in [Role::Switch, Role::Node] {
        let report = judge(&whole(), &subject(role));
        let odd: Vec<_> = report.findings.iter().filter(|f| f.state != State::Works).collect();
        assert!(odd.is_empty(), "{odd:#?}");
        assert_eq!(report.best(), Mechanism::Cookie);
    }
}

/// What is broken, how, and what is left to a switch and to a node.
type Case = (&'static str, fn(&mut Facts), Mechanism, Mechanism);

fn set(facts: &mut Facts, sysctl: &str, value: &str) {
    facts.sysctls.insert(sysctl.to_owned(), value.to_owned());
}

fn off_link() -> Result<Route, String> {
    Ok(Route { interface: "eth0".to_owned(), on_link: false })
}

fn broken_kernels() -> Vec<Case> {
    use Mechanism::{Cookie, Relay, Repair};
    let no_function: fn(&mut Facts) = |f| {
        f.functions.insert("bpf_sk_assign_tcp_reqsk".into(), false);
    };
    let no_btf: fn(&mut Facts) = |f| (f.btf, f.functions) = (no("BTF"), BTreeMap::new());
    vec![
        ("bpf_sk_assign_tcp_reqsk", no_function, Repair, Repair),
        ("TCP_REPAIR", |f| f.tcp_repair = no("repair"), Cookie, Cookie),
        ("TUN", |f| f.tun = no("tun"), Relay, Cookie),
        ("CAP_NET_ADMIN", |f| f.capabilities.net_admin = false, Relay, Relay),
        ("CAP_NET_RAW", |f| f.capabilities.net_raw = false, Relay, Cookie),
        (
            "CAP_BPF",
            |f| f.capabilities = Capabilities { net_admin: true, ..Default::default() },
            Relay,
            Relay,
        ),
        ("BTF", no_btf, Relay, Relay),
        ("bpf()", |f| f.load = no("loading"), Relay, Relay),
    ]
}

fn broken_networks() -> Vec<Case> {
    use Mechanism::{Cookie, Relay, Repair};
    vec![
        ("interface eth0", |f| f.interface = Some(Err("there is none".into())), Relay, Relay),
        ("address 10.9.0.100", |f| f.addresses = Ok(Vec::new()), Relay, Relay),
        ("arp_ignore", |f| set(f, "net.ipv4.conf.eth0.arp_ignore", "0"), Cookie, Relay),
        ("arp_announce", |f| set(f, "net.ipv4.conf.all.arp_announce", "0"), Cookie, Relay),
        ("tcp_syncookies", |f| set(f, "net.ipv4.tcp_syncookies", "0"), Cookie, Repair),
        ("tcp_timestamps", |f| set(f, "net.ipv4.tcp_timestamps", "0"), Cookie, Repair),
        ("tcp_sack", |f| set(f, "net.ipv4.tcp_sack", "0"), Cookie, Repair),
        ("tcp_window_scaling", |f| set(f, "net.ipv4.tcp_window_scaling", "0"), Cookie, Repair),
        ("way to 10.9.0.11", |f| f.routes[0].1 = off_link(), Relay, Cookie),
    ]
}

/// cookie, then repair, then relay: each thing that is missing takes exactly what needs it.
#[test]
fn what_is_missing_degrades_in_order() {
    for (what, break_it, switch, node) in broken_kernels().into_iter().chain(broken_networks()) {
        for (role, best) in [(Role::Switch, switch), (Role::Node, node)] {
            let mut facts = whole();
            break_it(&mut facts);
            if role == Role::Node {
                facts.routes.clear();
            }
            let report = judge(&facts, &subject(role));
            assert_eq!(report.best(), best, "{role} without {what}");
            let missing: Vec<_> = report.findings.iter().filter(|f| f.state == State::Missing).collect();
            assert!(missing.iter().all(|f| f.remedy.is_some()), "{missing:?}");
            let named = best == Mechanism::Cookie || missing.iter().any(|f| f.what == what);
            assert!(named, "{role}: {what} not named in {missing:?}");
        }
    }
}

/// Requests to a node out of reach are relayed; the others are handed off.
#[test]
fn one_node_out_of_reach_is_not_all() {
    let mut facts = whole();
    facts.routes.push(("10.9.1.11".parse().expect("an address"), off_link()));
    let report = judge(&facts, &subject(Role::Switch));
    assert_eq!(report.best(), Mechanism::Cookie);
    let far = report.findings.iter().find(|f| f.what == "way to 10.9.1.11").expect("looked at");
    assert_eq!(far.state, State::Degraded);
}

/// The whole order on one machine: each further loss takes the next mechanism.
#[test]
fn cookie_then_repair_then_relay() {
    let mut facts = whole();
    let subject = subject(Role::Node);
    assert_eq!(judge(&facts, &subject).best(), Mechanism::Cookie);
    facts.functions.insert("bpf_sk_assign_tcp_reqsk".to_owned(), false);
    assert_eq!(judge(&facts, &subject).best(), Mechanism::Repair);
    facts.tcp_repair = no("repair");
    let report = judge(&facts, &subject);
    assert_eq!(report.best(), Mechanism::Relay);
    assert!(report.can(Mechanism::Relay));
    assert_eq!(report.missing_for(Mechanism::Repair).count(), 1);
}

#[test]
fn slower_ways_are_degraded_and_no_more() {
    let mut facts = whole();
    facts.interface =
        Some(Ok(InterfaceFacts { mtu: 1400, up: true, xdp: Some(Xdp::Generic), xdp_program: 0, lro: None }));
    facts.bpffs = false;
    facts.capabilities.sys_admin = false;
    set(&mut facts, "net.core.somaxconn", "128");
    set(&mut facts, "net.ipv4.conf.all.rp_filter", "1");
    set(&mut facts, "net.ipv4.ip_local_port_range", "32768 33000");
    set(&mut facts, "net.netfilter.nf_conntrack_count", "12");
    facts.clients[0].1 = Ok(Route { interface: "eth1".to_owned(), on_link: false });
    facts.idle = Idle::Halts;
    let report = judge(&facts, &subject(Role::Switch));
    assert_eq!(report.best(), Mechanism::Cookie);
    let degraded: Vec<_> =
        report.findings.iter().filter(|f| f.state == State::Degraded).map(|f| f.what.as_str()).collect();
    assert_eq!(
        degraded,
        [
            "bpffs",
            "XDP",
            "MTU",
            "rp_filter",
            "somaxconn",
            "ip_local_port_range",
            "conntrack",
            "way to clients",
            "idle processors"
        ]
    );
}

#[test]
fn a_guest_whose_processors_halt_at_once_hears_of_it() {
    let mut facts = whole();
    let mut of = |idle| {
        facts.idle = idle;
        let report = judge(&facts, &subject(Role::Switch));
        let found = report.findings.into_iter().find(|f| f.what == "idle processors").expect("looked at");
        (found.state, found.found, found.remedy)
    };
    let polls = Duration::from_micros(200);
    assert_eq!(
        of(Idle::Polls(polls)),
        (State::Works, "look for work for up to 200 us, then halt".to_owned(), None)
    );
    assert_eq!(of(Idle::Unknown).0, State::Unknown);
    for (idle, remedy) in [(Idle::Polls(Duration::ZERO), "guest_halt_poll_ns"), (Idle::Halts, "force=1")] {
        let (state, _, said) = of(idle);
        assert!(state == State::Degraded && said.is_some_and(|said| said.contains(remedy)), "{idle:?}");
    }
}

/// What costs a node connections now and then, or depends on its server.
#[test]
fn a_node_says_what_it_may_lose() {
    let mut facts = whole();
    facts.mptcp_sockets = Some(2);
    set(&mut facts, "net.ipv4.tcp_rfc1337", "1");
    let report = judge(&facts, &subject(Role::Node));
    let degraded: Vec<_> =
        report.findings.iter().filter(|f| f.state == State::Degraded).map(|f| f.what.as_str()).collect();
    assert_eq!(degraded, ["MPTCP", "tcp_rfc1337"]);
    assert_eq!(report.best(), Mechanism::Cookie);
}

#[test]
fn a_tunnel_needs_no_common_wire_but_room() {
    let mut facts = whole();
    facts.routes[0].1 = off_link();
    let mut subject = subject(Role::Switch);
    subject.tunnels = true;
    let report = judge(&facts, &subject);
    assert_eq!(report.best(), Mechanism::Cookie);
    let mtu = report.findings.iter().find(|f| f.what == "MTU").expect("looked at");
    assert_eq!(mtu.state, State::Degraded);
    let node = judge(&facts, &Subject { role: Role::Node, nodes: Vec::new(), ..subject });
    assert!(node.findings.iter().any(|f| f.what == "tunnels" && f.state == State::Works));
}

/// In namespaces made for it, a machine with the rights finds what the topology says.
#[test]
fn a_real_topology_is_found_as_it_is() {
    let spec = TopologySpec { nodes: 1, routed: true, ..TopologySpec::default() };
    let Some(topology) = or_skip(Topology::new(&spec)) else { return };
    let services = vec![(topology.vip4, 80).into(), (topology.vip6, 80).into()];
    let node_at = topology.nodes[0].v4;
    for (host, role) in [(topology.front(), Role::Switch), (&topology.nodes[0], Role::Node)] {
        let subject = Subject {
            role,
            interface: Some(INTERFACE.to_owned()),
            services: services.clone(),
            nodes: if role == Role::Switch { vec![node_at.into()] } else { Vec::new() },
            tunnels: false,
        };
        let facts = host.namespace.run(|| Facts::of_this_host(&subject)).expect("entered");
        let report = judge(&facts, &subject);
        let state = |what: &str| report.findings.iter().find(|f| f.what == what).map(|f| f.state);
        assert_eq!(state("CAP_NET_ADMIN"), Some(State::Works));
        assert_eq!(state("interface eth0"), Some(State::Works));
        assert_eq!(state("MTU"), Some(State::Works));
        for vip in ["10.9.0.100", "fd09::64"] {
            assert_eq!(state(&format!("address {vip}")), Some(State::Works), "{role}");
        }
        if role == Role::Switch {
            // A veth does XDP in its driver; the node is behind a router.
            assert_eq!(state("XDP"), Some(State::Works));
            assert_eq!(state(&format!("way to {node_at}")), Some(State::Missing));
            assert_eq!(state("way to clients"), Some(State::Unknown), "no route to all");
            host.namespace.ip("route add default dev eth0").expect("a route");
            let facts = host.namespace.run(|| Facts::of_this_host(&subject)).expect("entered");
            let ways: Vec<_> =
                judge(&facts, &subject).findings.into_iter().map(|f| (f.what, f.state)).collect();
            assert!(ways.contains(&("way to clients".to_owned(), State::Works)), "{ways:?}");
            assert!(ways.contains(&("way to IPv6 clients".to_owned(), State::Unknown)), "{ways:?}");
            // What goes out from the service address may have a way of its own.
            let lines = "link add eth9 type veth peer name eth8\nlink set eth9 up\nlink set eth8 up\nroute add default dev eth9 table 99\n\
                         rule add from 10.9.0.100 table 99\nroute add ::/0 dev eth0";
            host.namespace.ip(lines).expect("another way");
            let facts = host.namespace.run(|| Facts::of_this_host(&subject)).expect("entered");
            let ways: Vec<_> =
                judge(&facts, &subject).findings.into_iter().map(|f| (f.what, f.state)).collect();
            assert!(ways.contains(&("way to clients".to_owned(), State::Degraded)), "{ways:?}");
            assert!(ways.contains(&("way to IPv6 clients".to_owned(), State::Works)), "{ways:?}");
        } else {
            assert_eq!(state("arp_ignore"), Some(State::Works));
            assert_eq!(state("tcp_tw_reuse"), Some(State::Works));
        }
    }
}
