//! Values that the switch reads from requests and replies: the target key and `Cache-Status`.

#![no_main]

use larder_core::TargetId;
use larder_core::cache_status::members;
use larder_switch::target_key;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for member in members(bytes) {
        assert!(member.unquoted_name().count() <= member.name.len());
        let _ = member.found();
    }
    let split = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let (host, target) = bytes.split_at(split);
    let key = target_key(host, target);
    let joined = [&key.host.to_ascii_lowercase()[..], key.path].concat();
    assert_eq!(key.id(), TargetId::of(&joined));
});
