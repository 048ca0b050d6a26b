//! Checks whether the addresses of a config can be bound, and finds the processes that hold them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::{Finding, Purpose};
use crate::config::Fault;

/// The kind of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// Returns the kernel's socket lists, and the state of a listening or unconnected socket in them.
    const fn lists(self) -> ([&'static str; 2], &'static str) {
        match self {
            Self::Tcp => (["/proc/net/tcp", "/proc/net/tcp6"], "0A"),
            Self::Udp => (["/proc/net/udp", "/proc/net/udp6"], "07"),
        }
    }
}

/// An address that a role binds.
#[derive(Clone, Debug)]
pub(super) struct RequiredAddress {
    pub(super) key: String,
    pub(super) address: SocketAddr,
    pub(super) transports: &'static [Transport],
}

/// The process that holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressHolder {
    Process {
        name: String,
        pid: u32,
    },
    /// A process of this user, which the current user may not inspect.
    User(u32),
    Unknown,
}

/// Returns a finding for each address that cannot be bound. `config` is the file that names the addresses.
pub(super) fn check(required_addresses: &[RequiredAddress], config: &Path, purpose: Purpose) -> Vec<Finding> {
    let finding = |(i, requirement): (usize, &RequiredAddress)| {
        required_addresses[..i].iter().find_map(|earlier| conflict(earlier, requirement)).or_else(|| {
            requirement.transports.iter().find_map(|transport| {
                let error = try_bind(requirement.address, *transport).err()?;
                Some(finding(requirement, *transport, &error, config, purpose))
            })
        })
    };
    required_addresses.iter().enumerate().filter_map(finding).collect()
}

/// Returns the finding on two addresses of a config that exclude each other.
fn conflict(earlier: &RequiredAddress, requirement: &RequiredAddress) -> Option<Finding> {
    let (a, b) = (earlier.address, requirement.address);
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    let same = a.port() == b.port() && a.is_ipv4() == b.is_ipv4() && same_ip;
    if !same || !earlier.transports.iter().any(|transport| requirement.transports.contains(transport)) {
        return None;
    }
    let what = format!("{b} cannot be bound: {} binds {a}", earlier.key);
    Some(Finding::error(Fault::new(&requirement.key, what).hint("write another port")))
}

fn finding(
    requirement: &RequiredAddress,
    transport: Transport,
    error: &io::Error,
    config: &Path,
    purpose: Purpose,
) -> Finding {
    let address = requirement.address;
    let place = match transport {
        Transport::Tcp => address.to_string(),
        Transport::Udp => format!("{address} ({})", transport.name()),
    };
    if error.kind() == ErrorKind::AddrInUse {
        return in_use(requirement, &place, &find_holder(address, transport), config, purpose);
    }
    let (why, hint) = match error.kind() {
        ErrorKind::PermissionDenied => (
            "permission denied (low ports need CAP_NET_BIND_SERVICE)".to_owned(),
            format!(
                "run this as the user that starts larder; grant the capability (systemd: \
                 AmbientCapabilities=CAP_NET_BIND_SERVICE), or write a port from {} on",
                unprivileged_port()
            ),
        ),
        ErrorKind::AddrNotAvailable => (
            format!("no interface of this machine has the address {}", address.ip()),
            "write an address that `ip address` shows, or 0.0.0.0 for all of IPv4, or add the address to an interface"
                .to_owned(),
        ),
        _ => (error.to_string(), "write another address".to_owned()),
    };
    Finding::error(Fault::new(&requirement.key, format!("cannot bind {place}: {why}")).hint(hint))
}

