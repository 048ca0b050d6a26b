//! Evaluation of made-up machines.

use super::*;
use crate::netns::{INTERFACE, Topology, TopologySpec};
use crate::probe::{Capabilities, Route};
use larder_testkit::or_skip;
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

/// A machine on which everything works, as switch and as node.
fn complete_facts() -> Facts {
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
fn complete_machine_uses_cookies() {
    for role in [Role::Switch, Role::Node] {
        let report = evaluate(&complete_facts(), &subject(role));
        let odd: Vec<_> = report.findings.iter().filter(|f| f.state != FindingState::Works).collect();
        assert!(odd.is_empty(), "{odd:#?}");
        assert_eq!(report.best(), Mechanism::Cookie);
    }
}

/// Faults, and the best mechanism that remains for a switch and for a node.
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
        ("route to 10.9.0.11", |f| f.routes[0].1 = off_link(), Relay, Cookie),
    ]
}

/// Each missing requirement disables exactly the mechanisms that need it.
#[test]
fn missing_features_degrade_in_order() {
    for (what, break_it, switch, node) in broken_kernels().into_iter().chain(broken_networks()) {
        for (role, best) in [(Role::Switch, switch), (Role::Node, node)] {
            let mut facts = complete_facts();
            break_it(&mut facts);
            if role == Role::Node {
                facts.routes.clear();
            }
            let report = evaluate(&facts, &subject(role));
            assert_eq!(report.best(), best, "{role} without {what}");
            let missing: Vec<_> =
                report.findings.iter().filter(|f| f.state == FindingState::Missing).collect();
            assert!(missing.iter().all(|f| f.remedy.is_some()), "{missing:?}");
            let named = best == Mechanism::Cookie || missing.iter().any(|f| f.what == what);
            assert!(named, "{role}: {what} not named in {missing:?}");
        }
    }
}

/// Requests to an unreachable node are relayed; the others are handed off.
#[test]
fn one_unreachable_node_only_degrades() {
    let mut facts = complete_facts();
    facts.routes.push(("10.9.1.11".parse().expect("an address"), off_link()));
    let report = evaluate(&facts, &subject(Role::Switch));
    assert_eq!(report.best(), Mechanism::Cookie);
    let far = report.findings.iter().find(|f| f.what == "route to 10.9.1.11").expect("looked at");
    assert_eq!(far.state, FindingState::Degraded);
}

/// Each further fault on one machine disables the next mechanism.
#[test]
fn mechanisms_are_preferred_in_order() {
    let mut facts = complete_facts();
    let subject = subject(Role::Node);
    assert_eq!(evaluate(&facts, &subject).best(), Mechanism::Cookie);
    facts.functions.insert("bpf_sk_assign_tcp_reqsk".to_owned(), false);
    assert_eq!(evaluate(&facts, &subject).best(), Mechanism::Repair);
    facts.tcp_repair = no("repair");
    let report = evaluate(&facts, &subject);
    assert_eq!(report.best(), Mechanism::Relay);
    assert!(report.can(Mechanism::Relay));
    assert_eq!(report.missing_for(Mechanism::Repair).count(), 1);
}

#[test]
fn slower_setups_are_only_degraded() {
    let mut facts = complete_facts();
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
    let report = evaluate(&facts, &subject(Role::Switch));
    assert_eq!(report.best(), Mechanism::Cookie);
    let degraded: Vec<_> = report
        .findings
        .iter()
        .filter(|f| f.state == FindingState::Degraded)
        .map(|f| f.what.as_str())
        .collect();
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
            "route to clients",
            "idle CPUs"
        ]
    );
}

#[test]
fn guest_with_halting_cpus_is_reported() {
    let mut facts = complete_facts();
    let mut of = |idle| {
        facts.idle = idle;
        let report = evaluate(&facts, &subject(Role::Switch));
        let found = report.findings.into_iter().find(|f| f.what == "idle CPUs").expect("looked at");
        (found.state, found.found, found.remedy)
    };
    let polls = Duration::from_micros(200);
    assert_eq!(
        of(Idle::Polls(polls)),
        (FindingState::Works, "poll for up to 200 us, then halt".to_owned(), None)
    );
    assert_eq!(of(Idle::Unknown).0, FindingState::Unknown);
    for (idle, remedy) in [(Idle::Polls(Duration::ZERO), "guest_halt_poll_ns"), (Idle::Halts, "force=1")] {
        let (state, _, said) = of(idle);
        assert!(
            state == FindingState::Degraded && said.is_some_and(|said| said.contains(remedy)),
            "{idle:?}"
        );
    }
}

