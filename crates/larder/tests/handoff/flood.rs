//! A flood of SYNs from unused addresses.

use larder_testkit::take_time;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use larder_kernel::frame::{TcpFrame, tcp_flag};
use larder_kernel::netns::{Host, INTERFACE, Wire};

use crate::plans::Random;

/// Maximum segment size 1460, SACK, window scale 7, as a current client offers (without timestamps).
const OPTIONS: [u8; 12] = [2, 4, 5, 0xb4, 1, 3, 3, 7, 4, 2, 1, 1];

/// Sends SYNs over `from`'s wire to `to` at this rate while `go` is set, and returns their number. `mac` is
/// the address of the next hop. The senders are in 198.18.0.0/15, the range for benchmarks (RFC 2544).
///
/// # Panics
/// If there is no raw socket.
pub fn send_syns(from: &Host, (to, mac): (SocketAddr, [u8; 6]), per_second: u32, go: &AtomicBool) -> u64 {
    let wire = Wire::open(&from.namespace).unwrap();
    let ifindex = from.namespace.ifindex(INTERFACE).unwrap();
    let mut random = Random(1);
    let started = Instant::now();
    let mut sent = 0;
    while go.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * f64::from(per_second)) as u64;
        if sent >= due {
            take_time(Duration::from_micros(200));
            continue;
        }
        let chance = random.next();
        let [_, b, c, d, high, low, ..] = chance.to_be_bytes();
        let source = IpAddr::V4(Ipv4Addr::new(198, 18 | (b & 1), c, d));
        let source = SocketAddr::new(source, u16::from_be_bytes([high | 4, low]));
        let frame = TcpFrame {
            macs: [from.mac, mac],
            seq: random.next() as u32,
            window: 64_240,
            options: &OPTIONS,
            ..TcpFrame::new(source, to, tcp_flag::SYN)
        };
        // A SYN that the interface's queue drops does not count.
        if wire.send(ifindex, &frame.bytes().unwrap()).is_ok() {
            sent += 1;
        }
    }
    sent
}
