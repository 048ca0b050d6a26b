//! From facts to findings. Pure.

use super::facts::{Facts, InterfaceFacts, Route, Xdp, conf};
use super::{Finding, Idle, Mechanism, Report, Role, State, Subject};
use std::net::IpAddr;

const BOTH: &[Mechanism] = &[Mechanism::Cookie, Mechanism::Repair];
const COOKIE: &[Mechanism] = &[Mechanism::Cookie];
const REPAIR: &[Mechanism] = &[Mechanism::Repair];
const NOTHING: &[Mechanism] = &[];

/// An outer IPv6 header, UDP and VXLAN with its inner Ethernet header: the most that is put before a packet. Bytes.
const TUNNEL_BYTES: u32 = 70;
/// What clients send over Ethernet. Bytes.
const CLIENT_MTU: u32 = 1500;
/// Connections that wait to be accepted: below, a burst of a busy site overflows. Count.
const SOMAXCONN_MIN: i64 = 1024;

/// Ports: fewer, and relaying to few nodes runs out of them. Count.
const PORTS_MIN: u32 = 16_384;

/// Judges facts for a subject.
pub fn judge(facts: &Facts, subject: &Subject) -> Report {
    let mut findings = Vec::new();
    programs(facts, subject, &mut findings);
    sockets(facts, subject, &mut findings);
    if let (Some(name), Some(found)) = (&subject.interface, &facts.interface) {
        interface(name, found, subject, &mut findings);
    }
    services(facts, subject, &mut findings);
    settings(facts, subject, &mut findings);
    findings.extend(unpacks(subject));
    nodes(facts, subject, &mut findings);
    if subject.role == Role::Switch {
        findings.extend(facts.clients.iter().filter_map(|(to, route)| back(*to, route.as_ref(), subject)));
        findings.push(idle(facts.idle));
    }
    Report { role: subject.role, findings }
}

/// Starts a finding; says how it stands at the end.
struct Look {
    what: String,
    why: &'static str,
    needed_for: &'static [Mechanism],
}

fn look(what: impl Into<String>, needed_for: &'static [Mechanism], why: &'static str) -> Look {
    Look { what: what.into(), why, needed_for }
}

impl Look {
    fn is(self, state: State, found: impl Into<String>, remedy: Option<&str>) -> Finding {
        Finding {
            what: self.what,
            state,
            found: found.into(),
            why: self.why,
            remedy: remedy.map(str::to_owned),
            needed_for: self.needed_for,
        }
    }

    fn works(self, found: impl Into<String>) -> Finding {
        self.is(State::Works, found, None)
    }

    fn missing(self, found: impl Into<String>, remedy: &str) -> Finding {
        self.is(State::Missing, found, Some(remedy))
    }

    fn degraded(self, found: impl Into<String>, remedy: &str) -> Finding {
        self.is(State::Degraded, found, Some(remedy))
    }

    fn of(self, tried: &Result<(), String>, remedy: &str) -> Finding {
        match tried {
            Ok(()) => self.works("tried: it does"),
            Err(said) => self.missing(said.clone(), remedy),
        }
    }
}

/// What our programs in the kernel need.
fn programs(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    let caps = facts.capabilities;
    let grant = "run as root, or give the capability (systemd: AmbientCapabilities=)";
    let mut capability = |name: &'static str, has: bool, needed_for, why| {
        let look = look(name, needed_for, why);
        out.push(if has { look.works("effective") } else { look.missing("not effective", grant) });
    };
    capability("CAP_NET_ADMIN", caps.net_admin, BOTH, "attaches programs to interfaces, repairs sockets");
    capability("CAP_BPF", caps.bpf || caps.sys_admin, BOTH, "loads programs and maps");
    // `check_ptr_to_btf_access` in kernel/bpf/verifier.c.
    capability("CAP_PERFMON", caps.perfmon || caps.sys_admin, BOTH, "programs may read the kernel's sockets");
    if subject.role == Role::Switch {
        capability("CAP_NET_RAW", caps.net_raw, BOTH, "sends held packets again");
    }
    let why = "programs find the kernel's structures by it";
    out.push(look("BTF", BOTH, why).of(&facts.btf, "a kernel with CONFIG_DEBUG_INFO_BTF=y"));
    let load = look("bpf()", BOTH, "the programs that answer and forward run in the kernel");
    out.push(
        load.of(&facts.load, "a kernel with CONFIG_BPF_SYSCALL=y and the rights to it (lockdown, seccomp)"),
    );
    out.push(cookie_function(facts));
    out.push(traffic_control(facts));
    let look = look("bpffs", NOTHING, "programs stay attached while larder restarts");
    out.push(match (facts.bpffs, caps.sys_admin) {
        (true, _) => look.works("mounted on /sys/fs/bpf"),
        (false, true) => look.works("not mounted on /sys/fs/bpf: a private one is made under /run/larder"),
        (false, false) => look.degraded("not mounted on /sys/fs/bpf", "mount -t bpf bpf /sys/fs/bpf"),
    });
}

