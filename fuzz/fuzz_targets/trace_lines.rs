//! The logs of servers and load balancers, in lines: the first byte chooses a format, the rest is the file.

#![no_main]

mod common;

use larder_trace::Format;
use libfuzzer_sys::fuzz_target;

const FORMATS: [Format; 9] = [
    Format::Haproxy,
    Format::W3c,
    Format::Alb,
    Format::S3,
    Format::Larder,
    Format::Caddy,
    Format::Envoy,
    Format::Nginx,
    Format::Traefik,
];

fuzz_target!(|bytes: &[u8]| {
    if let [choice, bytes @ ..] = bytes {
        common::check(bytes, Some(FORMATS[usize::from(*choice) % FORMATS.len()]));
    }
});
