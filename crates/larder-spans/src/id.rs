//! Names of traces and spans, and the header that carries them (W3C Trace Context, section 3.2).

use std::fmt;

/// The header, in lower case as HTTP/2 wants it.
pub const TRACEPARENT: &str = "traceparent";

/// What tracing systems say to each other of a trace, which ends with it (section 3.3).
pub const TRACESTATE: &str = "tracestate";

/// A trace; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub(crate) u128);

/// A span of a trace; never zero.
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

/// What a `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace.
    pub trace: TraceId,
    /// The span that this request is part of.
    pub span: SpanId,
    /// Whether whoever began the trace records it.
    pub sampled: bool,
}

impl Parent {
    /// Reads the header: `00-<trace>-<span>-<flags>`, all in lower-case hexadecimal. A later version may have more after the
    /// flags. `None` for what is malformed: the trace begins anew then.
    pub fn read(value: &[u8]) -> Option<Self> {
        let version = hex(value.get(..2)?)?;
        let (trace, span, flags) = (value.get(3..35)?, value.get(36..52)?, value.get(53..55)?);
        let dashes = [2, 35, 52].into_iter().all(|at| value.get(at) == Some(&b'-'));
        let ends = match version {
            0 => value.len() == 55,
            0xff => false,
            _ => matches!(value.get(55), None | Some(b'-')),
        };
        let (trace, span) = (hex(trace)?, u64::try_from(hex(span)?).ok()?);
        let sampled = hex(flags)? & 1 == 1;
        let sound = dashes && ends && trace != 0 && span != 0;
        sound.then_some(Self { trace: TraceId(trace), span: SpanId(span), sampled })
    }

    /// The header's value.
    pub fn write(&self) -> [u8; 55] {
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut value[3..35], self.trace.0);
        write_hex(&mut value[36..52], self.span.0.into());
        value[54] += u8::from(self.sampled);
        value
    }
}

/// Fills the digits with the value in lower-case hexadecimal.
fn write_hex(digits: &mut [u8], value: u128) {
    for (at, digit) in digits.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[(value >> (4 * at)) as usize & 15];
    }
}

/// The value of up to 32 digits in lower case.
fn hex(digits: &[u8]) -> Option<u128> {
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
    fn the_recommendations_example_is_read_and_written() {
        let parent = Parent::read(EXAMPLE.as_bytes()).expect("it is sound");
        assert_eq!(
            (parent.trace.0, parent.span.0),
            (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, 0xf0_67aa_0ba9_02b7)
        );
        assert!(parent.sampled);
        assert_eq!(&parent.write()[..], EXAMPLE.as_bytes());
    }

    #[test]
    fn what_is_malformed_is_no_parent() {
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
            assert_eq!(Parent::read(bad.as_bytes()), None, "{bad}");
        }
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more";
        assert!(!Parent::read(later.as_bytes()).expect("a later version").sampled);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(value in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Parent::read(&value);
        }

        #[test]
        fn what_is_written_is_read(trace in 1_u128.., span in 1_u64.., sampled: bool) {
            let parent = Parent { trace: TraceId(trace), span: SpanId(span), sampled };
            prop_assert_eq!(Parent::read(&parent.write()), Some(parent));
        }
    }
}