fn cookie_function(facts: &Facts) -> Finding {
    let name = "bpf_sk_assign_tcp_reqsk";
    let look = look(name, COOKIE, "a listener takes a connection by its cookie");
    let remedy = "Linux 6.9 or later with CONFIG_SYN_COOKIES=y; repair does without";
    match facts.functions.get(name) {
        Some(true) => look.works(format!("in Linux {}", facts.kernel)),
        Some(false) => look.missing(format!("not in Linux {}", facts.kernel), remedy),
        None => look.missing("not to be found out without BTF", remedy),
    }
}

fn traffic_control(facts: &Facts) -> Finding {
    let look = look("tc", BOTH, "the node's programs see packets before its sockets do");
    let has = |name: &str| facts.functions.get(name).copied();
    match (has("tcx_link_attach"), has("clsact_init")) {
        (Some(true), _) => look.works("tcx"),
        (_, Some(true)) => look.works("clsact"),
        // It may be a module, whose functions are not listed.
        _ => look.is(
            State::Unknown,
            "neither tcx nor clsact is built in",
            Some("Linux 6.6 or later, or CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF"),
        ),
    }
}

/// What sockets need that come from, or go to, another host.
fn sockets(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    let why = "a connection's state is read from, and put into, a socket";
    let remedy = "a kernel with CONFIG_CHECKPOINT_RESTORE=y, and CAP_NET_ADMIN";
    out.push(look("TCP_REPAIR", REPAIR, why).of(&facts.tcp_repair, remedy));
    let (why, needed_for) = match subject.role {
        Role::Switch => ("packets held back reach this host's own stack", BOTH),
        Role::Node => ("packets that came before their connection are put back", REPAIR),
    };
    let tun = look("TUN", needed_for, why);
    out.push(tun.of(&facts.tun, "modprobe tun (CONFIG_TUN), and the rights to /dev/net/tun"));
    if subject.role == Role::Node {
        let look = look("SOCK_DESTROY", NOTHING, "old sockets on a client's addresses make room at once");
        out.push(match &facts.sock_destroy {
            Ok(()) => look.works("tried: it does"),
            Err(said) => look.degraded(said.clone(), "a kernel with CONFIG_INET_DIAG_DESTROY=y"),
        });
    }
}

fn interface(name: &str, found: &Result<InterfaceFacts, String>, subject: &Subject, out: &mut Vec<Finding>) {
    let named = format!("interface {name}");
    let look_at = look(named, BOTH, "clients' packets come in by it");
    let facts = match found {
        Ok(facts) if facts.up => facts,
        Ok(_) => return out.push(look_at.missing("is down", &format!("ip link set {name} up"))),
        Err(said) => return out.push(look_at.missing(said.clone(), "name one of `ip link`")),
    };
    out.push(look_at.works("is up"));
    if subject.role == Role::Switch {
        out.push(xdp(facts));
    }
    let look =
        look("MTU", NOTHING, "a packet must leave as long as it came, and its tunnel's header with it");
    let needs = CLIENT_MTU + if subject.tunnels { TUNNEL_BYTES } else { 0 };
    out.push(if facts.mtu >= needs {
        look.works(facts.mtu.to_string())
    } else {
        look.degraded(
            format!("{}, and full packets of clients need {needs}", facts.mtu),
            &format!("ip link set {name} mtu {needs}, or let the listen address offer a smaller MSS"),
        )
    });
}

