//! Parser of the first bytes of a connection, which consumes nothing.
//!
//! HTTP/1.x: the request header (RFC 9112). TLS: the server name of the ClientHello (RFC 8446 section 4.1.2, RFC 6066
//! section 3), whose record may span several segments. Runs in linear time. Allocates only for a ClientHello that
//! spans several TLS records.

use super::mechanism::FirstBytes;
use larder_core::rules::Headers;

/// Maximum number of header fields. A request with more is left to the relay, which has the same limit.
pub(crate) const FIELDS_MAX: usize = 100;

/// Start of HTTP/2's connection preface (RFC 9113 section 3.4). The method is reserved for it, so the bytes that
/// follow do not matter.
const PREFACE: &[u8] = b"PRI ";

/// First byte of a TLS handshake record.
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
/// Maximum size of a ClientHello. Bytes.
const HELLO_BYTES_MAX: usize = 16_384;

/// Parsed first bytes of a connection.
#[derive(Debug)]
pub(crate) enum Opening<'b> {
    /// A whole request header.
    Http(Box<RequestHeader<'b>>),
    /// A ClientHello with this server name; empty if it has none.
    Tls(Vec<u8>),
    /// Neither of these, or incomplete.
    Unusable(FirstBytes),
}

/// A request header.
#[derive(Debug)]
pub(crate) struct RequestHeader<'b> {
    pub(crate) method: &'b str,
    /// Request target as sent.
    pub(crate) target: &'b str,
    /// Minor version of HTTP/1.
    pub(crate) minor: u8,
    /// Host; empty if there is none. If there are several, the first; the node will refuse them.
    pub(crate) host: &'b [u8],
    pub(crate) fields: Vec<httparse::Header<'b>>,
}

impl Headers for RequestHeader<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }
}

/// Parses the first bytes of a connection.
pub(crate) fn parse(bytes: &[u8]) -> Opening<'_> {
    match bytes.first() {
        None => Opening::Unusable(FirstBytes::Partial),
        Some(&HANDSHAKE) => hello(bytes),
        Some(_) if bytes.starts_with(PREFACE) => Opening::Unusable(FirstBytes::Http2),
        Some(_) => http(bytes),
    }
}

fn http(bytes: &[u8]) -> Opening<'_> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Opening::Unusable(FirstBytes::Partial),
        Err(_) => return Opening::Unusable(FirstBytes::Other),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Opening::Unusable(FirstBytes::Other);
    };
    let fields = request.headers.to_vec();
    let host =
        fields.iter().find(|field| field.name.eq_ignore_ascii_case("host")).map_or(&b""[..], |f| f.value);
    Opening::Http(Box::new(RequestHeader { method, target, minor, host, fields }))
}

fn hello(bytes: &[u8]) -> Opening<'_> {
    match read_client_hello(bytes) {
        Ok(name) => Opening::Tls(name),
        Err(first_bytes) => Opening::Unusable(first_bytes),
    }
}

/// Cursor over bytes. Missing bytes mean [`FirstBytes::Partial`].
struct Cursor<'b>(&'b [u8]);

impl<'b> Cursor<'b> {
    fn take(&mut self, bytes: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | usize::from(byte)))
    }

    /// Returns the block that follows a length field of `length_bytes` bytes.
    fn block(&mut self, length_bytes: usize) -> Option<Cursor<'b>> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Cursor)
    }
}

fn read_client_hello(bytes: &[u8]) -> Result<Vec<u8>, FirstBytes> {
    // Joins the records of the handshake message.
    let (mut records, mut message) = (Cursor(bytes), Vec::new());
    let wanted = loop {
        let header = records.take(5).ok_or(FirstBytes::Partial)?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != 3 || length == 0 || length > HELLO_BYTES_MAX {
            return Err(FirstBytes::Other);
        }
        let fragment = &records.0[..length.min(records.0.len())];
        message.extend_from_slice(fragment);
        let mut start = Cursor(&message);
        if let Some(kind) = start.number(1) {
            if kind != usize::from(CLIENT_HELLO) {
                return Err(FirstBytes::Other);
            }
            if let Some(wanted) = start.number(3) {
                if wanted > HELLO_BYTES_MAX {
                    return Err(FirstBytes::Other);
                }
                if message.len() >= 4 + wanted {
                    break wanted;
                }
            }
        }
        records.take(length).ok_or(FirstBytes::Partial)?;
    };
    let hello = Cursor(&message[4..4 + wanted]);
    // The message is complete, so missing bytes will never arrive.
    server_name(hello).ok_or(FirstBytes::Other)
}

