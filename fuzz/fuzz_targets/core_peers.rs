//! Messages between peers: PRESS, CARD and WARD.

#![no_main]

use larder_core::peers::{
    Card, CardMessage, CardSettings, Press, PressMessage, PressSettings, Ward, WardMessage, WardSettings,
};
use larder_core::{NodeId, Time};
use libfuzzer_sys::fuzz_target;

const ME: NodeId = NodeId(0);
const PEER: NodeId = NodeId(1);

fuzz_target!(|bytes: &[u8]| {
    let now = Time::from_millis(1);
    if let Ok(message) = PressMessage::decode(bytes) {
        assert_eq!(PressMessage::decode(&message.encode()), Ok(message.clone()));
        let mut press = Press::new(ME, 1, PressSettings::default());
        press.add_peer(now, PEER, &mut Vec::new());
        press.receive(now, PEER, message, &mut Vec::new());
    }
    if let Ok(message) = CardMessage::decode(bytes) {
        assert_eq!(CardMessage::decode(&message.encode()), Ok(message.clone()));
        let mut card = Card::new(ME, "a", 1, CardSettings::default()).expect("defaults are in range");
        card.add_node(now, PEER, "b", &mut Vec::new());
        let mut out = Vec::new();
        card.receive(now, PEER, message, &mut out);
        assert!(out.len() <= 1);
    }
    if let Ok(message) = WardMessage::decode(bytes) {
        assert_eq!(WardMessage::decode(&message.encode()), Ok(message.clone()));
        let mut ward = Ward::new(ME, "a", 1, WardSettings::default());
        ward.add_node(now, PEER, "b", &mut Vec::new());
        let mut out = Vec::new();
        ward.receive(now, PEER, message, &mut out);
        assert!(out.len() <= 3);
    }
});
