//! The guard alone.

use super::*;
use crate::netns::Namespace;
use larder_testkit::or_skip;

/// Returns the node program for a kernel without the function, by changing the function's name to one that no kernel
/// has.
fn without_kfunc() -> Vec<u8> {
    let name = b"bpf_sk_assign_tcp_reqsk\0";
    let mut image = object::NODE.to_vec();
    let places: Vec<_> =
        image.windows(name.len()).enumerate().filter(|(_, at)| at == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        image[at + name.len() - 2] = b'x';
    }
    image
}

#[test]
fn everything_but_cookies_works_without_the_kernel_function() {
    let Some(host) = or_skip(Namespace::new("old")) else { return };
    let config = GuardConfig {
        name: format!("guard-old-{}", std::process::id()),
        interface: "lo".to_owned(),
        ring_bytes: 1 << 18,
        connections_max: 1024,
    };
    let image = without_kfunc();
    let started = host.run(|| Guard::start_image(&config, &image, false)).expect("entered");
    let guard = started.expect("a guard");
    let at = "10.9.0.100:80".parse().expect("an address");
    let cookie = GuardService { cookie: true, ..GuardService::default() };
    assert!(matches!(guard.set_service(0, at, cookie), Err(GuardError::NoKfunc)));
    let stash = GuardService { stash: true, ..GuardService::default() };
    guard.set_service(0, at, stash).expect("set");
    // A packet for the address, injected at the loopback interface, finds no socket and is kept.
    host.ip("addr add 10.9.0.100/32 dev lo").expect("an address");
    let (key, packet) = (FlowKey::new("10.9.0.100:9".parse().expect("an address"), 0), ack());
    let tap = host.run(|| crate::inject::Tap::open("lo")).expect("entered").expect("a device");
    tap.write_packet(&packet).expect("written");
    let mut kept = Vec::new();
    larder_testkit::eventually("a packet is kept", || {
        guard.read_events(|event| {
            if let GuardEvent::Stash { key, packet, .. } = event {
                kept.push((key, packet[14..].to_vec()));
            }
        });
        (!kept.is_empty()).then_some(())
    });
    assert_eq!(kept, [(key, packet)]);
}

#[test]
fn guards_and_taps_are_send_and_sync() {
    fn shared<T: Send + Sync>() {}
    shared::<Guard>();
    shared::<crate::inject::Tap>();
}

/// Returns an acknowledgement from 10.9.0.100:9 to 10.9.0.100:80. Checksums are not verified before it is kept.
fn ack() -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 100, 10, 9, 0, 100];
    packet.extend([0, 9, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    packet
}
