//! The `Range` header (RFC 9110 section 14).
//!
//! One range of bytes is served. A list of several ranges, another unit, or an invalid value is ignored, as the
//! RFC allows, and the reply is the whole. Multipart replies would make the node assemble bodies for requests
//! that mostly scanners send.

/// The meaning of a `Range` header for contents of a certain length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// The header does not count: the whole is sent.
    Whole,
    /// The bytes `first..=last` are sent; both are within the contents.
    Part { first: u64, last: u64 },
    /// No byte of the contents is in the range: 416.
    Unsatisfiable,
}

/// Parses the value of a `Range` header for contents of `size` bytes.
pub(crate) fn parse(value: &[u8], size: u64) -> Range {
    read(value, size).unwrap_or(Range::Whole)
}

fn read(value: &[u8], size: u64) -> Option<Range> {
    let equals = value.iter().position(|&b| b == b'=')?;
    if !value[..equals].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let spec = value[equals + 1..].trim_ascii();
    let dash = spec.iter().position(|&b| b == b'-')?;
    match (number(&spec[..dash])?, number(&spec[dash + 1..])?) {
        (None, None) => None,
        (Some(first), last) => {
            let last = last.unwrap_or(u64::MAX);
            if last < first {
                return None;
            }
            if first >= size {
                return Some(Range::Unsatisfiable);
            }
            Some(Range::Part { first, last: last.min(size - 1) })
        }
        (None, Some(0)) => Some(Range::Unsatisfiable),
        (None, Some(_)) if size == 0 => Some(Range::Unsatisfiable),
        (None, Some(suffix)) => Some(Range::Part { first: size.saturating_sub(suffix), last: size - 1 }),
    }
}

/// Parses digits. `None` if the text is not a number, `Some(None)` if it is empty. A number beyond 64 bits
/// becomes the largest one.
fn number(digits: &[u8]) -> Option<Option<u64>> {
    if digits.is_empty() {
        return Some(None);
    }
    digits
        .iter()
        .try_fold(0_u64, |sum, &b| {
            let digit = (b as char).to_digit(10)?;
            Some(sum.saturating_mul(10).saturating_add(u64::from(digit)))
        })
        .map(Some)
}

/// Entry point for the fuzz target: whatever the value is, the range lies within the contents.
#[doc(hidden)]
pub fn fuzz_parse(value: &[u8], size: u64) {
    if let Range::Part { first, last } = parse(value, size) {
        assert!(first <= last && last < size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn part(first: u64, last: u64) -> Range {
        Range::Part { first, last }
    }

    #[test]
    fn single_ranges_are_cut_to_the_contents() {
        for (value, range) in [
            ("bytes=0-499", part(0, 499)),
            ("bytes=500-", part(500, 999)),
            ("bytes=-1", part(999, 999)),
            ("bytes=-5000", part(0, 999)),
            ("bytes=999-2000", part(999, 999)),
            ("Bytes=7-7", part(7, 7)),
            ("bytes= 0-1 ", part(0, 1)),
            ("bytes=0-99999999999999999999999", part(0, 999)),
            ("bytes=1000-", Range::Unsatisfiable),
            ("bytes=99999999999999999999999-", Range::Unsatisfiable),
            ("bytes=-0", Range::Unsatisfiable),
        ] {
            assert_eq!(parse(value.as_bytes(), 1_000), range, "{value}");
        }
        assert_eq!(parse(b"bytes=0-", 0), Range::Unsatisfiable);
        assert_eq!(parse(b"bytes=-1", 0), Range::Unsatisfiable);
    }

    #[test]
    fn anything_but_a_single_range_is_ignored() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=a-b",
            "bytes=0-1,3-4",
            "lines=0-1",
            "bytes=+1-2",
            "bytes=1--2",
        ] {
            assert_eq!(parse(value.as_bytes(), 1_000), Range::Whole, "{value}");
        }
    }

    proptest! {
        #[test]
        fn a_range_equals_that_slice_of_the_bytes(first in 0..40_u64, last in 0..60_u64, size in 0..30_u64) {
            let inside: Vec<u64> = (first..=last).filter(|&at| at < size).collect();
            let expected = match (first <= last, inside.first(), inside.last()) {
                (false, _, _) => Range::Whole,
                (true, Some(&first), Some(&last)) => part(first, last),
                _ => Range::Unsatisfiable,
            };
            prop_assert_eq!(parse(format!("bytes={first}-{last}").as_bytes(), size), expected);
        }

        #[test]
        fn no_range_exceeds_the_contents(value in prop::collection::vec(any::<u8>(), 0..40), size: u64) {
            fuzz_parse(&value, size);
            fuzz_parse(&[b"bytes=", &value[..]].concat(), size);
        }
    }
}
