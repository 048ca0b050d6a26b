//! Entries for fuzzers.

use super::message::Message;

/// Reads a message from another switch: what is read is written the same way.
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok((head, message)) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode(&head)), Ok((head, message)));
    }
}
