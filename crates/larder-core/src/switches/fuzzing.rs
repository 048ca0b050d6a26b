//! Entry points for fuzzers.

use super::message::Message;

/// Decodes a message from another switch, and checks that the encoding of the result decodes to the same.
pub fn fuzz_message(bytes: &[u8]) {
    if let Ok((head, message)) = Message::decode(bytes) {
        assert_eq!(Message::decode(&message.encode(&head)), Ok((head, message)));
    }
}
