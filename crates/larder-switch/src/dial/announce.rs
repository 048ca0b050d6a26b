//! PROXY protocol header, versions 1 and 2, that announces the client at the start of a connection to a node.
//!
//! Follows haproxy's doc/proxy-protocol.txt (sections 2.1, 2.2 and 2.2.6). An announced connection serves one client
//! only. Connections of the switch itself (health checks, load reports) are announced as `UNKNOWN` (version 1) or by
//! the command `LOCAL` (version 2).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Signature of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const V2_LOCAL: u8 = 0x20;
const V2_PROXY: u8 = 0x21;
/// Family and transport: TCP over IPv4, over IPv6, and neither.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNSPEC: u8 = 0x00;
/// Types of type-length-values: TLS, and the TLS version within it.
const PP2_TYPE_SSL: u8 = 0x20;
const PP2_SUBTYPE_SSL_VERSION: u8 = 0x21;
/// Flags: the client uses TLS; it has sent a certificate on this connection.
const PP2_CLIENT_SSL: u8 = 0x01;
const PP2_CLIENT_CERT_CONN: u8 = 0x02;

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyVersion {
    /// One line of text.
    V1,
    /// Binary, with facts about the client's TLS.
    V2,
}

/// Client that a connection announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) client: SocketAddr,
    /// Address that the client connected to.
    pub(crate) server: SocketAddr,
    pub(crate) tls: Option<TlsFacts>,
}

/// Facts about a client's TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsFacts {
    /// Version, for example `TLSv1.3`.
    pub(crate) version: &'static str,
    /// Whether the client has sent a valid certificate.
    pub(crate) certificate: bool,
}

impl ProxyVersion {
    /// Returns the header of a connection of the switch itself.
    pub fn own_announcement(self) -> Vec<u8> {
        self.announcement(None)
    }

    /// Returns the header for a client, or for the switch itself if `of` is `None`.
    pub(crate) fn announcement(self, of: Option<&Announcement>) -> Vec<u8> {
        match (self, of) {
            (Self::V1, None) => b"PROXY UNKNOWN\r\n".to_vec(),
            (Self::V1, Some(of)) => line(of),
            (Self::V2, None) => [&SIGNATURE[..], &[V2_LOCAL, UNSPEC, 0, 0]].concat(),
            (Self::V2, Some(of)) => binary(of),
        }
    }
}

/// Returns both addresses in one family. IPv4-mapped addresses become IPv4; beside an IPv6 address, IPv4 becomes
/// IPv4-mapped.
fn in_one_family(of: &Announcement) -> (IpAddr, IpAddr) {
    let mapped = |address: IpAddr| -> Ipv6Addr {
        match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        }
    };
    match (of.client.ip().to_canonical(), of.server.ip().to_canonical()) {
        (client, server) if client.is_ipv4() == server.is_ipv4() => (client, server),
        (client, server) => (mapped(client).into(), mapped(server).into()),
    }
}

fn line(of: &Announcement) -> Vec<u8> {
    let (client, server) = in_one_family(of);
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    format!("PROXY {family} {client} {server} {} {}\r\n", of.client.port(), of.server.port()).into_bytes()
}

fn binary(of: &Announcement) -> Vec<u8> {
    let (client, server) = in_one_family(of);
    let mut rest = Vec::with_capacity(64);
    for address in [client, server] {
        match address {
            IpAddr::V4(v4) => rest.extend(v4.octets()),
            IpAddr::V6(v6) => rest.extend(v6.octets()),
        }
    }
    rest.extend(of.client.port().to_be_bytes());
    rest.extend(of.server.port().to_be_bytes());
    if let Some(tls) = &of.tls {
        let (shown, unverified) = if tls.certificate {
            (PP2_CLIENT_SSL | PP2_CLIENT_CERT_CONN, 0_u32)
        } else {
            (PP2_CLIENT_SSL, 1)
        };
        let mut value = vec![shown];
        value.extend(unverified.to_be_bytes());
        put(&mut value, PP2_SUBTYPE_SSL_VERSION, tls.version.as_bytes());
        put(&mut rest, PP2_TYPE_SSL, &value);
    }
    let family = if client.is_ipv4() { TCP4 } else { TCP6 };
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([V2_PROXY, family]);
    bytes.extend((rest.len() as u16).to_be_bytes());
    bytes.extend(rest);
    bytes
}

