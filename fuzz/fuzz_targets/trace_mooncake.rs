//! Mooncake JSON lines.

#![no_main]

mod common;

use larder_trace::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| common::check(bytes, Some(Format::Mooncake)));
