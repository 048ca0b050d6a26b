//! Fields that concern one connection alone (RFC 9110 section 7.6.1).

use crate::h1::{Fields, Known};

/// Names that are of one connection even if `Connection` does not list them.
const ONE_HOP: [&[u8]; 5] = [b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"];
/// Names that say where a message ends, which both sides of a relay need.
const FRAMING: [&[u8]; 2] = [b"content-length", b"transfer-encoding"];

/// Removes the fields that concern the connection a message came by. Those that say where it ends stay.
pub(super) fn remove_hop(fields: &mut Fields) {
    let is = |name: &[u8], other: &[u8]| name.eq_ignore_ascii_case(other);
    let listed: Vec<Vec<u8>> = fields
        .iter()
        .filter(|field| field.known == Known::Connection)
        .flat_map(|field| field.value.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|option| !is(option, b"close") && !is(option, b"keep-alive"))
        .filter(|option| !FRAMING.iter().any(|name| is(option, name)))
        .map(<[u8]>::to_vec)
        .collect();
    fields.retain(|field| {
        !ONE_HOP.iter().any(|name| is(field.name, name)) && !listed.iter().any(|name| is(field.name, name))
    });
}
