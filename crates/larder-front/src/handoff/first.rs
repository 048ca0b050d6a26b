//! The first bytes of a connection: what is asked for, without consuming anything.
//!
//! HTTP/1.x: the request header (RFC 9112). TLS: the server name of the ClientHello (RFC 8446 section 4.1.2, RFC 6066
//! section 3), whose record may be cut into several segments. Linear in the bytes given; nothing is allocated but for a
//! hello that spans several TLS records.

use super::mechanism::Speaks;
use larder_core::rules::Headers;

/// Header fields looked at; a request with more is left to the relay, which has the same limit for its answer.
pub(crate) const FIELDS_MAX: usize = 100;

/// How HTTP/2's connection preface begins (RFC 9113 section 3.4). The method is reserved for it, so that nothing behind it
/// changes what it is.
const PREFACE: &[u8] = b"PRI ";

/// The first byte of a TLS record that holds a handshake.
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
/// A ClientHello longer than this is nobody's.
const HELLO_BYTES_MAX: usize = 16_384;

/// What the bytes are.
#[derive(Debug)]
pub(crate) enum First<'b> {
    /// A whole request header.
    Http(Box<Asked<'b>>),
    /// A ClientHello with this server name, empty if it has none.
    Tls(Vec<u8>),
    /// None of these, or not all of it.
    No(Speaks),
}

/// A request header.
#[derive(Debug)]
pub(crate) struct Asked<'b> {
    pub(crate) method: &'b str,
    /// As sent.
    pub(crate) target: &'b str,
    /// `HTTP/1.` this.
    pub(crate) minor: u8,
    /// Empty if there is none; of several, which the node will refuse, the first.
    pub(crate) host: &'b [u8],
    pub(crate) fields: Vec<httparse::Header<'b>>,
}

impl Headers for Asked<'_> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }
}

/// Reads the first bytes of a connection.
pub(crate) fn read(bytes: &[u8]) -> First<'_> {
    match bytes.first() {
        None => First::No(Speaks::Partial),
        Some(&HANDSHAKE) => hello(bytes),
        Some(_) if bytes.starts_with(PREFACE) => First::No(Speaks::Http2),
        Some(_) => http(bytes),
    }
}

fn http(bytes: &[u8]) -> First<'_> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return First::No(Speaks::Partial),
        Err(_) => return First::No(Speaks::Other),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return First::No(Speaks::Other);
    };
    let fields = request.headers.to_vec();
    let host =
        fields.iter().find(|field| field.name.eq_ignore_ascii_case("host")).map_or(&b""[..], |f| f.value);
    First::Http(Box::new(Asked { method, target, minor, host, fields }))
}

fn hello(bytes: &[u8]) -> First<'_> {
    match server_name(bytes) {
        Ok(name) => First::Tls(name),
        Err(speaks) => First::No(speaks),
    }
}

/// Bytes read from the front; what is not there yet is [`Speaks::Partial`].
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

    /// What a length of so many bytes announces.
    fn block(&mut self, length_bytes: usize) -> Option<Cursor<'b>> {
        let length = self.number(length_bytes)?;
        self.take(length).map(Cursor)
    }
}

fn server_name(bytes: &[u8]) -> Result<Vec<u8>, Speaks> {
    // The handshake message, out of its records.
    let (mut records, mut message) = (Cursor(bytes), Vec::new());
    let wanted = loop {
        let header = records.take(5).ok_or(Speaks::Partial)?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != 3 || length == 0 || length > HELLO_BYTES_MAX {
            return Err(Speaks::Other);
        }
        let fragment = &records.0[..length.min(records.0.len())];
        message.extend_from_slice(fragment);
        let mut start = Cursor(&message);
        if let Some(kind) = start.number(1) {
            if kind != usize::from(CLIENT_HELLO) {
                return Err(Speaks::Other);
            }
            if let Some(wanted) = start.number(3) {
                if wanted > HELLO_BYTES_MAX {
                    return Err(Speaks::Other);
                }
                if message.len() >= 4 + wanted {
                    break wanted;
                }
            }
        }
        records.take(length).ok_or(Speaks::Partial)?;
    };
    let hello = Cursor(&message[4..4 + wanted]);
    // The message is whole, so what is missing from here on never comes.
    named(hello).ok_or(Speaks::Other)
}

/// The name in a ClientHello's body; empty if it has none. `None` if the body is malformed.
fn named(mut hello: Cursor<'_>) -> Option<Vec<u8>> {
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

    fn speaks(bytes: &[u8]) -> Speaks {
        match read(bytes) {
            First::Http(_) => Speaks::Http1,
            First::Tls(_) => Speaks::Tls,
            First::No(speaks) => speaks,
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
    fn a_request_is_whole_or_awaited() {
        let request = b"GET /a?b HTTP/1.1\r\nHost: H.example\r\nAccept: */*\r\n\r\nrest";
        let First::Http(asked) = read(request) else { panic!("a request") };
        assert_eq!(
            (asked.method, asked.target, asked.minor, asked.host),
            ("GET", "/a?b", 1, &b"H.example"[..])
        );
        for end in 0..request.len() - 4 {
            assert_eq!(speaks(&request[..end]), Speaks::Partial, "{end}");
        }
        assert_eq!(speaks(b"\x00\x01"), Speaks::Other);
        assert_eq!(speaks(b"SSH-2.0-OpenSSH\r\n"), Speaks::Other);
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        assert_eq!(speaks(&preface[..3]), Speaks::Partial);
        for end in 4..=preface.len() {
            assert_eq!(speaks(&preface[..end]), Speaks::Http2, "{end}");
        }
        // What it was taken for it stays.
        assert_eq!(speaks(b"PRI * HTTP/1.1\r\n\r\n"), Speaks::Http2);
    }

    #[test]
    fn a_server_name_is_found_in_however_many_records() {
        for record_bytes in [1, 7, 64, 16_384] {
            let hello = hello_of("Tiles.Example", record_bytes);
            let First::Tls(name) = read(&hello) else { panic!("a hello, {record_bytes}") };
            assert_eq!(name, b"tiles.example");
            for end in 1..hello.len() {
                assert_eq!(speaks(&hello[..end]), Speaks::Partial, "{record_bytes} {end}");
            }
        }
        assert_eq!(speaks(&[HANDSHAKE, 3, 1, 0, 0]), Speaks::Other);
        assert_eq!(speaks(&[HANDSHAKE, 3, 1, 0, 4, 2, 0, 0, 0]), Speaks::Other, "a ServerHello");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..600), hello in any::<bool>()) {
            let bytes = if hello { [&[HANDSHAKE, 3, 1][..], &bytes].concat() } else { bytes };
            let _ = speaks(&bytes);
        }

        #[test]
        fn a_damaged_hello_is_no_panic(at in 0..120_usize, byte in any::<u8>()) {
            let mut hello = hello_of("a.example", 50);
            let at = at % hello.len();
            hello[at] = byte;
            let _ = speaks(&hello);
        }
    }
}
