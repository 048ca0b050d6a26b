//! Completes partial TCP checksums.
//!
//! A packet that was sent by a host on the same machine, or that the kernel has merged from several (GRO), holds only
//! the sum of the pseudo header in its checksum field (`CHECKSUM_PARTIAL`, include/linux/skbuff.h). Its bytes were
//! verified before or never left memory. Only such a checksum is completed: a wrong checksum must stay wrong.

const ETHERNET_BYTES: usize = 14;
const TCP: u8 = 6;
/// Offset of the checksum in the TCP header.
const CHECKSUM_AT: usize = 16;
const TCP_BYTES_MIN: usize = 20;

/// Completes the partial checksum of an Ethernet frame with TCP over IPv4, or over IPv6 without extension headers. All
/// other frames stay as they are.
pub(super) fn complete(frame: &mut [u8]) {
    let Some((at, end, pseudo)) = segment(frame) else { return };
    let field = at + CHECKSUM_AT;
    let found = u16::from_be_bytes([frame[field], frame[field + 1]]);
    // The field contains the pseudo header's sum, so a correct checksum makes the total all ones.
    let whole = add(pseudo, &frame[at..end]);
    if whole == 0xffff || found != pseudo {
        return;
    }
    // Sum of the segment with the pseudo header's sum in the field.
    let checksum = match !add(0, &frame[at..end]) {
        0 => 0xffff,
        sum => sum,
    };
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns start and end of the TCP segment, and the sum of its pseudo header.
fn segment(frame: &[u8]) -> Option<(usize, usize, u16)> {
    let ip = frame.get(ETHERNET_BYTES..)?;
    let be16 = |at: usize| Some(usize::from(u16::from_be_bytes([*ip.get(at)?, *ip.get(at + 1)?])));
    let (header, total, addresses) = match ip.first()? >> 4 {
        4 if *ip.get(9)? == TCP => (usize::from(ip[0] & 15) * 4, be16(2)?, ip.get(12..20)?),
        6 if *ip.get(6)? == TCP => (40, 40 + be16(4)?, ip.get(8..40)?),
        _ => return None,
    };
    let bytes = total.checked_sub(header).filter(|&bytes| bytes >= TCP_BYTES_MIN)?;
    if ip.len() < total || header < 20 {
        return None;
    }
    let lengths = [0, TCP, u8::try_from(bytes >> 8).ok()?, u8::try_from(bytes & 0xff).ok()?];
    let pseudo = add(add(0, addresses), &lengths);
    Some((ETHERNET_BYTES + header, ETHERNET_BYTES + total, pseudo))
}

/// One's complement sum of 16-bit words (RFC 1071).
fn add(start: u16, bytes: &[u8]) -> u16 {
    let mut sum = u64::from(start);
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an IPv4 and an IPv6 frame with a segment of 20 + 5 bytes and 0 in the checksum field.
    fn frames() -> [Vec<u8>; 2] {
        let mut tcp = vec![0x9c, 0x40, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
        tcp.extend(b"hello");
        let mut v4 = vec![0; 12];
        v4.extend([8, 0, 0x45, 0, 0, 45, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 2, 10, 9, 0, 100]);
        v4.extend(&tcp);
        let mut v6 = vec![0; 12];
        v6.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 25, 6, 64]);
        v6.extend([0xfd; 16]);
        v6.extend([0xfe; 16]);
        v6.extend(&tcp);
        [v4, v6]
    }

    fn valid(frame: &[u8]) -> bool {
        let (at, end, pseudo) = segment(frame).expect("a segment");
        add(pseudo, &frame[at..end]) == 0xffff
    }

    #[test]
    fn incomplete_checksum_is_completed() {
        for mut frame in frames() {
            let (at, _, pseudo) = segment(&frame).expect("a segment");
            frame[at + CHECKSUM_AT..at + CHECKSUM_AT + 2].copy_from_slice(&pseudo.to_be_bytes());
            assert!(!valid(&frame));
            complete(&mut frame);
            assert!(valid(&frame));
            let before = frame.clone();
            complete(&mut frame);
            assert_eq!(frame, before, "a right one stays");
        }
    }

    #[test]
    fn wrong_checksum_stays_wrong() {
        for mut frame in frames() {
            let before = frame.clone();
            complete(&mut frame);
            assert_eq!(frame, before);
        }
    }

    #[test]
    fn truncated_packets_are_left_alone() {
        for frame in frames() {
            for length in 0..frame.len() {
                let mut cut = frame[..length].to_vec();
                complete(&mut cut);
                assert_eq!(cut, frame[..length]);
            }
        }
    }
}
