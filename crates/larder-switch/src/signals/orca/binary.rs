//! The binary form: the protobuf message, in base64 with or without padding.
//!
//! Only the parts of protobuf's wire format that the message uses are parsed: varints, 64-bit and 32-bit numbers, and
//! byte strings. Unknown fields are skipped. Groups, which protobuf 3 does not have, are refused.

use super::{OrcaReport, SignalFailure};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub(super) fn read(base64: &str) -> Result<OrcaReport, SignalFailure> {
    let bytes = BASE64.decode(base64).map_err(|_| SignalFailure::Malformed)?;
    message(&bytes).ok_or(SignalFailure::Malformed)?
}

/// Parses the message; the outer `None` means invalid protobuf.
fn message(mut bytes: &[u8]) -> Option<Result<OrcaReport, SignalFailure>> {
    let mut orca = OrcaReport::default();
    if bytes.is_empty() {
        return None;
    }
    while !bytes.is_empty() {
        let put = match field(&mut bytes)? {
            (1, Value::Fixed64(bits)) => orca.put("cpu_utilization", f64::from_bits(bits)),
            (2, Value::Fixed64(bits)) => orca.put("mem_utilization", f64::from_bits(bits)),
            (5, Value::Bytes(entry)) => named(&mut orca, "utilization", entry)?,
            (6, Value::Fixed64(bits)) => orca.put("rps_fractional", f64::from_bits(bits)),
            (7, Value::Fixed64(bits)) => orca.put("eps", f64::from_bits(bits)),
            (8, Value::Bytes(entry)) => named(&mut orca, "named_metrics", entry)?,
            (9, Value::Fixed64(bits)) => orca.put("application_utilization", f64::from_bits(bits)),
            _ => Ok(()),
        };
        if put.is_err() {
            return Some(put.map(|()| orca));
        }
    }
    Some(Ok(orca))
}

/// Parses an entry of a `map<string, double>`.
fn named(orca: &mut OrcaReport, kind: &str, mut entry: &[u8]) -> Option<Result<(), SignalFailure>> {
    let (mut name, mut value) = ("", 0.0);
    while !entry.is_empty() {
        match field(&mut entry)? {
            (1, Value::Bytes(bytes)) => name = std::str::from_utf8(bytes).ok()?,
            (2, Value::Fixed64(bits)) => value = f64::from_bits(bits),
            _ => {}
        }
    }
    (!name.is_empty()).then(|| orca.put(&format!("{kind}.{name}"), value))
}

/// A value of the wire format; unused numbers are dropped.
enum Value<'a> {
    Fixed64(u64),
    Bytes(&'a [u8]),
    Other,
}

/// Takes the next field and its number.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = varint(bytes)?;
    let number = tag >> 3;
    if number == 0 {
        return None;
    }
    let value = match tag & 7 {
        0 => varint(bytes).map(|_| Value::Other)?,
        1 => Value::Fixed64(u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?)),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Value::Bytes(take(bytes, length)?)
        }
        5 => take(bytes, 4).map(|_| Value::Other)?,
        _ => return None,
    };
    Some((number, value))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *take(bytes, 1)?.first()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            // The tenth byte holds one bit of the number.
            return (shift < 63 || byte <= 1).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_end_in_time() {
        for (bytes, value) in [
            (&[0_u8][..], Some(0)),
            (&[0x96, 0x01], Some(150)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01], Some(u64::MAX)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x02], None),
            (&[0x80; 11], None),
            (&[0x80], None),
            (&[], None),
        ] {
            assert_eq!(varint(&mut &bytes[..]), value, "{bytes:?}");
        }
    }

    #[test]
    fn unknown_fields_are_skipped_and_malformed_ones_refused() {
        let cpu = [&[0x09][..], &0.5_f64.to_le_bytes()].concat();
        for (before, well) in [
            (&[0x18, 0x05][..], true),          // rps: 5
            (&[0x7D, 1, 2, 3, 4], true),        // field 15, 32 bits
            (&[0x7A, 2, b'a', b'b'], true),     // field 15, bytes
            (&[0x7A, 99, b'a'], false),         // shorter than it says
            (&[0x7B], false),                   // a group
            (&[0x00], false),                   // field 0
            (&[0x42, 3, 0x0A, 1, 0xFF], false), // a name that is no text
        ] {
            let orca = message(&[before, &cpu[..]].concat());
            assert_eq!(matches!(orca, Some(Ok(_))), well, "{before:?}");
        }
    }
}
