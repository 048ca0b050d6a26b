//! Lists the connections of this host's stack (`/proc/net/tcp` and `tcp6`; see proc_net_tcp in the kernel's
//! documentation).
//!
//! The table of the kernel programs holds less: when it is full it evicts the connection without a packet for longest,
//! and it does not include connections that are older than the programs.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// States of include/net/tcp_states.h: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING.
const LIVE: [u8; 6] = [1, 4, 5, 8, 9, 11];

/// Passes the local address and the client of every live connection in the calling thread's network namespace to
/// `visit`.
///
/// # Errors
///
/// If the list cannot be read to its end.
pub fn each(visit: &mut dyn FnMut(SocketAddr, SocketAddr)) -> io::Result<()> {
    for file in ["tcp", "tcp6"] {
        let lines = match File::open(format!("/proc/thread-self/net/{file}")) {
            Ok(file) => BufReader::new(file).lines(),
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in lines {
            if let Some((local, client)) = live(&line?) {
                visit(local, client);
            }
        }
    }
    Ok(())
}

/// Parses `sl local_address rem_address st ...`. Returns `None` for the heading and for connections that are not live.
fn live(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, client) = (address(words.next()?)?, address(words.next()?)?);
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    LIVE.contains(&state).then_some((local, client))
}

/// Parses an address: 32-bit words in this machine's byte order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connection_is_listed_while_open() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else { continue };
            let at = listener.local_addr().expect("bound");
            let client = TcpStream::connect(at).expect("connected");
            let from = client.local_addr().expect("bound");
            let is_listed = || {
                let mut found = false;
                each(&mut |local, remote| found |= (local, remote) == (at, from)).expect("read");
                found
            };
            let (server, _) = listener.accept().expect("accepted");
            assert!(is_listed(), "{any}");
            drop(server);
            drop(client);
            assert!(!is_listed(), "{any}");
        }
    }

    #[test]
    fn other_sockets_are_skipped() {
        for line in [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode",
            "   0: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1",
            "   0: 0100007F:0050 0100007F:9000 06 00000000:00000000 03:00000000 00000000     0        0 0",
            "   0: 0100007F 0100007F:9000 01",
            "   0: 0100007é:0050 0100007F:9000 01",
            "   0: 0100007F:0050",
            "",
        ] {
            assert_eq!(live(line), None, "{line}");
        }
    }

    #[test]
    fn addresses_are_in_host_byte_order() {
        let word = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let v4 = format!("{}:0050", word([10, 9, 0, 100]));
        assert_eq!(address(&v4), Some(([10, 9, 0, 100], 80).into()));
        let mapped = [[0; 4], [0; 4], [0, 0, 0xff, 0xff], [10, 9, 0, 1]].map(word).concat() + ":ea60";
        assert_eq!(address(&mapped), Some(([10, 9, 0, 1], 60_000).into()));
        let v6 = [[0xfd, 9, 0, 0], [0; 4], [0; 4], [0, 0, 0, 0x64]].map(word).concat() + ":0050";
        assert_eq!(address(&v6), "[fd09::64]:80".parse().ok());
    }
}
