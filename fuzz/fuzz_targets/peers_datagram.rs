//! Datagrams of membership between peers, opened: what a member of another version or with a fault may send.

#![no_main]

use larder_peers::fuzz_datagram;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|plain: &[u8]| fuzz_datagram(plain));
