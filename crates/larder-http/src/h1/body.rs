//! The ways in which a body is delimited.

/// The way in which a message's body is delimited (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// There is no body.
    #[default]
    None,
    /// After this number of bytes.
    Length(u64),
    /// By its chunks.
    Chunks,
    /// By the end of the connection. Of replies only.
    Close,
}

/// A length as it stands in `Content-Length`: digits alone, and a number that fits into 63 bits.
pub(super) fn length(value: &[u8]) -> Option<u64> {
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