/// Faults that cost a node connections occasionally, or depend on its server.
#[test]
fn node_reports_what_it_may_lose() {
    let mut facts = complete_facts();
    facts.mptcp_sockets = Some(2);
    set(&mut facts, "net.ipv4.tcp_rfc1337", "1");
    let report = evaluate(&facts, &subject(Role::Node));
    let degraded: Vec<_> = report
        .findings
        .iter()
        .filter(|f| f.state == FindingState::Degraded)
        .map(|f| f.what.as_str())
        .collect();
    assert_eq!(degraded, ["MPTCP", "tcp_rfc1337"]);
    assert_eq!(report.best(), Mechanism::Cookie);
}

#[test]
fn tunnel_needs_no_common_link_but_a_larger_mtu() {
    let mut facts = complete_facts();
    facts.routes[0].1 = off_link();
    let mut subject = subject(Role::Switch);
    subject.tunnels = true;
    let report = evaluate(&facts, &subject);
    assert_eq!(report.best(), Mechanism::Cookie);
    let mtu = report.findings.iter().find(|f| f.what == "MTU").expect("looked at");
    assert_eq!(mtu.state, FindingState::Degraded);
    let node = evaluate(&facts, &Subject { role: Role::Node, nodes: Vec::new(), ..subject });
    assert!(node.findings.iter().any(|f| f.what == "tunnels" && f.state == FindingState::Works));
}

/// In a test topology, a machine with the rights finds what the topology provides.
#[test]
fn real_topology_is_evaluated() {
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
        let report = evaluate(&facts, &subject);
        let state = |what: &str| report.findings.iter().find(|f| f.what == what).map(|f| f.state);
        assert_eq!(state("CAP_NET_ADMIN"), Some(FindingState::Works));
        assert_eq!(state("interface eth0"), Some(FindingState::Works));
        assert_eq!(state("MTU"), Some(FindingState::Works));
        for vip in ["10.9.0.100", "fd09::64"] {
            assert_eq!(state(&format!("address {vip}")), Some(FindingState::Works), "{role}");
        }
        if role == Role::Switch {
            // A veth has native XDP; the node is behind a router.
            assert_eq!(state("XDP"), Some(FindingState::Works));
            assert_eq!(state(&format!("route to {node_at}")), Some(FindingState::Missing));
            assert_eq!(state("route to clients"), Some(FindingState::Unknown), "no route to all");
            host.namespace.ip("route add default dev eth0").expect("a route");
            let facts = host.namespace.run(|| Facts::of_this_host(&subject)).expect("entered");
            let routes: Vec<_> =
                evaluate(&facts, &subject).findings.into_iter().map(|f| (f.what, f.state)).collect();
            assert!(routes.contains(&("route to clients".to_owned(), FindingState::Works)), "{routes:?}");
            assert!(
                routes.contains(&("route to IPv6 clients".to_owned(), FindingState::Unknown)),
                "{routes:?}"
            );
            // Packets from the service address may have a route of their own.
            let lines = "link add eth9 type veth peer name eth8\nlink set eth9 up\nlink set eth8 up\nroute add default dev eth9 table 99\n\
                         rule add from 10.9.0.100 table 99\nroute add ::/0 dev eth0";
            host.namespace.ip(lines).expect("another way");
            let facts = host.namespace.run(|| Facts::of_this_host(&subject)).expect("entered");
            let routes: Vec<_> =
                evaluate(&facts, &subject).findings.into_iter().map(|f| (f.what, f.state)).collect();
            assert!(routes.contains(&("route to clients".to_owned(), FindingState::Degraded)), "{routes:?}");
            assert!(
                routes.contains(&("route to IPv6 clients".to_owned(), FindingState::Works)),
                "{routes:?}"
            );
        } else {
            assert_eq!(state("arp_ignore"), Some(FindingState::Works));
            assert_eq!(state("tcp_tw_reuse"), Some(FindingState::Works));
        }
    }
}