fn in_use(
    requirement: &RequiredAddress,
    place: &str,
    holder: &AddressHolder,
    config: &Path,
    purpose: Purpose,
) -> Finding {
    let fault = |what: String, hint: &str| Fault::new(&requirement.key, what).hint(hint);
    match holder {
        AddressHolder::Process { name, pid } if name == "larder" => {
            let what = format!("{place} is in use by larder, process {pid}");
            if purpose == Purpose::Check && was_started_with(*pid, config) {
                return Finding::note(fault(what, "a reload of that process keeps the address"));
            }
            if purpose == Purpose::Check {
                let what = format!("{what}, which was not started with this file: a start fails");
                let hint = "write another address, unless the file takes the place of that process's config";
                return Finding::warning(fault(what, hint));
            }
            Finding::error(fault(what, "stop that process or reload it (SIGHUP), or write another address"))
        }
        AddressHolder::Process { name, pid } => {
            let what = format!("cannot bind {place}: the address is in use by {name}, process {pid}");
            Finding::error(fault(what, "stop that process, or write another address"))
        }
        AddressHolder::User(user) if purpose == Purpose::Check => {
            let what = format!("{place} is in use by a process of user {user}, which this user may not see");
            Finding::warning(fault(
                what,
                "if the process is not larder, stop it; as root, this check names it",
            ))
        }
        AddressHolder::User(_) | AddressHolder::Unknown => {
            let what = format!("cannot bind {place}: the address is in use by another process");
            Finding::error(fault(
                what,
                "`ss -lntup` as root names the process: stop it, or write another address",
            ))
        }
    }
}

/// Binds an address as a role does, and closes the socket. The socket never listens.
fn try_bind(address: SocketAddr, transport: Transport) -> io::Result<()> {
    match transport {
        Transport::Tcp => {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            Ok(bind(&socket, &address)?)
        }
        Transport::Udp => UdpSocket::bind(address).map(drop),
    }
}

/// Whether this file is an argument of a process.
fn was_started_with(pid: u32, file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let folder = Path::new("/proc").join(pid.to_string()).join("cwd");
    arguments.split(|byte| *byte == 0).any(|argument| {
        let argument = argument.strip_prefix(b"--config=").unwrap_or(argument);
        folder.join(OsStr::from_bytes(argument)).canonicalize().is_ok_and(|named| named == file)
    })
}

/// Returns the lowest port that needs no capability.
fn unprivileged_port() -> u16 {
    let read = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    read.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

/// Finds the process that holds an address.
fn find_holder(address: SocketAddr, transport: Transport) -> AddressHolder {
    let (lists, state) = transport.lists();
    let texts = lists.iter().filter_map(|list| fs::read_to_string(list).ok());
    let found = texts.flat_map(|text| parse_rows(&text, state)).find(|row| row.excludes(address));
    let Some(row) = found else { return AddressHolder::Unknown };
    match process_of_socket(row.inode) {
        Some((pid, name)) => AddressHolder::Process { name, pid },
        None => AddressHolder::User(row.user),
    }
}

/// A row of the kernel's socket lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketRow {
    local: SocketAddr,
    user: u32,
    inode: u64,
}

impl SocketRow {
    /// Whether this socket prevents other sockets from binding `address`.
    fn excludes(self, address: SocketAddr) -> bool {
        let ip = |address: SocketAddr| address.ip().to_canonical();
        let any = self.local.ip().is_unspecified() || address.ip().is_unspecified();
        self.local.port() == address.port() && (any || ip(self.local) == ip(address))
    }
}

/// Parses the text of `/proc/net/tcp` or a similar list, and returns the sockets in a state.
fn parse_rows(text: &str, state: &str) -> Vec<SocketRow> {
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, found, _, _, _, user, _, inode, ..] = fields[..] else { return None };
        if found != state {
            return None;
        }
        Some(SocketRow { local: parse_address(local)?, user: user.parse().ok()?, inode: inode.parse().ok()? })
    };
    text.lines().skip(1).filter_map(row).collect()
}

