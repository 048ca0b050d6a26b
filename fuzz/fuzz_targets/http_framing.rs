//! Requests of HTTP/1. The verdict must not depend on the pieces in which the bytes arrive. A head that is accepted must
//! end for httparse too, unless httparse refuses it.

#![no_main]

use larder_http::h1::{Fault, Framing};
use libfuzzer_sys::fuzz_target;

/// The fault, if there is one, and how many bytes came before it that may be served, by pieces of this size.
fn verdict(bytes: &[u8], size: usize) -> Option<Fault> {
    let mut framing = Framing::without_upgrades();
    for piece in bytes.chunks(size) {
        if let Err(broken) = framing.check(piece) {
            assert!(broken.valid_bytes <= piece.len());
            assert_eq!(framing.check(b"GET").map_err(|broken| broken.fault), Err(broken.fault));
            return Some(broken.fault);
        }
    }
    None
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.is_empty() {
        return;
    }
    let whole = verdict(bytes, bytes.len());
    for size in [1, 2, 3, 7, 64] {
        assert_eq!(verdict(bytes, size), whole, "in pieces of {size}");
    }
    // A head that passes by itself, to the byte, is a request.
    if whole.is_none() && bytes.ends_with(b"\n\r\n") && !matches!(bytes[0], b'\r' | b'\n') {
        let mut fields = [httparse::EMPTY_HEADER; 512];
        let mut request = httparse::Request::new(&mut fields);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(end)) => assert!(end <= bytes.len()),
            Ok(httparse::Status::Partial) => panic!("no end for httparse"),
            Err(_) => {}
        }
    }
});
