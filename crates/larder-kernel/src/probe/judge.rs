//! Evaluates facts. Pure.

use super::facts::{Facts, InterfaceFacts, Route, Xdp, conf};
use super::{Finding, FindingState, Idle, Mechanism, Report, Role, Subject};
use std::net::IpAddr;

const BOTH: &[Mechanism] = &[Mechanism::Cookie, Mechanism::Repair];
const COOKIE: &[Mechanism] = &[Mechanism::Cookie];
const REPAIR: &[Mechanism] = &[Mechanism::Repair];
const NOTHING: &[Mechanism] = &[];

/// Maximum length of outer headers: IPv6, UDP, VXLAN and the inner Ethernet header. Bytes.
const TUNNEL_BYTES: u32 = 70;
/// MTU of clients on Ethernet. Bytes.
const CLIENT_MTU: u32 = 1500;
/// Smallest accept queue that holds a burst of a busy site.
const SOMAXCONN_MIN: i64 = 1024;

/// Smallest number of local ports with which relaying to few nodes does not run out of them.
const PORTS_MIN: u32 = 16_384;

/// Evaluates facts for a subject.
pub fn evaluate(facts: &Facts, subject: &Subject) -> Report {
    let mut findings = Vec::new();
    programs(facts, subject, &mut findings);
    sockets(facts, subject, &mut findings);
    if let (Some(name), Some(found)) = (&subject.interface, &facts.interface) {
        interface(name, found, subject, &mut findings);
    }
    services(facts, subject, &mut findings);
    settings(facts, subject, &mut findings);
    findings.extend(decapsulation(subject));
    nodes(facts, subject, &mut findings);
    if subject.role == Role::Switch {
        findings.extend(
            facts.clients.iter().filter_map(|(to, route)| client_route(*to, route.as_ref(), subject)),
        );
        findings.push(idle(facts.idle));
    }
    Report { role: subject.role, findings }
}

/// A finding without its result.
struct FindingBuilder {
    what: String,
    why: &'static str,
    needed_for: &'static [Mechanism],
}

fn finding(what: impl Into<String>, needed_for: &'static [Mechanism], why: &'static str) -> FindingBuilder {
    FindingBuilder { what: what.into(), why, needed_for }
}

impl FindingBuilder {
    fn is(self, state: FindingState, found: impl Into<String>, remedy: Option<&str>) -> Finding {
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
        self.is(FindingState::Works, found, None)
    }

    fn missing(self, found: impl Into<String>, remedy: &str) -> Finding {
        self.is(FindingState::Missing, found, Some(remedy))
    }

    fn degraded(self, found: impl Into<String>, remedy: &str) -> Finding {
        self.is(FindingState::Degraded, found, Some(remedy))
    }

    fn of(self, tried: &Result<(), String>, remedy: &str) -> Finding {
        match tried {
            Ok(()) => self.works("works"),
            Err(error) => self.missing(error.clone(), remedy),
        }
    }
}

/// Checks the requirements of the kernel programs.
fn programs(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    let caps = facts.capabilities;
    let grant = "run as root, or give the capability (systemd: AmbientCapabilities=)";
    let mut capability = |name: &'static str, has: bool, needed_for, why| {
        let finding = finding(name, needed_for, why);
        out.push(if has { finding.works("effective") } else { finding.missing("not effective", grant) });
    };
    capability(
        "CAP_NET_ADMIN",
        caps.net_admin,
        BOTH,
        "needed to attach programs to interfaces and to use TCP_REPAIR",
    );
    capability("CAP_BPF", caps.bpf || caps.sys_admin, BOTH, "needed to load programs and maps");
    // `check_ptr_to_btf_access` in kernel/bpf/verifier.c.
    capability(
        "CAP_PERFMON",
        caps.perfmon || caps.sys_admin,
        BOTH,
        "needed for programs that read the kernel's sockets",
    );
    if subject.role == Role::Switch {
        capability("CAP_NET_RAW", caps.net_raw, BOTH, "needed to send held packets");
    }
    let why = "programs use it to find kernel structures";
    out.push(finding("BTF", BOTH, why).of(&facts.btf, "a kernel with CONFIG_DEBUG_INFO_BTF=y"));
    let load = finding("bpf()", BOTH, "the programs that answer SYNs and forward packets run in the kernel");
    out.push(
        load.of(&facts.load, "a kernel with CONFIG_BPF_SYSCALL=y and the rights to it (lockdown, seccomp)"),
    );
    out.push(cookie_function(facts));
    out.push(traffic_control(facts));
    let finding = finding("bpffs", NOTHING, "programs stay attached while larder restarts");
    out.push(match (facts.bpffs, caps.sys_admin) {
        (true, _) => finding.works("mounted on /sys/fs/bpf"),
        (false, true) => finding.works("not mounted on /sys/fs/bpf: a private one is made under /run/larder"),
        (false, false) => finding.degraded("not mounted on /sys/fs/bpf", "mount -t bpf bpf /sys/fs/bpf"),
    });
}

