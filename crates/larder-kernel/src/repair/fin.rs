//! The packet that repeats the client's FIN on a restored connection.
//!
//! A socket can only be restored as established. A client that has closed its side does not send its FIN again once it
//! is acknowledged, so the checkpoint leaves the FIN out, and the new host's stack gets it as a packet. RFC 9293
//! section 3.1 (header), RFC 791, RFC 8200 section 8.1 (checksum).

use super::state::Checkpoint;
use std::net::IpAddr;

const TCP: u8 = 6;
const TCP_HEADER_BYTES: u16 = 20;
const HOP_LIMIT: u8 = 64;
const FIN_ACK: u8 = 0x11;

impl Checkpoint {
    /// Returns the client's FIN as an IP packet, to be injected into this host's stack after the restore. `None` if the
    /// client has not closed its side. It acknowledges nothing new and has no timestamp, which Linux accepts
    /// (`tcp_validate_incoming` checks only timestamps that are present).
    pub fn fin_packet(&self) -> Option<Vec<u8>> {
        self.fin_received.then(|| {
            let segment = self.fin_segment();
            match (self.remote.ip(), self.local.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, HOP_LIMIT, TCP, 0, 0];
                    ip[2..4].copy_from_slice(&(20 + TCP_HEADER_BYTES).to_be_bytes());
                    ip.extend(from.octets());
                    ip.extend(to.octets());
                    let sum = checksum(&[&ip]);
                    ip[10..12].copy_from_slice(&sum.to_be_bytes());
                    packet(ip, segment, &from.octets(), &to.octets())
                }
                (from, to) => {
                    let (from, to) = (crate::flow::mapped(from), crate::flow::mapped(to));
                    let mut ip = vec![0x60, 0, 0, 0, 0, 0, TCP, HOP_LIMIT];
                    ip[4..6].copy_from_slice(&TCP_HEADER_BYTES.to_be_bytes());
                    ip.extend(from);
                    ip.extend(to);
                    packet(ip, segment, &from, &to)
                }
            }
        })
    }

    fn fin_segment(&self) -> [u8; TCP_HEADER_BYTES as usize] {
        let window = u16::try_from(self.window.send >> self.scales.send).unwrap_or(u16::MAX);
        let mut segment = [0; TCP_HEADER_BYTES as usize];
        segment[..2].copy_from_slice(&self.remote.port().to_be_bytes());
        segment[2..4].copy_from_slice(&self.local.port().to_be_bytes());
        segment[4..8].copy_from_slice(&self.rcv_nxt.to_be_bytes());
        segment[8..12].copy_from_slice(&self.unacknowledged_seq().to_be_bytes());
        segment[12] = 5 << 4;
        segment[13] = FIN_ACK;
        segment[14..16].copy_from_slice(&window.to_be_bytes());
        segment
    }
}

fn packet(mut ip: Vec<u8>, mut segment: [u8; TCP_HEADER_BYTES as usize], from: &[u8], to: &[u8]) -> Vec<u8> {
    let length = TCP_HEADER_BYTES.to_be_bytes();
    let sum = checksum(&[from, to, &[0, TCP], &length, &segment]);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    ip.extend(segment);
    ip
}

/// Internet checksum (RFC 1071) of parts of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words.map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::checkpoints;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The receiver's sum over a packet with a correct checksum is 0.
        #[test]
        fn checksums_are_correct(mut checkpoint in checkpoints()) {
            checkpoint.fin_received = false;
            prop_assert_eq!(checkpoint.fin_packet(), None);
            checkpoint.fin_received = true;
            let packet = checkpoint.fin_packet().expect("a FIN");
            let (head, addresses) = if checkpoint.local.is_ipv4() { (20, 12..20) } else { (40, 8..40) };
            if checkpoint.local.is_ipv4() {
                prop_assert_eq!(checksum(&[&packet[..20]]), 0);
                prop_assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
            }
            prop_assert_eq!(checksum(&[&packet[addresses], &[0, TCP, 0, 20], &packet[head..]]), 0);
            prop_assert_eq!(&packet[head + 4..head + 8], &checkpoint.rcv_nxt.to_be_bytes());
        }
    }
}
