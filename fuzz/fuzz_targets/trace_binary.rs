//! The binary formats: the first byte chooses one, the rest is the file.

#![no_main]

mod common;

use larder_trace::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let [choice, bytes @ ..] = bytes {
        let formats = [Format::WorldCup98, Format::OracleGeneral, Format::Keys64];
        common::check(bytes, Some(formats[usize::from(*choice) % formats.len()]));
    }
});
