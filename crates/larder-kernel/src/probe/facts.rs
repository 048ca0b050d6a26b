//! Facts about a machine.

use super::netlink::{self, Address};
use super::{Idle, Subject, kernel};
use crate::bpffs;
use rustix::thread::{CapabilitySet, capabilities};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Effective capabilities of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `CAP_NET_ADMIN`
    pub net_admin: bool,
    /// `CAP_BPF`
    pub bpf: bool,
    /// `CAP_PERFMON`
    pub perfmon: bool,
    /// `CAP_NET_RAW`
    pub net_raw: bool,
    /// `CAP_SYS_ADMIN`
    pub sys_admin: bool,
}

/// Support of an interface for XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Xdp {
    /// In the driver.
    Native,
    /// Only after the driver, on packets that the kernel has already parsed.
    Generic,
}

/// Facts about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// MTU. Bytes.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// `None` if the kernel does not tell (before 6.3).
    pub xdp: Option<Xdp>,
    /// Id of the XDP program attached to it; 0 for none.
    pub xdp_program: u32,
    /// Whether the card merges segments (LRO), which native XDP does not allow. `None` if `ethtool` is not installed.
    pub lro: Option<bool>,
}

/// The route to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The outgoing interface.
    pub interface: String,
    /// Whether there is no router on the path.
    pub on_link: bool,
}

/// Facts about a machine. `Err` holds the system's error.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Kernel release as in `uname -r`.
    pub kernel: String,
    /// See [`Capabilities`].
    pub capabilities: Capabilities,
    /// Whether the kernel's type information can be read.
    pub btf: Result<(), String>,
    /// Whether the kernel has certain functions, according to its type information. Empty if that cannot be read.
    pub functions: BTreeMap<String, bool>,
    /// Whether a program can be loaded.
    pub load: Result<(), String>,
    /// Whether `/sys/fs/bpf` is a BPF file system.
    pub bpffs: bool,
    /// Whether `/dev/net/tun` can be opened.
    pub tun: Result<(), String>,
    /// Whether a socket can be put into repair mode.
    pub tcp_repair: Result<(), String>,
    /// Whether a socket can be destroyed from outside.
    pub sock_destroy: Result<(), String>,
    /// Number of MPTCP sockets in this network namespace. `None` if the kernel has no MPTCP or does not tell.
    pub mptcp_sockets: Option<u64>,
    /// Values of sysctls by name.
    pub sysctls: BTreeMap<String, String>,
    /// The interface that was asked for; `None` if none was.
    pub interface: Option<Result<InterfaceFacts, String>>,
    /// Addresses of this machine, with their interfaces.
    pub addresses: Result<Vec<(IpAddr, String)>, String>,
    /// Routes to the nodes.
    pub routes: Vec<(IpAddr, Result<Route, String>)>,
    /// Routes to clients: from a service to an address that nobody has, for each address family of the services.
    pub clients: Vec<(IpAddr, Result<Route, String>)>,
    /// Idle behaviour of the processors.
    pub idle: Idle,
}

impl Facts {
    /// Examines this machine, in the network namespace of the calling thread.
    pub fn of_this_host(subject: &Subject) -> Self {
        let (btf, functions) = kernel::functions();
        let links = netlink::links();
        let kernel = read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let says_xdp = version(&kernel) >= Some((6, 3));
        let interface = subject.interface.as_deref().map(|name| interface(name, links.as_deref(), says_xdp));
        let name_of = |index: u32| {
            let known = links.as_ref().ok().and_then(|all| all.iter().find(|l| l.index == index));
            known.map_or_else(|| format!("interface {index}"), |l| l.name.clone())
        };
        let addresses = netlink::addresses()
            .map(|all| all.into_iter().map(|Address { ip, index }| (ip, name_of(index))).collect())
            .map_err(|e| e.to_string());
        let route = |to: IpAddr, from: Option<IpAddr>| {
            let found = netlink::route(to, from).map_err(|e| e.to_string());
            (to, found.map(|r| Route { interface: name_of(r.index), on_link: r.on_link }))
        };
        Self {
            kernel,
            capabilities: effective_capabilities(),
            btf,
            functions,
            load: kernel::load(),
            bpffs: bpffs::is_at_the_standard_path(),
            tun: open_tun(),
            tcp_repair: kernel::tcp_repair().map_err(|e| e.to_string()),
            sock_destroy: netlink::sock_destroy().map_err(|e| e.to_string()),
            mptcp_sockets: read("/proc/thread-self/net/protocols").as_deref().and_then(mptcp_sockets),
            sysctls: sysctls(subject.interface.as_deref()),
            interface,
            addresses,
            routes: subject.nodes.iter().map(|node| route(*node, None)).collect(),
            clients: unused_addresses(subject).into_iter().map(|(to, from)| route(to, Some(from))).collect(),
            idle: Idle::of_this_host(),
        }
    }

    /// Returns a sysctl as a number.
    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.sysctls.get(name)?.parse().ok()
    }
}