fn xdp(facts: &InterfaceFacts) -> Finding {
    let look = look("XDP", NOTHING, "packets are forwarded before the kernel unpacks them");
    let tc = "nothing to be done: tc forwards in its place, for more processor time a packet";
    match (facts.xdp_program, facts.xdp, facts.lro) {
        (0, Some(Xdp::Native), Some(true)) => {
            look.degraded("the card puts segments together (LRO)", "ethtool -K <interface> lro off")
        }
        (0, Some(Xdp::Native), _) => look.works("in the driver"),
        (0, Some(Xdp::Generic), _) => look.degraded("not in this driver", tc),
        (0, None, _) => look.is(State::Unknown, "the kernel does not say", Some(tc)),
        (program, ..) => look.degraded(
            format!("program {program} is on the interface already"),
            "take it off if it is not larder's own; else tc forwards in its place",
        ),
    }
}

/// The service address must be here, and only a front-end may answer for it.
fn services(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    let mut seen: Vec<IpAddr> = Vec::new();
    for service in &subject.services {
        let vip = service.ip().to_canonical();
        if vip.is_unspecified() || seen.contains(&vip) {
            continue;
        }
        seen.push(vip);
        out.push(service_address(facts, subject, vip));
    }
    if subject.role == Role::Node && seen.iter().any(IpAddr::is_ipv4) {
        for (name, wanted, why) in [
            ("arp_ignore", 1, "the front-end alone answers for the service address"),
            ("arp_announce", 2, "the service address is not told to neighbours"),
        ] {
            out.push(quiet(facts, subject, name, wanted, why));
        }
    }
}

fn service_address(facts: &Facts, subject: &Subject, vip: IpAddr) -> Finding {
    let look = look(format!("address {vip}"), BOTH, "packets to it must be this host's own");
    let at = match &facts.addresses {
        Ok(all) => all.iter().find(|(ip, _)| ip.to_canonical() == vip).map(|(_, at)| at.as_str()),
        Err(said) => return look.is(State::Unknown, said.clone(), None),
    };
    let bits = if vip.is_ipv4() { 32 } else { 128 };
    match (subject.role, at) {
        (Role::Switch, Some(at)) => look.works(format!("on {at}")),
        (Role::Switch, None) => {
            let interface = subject.interface.as_deref().unwrap_or("<interface>");
            look.missing("on no interface", &format!("ip addr add {vip}/{bits} dev {interface}"))
        }
        (Role::Node, Some("lo")) => look.works("on lo"),
        (Role::Node, Some(at)) if vip.is_ipv6() => look.degraded(
            format!("on {at}, where this host answers neighbours for it"),
            &format!("put it on lo: ip addr add {vip}/{bits} dev lo"),
        ),
        (Role::Node, Some(at)) => look.works(format!("on {at}")),
        (Role::Node, None) => look.missing("on no interface", &format!("ip addr add {vip}/{bits} dev lo")),
    }
}

/// The higher of the setting for all interfaces and for this one holds (`ip-sysctl.rst`).
fn in_force(facts: &Facts, subject: &Subject, name: &str) -> Option<i64> {
    let all = facts.number(&conf("all", name));
    let own = subject.interface.as_deref().and_then(|i| facts.number(&conf(i, name)));
    all.max(own)
}

fn quiet(facts: &Facts, subject: &Subject, name: &str, wanted: i64, why: &'static str) -> Finding {
    let look = look(name, BOTH, why);
    let remedy = format!("sysctl -w net.ipv4.conf.all.{name}={wanted}");
    match in_force(facts, subject, name) {
        Some(value) if value >= wanted => look.works(value.to_string()),
        Some(value) if subject.tunnels => {
            // Behind a router nobody asks this host for the front-end's address.
            look.degraded(format!("{value}, which tunnels forgive"), &remedy)
        }
        Some(value) => look.missing(value.to_string(), &remedy),
        None => look.is(State::Unknown, "not readable", Some(&remedy)),
    }
}

