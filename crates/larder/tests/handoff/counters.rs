//! What the kernels of a topology counted.

use std::fs;

use larder_kernel::netns::Namespace;

/// A counter of `/proc/net/snmp` or `/proc/net/netstat`, as `nstat` calls them: `TcpRetransSegs`, `TcpExtTCPTimeouts`.
///
/// # Panics
/// If the kernel counts no such thing.
pub fn counter(namespace: &Namespace, name: &str) -> u64 {
    let read = || {
        ["snmp", "netstat"].map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap())
    };
    let texts = namespace.run(read).unwrap();
    texts.iter().find_map(|text| find(text, name)).unwrap_or_else(|| panic!("no counter {name}"))
}

/// Lines come in pairs: names, then values, each after the group's name.
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
