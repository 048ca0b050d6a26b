//! The PROXY protocol, versions 1 and 2: a balancer in front of this host announces the client of a connection.
//!
//! Specified in HAProxy's doc/proxy-protocol.txt, parsed by the `ppp` crate. Only configured addresses may announce
//! clients, and they must announce every connection: otherwise anyone could choose a client address.

use ppp::{HeaderResult, PartialResult, v1, v2};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Maximum length of an announcement, in bytes: version 2 with additional fields (TLVs).
const ANNOUNCEMENT_MAX: usize = 4096;
/// Start of a line of version 1, and its maximum length with the line end, in bytes.
const V1_PREFIX: &[u8] = b"PROXY ";
const V1_MAX: usize = 107;
/// Time between two checks of a connection with an incomplete announcement.
const PEEK_PAUSE: Duration = Duration::from_millis(1);

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    bits: u8,
}

impl AddressRange {
    /// The addresses with the same first `bits` bits as `first`. Returns `None` if an address has fewer bits.
    pub fn new(first: IpAddr, bits: u8) -> Option<Self> {
        let most = if first.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { first: first.to_canonical(), bits })
    }

    /// Checks whether an address is in the range. IPv4-mapped IPv6 addresses count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let off = 32 - u32::from(self.bits.min(32));
                u64::from(first.to_bits()) >> off == u64::from(address.to_bits()) >> off
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let off = 128 - u32::from(self.bits.min(128));
                first.to_bits().checked_shr(off).unwrap_or(0)
                    == address.to_bits().checked_shr(off).unwrap_or(0)
            }
            _ => false,
        }
    }
}

impl std::str::FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{}' is no range of addresses", text.escape_debug());
        let (first, bits) = match text.split_once('/') {
            Some((first, bits)) => (first, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let first: IpAddr = first.parse().map_err(|_| wrong())?;
        let bits = bits.unwrap_or(if first.is_ipv4() { 32 } else { 128 });
        Self::new(first, bits).ok_or_else(wrong)
    }
}

/// A set of address ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRanges(pub Vec<AddressRange>);

impl AddressRanges {
    /// Checks whether an address is in one of the ranges.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }
}

/// Reason why a required announcement could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnouncementError {
    /// The connection ended.
    Closed,
    /// The first bytes are not an announcement.
    Invalid,
    /// It did not arrive in time.
    TimedOut,
}

/// Reads the announcement at the start of a connection. Returns the client that it names and the address that the
/// client connected to. If it names no client (a health check by the balancer itself), returns the peer.
///
/// # Errors
/// There is no valid announcement within `patience`.
pub async fn read_announcement(
    tcp: &mut TcpStream,
    peer: SocketAddr,
    patience: Duration,
) -> Result<AnnouncedClient, AnnouncementError> {
    let reading = async {
        let mut bytes = [0; ANNOUNCEMENT_MAX];
        loop {
            // Only peeked at first: bytes after the announcement must stay in the socket.
            let seen = tcp.peek(&mut bytes).await.map_err(|_| AnnouncementError::Closed)?;
            if seen == 0 {
                return Err(AnnouncementError::Closed);
            }
            match announcement(&bytes[..seen], peer) {
                ParsedAnnouncement::Complete(announced, length) => {
                    tcp.read_exact(&mut bytes[..length]).await.map_err(|_| AnnouncementError::Closed)?;
                    return Ok(announced);
                }
                ParsedAnnouncement::Incomplete if seen < ANNOUNCEMENT_MAX => {
                    tokio::time::sleep(PEEK_PAUSE).await;
                }
                ParsedAnnouncement::Incomplete | ParsedAnnouncement::Invalid => {
                    return Err(AnnouncementError::Invalid);
                }
            }
        }
    };
    tokio::time::timeout(patience, reading).await.unwrap_or(Err(AnnouncementError::TimedOut))
}

/// A client, and the address that it connected to.
pub type AnnouncedClient = (SocketAddr, Option<SocketAddr>);

/// Result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParsedAnnouncement {
    /// An announcement of this client, with its length in bytes.
    Complete(AnnouncedClient, usize),
    /// More bytes are needed.
    Incomplete,
    /// Not an announcement.
    Invalid,
}

fn announced(client: (IpAddr, u16), server: (IpAddr, u16)) -> AnnouncedClient {
    (client.into(), Some(server.into()))
}