/// Settings of the kernel that cost connections when they are wrong.
fn settings(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    if subject.role == Role::Node {
        node_settings(facts, out);
    }
    let filter = look("rp_filter", NOTHING, "replies leave by another way than requests came");
    out.push(match in_force(facts, subject, "rp_filter") {
        Some(1) => filter.degraded(
            "1: packets from where no route leads are dropped",
            "sysctl -w net.ipv4.conf.all.rp_filter=2",
        ),
        other => filter.works(said(other)),
    });
    let backlog = look("somaxconn", NOTHING, "connections wait there to be accepted");
    out.push(match facts.number("net.core.somaxconn") {
        Some(value) if value >= SOMAXCONN_MIN => backlog.works(value.to_string()),
        other => backlog.degraded(said(other), "sysctl -w net.core.somaxconn=16384"),
    });
    if subject.role == Role::Switch {
        out.push(ports(facts));
    }
    let tracking =
        look("conntrack", NOTHING, "half of a connection is invisible here, and may be held invalid");
    out.push(match facts.number("net.netfilter.nf_conntrack_count") {
        None => tracking.works("not loaded"),
        Some(0) => tracking.works("loaded, tracks nothing"),
        Some(n) => tracking.degraded(
            format!("tracks {n} connections"),
            "a rule `notrack` for the service address, in table raw at prerouting and output",
        ),
    });
}

/// Settings of a node's TCP. `bpf_sk_assign_tcp_reqsk` (`net/core/filter.c`) refuses a connection whose options the host has
/// switched off, and any of a listener of MPTCP.
fn node_settings(facts: &Facts, out: &mut Vec<Finding>) {
    for (name, why) in [
        ("tcp_syncookies", "the kernel looks at no cookie, ours included, without it"),
        ("tcp_timestamps", "connections of clients that use timestamps are refused without it"),
        ("tcp_sack", "connections of clients that acknowledge selectively are refused without it"),
        ("tcp_window_scaling", "connections of clients that scale their window are refused without it"),
    ] {
        let look = look(name, COOKIE, why);
        out.push(match facts.number(&format!("net.ipv4.{name}")) {
            Some(0) => look.missing("0", &format!("sysctl -w net.ipv4.{name}=1")),
            Some(value) => look.works(value.to_string()),
            None => look.is(State::Unknown, "not readable", None),
        });
    }
    let mptcp = look("MPTCP", NOTHING, "the kernel gives no connection by its cookie to a listener of MPTCP");
    out.push(match facts.mptcp_sockets {
        Some(count) if count > 0 => mptcp.degraded(
            format!("{count} sockets use it"),
            "if the server is one of them, let it listen for TCP only (in Go: GODEBUG=multipathtcp=0)",
        ),
        Some(_) => mptcp.works("no socket uses it"),
        None => mptcp.works("not in this kernel"),
    });
    let old =
        look("tcp_rfc1337", NOTHING, "an old connection on a client's port makes room for its next at once");
    out.push(match facts.number("net.ipv4.tcp_rfc1337") {
        Some(1) => old.degraded("1: it stays for a minute", "sysctl -w net.ipv4.tcp_rfc1337=0"),
        other => old.works(said(other)),
    });
    let reuse = look("tcp_tw_reuse", NOTHING, "a client may use its port again at once");
    out.push(match facts.number("net.ipv4.tcp_tw_reuse") {
        Some(1) => reuse.works("1"),
        other => reuse.degraded(said(other), "sysctl -w net.ipv4.tcp_tw_reuse=1"),
    });
}

fn ports(facts: &Facts) -> Finding {
    let look = look("ip_local_port_range", NOTHING, "relayed requests take a port each towards their node");
    let range = facts.sysctls.get("net.ipv4.ip_local_port_range").and_then(|text| {
        let mut ends = text.split_whitespace().map(str::parse::<u32>);
        Some((ends.next()?.ok()?, ends.next()?.ok()?))
    });
    match range {
        Some((first, last)) if last.saturating_sub(first) >= PORTS_MIN => {
            look.works(format!("{first} to {last}"))
        }
        Some((first, last)) => look
            .degraded(format!("{first} to {last}"), "sysctl -w net.ipv4.ip_local_port_range=\"10240 65535\""),
        None => look.is(State::Unknown, "not readable", None),
    }
}

