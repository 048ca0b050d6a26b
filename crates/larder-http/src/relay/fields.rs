//! Header fields that concern one connection (RFC 9110 section 7.6.1), and fields that delimit a body.

use crate::h1::{Body, CONNECTION_OPTIONS_MAX, Fault, FieldName, Fields, is_end_to_end};

/// Names of fields that concern one connection, even if `Connection` does not list them.
const HOP_BY_HOP: [&[u8]; 5] = [b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"];
/// Names that a trailer field may not have (RFC 9110 section 6.5.1), because such fields delimit, route or
/// authenticate a message.
const FORBIDDEN_TRAILERS: [&[u8]; 12] = [
    b"authorization",
    b"connection",
    b"content-length",
    b"cookie",
    b"host",
    b"keep-alive",
    b"proxy-connection",
    b"set-cookie",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// Returns whether `name` is in `names`, without regard to case.
fn is_one_of(name: &[u8], names: &[&[u8]]) -> bool {
    names.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// Returns the options of all `Connection` fields.
fn connection_options(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    let values = fields.iter().filter(|field| field.kind == FieldName::Connection).map(|field| field.value);
    values.flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

/// Removes the fields of a request that concern the connection of the client. Fields that delimit the body
/// stay, and so do end-to-end fields that the client nominates.
///
/// # Errors
/// [`Fault::Options`] if `Connection` has more than [`CONNECTION_OPTIONS_MAX`] options.
pub(super) fn remove_hop_of_request(fields: &mut Fields) -> Result<(), Fault> {
    let named = || connection_options(fields).filter(|option| !option.is_empty());
    if named().count() > CONNECTION_OPTIONS_MAX {
        return Err(Fault::Options);
    }
    let listed = named().filter(|option| !is_end_to_end(option)).map(<[u8]>::to_vec).collect();
    remove_listed(fields, listed);
    Ok(())
}

/// Removes the fields of a reply that concern the connection of the server. Fields that delimit the body
/// stay.
pub(super) fn remove_hop_of_reply(fields: &mut Fields) {
    let delimits = |option: &&[u8]| !is_one_of(option, &[b"content-length", b"transfer-encoding"]);
    let listed = connection_options(fields).filter(delimits).map(<[u8]>::to_vec).collect();
    remove_listed(fields, listed);
}

/// Removes the hop-by-hop fields and the fields that `Connection` lists.
fn remove_listed(fields: &mut Fields, mut listed: Vec<Vec<u8>>) {
    listed.retain(|option| !is_one_of(option, &[b"close", b"keep-alive"]));
    fields.retain(|field| {
        !is_one_of(field.name, &HOP_BY_HOP)
            && !listed.iter().any(|name| field.name.eq_ignore_ascii_case(name))
    });
}

/// Replaces the fields that delimit the body, so that every recipient reads the same body. If there is no
/// body, `length` is the declared `Content-Length`.
pub(super) fn delimit(fields: &mut Fields, body: Body, length: Option<u64>) -> Result<(), Fault> {
    fields.retain(|field| !matches!(field.kind, FieldName::ContentLength | FieldName::TransferEncoding));
    match body {
        Body::Chunks => fields.append(b"Transfer-Encoding", b"chunked"),
        Body::Length(bytes) => append_length(fields, bytes),
        Body::None | Body::Close => length.map_or(Ok(()), |bytes| append_length(fields, bytes)),
    }
}

/// Appends a `Content-Length` field.
fn append_length(fields: &mut Fields, bytes: u64) -> Result<(), Fault> {
    const DIGITS: usize = 20;
    let mut digits = [0; DIGITS];
    let (mut at, mut left) = (DIGITS, bytes);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            return fields.append(b"Content-Length", &digits[at..]);
        }
    }
}

/// Returns the protocols that an HTTP/1.1 client asks for with the option `upgrade` in `Connection` (RFC 9110
/// section 7.8). Returns `None` if there is no such protocol that can be relayed.
///
/// HTTP/2 without TLS is not relayed, because its requests would bypass all rules of the proxy.
pub(super) fn offered_protocols(fields: &Fields, is_http10: bool) -> Option<Vec<u8>> {
    if is_http10 || !connection_options(fields).any(|option| option.eq_ignore_ascii_case(b"upgrade")) {
        return None;
    }
    let values: Vec<&[u8]> = fields.all(b"upgrade").filter(|value| !value.is_empty()).collect();
    let protocols = values.join(&b", "[..]);
    let is_http2 = list_items(&protocols).any(|protocol| is_one_of(protocol, &[b"h2", b"h2c"]));
    (!protocols.is_empty() && !is_http2).then_some(protocols)
}

/// Returns whether the server switches only to protocols that it was offered. The protocols are in the
/// `Upgrade` field of its reply.
pub(super) fn are_all_offered(fields: &Fields, offered: &[u8]) -> bool {
    let mut taken = fields.all(b"upgrade").flat_map(list_items).peekable();
    taken.peek().is_some()
        && taken.all(|protocol| list_items(offered).any(|offered| offered.eq_ignore_ascii_case(protocol)))
}

/// Returns the items of a comma-separated list.
fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}

/// Writes the trailer fields of a reply that may be relayed.
pub(super) fn write_trailers(trailers: &[u8], out: &mut Vec<u8>) {
    for line in trailers.split_inclusive(|byte| *byte == b'\n') {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        if !is_one_of(name, &FORBIDDEN_TRAILERS) {
            out.extend_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove_hop_from(fields: &[(&str, &str)]) -> Result<Vec<(String, String)>, Fault> {
        let mut head = Fields::new();
        for (name, value) in fields {
            head.append(name.as_bytes(), value.as_bytes())?;
        }
        remove_hop_of_request(&mut head)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(head.iter().map(|field| (text(field.name), text(field.value))).collect())
    }

    #[test]
    fn nominated_fields_are_removed_unless_they_are_end_to_end() {
        let fields = [("x-own", "1"), ("x-forwarded-for", "10.0.0.1"), ("cookie", "a"), ("x-other", "2")];
        let left = |connection| {
            let all: Vec<_> = fields.iter().copied().chain([("connection", connection)]).collect();
            let left = remove_hop_from(&all).unwrap();
            left.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(left("close, X-Own, X-Forwarded-For, Cookie"), ["x-forwarded-for", "cookie", "x-other"]);
        // An option that is not a token nominates no field.
        assert_eq!(left("\"x-own\", x own").len(), 4);
        let twice = [("connection", "x-a"), ("connection", "upgrade, x-b"), ("x-a", "1"), ("x-b", "2")];
        assert_eq!(remove_hop_from(&twice), Ok(Vec::new()));
        let hop = [("te", "trailers"), ("upgrade", "x"), ("keep-alive", "5"), ("proxy-connection", "x")];
        assert_eq!(remove_hop_from(&hop), Ok(Vec::new()));
    }

    #[test]
    fn too_many_connection_options_are_refused() {
        let options =
            |count: usize| remove_hop_from(&[("connection", &vec!["x"; count].join(", "))]).map(drop);
        assert_eq!(options(CONNECTION_OPTIONS_MAX), Ok(()));
        assert_eq!(options(CONNECTION_OPTIONS_MAX + 1), Err(Fault::Options));
    }

    #[test]
    fn end_to_end_names_are_known() {
        for name in ["alt-used", "host", "authorization", "x-request-id", "content-type", "if-match", "via"] {
            assert!(is_end_to_end(name.as_bytes()), "{name}");
        }
        for name in ["x-own", "http2-settings", "keep-alive", "te", "trailer"] {
            assert!(!is_end_to_end(name.as_bytes()), "{name}");
        }
    }
}
