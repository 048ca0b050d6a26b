//! The state of a connection as it travels to a node.

#![no_main]

use larder_kernel::repair::Checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(checkpoint) = Checkpoint::decode(bytes) else { return };
    assert_eq!(checkpoint.check(), Ok(()));
    let written = checkpoint.encode().expect("what was read is within its limits");
    assert_eq!(Checkpoint::decode(&written).as_ref(), Ok(&checkpoint));
});
