//! The PROXY protocol, versions 1 and 2: a balancer before us announces whom a connection is from.
//!
//! After haproxy's doc/proxy-protocol.txt, by the `ppp` crate. Only addresses that the config names are believed, and they have
//! to announce every connection: who may say whose request it is must not be left to whoever connects.

use ppp::{HeaderResult, PartialResult, v1, v2};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Longest announcement taken: version 2 with additions (TLVs). Bytes.
const ANNOUNCEMENT_MAX: usize = 4096;
/// How a line of version 1 begins, and its longest, with its end. Bytes.
const V1_BEGINS: &[u8] = b"PROXY ";
const V1_MAX: usize = 107;
/// Between two looks at a connection whose announcement is not complete.
const PEEK_PAUSE: Duration = Duration::from_millis(1);

/// A range of addresses, as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    bits: u8,
}

impl AddressRange {
    /// The addresses whose first `bits` bits are those of `first`. `None` if there are not so many.
    pub fn new(first: IpAddr, bits: u8) -> Option<Self> {
        let most = if first.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { first: first.to_canonical(), bits })
    }

    /// Whether the address is one of them. Addresses of IPv4 in IPv6 are those of IPv4.
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

/// Addresses that are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcers(pub Vec<AddressRange>);

impl Announcers {
    /// Whether this address is believed.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.0.iter().any(|range| range.contains(address))
    }
}

/// Why a connection that has to be announced is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unannounced {
    /// Whoever connected is gone.
    Gone,
    /// It begins with something else.
    Nonsense,
    /// It took too long.
    TimedOut,
}

/// Takes the announcement from the head of a connection. Returns the client that it names, and where that connected; or the one
/// that connected, where it names none (a check by the balancer itself).
///
/// # Errors
/// There is none, within `patience`.
pub async fn read_announcement(
    tcp: &mut TcpStream,
    peer: SocketAddr,
    patience: Duration,
) -> Result<Named, Unannounced> {
    let reading = async {
        let mut bytes = [0; ANNOUNCEMENT_MAX];
        loop {
            // Looked at first: what follows the announcement is not ours.
            let seen = tcp.peek(&mut bytes).await.map_err(|_| Unannounced::Gone)?;
            if seen == 0 {
                return Err(Unannounced::Gone);
            }
            match announcement(&bytes[..seen], peer) {
                Announced::Whole(named, length) => {
                    tcp.read_exact(&mut bytes[..length]).await.map_err(|_| Unannounced::Gone)?;
                    return Ok(named);
                }
                Announced::Part if seen < ANNOUNCEMENT_MAX => tokio::time::sleep(PEEK_PAUSE).await,
                Announced::Part | Announced::Nonsense => return Err(Unannounced::Nonsense),
            }
        }
    };
    tokio::time::timeout(patience, reading).await.unwrap_or(Err(Unannounced::TimedOut))
}

/// A client, and where it connected.
pub type Named = (SocketAddr, Option<SocketAddr>);

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announced {
    /// An announcement of this client, of so many bytes.
    Whole(Named, usize),
    /// More is needed to tell.
    Part,
    /// None.
    Nonsense,
}

fn named(client: (IpAddr, u16), server: (IpAddr, u16)) -> Named {
    (client.into(), Some(server.into()))
}

fn announcement(bytes: &[u8], peer: SocketAddr) -> Announced {
    // A line cut in the middle of a port is a wrong line to the parser.
    let begins = bytes.iter().zip(V1_BEGINS).all(|(byte, other)| byte == other);
    if begins {
        match bytes.windows(2).position(|pair| pair == b"\r\n") {
            None if bytes.len() < V1_MAX => return Announced::Part,
            // The parser would end the line there.
            Some(end) if bytes[..end].contains(&b'\r') => return Announced::Nonsense,
            _ => {}
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
                }) => named(
                    (source_address.into(), source_port),
                    (destination_address.into(), destination_port),
                ),
                v1::Addresses::Tcp6(v1::IPv6 {
                    source_address,
                    source_port,
                    destination_address,
                    destination_port,
                }) => named(
                    (source_address.into(), source_port),
                    (destination_address.into(), destination_port),
                ),
                v1::Addresses::Unknown => (peer, None),
            };
            Announced::Whole(client, header.header.len())
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
                ) => named(
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
                ) => named(
                    (source_address.into(), source_port),
                    (destination_address.into(), destination_port),
                ),
                _ => (peer, None),
            };
            Announced::Whole(client, header.header.len())
        }
        partial if partial.is_incomplete() => Announced::Part,
        _ => Announced::Nonsense,
    }
}

/// An announcement is read to its end, however much follows, and no shorter piece of it is taken for one.
pub fn fuzz_announcement(bytes: &[u8]) {
    let peer = SocketAddr::from(([192, 0, 2, 1], 1));
    let Announced::Whole(named, length) = announcement(bytes, peer) else { return };
    assert!(0 < length && length <= bytes.len());
    assert_eq!(announcement(&bytes[..length], peer), Announced::Whole(named, length));
    assert_eq!(announcement(&bytes[..length - 1], peer), Announced::Part);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 9);

    #[test]
    fn ranges_hold_what_they_say() {
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
    fn announcements_are_read_to_their_end_and_no_further() {
        let text = b"PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\n";
        let client: SocketAddr = "192.0.2.7:4711".parse().unwrap();
        let server: Option<SocketAddr> = "203.0.113.1:80".parse().ok();
        let mut more = text.to_vec();
        more.extend_from_slice(b"GET / HTTP/1.1\r\n");
        assert_eq!(announcement(&more, PEER), Announced::Whole((client, server), text.len()));
        for cut in 1..text.len() {
            assert_eq!(announcement(&text[..cut], PEER), Announced::Part, "{cut}");
        }
        assert_eq!(announcement(b"PROXY UNKNOWN\r\nx", PEER), Announced::Whole((PEER, None), 15));
        let six = b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 80\r\n";
        assert_eq!(
            announcement(six, PEER),
            Announced::Whole(
                ("[2001:db8::7]:4711".parse().unwrap(), "[2001:db8::1]:80".parse().ok()),
                six.len()
            )
        );
        for nonsense in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"PROXY TCP4 x y 1 2\r\n",
            b"PROXY UNKNOWN a\rb\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\x00\x00\x00",
        ] {
            assert_eq!(announcement(nonsense, PEER), Announced::Nonsense, "{nonsense:?}");
        }
    }

    #[test]
    fn the_second_version_is_read_too() {
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
            Announced::Whole(
                ("192.0.2.7:4711".parse().unwrap(), "203.0.113.1:80".parse().ok()),
                proxied.len()
            )
        );
        assert_eq!(announcement(&own, PEER), Announced::Whole((PEER, None), own.len()));
        for cut in 1..proxied.len() {
            assert_eq!(announcement(&proxied[..cut], PEER), Announced::Part, "{cut}");
        }
    }
}