fn cookie_function(facts: &Facts) -> Finding {
    let name = "bpf_sk_assign_tcp_reqsk";
    let finding = finding(name, COOKIE, "listeners accept connections from cookies");
    let remedy = "Linux 6.9 or later with CONFIG_SYN_COOKIES=y; TCP_REPAIR works without it";
    match facts.functions.get(name) {
        Some(true) => finding.works(format!("in Linux {}", facts.kernel)),
        Some(false) => finding.missing(format!("not in Linux {}", facts.kernel), remedy),
        None => finding.missing("unknown without BTF", remedy),
    }
}

fn traffic_control(facts: &Facts) -> Finding {
    let finding = finding("tc", BOTH, "the node's programs see packets before its sockets do");
    let has = |name: &str| facts.functions.get(name).copied();
    match (has("tcx_link_attach"), has("clsact_init")) {
        (Some(true), _) => finding.works("tcx"),
        (_, Some(true)) => finding.works("clsact"),
        // clsact may be a module, whose functions are not listed.
        _ => finding.is(
            FindingState::Unknown,
            "neither tcx nor clsact is built in",
            Some("Linux 6.6 or later, or CONFIG_NET_SCH_INGRESS and CONFIG_NET_CLS_BPF"),
        ),
    }
}

/// Checks the requirements of sockets that move between hosts.
fn sockets(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    let why = "connection state is read from and written to sockets";
    let remedy = "a kernel with CONFIG_CHECKPOINT_RESTORE=y, and CAP_NET_ADMIN";
    out.push(finding("TCP_REPAIR", REPAIR, why).of(&facts.tcp_repair, remedy));
    let (why, needed_for) = match subject.role {
        Role::Switch => ("held packets are injected into this host's stack", BOTH),
        Role::Node => ("packets that arrive before their connection are injected again", REPAIR),
    };
    let tun = finding("TUN", needed_for, why);
    out.push(tun.of(&facts.tun, "modprobe tun (CONFIG_TUN), and the rights to /dev/net/tun"));
    if subject.role == Role::Node {
        let finding =
            finding("SOCK_DESTROY", NOTHING, "old sockets with a client's addresses are destroyed at once");
        out.push(match &facts.sock_destroy {
            Ok(()) => finding.works("works"),
            Err(error) => finding.degraded(error.clone(), "a kernel with CONFIG_INET_DIAG_DESTROY=y"),
        });
    }
}

fn interface(name: &str, found: &Result<InterfaceFacts, String>, subject: &Subject, out: &mut Vec<Finding>) {
    let named = format!("interface {name}");
    let state = finding(named, BOTH, "clients' packets arrive on it");
    let facts = match found {
        Ok(facts) if facts.up => facts,
        Ok(_) => return out.push(state.missing("is down", &format!("ip link set {name} up"))),
        Err(error) => {
            return out.push(state.missing(error.clone(), "use an interface that `ip link` lists"));
        }
    };
    out.push(state.works("is up"));
    if subject.role == Role::Switch {
        out.push(xdp(facts));
    }
    let finding = finding("MTU", NOTHING, "packets are forwarded at full length, plus the tunnel's header");
    let needs = CLIENT_MTU + if subject.tunnels { TUNNEL_BYTES } else { 0 };
    out.push(if facts.mtu >= needs {
        finding.works(facts.mtu.to_string())
    } else {
        finding.degraded(
            format!("{}, and full packets of clients need {needs}", facts.mtu),
            &format!("ip link set {name} mtu {needs}, or let the listen address offer a smaller MSS"),
        )
    });
}

