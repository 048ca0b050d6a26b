//! A plane that takes over what another has left.

use super::super::pins::Pins;
use super::packet::Packet;
use super::{Bench, Fate, KEYS, Told, all_on, config, may_load};
use crate::abi::flow_state;
use crate::plane::{Attach, Plane, PlaneConfig};

/// Where tables are of another size, so is the ring another one: what stands in the former is read first.
#[test]
fn what_a_predecessor_has_not_read_is_told() {
    if !may_load() {
        return;
    }
    let pins = Pins::open(&format!("ld{}-renewed", std::process::id())).expect("pins");
    let load = |config: &PlaneConfig| Plane::load(config, Attach::Native, Some(&pins)).expect("loaded");
    let before = Bench { plane: load(&config("renewed")), v6: false };
    before.plane.set_keys(&KEYS, 0).expect("keys");
    before.plane.set_service(5, before.server(), all_on()).expect("a service");
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
    assert_eq!(after.told(), []);
    let predecessor = after.plane.programs.predecessor.take().expect("a predecessor");
    after.plane.succeed(&predecessor);
    assert_eq!(after.run(&first(&after, 40_000).payload(b"PUT /").frame()), Fate::Dropped);
    let told = [(true, &b"PUT "[..]), (false, b"PUT "), (false, b"PUT /")];
    let told = told.map(|(is_first, payload)| Told::Punt {
        first: is_first,
        head_hash: None,
        packet: first(&after, 40_000).payload(payload).frame(),
    });
    assert_eq!((after.told(), after.told()), (told[..2].to_vec(), told[2..].to_vec()));
    assert_eq!(after.plane.flow(after.key()).map(|flow| flow.state), Some(flow_state::HOLD));
    pins.remove_all().expect("removed");
}
