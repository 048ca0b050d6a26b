//! Replies as the load generator reads them: heads, framing, chunks, `Cache-Status`.
//!
//! The first byte says where the rest is cut: a reply that comes in one piece and one that comes in many must be read
//! alike.

#![no_main]

use larder_load::wire::reply::{ReadStatus, ReplyReader};
use libfuzzer_sys::fuzz_target;

type Outcome = (bool, u16, u64, bool);

fn read(text: &[u8], cut: usize) -> Option<Outcome> {
    let mut reader = ReplyReader::new();
    let mut step = ReadStatus::More;
    for piece in text.chunks(cut) {
        step = reader.feed(piece).ok()?;
    }
    assert!(reader.body_bytes() <= text.len() as u64);
    assert!(step == ReadStatus::More || reader.skippable() == 0);
    Some((step == ReadStatus::Done, reader.status(), reader.body_bytes(), reader.keep_alive()))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, text)) = bytes.split_first() else { return };
    let whole = read(text, text.len().max(1));
    let pieces = read(text, usize::from(*first).max(1));
    match (whole, pieces) {
        (Some(whole), pieces) => assert_eq!(Some(whole), pieces),
        // A broken head is noticed at its next line end when it comes in pieces.
        (None, Some((done, ..))) => assert!(!done),
        (None, None) => {}
    }
});