fn announcement(bytes: &[u8], peer: SocketAddr) -> ParsedAnnouncement {
    // The parser rejects a line that is cut in the middle of a port.
    let begins = bytes.iter().zip(V1_PREFIX).all(|(byte, other)| byte == other);
    if begins {
        let line = &bytes[..bytes.len().min(V1_MAX)];
        match line.windows(2).position(|pair| pair == b"\r\n") {
            None if bytes.len() < V1_MAX => return ParsedAnnouncement::Incomplete,
            // The parser would end the line at a `\r` alone.
            None => return ParsedAnnouncement::Invalid,
            Some(end) if line[..end].contains(&b'\r') => return ParsedAnnouncement::Invalid,
            Some(_) => {}
        }
    }
    match HeaderResult::parse(bytes) {
        HeaderResult::V1(Ok(header)) => {
            let client = match header.addresses {
                v1::Addresses::Tcp4(v1::IPv4 {
                    source_address,
                    source_port,
                    destination_address,
                    destination_port,
                }) => announced(
                    (source_address.into(), source_port),
                    (destination_address.into(), destination_port),
                ),
                v1::Addresses::Tcp6(v1::IPv6 {
                    source_address,
                    source_port,
                    destination_address,
                    destination_port,
                }) => announced(
                    (source_address.into(), source_port),
                    (destination_address.into(), destination_port),
                ),
                v1::Addresses::Unknown => (peer, None),
            };
            ParsedAnnouncement::Complete(client, header.header.len())
        }
        HeaderResult::V2(Ok(header)) => {
            let client = match (header.command, header.addresses) {
                (v2::Command::Local, _) => (peer, None),
                (
                    _,
                    v2::Addresses::IPv4(v2::IPv4 {
                        source_address,
                        source_port,
                        destination_address,
                        destination_port,
                    }),
                ) => announced(
                    (source_address.into(), source_port),
                    (destination_address.into(), destination_port),
                ),
                (
                    _,
                    v2::Addresses::IPv6(v2::IPv6 {
                        source_address,
                        source_port,
                        destination_address,
                        destination_port,
                    }),
                ) => announced(
                    (source_address.into(), source_port),
                    (destination_address.into(), destination_port),
                ),
                _ => (peer, None),
            };
            ParsedAnnouncement::Complete(client, header.header.len())
        }
        partial if partial.is_incomplete() => ParsedAnnouncement::Incomplete,
        _ => ParsedAnnouncement::Invalid,
    }
}

/// Checks that an announcement is parsed up to its end whatever follows, and that no prefix of it is accepted.
pub fn fuzz_announcement(bytes: &[u8]) {
    let peer = SocketAddr::from(([192, 0, 2, 1], 1));
    let ParsedAnnouncement::Complete(announced, length) = announcement(bytes, peer) else { return };
    assert!(0 < length && length <= bytes.len());
    assert_eq!(announcement(&bytes[..length], peer), ParsedAnnouncement::Complete(announced, length));
    assert_eq!(announcement(&bytes[..length - 1], peer), ParsedAnnouncement::Incomplete);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 9);

    #[test]
    fn ranges_contain_the_right_addresses() {
        for (range, address, within) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.1.1", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::/0", "2001:db8::1", true),
        ] {
            let parsed: AddressRange = range.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), within, "{range} {address}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0", "::/129", "10.0.0.0/x", "a/8"] {
            assert!(wrong.parse::<AddressRange>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn announcements_are_parsed_exactly_to_their_end() {
        let text = b"PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\n";
        let client: SocketAddr = "192.0.2.7:4711".parse().unwrap();
        let server: Option<SocketAddr> = "203.0.113.1:80".parse().ok();
        let mut more = text.to_vec();
        more.extend_from_slice(b"GET / HTTP/1.1\r\n");
        assert_eq!(announcement(&more, PEER), ParsedAnnouncement::Complete((client, server), text.len()));
        for cut in 1..text.len() {
            assert_eq!(announcement(&text[..cut], PEER), ParsedAnnouncement::Incomplete, "{cut}");
        }
        assert_eq!(announcement(b"PROXY UNKNOWN\r\nx", PEER), ParsedAnnouncement::Complete((PEER, None), 15));
        let six = b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 80\r\n";
        assert_eq!(
            announcement(six, PEER),
            ParsedAnnouncement::Complete(
                ("[2001:db8::7]:4711".parse().unwrap(), "[2001:db8::1]:80".parse().ok()),
                six.len()
            )
        );
        // A line that does not end in time, with a `\r` alone in it.
        let endless = [&b"PROXY UNKNOWN \n 3\r"[..], &[b'x'; V1_MAX]].concat();
        assert_eq!(announcement(&endless[..V1_MAX - 1], PEER), ParsedAnnouncement::Incomplete);
        for invalid in [
            &endless[..V1_MAX],
            &endless,
            b"GET / HTTP/1.1\r\n\r\n",
            b"PROXY TCP4 x y 1 2\r\n",
            b"PROXY UNKNOWN a\rb\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00\x00\x00",
        ] {
            assert_eq!(announcement(invalid, PEER), ParsedAnnouncement::Invalid, "{invalid:?}");
        }
    }

    #[test]
    fn version_2_is_parsed() {
        let addresses = v2::IPv4::new([192, 0, 2, 7], [203, 0, 113, 1], 4711, 80);
        let made = |command: v2::Command| {
            v2::Builder::with_addresses(v2::Version::Two | command, v2::Protocol::Stream, addresses)
                .write_tlv(v2::Type::NoOp, &[0; 200])
                .unwrap()
                .build()
                .unwrap()
        };
        let (proxied, own) = (made(v2::Command::Proxy), made(v2::Command::Local));
        assert_eq!(
            announcement(&proxied, PEER),
            ParsedAnnouncement::Complete(
                ("192.0.2.7:4711".parse().unwrap(), "203.0.113.1:80".parse().ok()),
                proxied.len()
            )
        );
        assert_eq!(announcement(&own, PEER), ParsedAnnouncement::Complete((PEER, None), own.len()));
        for cut in 1..proxied.len() {
            assert_eq!(announcement(&proxied[..cut], PEER), ParsedAnnouncement::Incomplete, "{cut}");
        }
    }
}