/// Parses an address such as `0100007F:1F90`, which is 127.0.0.1:8080 on a little-endian machine.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Finds the process that owns a socket, if the current user may inspect it.
fn process_of_socket(inode: u64) -> Option<(u32, String)> {
    let link = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let mut numbers: Vec<u32> =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // If several processes own the socket, such as a server and its workers, the first is named.
    numbers.sort_unstable();
    let has = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().filter_map(Result::ok);
        files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|to| to.to_str() == Some(&link)))
    };
    let pid = numbers.into_iter().find(has)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((pid, name.trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn requirement(address: SocketAddr) -> RequiredAddress {
        RequiredAddress { key: "switch.listen".to_owned(), address, transports: &[Transport::Tcp] }
    }

    fn one(requirement: &RequiredAddress, purpose: Purpose) -> Option<Finding> {
        check(std::slice::from_ref(requirement), Path::new("/nowhere"), purpose).pop()
    }

    #[test]
    fn addresses_that_exclude_each_other_are_found() {
        let port = larder_testkit::free_port();
        let at = |text: &str, transports| RequiredAddress {
            key: text.to_owned(),
            address: format!("{text}:{port}").parse().unwrap(),
            transports,
        };
        let (tcp, udp): (&[Transport], &[Transport]) = (&[Transport::Tcp], &[Transport::Udp]);
        let found = |a, b| check(&[a, b], Path::new("/nowhere"), Purpose::Check).len();
        assert_eq!(found(at("127.0.0.1", tcp), at("127.0.0.1", tcp)), 1);
        assert_eq!(found(at("127.0.0.1", tcp), at("0.0.0.0", tcp)), 1);
        assert_eq!(found(at("127.0.0.1", tcp), at("127.0.0.2", tcp)), 0);
        assert_eq!(found(at("127.0.0.1", tcp), at("127.0.0.1", udp)), 0);
        assert_eq!(found(at("127.0.0.1", tcp), at("[::1]", tcp)), 0);
    }

    #[test]
    fn an_address_in_use_is_reported_with_its_holder() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        for purpose in [Purpose::Check, Purpose::Start] {
            let found = one(&requirement(address), purpose).unwrap();
            assert_eq!(found.severity.name(), "error");
            let (said, own) = (format!("{:?}", found.fault), std::process::id());
            assert!(said.contains("in use by") && said.contains(&format!("process {own}")), "{said}");
        }
        // The unspecified address includes it.
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert!(one(&requirement(any), Purpose::Check).is_some());
        drop(listener);
        assert_eq!(one(&requirement(address), Purpose::Check), None);
    }

    #[test]
    fn a_running_larder_is_a_note_for_a_check_and_an_error_for_a_start() {
        let larder = AddressHolder::Process { name: "larder".to_owned(), pid: 7 };
        let of = |holder: &AddressHolder, purpose| {
            in_use(
                &requirement("127.0.0.1:80".parse().unwrap()),
                "127.0.0.1:80",
                holder,
                Path::new("/nowhere"),
                purpose,
            )
            .severity
            .name()
        };
        assert_eq!((of(&larder, Purpose::Check), of(&larder, Purpose::Start)), ("warning", "error"));
        let hidden = AddressHolder::User(33);
        assert_eq!((of(&hidden, Purpose::Check), of(&hidden, Purpose::Start)), ("warning", "error"));
        assert_eq!(of(&AddressHolder::Unknown, Purpose::Check), "error");
    }

    #[test]
    fn an_address_of_another_machine_is_an_error() {
        // No machine has an address of TEST-NET-1.
        let found = one(&requirement("192.0.2.1:80".parse().unwrap()), Purpose::Check).unwrap();
        assert_eq!(found.severity.name(), "error");
        assert!(
            format!("{:?}", found.fault).contains("no interface of this machine has the address 192.0.2.1")
        );
    }

    #[test]
    fn the_lists_of_sockets_are_read() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000    33        0 4711 1 x\n   \
                    1: 0100007F:1F91 00000000:0000 01 00000000:00000000 00:00000000 00000000    33        0 4712 1 x\n   \
                    broken\n";
        let expected = SocketRow { local: "127.0.0.1:8080".parse().unwrap(), user: 33, inode: 4711 };
        if cfg!(target_endian = "little") {
            assert_eq!(parse_rows(text, "0A"), [expected]);
            let six = parse_address("00000000000000000000000001000000:0050");
            assert_eq!(six, Some("[::1]:80".parse().unwrap()));
        }
        for wrong in ["", "01:1", "0100007F:", "0100007F", "00000000000000000000000001000é00:0050"] {
            assert_eq!(parse_address(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_socket_excludes_its_own_address_and_all_addresses() {
        let row = |local: &str| SocketRow { local: local.parse().unwrap(), user: 0, inode: 0 };
        for (local, wanted, excludes) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
        ] {
            assert_eq!(row(local).excludes(wanted.parse().unwrap()), excludes, "{local} {wanted}");
        }
    }
}
