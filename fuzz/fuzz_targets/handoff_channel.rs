//! Messages between switch and node, after decryption. Every message that is read can be written.

#![no_main]

use larder_handoff::channel::message::{FromNode, Message, ToNode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((side, bytes)) = bytes.split_first() else { return };
    if side % 2 == 0 {
        again::<ToNode>(bytes);
    } else {
        again::<FromNode>(bytes);
    }
});

/// Numbers may be written in more bytes than they need, so that it is the message that comes back, not the bytes.
fn again<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(message) = M::decode(bytes) else { return };
    let written = message.encode().expect("what was read is within its limits");
    assert_eq!(M::decode(&written).as_ref(), Ok(&message));
}
