//! A plane that takes over from a previous process.

use super::super::pins::Pins;
use super::packet::Packet;
use super::{Bench, Fate, KEYS, OwnedEvent, config, full_service, may_load};
use crate::abi::flow_state;
use crate::plane::{AttachMode, Plane, PlaneConfig};

/// If tables have another size, the ring does too: the events in the old one are read first.
#[test]
fn unread_events_of_the_previous_process_are_delivered() {
    if !may_load() {
        return;
    }
    let pins = Pins::open(&format!("ld{}-renewed", std::process::id())).expect("pins");
    let load = |config: &PlaneConfig| Plane::load(config, AttachMode::Native, Some(&pins)).expect("loaded");
    let before = Bench { plane: load(&config("renewed")), v6: false };
    before.plane.set_keys(&KEYS, 0).expect("keys");
    before.plane.set_service(5, before.server(), full_service()).expect("a service");
    let first = |bench: &Bench, port| {
        let mut client = bench.client();
        client.set_port(port);
        Packet::new(client, bench.server()).opened(KEYS[0], 0).payload(b"PUT ")
    };
    assert_eq!(before.run(&first(&before, 40_001).frame()), Fate::Dropped);
    assert_eq!(before.plane.read_events(|_| {}), 1);
    assert_eq!(before.run(&first(&before, 40_000).frame()), Fate::Dropped);
    let mut after = Bench { plane: load(&PlaneConfig { flows_max: 2048, ..config("renewed") }), v6: false };
    assert!(after.plane.adopted());
    assert_eq!(before.run(&first(&before, 40_000).frame()), Fate::Dropped);
    assert_eq!(after.events(), []);
    let predecessor = after.plane.programs.predecessor.take().expect("a predecessor");
    after.plane.catch_up_with(&predecessor);
    assert_eq!(after.run(&first(&after, 40_000).payload(b"PUT /").frame()), Fate::Dropped);
    let events = [(true, &b"PUT "[..]), (false, b"PUT "), (false, b"PUT /")];
    let events = events.map(|(is_first, payload)| OwnedEvent::Punt {
        first: is_first,
        head_hash: None,
        packet: first(&after, 40_000).payload(payload).frame(),
    });
    assert_eq!((after.events(), after.events()), (events[..2].to_vec(), events[2..].to_vec()));
    assert_eq!(after.plane.flow(after.key()).map(|flow| flow.state), Some(flow_state::HOLD));
    pins.remove_all().expect("removed");
}
