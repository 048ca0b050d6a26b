//! Guards start, stop, and take over from each other.

use crate::frame::{ACK, SYN, Segment};
use crate::lab::{INTERFACE, address, vip};
use crate::support::{
    COOKIE, SERVICE, STASH, count, exchange, expect_bytes, listen, start, start_lab, unique_name,
};
use larder_kernel::guard::{Guard, GuardConfig, GuardError, GuardStop, InboundTunnel, InboundTunnelKind};
use larder_kernel::inject::Tap;
use std::io::Write;
use std::net::SocketAddr;

/// Programs and maps outlive the guard if told to, and connections are not disturbed.
#[test]
fn guard_is_replaced_without_a_gap() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let (mut client, mut server) = exchange(&lab, &listener, false);
    let pins = guard.pins().to_owned();
    let name = pins.parent().and_then(|p| p.file_name()).and_then(|n| n.to_str()).expect("a name").to_owned();
    guard.stop(GuardStop::KeepPrograms).expect("stopped");
    // No process is running, and connections are still accepted.
    let (_second_client, _second_server) = exchange(&lab, &listener, false);
    let guard = start(&lab, &name);
    assert!(guard.adopted());
    client.write_all(b"more").expect("sent");
    expect_bytes(&mut server, b"more");
    assert_eq!(count(&guard, "accepted"), 2);
    let (_third_client, _third_server) = exchange(&lab, &listener, false);
    let mut live = 0;
    guard.each_connection(|_| live += 1).expect("read");
    assert_eq!(live, 3);
    // A map of another size is not compatible.
    guard.stop(GuardStop::KeepPrograms).expect("stopped");
    let config = GuardConfig {
        name: name.clone(),
        interface: INTERFACE.into(),
        ring_bytes: 1 << 20,
        connections_max: 8192,
    };
    let guard = lab.node.run(|| Guard::start(&config)).expect("entered").expect("a guard");
    assert!(!guard.adopted());
    assert_eq!(count(&guard, "accepted"), 0);
    // As after a crash, without a shutdown.
    std::mem::forget(guard);
    Guard::clean(&name).expect("cleaned");
    assert!(!pins.exists());
    // At once, although the forgotten guard still has its links open: the stack answers SYNs again.
    let syn = Segment { seq: 7, ..Segment::new(SocketAddr::new(address(false, 2), 6001), vip(false), SYN) };
    lab.inject(&syn);
    lab.expect_from_node("an answer", |segment| segment.flags == SYN | ACK);
}

#[test]
fn invalid_config_is_refused() {
    let Some((lab, guard)) = start_lab(STASH) else { return };
    assert!(matches!(guard.set_tag(128), Err(GuardError::Config(_))));
    assert!(matches!(guard.set_service(64, vip(false), STASH), Err(GuardError::Config(_))));
    let tunnel = |vni| InboundTunnel {
        kind: InboundTunnelKind::Vxlan { port: 4789, vni },
        local: address(false, 17),
        remote: None,
    };
    assert!(matches!(guard.add_tunnel(&tunnel(1 << 24)), Err(GuardError::Config(_))));
    let config = |interface: &str, ring_bytes, connections_max| GuardConfig {
        name: unique_name(),
        interface: interface.into(),
        ring_bytes,
        connections_max,
    };
    let taken = guard.pins().parent().and_then(|p| p.file_name()).and_then(|n| n.to_str()).expect("a name");
    let start = |config| lab.node.run(|| Guard::start(&config)).expect("entered");
    let twice = GuardConfig { name: taken.to_owned(), ..config(INTERFACE, 1 << 20, 4096) };
    assert!(matches!(start(twice), Err(GuardError::Io { .. })), "one at a time");
    guard.set_service(SERVICE, vip(false), STASH).expect("the first goes on");
    assert!(matches!(start(config("nothing", 1 << 20, 4096)), Err(GuardError::Interface { .. })));
    assert!(matches!(start(config(INTERFACE, 1_000_000, 4096)), Err(GuardError::Config(_))));
    assert!(matches!(start(config(INTERFACE, 1 << 20, 1)), Err(GuardError::Config(_))));
    assert!(matches!(lab.node.run(|| Tap::open("nothing")), Ok(Err(GuardError::Interface { .. }))));
    let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
    assert!(tap.write_frame(&[0; 14]).is_err());
    assert!(tap.write_frame(&[0; 70_000]).is_err());
    assert!(tap.write_packet(b"\x55 is neither 4 nor 6").is_err());
}
