//! Delimitation of message bodies.

/// The way in which the body of a message is delimited (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// The message has no body.
    #[default]
    None,
    /// The body has this number of bytes.
    Length(u64),
    /// The body is in the chunked coding.
    Chunks,
    /// The body ends with the connection. Only a reply may have such a body.
    Close,
}

/// Parses the value of `Content-Length`: decimal digits only, and a number below 2^63 (RFC 9110 section 8.6).
pub(super) fn parse_content_length(value: &[u8]) -> Option<u64> {
    const DIGITS_MAX: usize = 19;
    if value.is_empty() {
        return None;
    }
    let significant = &value[value.iter().take_while(|byte| **byte == b'0').count()..];
    if significant.len() > DIGITS_MAX {
        return None;
    }
    let number = significant.iter().try_fold(0_u64, |number, byte| {
        byte.is_ascii_digit().then(|| number * 10 + u64::from(byte - b'0'))
    })?;
    i64::try_from(number).is_ok().then_some(number)
}
