//! Ids of traces and spans, and the header `traceparent` (W3C Trace Context, section 3.2).

use std::fmt;

/// Name of the header that carries the trace's id. Lower case, as HTTP/2 requires.
pub const TRACEPARENT: &str = "traceparent";

/// Name of the header with vendor-specific data of a trace (W3C Trace Context, section 3.3).
pub const TRACESTATE: &str = "tracestate";

/// Id of a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub(crate) u128);

/// Id of a span within a trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub(crate) u64);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A parsed `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: TraceId,
    /// The parent span.
    pub span: SpanId,
    /// Whether the caller records the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses the header: `00-<trace>-<span>-<flags>`, all in lower-case hexadecimal. A later version may have more fields
    /// after the flags. Returns `None` for a malformed value; a new trace begins then.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let version = parse_hex(value.get(..2)?)?;
        let (trace, span, flags) = (value.get(3..35)?, value.get(36..52)?, value.get(53..55)?);
        let dashes = [2, 35, 52].into_iter().all(|at| value.get(at) == Some(&b'-'));
        let valid_end = match version {
            0 => value.len() == 55,
            0xff => false,
            _ => matches!(value.get(55), None | Some(b'-')),
        };
        let (trace, span) = (parse_hex(trace)?, u64::try_from(parse_hex(span)?).ok()?);
        let sampled = parse_hex(flags)? & 1 == 1;
        let valid = dashes && valid_end && trace != 0 && span != 0;
        valid.then_some(Self { trace: TraceId(trace), span: SpanId(span), sampled })
    }

    /// Formats the header's value.
    pub fn format(&self) -> [u8; 55] {
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut value[3..35], self.trace.0);
        write_hex(&mut value[36..52], self.span.0.into());
        value[54] += u8::from(self.sampled);
        value
    }
}

/// Writes the value as lower-case hexadecimal digits.
fn write_hex(digits: &mut [u8], value: u128) {
    for (at, digit) in digits.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (4 * at)) as usize & 15];
    }
}

/// Parses up to 32 hexadecimal digits in lower case.
fn parse_hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_recommendation_is_parsed_and_formatted() {
        let parent = TraceParent::parse(EXAMPLE.as_bytes()).expect("a valid value");
        assert_eq!(
            (parent.trace.0, parent.span.0),
            (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0xf0_67aa_0ba9_02b7)
        );
        assert!(parent.sampled);
        assert_eq!(&parent.format()[..], EXAMPLE.as_bytes());
    }

    #[test]
    fn malformed_values_are_rejected() {
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
        ] {
            assert_eq!(TraceParent::parse(bad.as_bytes()), None, "{bad}");
        }
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
        assert!(!TraceParent::parse(later.as_bytes()).expect("a later version").sampled);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_parsed(value in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = TraceParent::parse(&value);
        }

        #[test]
        fn a_formatted_value_can_be_parsed(trace in 1_u128.., span in 1_u64.., sampled: bool) {
            let parent = TraceParent { trace: TraceId(trace), span: SpanId(span), sampled };
            prop_assert_eq!(TraceParent::parse(&parent.format()), Some(parent));
        }
    }
}
