//! Ports for servers that a test starts as processes and that cannot bind port 0.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// First port, above the ports of common services.
const FIRST: u32 = 10_240;
/// Number of ports. All are below 32,768, where Linux starts to assign ports for outgoing connections and for port 0. So no
/// other process takes a port by chance between the test's check and the server's start.
const COUNT: u32 = 32_768 - FIRST;

/// Returns a port that is free on 127.0.0.1 for TCP and UDP. Each call in a process returns another port until all have been
/// used; processes start at different ports.
///
/// # Panics
/// If no port is free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Consecutive process ids are 61 ports apart, so that concurrent test processes use different ports.
    let start = std::process::id().wrapping_mul(61);
    for _ in 0..COUNT {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + number).unwrap_or(u16::MAX);
        let at = (Ipv4Addr::LOCALHOST, port);
        if TcpListener::bind(at).is_ok() && UdpSocket::bind(at).is_ok() {
            return port;
        }
    }
    panic_without_port()
}

#[expect(clippy::panic, reason = "a test cannot run without a port")]
fn panic_without_port() -> ! {
    panic!("no port of 127.0.0.1 from {FIRST} to 32767 is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_different() {
        let ports: Vec<u16> = (0..100).map(|_| free_port()).collect();
        let mut sorted = ports.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), ports.len());
        assert!(ports.iter().all(|port| (10_240..32_768).contains(port)));
    }
}