/// Appends a type-length-value. Values are a few bytes long.
fn put(to: &mut Vec<u8>, kind: u8, value: &[u8]) {
    to.push(kind);
    to.extend((value.len() as u16).to_be_bytes());
    to.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ppp::{HeaderResult, v1, v2};

    fn announced(client: &str, server: &str, tls: Option<TlsFacts>) -> Announcement {
        Announcement { client: client.parse().unwrap(), server: server.parse().unwrap(), tls }
    }

    #[test]
    fn version_1_is_one_line_of_text() {
        for (client, server, line) in [
            ("192.0.2.7:4711", "203.0.113.1:80", "PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\n"),
            ("[::ffff:192.0.2.7]:4711", "203.0.113.1:80", "PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\n"),
            ("[2001:db8::7]:1", "[2001:db8::1]:2", "PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n"),
            ("192.0.2.7:1", "[2001:db8::1]:2", "PROXY TCP6 ::ffff:192.0.2.7 2001:db8::1 1 2\r\n"),
        ] {
            let bytes = ProxyVersion::V1.announcement(Some(&announced(client, server, None)));
            assert_eq!(bytes, line.as_bytes());
            let HeaderResult::V1(Ok(read)) = HeaderResult::parse(&bytes) else { panic!("{client}") };
            assert_ne!(read.addresses, v1::Addresses::Unknown);
        }
        assert_eq!(ProxyVersion::V1.announcement(None), b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn version_2_parses_in_another_library() {
        let bytes = ProxyVersion::V2.announcement(Some(&announced("192.0.2.7:4711", "203.0.113.1:80", None)));
        let HeaderResult::V2(Ok(read)) = HeaderResult::parse(&bytes) else { panic!("no announcement") };
        let expected = v2::IPv4::new([192, 0, 2, 7], [203, 0, 113, 1], 4711, 80);
        assert_eq!((read.command, read.addresses), (v2::Command::Proxy, v2::Addresses::IPv4(expected)));
        assert_eq!((read.len(), read.tlvs().count()), (bytes.len(), 0));

        let own = ProxyVersion::V2.announcement(None);
        let HeaderResult::V2(Ok(read)) = HeaderResult::parse(&own) else { panic!("no announcement") };
        assert_eq!((read.command, read.addresses), (v2::Command::Local, v2::Addresses::Unspecified));
    }

    #[test]
    fn version_2_carries_tls_facts() {
        for (certificate, flags, verify) in [(false, 1, [0, 0, 0, 1]), (true, 3, [0; 4])] {
            let tls = Some(TlsFacts { version: "TLSv1.3", certificate });
            let of = announced("[2001:db8::7]:1", "[2001:db8::1]:2", tls);
            let bytes = ProxyVersion::V2.announcement(Some(&of));
            let HeaderResult::V2(Ok(read)) = HeaderResult::parse(&bytes) else { panic!("no announcement") };
            let tlvs: Vec<_> = read.tlvs().map(|tlv| tlv.unwrap()).collect();
            assert_eq!((tlvs.len(), tlvs[0].kind), (1, PP2_TYPE_SSL));
            let mut expected = vec![flags];
            expected.extend(verify);
            expected.extend([PP2_SUBTYPE_SSL_VERSION, 0, 7]);
            expected.extend(b"TLSv1.3");
            assert_eq!(&*tlvs[0].value, expected);
        }
    }
}