fn xdp(facts: &InterfaceFacts) -> Finding {
    let finding = finding("XDP", NOTHING, "packets are forwarded before the kernel parses them");
    let tc = "nothing to do: tc is used instead, at more CPU time per packet";
    match (facts.xdp_program, facts.xdp, facts.lro) {
        (0, Some(Xdp::Native), Some(true)) => {
            finding.degraded("the network card merges segments (LRO)", "ethtool -K <interface> lro off")
        }
        (0, Some(Xdp::Native), _) => finding.works("in the driver"),
        (0, Some(Xdp::Generic), _) => finding.degraded("not in this driver", tc),
        (0, None, _) => finding.is(FindingState::Unknown, "unknown", Some(tc)),
        (program, ..) => finding.degraded(
            format!("program {program} is already attached"),
            "detach it if it is not larder's own; otherwise tc is used instead",
        ),
    }
}

/// Checks that the service address is on this host, and that only the switch answers for it.
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
            ("arp_ignore", 1, "only the switch may answer for the service address"),
            ("arp_announce", 2, "the service address must not be announced to neighbours"),
        ] {
            out.push(arp_setting(facts, subject, name, wanted, why));
        }
    }
}

fn service_address(facts: &Facts, subject: &Subject, vip: IpAddr) -> Finding {
    let finding = finding(format!("address {vip}"), BOTH, "the host must accept packets for it");
    let at = match &facts.addresses {
        Ok(all) => all.iter().find(|(ip, _)| ip.to_canonical() == vip).map(|(_, at)| at.as_str()),
        Err(error) => return finding.is(FindingState::Unknown, error.clone(), None),
    };
    let bits = if vip.is_ipv4() { 32 } else { 128 };
    match (subject.role, at) {
        (Role::Switch, Some(at)) => finding.works(format!("on {at}")),
        (Role::Switch, None) => {
            let interface = subject.interface.as_deref().unwrap_or("<interface>");
            finding.missing("on no interface", &format!("ip addr add {vip}/{bits} dev {interface}"))
        }
        (Role::Node, Some("lo")) => finding.works("on lo"),
        (Role::Node, Some(at)) if vip.is_ipv6() => finding.degraded(
            format!("on {at}, where this host answers neighbours for it"),
            &format!("put it on lo: ip addr add {vip}/{bits} dev lo"),
        ),
        (Role::Node, Some(at)) => finding.works(format!("on {at}")),
        (Role::Node, None) => finding.missing("on no interface", &format!("ip addr add {vip}/{bits} dev lo")),
    }
}

/// Returns the effective value: the larger one of the setting for all interfaces and for this one (`ip-sysctl.rst`).
fn effective_sysctl(facts: &Facts, subject: &Subject, name: &str) -> Option<i64> {
    let all = facts.number(&conf("all", name));
    let own = subject.interface.as_deref().and_then(|i| facts.number(&conf(i, name)));
    all.max(own)
}

fn arp_setting(facts: &Facts, subject: &Subject, name: &str, wanted: i64, why: &'static str) -> Finding {
    let finding = finding(name, BOTH, why);
    let remedy = format!("sysctl -w net.ipv4.conf.all.{name}={wanted}");
    match effective_sysctl(facts, subject, name) {
        Some(value) if value >= wanted => finding.works(value.to_string()),
        Some(value) if subject.tunnels => {
            // Behind a router, nobody asks this host for the switch's address.
            finding.degraded(format!("{value}, which is harmless with tunnels"), &remedy)
        }
        Some(value) => finding.missing(value.to_string(), &remedy),
        None => finding.is(FindingState::Unknown, "not readable", Some(&remedy)),
    }
}