/// For each address family of the services, returns a documentation address (RFC 5737, RFC 3849) and the service's
/// address, which packets to it have as source.
fn unused_addresses(subject: &Subject) -> Vec<(IpAddr, IpAddr)> {
    let all: [IpAddr; 2] =
        [Ipv4Addr::new(198, 51, 100, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let served = |nobody: IpAddr| {
        let mut services = subject.services.iter().map(|service| service.ip().to_canonical());
        let service = services.find(|ip| ip.is_ipv4() == nobody.is_ipv4() && !ip.is_unspecified())?;
        Some((nobody, service))
    };
    all.into_iter().filter_map(served).collect()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn effective_capabilities() -> Capabilities {
    let Ok(sets) = capabilities(None) else { return Capabilities::default() };
    let has = |capability| sets.effective.contains(capability);
    Capabilities {
        net_admin: has(CapabilitySet::NET_ADMIN),
        bpf: has(CapabilitySet::BPF),
        perfmon: has(CapabilitySet::PERFMON),
        net_raw: has(CapabilitySet::NET_RAW),
        sys_admin: has(CapabilitySet::SYS_ADMIN),
    }
}

fn open_tun() -> Result<(), String> {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun");
    opened.map(|_| ()).map_err(|e| e.to_string())
}

/// Parses the table of protocols: name, size of a socket, number of sockets.
fn mptcp_sockets(protocols: &str) -> Option<u64> {
    let line = protocols.lines().find_map(|line| line.strip_prefix("MPTCP "))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn sysctls(interface: Option<&str>) -> BTreeMap<String, String> {
    let mut names: Vec<String> = [
        "net.core.somaxconn",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_rfc1337",
        "net.ipv4.tcp_sack",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_timestamps",
        "net.ipv4.tcp_tw_reuse",
        "net.ipv4.tcp_window_scaling",
        "net.netfilter.nf_conntrack_count",
    ]
    .map(str::to_owned)
    .into();
    for scope in std::iter::once("all").chain(interface) {
        for name in ["arp_ignore", "arp_announce", "rp_filter"] {
            names.push(conf(scope, name));
        }
    }
    let value = |name: String| {
        // The name of an interface may contain dots; the others are separators.
        let path = match name.strip_prefix("net.ipv4.conf.").and_then(|rest| rest.rsplit_once('.')) {
            Some((scope, leaf)) => format!("/proc/sys/net/ipv4/conf/{scope}/{leaf}"),
            None => format!("/proc/sys/{}", name.replace('.', "/")),
        };
        read(path).map(|value| (name, value))
    };
    names.into_iter().filter_map(value).collect()
}

/// Returns the sysctl name of a setting of an interface, or of `all`.
pub(super) fn conf(scope: &str, name: &str) -> String {
    format!("net.ipv4.conf.{scope}.{name}")
}

/// Parses major and minor version of a kernel release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// `says_xdp`: kernels since 6.3 report the XDP support of their drivers, so no report means no support.
fn interface(
    name: &str,
    links: Result<&[netlink::Link], &std::io::Error>,
    says_xdp: bool,
) -> Result<InterfaceFacts, String> {
    let links = links.map_err(ToString::to_string)?;
    let link = links.iter().find(|l| l.name == name).ok_or("there is no such interface")?;
    let (xdp, xdp_program) = kernel::xdp(link.index);
    let xdp = xdp.or(says_xdp.then_some(Xdp::Generic));
    Ok(InterfaceFacts { mtu: link.mtu, up: link.up, xdp, xdp_program, lro: lro(name) })
}

fn lro(name: &str) -> Option<bool> {
    let output = std::process::Command::new("ethtool").arg("-k").arg(name).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        text.lines().find_map(|line| line.trim().strip_prefix("large-receive-offload:").map(str::trim))?;
    Some(line.starts_with("on"))
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    #[test]
    fn kernel_releases_are_parsed() {
        for (release, read) in [
            ("6.18.44-fc-v669", Some((6, 18))),
            ("5.10", Some((5, 10))),
            ("6", None),
            ("", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(version(release), read, "{release}");
        }
        assert!(version("6.3.0") >= Some((6, 3)) && version("") < Some((6, 3)));
    }

    #[test]
    fn client_routes_are_looked_up_for_each_served_family() {
        let of = |services: &[&str]| {
            let services = services.iter().map(|service| service.parse().expect("an address")).collect();
            let subject =
                Subject { role: Role::Switch, interface: None, services, nodes: Vec::new(), tunnels: false };
            unused_addresses(&subject).into_iter().map(|(_, from)| from.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(&["10.9.0.100:80", "10.9.0.101:80", "[fd09::64]:80"]), ["10.9.0.100", "fd09::64"]);
        assert_eq!(of(&["0.0.0.0:80", "[fd09::64]:80", "[::ffff:10.9.0.9]:80"]), ["10.9.0.9", "fd09::64"]);
        assert_eq!(of(&["[::]:80"]), [""; 0], "nothing is handed over there");
    }

    #[test]
    fn sockets_of_a_protocol_are_counted() {
        let table = "protocol  size sockets  memory press maxhdr\nMPTCPv6   2048      9       1   no       0\n\
            MPTCP     1888      3       0   no       0   yes\n";
        assert_eq!(mptcp_sockets(table), Some(3));
        assert_eq!(mptcp_sockets("protocol  size sockets\nTCP 1 2\n"), None);
    }

    /// The loopback interface has no driver.
    #[test]
    fn interface_facts_are_read() {
        let links = netlink::links();
        let lo = interface("lo", links.as_deref(), true).expect("there");
        assert_eq!(lo.xdp, Some(Xdp::Generic));
        assert!(interface("nothing", links.as_deref(), true).is_err());
    }
}
