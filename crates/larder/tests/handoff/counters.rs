//! Counters of the kernels of a topology.

use std::fs;

use larder_kernel::netns::Namespace;

/// Returns a counter of `/proc/net/snmp` or `/proc/net/netstat` by its name in `nstat`: `TcpRetransSegs`,
/// `TcpExtTCPTimeouts`.
///
/// # Panics
/// If the kernel has no such counter.
pub fn counter(namespace: &Namespace, name: &str) -> u64 {
    let read = || {
        ["snmp", "netstat"].map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap())
    };
    let texts = namespace.run(read).unwrap();
    texts.iter().find_map(|text| find(text, name)).unwrap_or_else(|| panic!("no counter {name}"))
}

/// Lines come in pairs after the name of the group: first names, then values.
fn find(text: &str, name: &str) -> Option<u64> {
    let lines: Vec<&str> = text.lines().collect();
    lines.chunks_exact(2).find_map(|pair| {
        let (group, names) = pair[0].split_once(": ")?;
        let at = names.split(' ').position(|one| name.strip_prefix(group) == Some(one))?;
        pair[1].split_once(": ")?.1.split(' ').nth(at)?.parse().ok()
    })
}

#[test]
fn counters_are_found_by_their_names() {
    let text = "Ip: A B\nIp: 1 2\nTcpExt: A TCPTimeouts\nTcpExt: 3 4\n";
    assert_eq!(find(text, "IpB"), Some(2));
    assert_eq!(find(text, "TcpExtTCPTimeouts"), Some(4));
    assert_eq!(find(text, "TcpA"), None);
}