/// Checks kernel settings that cost connections if they are wrong.
fn settings(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    if subject.role == Role::Node {
        node_settings(facts, out);
    }
    let filter = finding("rp_filter", NOTHING, "replies leave by another route than requests arrive");
    out.push(match effective_sysctl(facts, subject, "rp_filter") {
        Some(1) => filter.degraded(
            "1: packets are dropped if the route to their source uses another interface",
            "sysctl -w net.ipv4.conf.all.rp_filter=2",
        ),
        other => filter.works(display(other)),
    });
    let backlog = finding("somaxconn", NOTHING, "length of the accept queue");
    out.push(match facts.number("net.core.somaxconn") {
        Some(value) if value >= SOMAXCONN_MIN => backlog.works(value.to_string()),
        other => backlog.degraded(display(other), "sysctl -w net.core.somaxconn=16384"),
    });
    if subject.role == Role::Switch {
        out.push(ports(facts));
    }
    let tracking = finding(
        "conntrack",
        NOTHING,
        "this host sees only one direction of connections, which conntrack may treat as invalid",
    );
    out.push(match facts.number("net.netfilter.nf_conntrack_count") {
        None => tracking.works("not loaded"),
        Some(0) => tracking.works("loaded, tracks nothing"),
        Some(n) => tracking.degraded(
            format!("tracks {n} connections"),
            "a rule `notrack` for the service address, in table raw at prerouting and output",
        ),
    });
}

/// Checks TCP settings of a node. `bpf_sk_assign_tcp_reqsk` (`net/core/filter.c`) refuses a connection with options
/// that the host has disabled, and all connections of an MPTCP listener.
fn node_settings(facts: &Facts, out: &mut Vec<Finding>) {
    for (name, why) in [
        ("tcp_syncookies", "without it the kernel accepts no cookies, including those of larder"),
        ("tcp_timestamps", "connections of clients that use timestamps are refused without it"),
        ("tcp_sack", "connections of clients that use SACK are refused without it"),
        ("tcp_window_scaling", "connections of clients that use window scaling are refused without it"),
    ] {
        let finding = finding(name, COOKIE, why);
        out.push(match facts.number(&format!("net.ipv4.{name}")) {
            Some(0) => finding.missing("0", &format!("sysctl -w net.ipv4.{name}=1")),
            Some(value) => finding.works(value.to_string()),
            None => finding.is(FindingState::Unknown, "not readable", None),
        });
    }
    let mptcp = finding("MPTCP", NOTHING, "MPTCP listeners cannot accept connections from cookies");
    out.push(match facts.mptcp_sockets {
        Some(count) if count > 0 => mptcp.degraded(
            format!("{count} sockets use it"),
            "if the server is one of them, let it listen for TCP only (in Go: GODEBUG=multipathtcp=0)",
        ),
        Some(_) => mptcp.works("no socket uses it"),
        None => mptcp.works("not in this kernel"),
    });
    let old = finding(
        "tcp_rfc1337",
        NOTHING,
        "a connection in TIME_WAIT is replaced by the client's next one at once",
    );
    out.push(match facts.number("net.ipv4.tcp_rfc1337") {
        Some(1) => old.degraded("1: it stays for one minute", "sysctl -w net.ipv4.tcp_rfc1337=0"),
        other => old.works(display(other)),
    });
    let reuse = finding("tcp_tw_reuse", NOTHING, "clients can reuse a port at once");
    out.push(match facts.number("net.ipv4.tcp_tw_reuse") {
        Some(1) => reuse.works("1"),
        other => reuse.degraded(display(other), "sysctl -w net.ipv4.tcp_tw_reuse=1"),
    });
}

fn ports(facts: &Facts) -> Finding {
    let finding = finding("ip_local_port_range", NOTHING, "each relayed request uses a local port");
    let range = facts.sysctls.get("net.ipv4.ip_local_port_range").and_then(|text| {
        let mut ends = text.split_whitespace().map(str::parse::<u32>);
        Some((ends.next()?.ok()?, ends.next()?.ok()?))
    });
    match range {
        Some((first, last)) if last.saturating_sub(first) >= PORTS_MIN => {
            finding.works(format!("{first} to {last}"))
        }
        Some((first, last)) => finding
            .degraded(format!("{first} to {last}"), "sysctl -w net.ipv4.ip_local_port_range=\"10240 65535\""),
        None => finding.is(FindingState::Unknown, "not readable", None),
    }
}

