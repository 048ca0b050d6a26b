//! Parsing of the lines of a head.

use super::{Fault, scan};
use memchr::memchr;

/// Takes the next line from a complete head, and returns it without its line end.
pub(super) fn take_line<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let end = memchr(b'\n', rest).unwrap_or(rest.len());
    let (line, after) = rest.split_at(end);
    *rest = after.get(1..).unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Splits a field line into name and value. White space around the value is removed (RFC 9112 section 5).
pub(super) fn parse_field(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let colon = memchr(b':', line).ok_or(Fault::Field)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !scan::is_token(name) {
        return Err(Fault::Field);
    }
    if !scan::is_text(value) {
        return Err(Fault::Control);
    }
    Ok((name, scan::trim(value)))
}