fn said(value: Option<i64>) -> String {
    value.map_or_else(|| "not readable".to_owned(), |v| v.to_string())
}

/// Whether what comes in a tunnel is unpacked: by a program of larder's, so it is wherever programs run.
fn unpacks(subject: &Subject) -> Option<Finding> {
    let look = look("tunnels", NOTHING, "packets from the front-end are unpacked before sockets see them");
    let unpacks = subject.role == Role::Node && subject.tunnels;
    unpacks.then(|| look.works("by larder's own program: the kernel's ipip, fou and vxlan are not needed"))
}

/// A node out of reach is served by relay, which takes handoff from a switch only if it is so with all.
fn nodes(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    let ways: Vec<Finding> =
        facts.routes.iter().map(|(node, route)| way(*node, route.as_ref(), subject.tunnels)).collect();
    let one_works = ways.iter().any(|way| way.state == State::Works);
    out.extend(ways.into_iter().map(|mut way| {
        if one_works && way.state == State::Missing {
            way.state = State::Degraded;
            way.found.push_str("; its requests are relayed");
        }
        way
    }));
}

fn way(node: IpAddr, route: Result<&Route, &String>, tunnels: bool) -> Finding {
    let look = look(format!("way to {node}"), BOTH, "packets are forwarded on it, unchanged or in a tunnel");
    match route {
        Ok(route) if route.interface == "lo" => {
            look.missing("it is this host", "give the node's own address, on another host")
        }
        Ok(route) if tunnels => look.works(format!("by {}, in a tunnel", route.interface)),
        Ok(route) if route.on_link => look.works(format!("by {}, no router between", route.interface)),
        Ok(route) => look.missing(
            format!("by {}, through a router, which does not know the service address", route.interface),
            "let the node's link be a tunnel (ipip, gue or vxlan)",
        ),
        Err(said) => look.missing(said.clone(), "a route to it"),
    }
}

/// The way back to clients must be the one they come by: what watches this host's own packets is there.
fn back(to: IpAddr, route: Result<&Route, &String>, subject: &Subject) -> Option<Finding> {
    let interface = subject.interface.as_deref()?;
    let look = look(
        if to.is_ipv4() { "way to clients" } else { "way to IPv6 clients" },
        NOTHING,
        "what this host says to them is watched on the interface by which their packets come",
    );
    let remedy = format!("a route to the clients by {interface}");
    let further = format!("if there are clients beyond this host's networks, {remedy}");
    Some(match route {
        Ok(route) if route.interface == interface => look.works(format!("by {interface}")),
        Ok(route) if route.interface == "lo" => look.is(State::Unknown, "no route to all", Some(&further)),
        Ok(route) => look.degraded(format!("by {}", route.interface), &remedy),
        Err(said) => look.is(State::Unknown, format!("no route to all: {said}"), Some(&further)),
    })
}

fn idle(idle: Idle) -> Finding {
    let why = "packets come a few at a time, and one that halts must be woken for each lot";
    let look = look("idle processors", NOTHING, why);
    match idle {
        Idle::Machine => look.works("no virtual machine"),
        Idle::Polls(limit) if !limit.is_zero() => {
            look.works(format!("look for work for up to {} us, then halt", limit.as_micros()))
        }
        Idle::Polls(_) => look.degraded(
            "halt at once, on a virtual machine",
            "if they are this machine's own: echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns",
        ),
        Idle::Halts => look.degraded(
            "halt at once, on a virtual machine",
            "if they are this machine's own, and the host is KVM: modprobe cpuidle-haltpoll force=1",
        ),
        Idle::Unknown => look.is(State::Unknown, "this machine does not say how they wait", None),
    }
}

#[cfg(test)]
mod tests;