/// Returns the server name in a ClientHello's body; empty if it has none, `None` if the body is malformed.
fn server_name(mut hello: Cursor<'_>) -> Option<Vec<u8>> {
    hello.take(2 + 32)?; // version, random
    hello.block(1)?; // session
    hello.block(2)?; // cipher suites
    hello.block(1)?; // compression
    if hello.0.is_empty() {
        return Some(Vec::new());
    }
    let mut extensions = hello.block(2)?;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let mut body = extensions.block(2)?;
        if kind == usize::from(SERVER_NAME) {
            let mut names = body.block(2)?;
            let is_host = names.number(1)? == 0;
            let name = names.block(2)?.0;
            return is_host.then(|| name.to_ascii_lowercase());
        }
    }
    Some(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn first_bytes(bytes: &[u8]) -> FirstBytes {
        match parse(bytes) {
            Opening::Http(_) => FirstBytes::Http1,
            Opening::Tls(_) => FirstBytes::Tls,
            Opening::Unusable(first_bytes) => first_bytes,
        }
    }

    /// A ClientHello for `name`, in records of at most `record_bytes`.
    fn hello_of(name: &str, record_bytes: usize) -> Vec<u8> {
        let block = |length_bytes: usize, body: &[u8]| {
            let length = (body.len() as u32).to_be_bytes();
            [&length[4 - length_bytes..], body].concat()
        };
        let list = block(2, &[&[0][..], &block(2, name.as_bytes())].concat());
        let other = [&[0, 43][..], &block(2, &[2, 3, 4])].concat();
        let sni = [&[0, 0][..], &block(2, &list)].concat();
        let extensions = block(2, &[other, sni].concat());
        let body =
            [&[3, 3][..], &[7; 32], &block(1, &[]), &block(2, &[0x13, 1]), &block(1, &[0]), &extensions];
        let message = [&[CLIENT_HELLO][..], &block(3, &body.concat())].concat();
        let record = |fragment: &[u8]| [&[HANDSHAKE, 3, 1][..], &block(2, fragment)].concat();
        message.chunks(record_bytes).flat_map(record).collect()
    }

    #[test]
    fn a_request_is_complete_or_partial() {
        let request = b"GET /a?b HTTP/1.1\r\nHost: H.example\r\nAccept: */*\r\n\r\nrest";
        let Opening::Http(asked) = parse(request) else { panic!("a request") };
        assert_eq!(
            (asked.method, asked.target, asked.minor, asked.host),
            ("GET", "/a?b", 1, &b"H.example"[..])
        );
        for end in 0..request.len() - 4 {
            assert_eq!(first_bytes(&request[..end]), FirstBytes::Partial, "{end}");
        }
        assert_eq!(first_bytes(b"\x00\x01"), FirstBytes::Other);
        assert_eq!(first_bytes(b"SSH-2.0-OpenSSH\r\n"), FirstBytes::Other);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        assert_eq!(first_bytes(&preface[..3]), FirstBytes::Partial);
        for end in 4..=preface.len() {
            assert_eq!(first_bytes(&preface[..end]), FirstBytes::Http2, "{end}");
        }
        // The verdict stays.
        assert_eq!(first_bytes(b"PRI * HTTP/1.1\r\n\r\n"), FirstBytes::Http2);
    }

    #[test]
    fn a_server_name_is_found_across_records() {
        for record_bytes in [1, 7, 64, 16_384] {
            let hello = hello_of("Tiles.Example", record_bytes);
            let Opening::Tls(name) = parse(&hello) else { panic!("a hello, {record_bytes}") };
            assert_eq!(name, b"tiles.example");
            for end in 1..hello.len() {
                assert_eq!(first_bytes(&hello[..end]), FirstBytes::Partial, "{record_bytes} {end}");
            }
        }
        assert_eq!(first_bytes(&[HANDSHAKE, 3, 1, 0, 0]), FirstBytes::Other);
        assert_eq!(first_bytes(&[HANDSHAKE, 3, 1, 0, 4, 2, 0, 0, 0]), FirstBytes::Other, "a ServerHello");
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), hello in any::<bool>()) {
            let bytes = if hello { [&[HANDSHAKE, 3, 1][..], &bytes].concat() } else { bytes };
            let _ = first_bytes(&bytes);
        }

        #[test]
        fn a_damaged_hello_does_not_panic(at in 0..120_usize, byte in any::<u8>()) {
            let mut hello = hello_of("a.example", 50);
            let at = at % hello.len();
            hello[at] = byte;
            let _ = first_bytes(&hello);
        }
    }
}