fn display(value: Option<i64>) -> String {
    value.map_or_else(|| "not readable".to_owned(), |v| v.to_string())
}

/// Reports that tunnels work: larder's own program unwraps their packets, wherever programs can run.
fn decapsulation(subject: &Subject) -> Option<Finding> {
    let finding =
        finding("tunnels", NOTHING, "packets from the switch are decapsulated before sockets see them");
    (subject.role == Role::Node && subject.tunnels)
        .then(|| finding.works("by larder's own program: the kernel's ipip, fou and vxlan are not needed"))
}

/// Checks the routes to the nodes. A node that cannot be reached is served by relay. Handoff is unavailable only if
/// none can be reached.
fn nodes(facts: &Facts, subject: &Subject, out: &mut Vec<Finding>) {
    let routes: Vec<Finding> =
        facts.routes.iter().map(|(node, route)| node_route(*node, route.as_ref(), subject.tunnels)).collect();
    let one_works = routes.iter().any(|finding| finding.state == FindingState::Works);
    out.extend(routes.into_iter().map(|mut finding| {
        if one_works && finding.state == FindingState::Missing {
            finding.state = FindingState::Degraded;
            finding.found.push_str("; its requests are relayed");
        }
        finding
    }));
}

fn node_route(node: IpAddr, route: Result<&Route, &String>, tunnels: bool) -> Finding {
    let finding =
        finding(format!("route to {node}"), BOTH, "packets are forwarded on it, directly or in a tunnel");
    match route {
        Ok(route) if route.interface == "lo" => {
            finding.missing("this host", "use the node's own address, on another host")
        }
        Ok(route) if tunnels => finding.works(format!("by {}, in a tunnel", route.interface)),
        Ok(route) if route.on_link => finding.works(format!("by {}, no router between", route.interface)),
        Ok(route) => finding.missing(
            format!("by {}, through a router, which does not know the service address", route.interface),
            "use a tunnel to the node (ipip, gue or vxlan)",
        ),
        Err(error) => finding.missing(error.clone(), "a route to it"),
    }
}

/// Checks that replies to clients leave through the interface by which their packets arrive: this host's own packets
/// are observed there.
fn client_route(to: IpAddr, route: Result<&Route, &String>, subject: &Subject) -> Option<Finding> {
    let interface = subject.interface.as_deref()?;
    let finding = finding(
        if to.is_ipv4() { "route to clients" } else { "route to IPv6 clients" },
        NOTHING,
        "this host's replies are observed on the interface on which clients' packets arrive",
    );
    let remedy = format!("a route to the clients by {interface}");
    let further = format!("if there are clients beyond this host's networks, {remedy}");
    Some(match route {
        Ok(route) if route.interface == interface => finding.works(format!("by {interface}")),
        Ok(route) if route.interface == "lo" => {
            finding.is(FindingState::Unknown, "no route to all", Some(&further))
        }
        Ok(route) => finding.degraded(format!("by {}", route.interface), &remedy),
        Err(error) => finding.is(FindingState::Unknown, format!("no route to all: {error}"), Some(&further)),
    })
}

fn idle(idle: Idle) -> Finding {
    let why = "packets arrive in small batches, and a halted CPU must be woken for each";
    let finding = finding("idle CPUs", NOTHING, why);
    match idle {
        Idle::Machine => finding.works("not a virtual machine"),
        Idle::Polls(limit) if !limit.is_zero() => {
            finding.works(format!("poll for up to {} us, then halt", limit.as_micros()))
        }
        Idle::Polls(_) => finding.degraded(
            "halt at once, on a virtual machine",
            "if its CPUs are not shared: echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns",
        ),
        Idle::Halts => finding.degraded(
            "halt at once, on a virtual machine",
            "if its CPUs are not shared, and the host is KVM: modprobe cpuidle-haltpoll force=1",
        ),
        Idle::Unknown => finding.is(FindingState::Unknown, "unknown", None),
    }
}

#[cfg(test)]
mod tests;
