//! Any file: packing by magic, format by the first bytes.

#![no_main]

mod common;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| common::check(bytes, None));
