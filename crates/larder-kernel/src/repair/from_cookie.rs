//! State of a connection that never had a socket: the forwarding plane answered its handshake with a cookie and holds
//! the client's packets. The cookie and these packets contain everything that a socket would know.

use super::state::{Checkpoint, Window, WindowScales};
use crate::cookie::{Cookie, OWN_WSCALE};
use crate::frame::TcpFrame;
use std::net::SocketAddr;

/// Receive window in a SYN-ACK with a cookie, which is never scaled (RFC 7323 section 2.2). Bytes.
const ADVERTISED_WINDOW: u32 = 65_535;
/// Mask of a timestamp without its lowest bit, which marks a clock of microseconds. Cookies count milliseconds.
const MILLISECONDS: u32 = !1;
/// Mask of a timestamp's bits below the node's tag.
const COUNTING: u32 = 0x00ff_ffff;

const END: u8 = 0;
const NOP: u8 = 1;
const TIMESTAMP: u8 = 8;

/// Returns the echo of the timestamp option (RFC 7323 section 3.2): this side's clock as the client has seen it.
fn echo(mut options: &[u8]) -> Option<u32> {
    loop {
        options = match options {
            [TIMESTAMP, 10, rest @ ..] => return rest.get(4..8)?.try_into().ok().map(u32::from_be_bytes),
            [END, ..] | [] => return None,
            [NOP, rest @ ..] => rest,
            [_, length, ..] => options.get(usize::from(*length).max(2)..)?,
            [_] => return None,
        }
    }
}

impl Checkpoint {
    /// Returns the state of a connection. `frame` is the first packet after the handshake (Ethernet, as punted by the
    /// forwarding plane, with a valid cookie), and `received` the client's bytes so far. `tag` goes into the top byte
    /// of this side's timestamps; 0 for none. Returns `None` if the frame is not such a packet.
    pub fn from_cookie(
        frame: &[u8],
        (local, remote): (SocketAddr, SocketAddr),
        received: Vec<u8>,
        tag: u8,
    ) -> Option<Self> {
        let TcpFrame { seq: first_seq, ack: write_seq, window, options: tcp_options, .. } =
            TcpFrame::parse(frame)?;
        let options = Cookie(write_seq.wrapping_sub(1)).options(local.ip().to_canonical().is_ipv4());
        let scales =
            options.wscale.map_or(WindowScales::default(), |send| WindowScales { send, receive: OWN_WSCALE });
        let send = u32::from(window) << scales.send;
        let clock = if options.timestamps { Some(echo(tcp_options)?) } else { None };
        let tagged = |clock: u32| if tag == 0 { clock } else { clock & COUNTING | u32::from(tag) << 24 };
        let checkpoint = Self {
            local,
            remote,
            write_seq,
            rcv_nxt: first_seq.wrapping_add(u32::try_from(received.len()).ok()?),
            mss: options.mss,
            sack: options.sack,
            scales,
            timestamp: clock.map(|clock| tagged(clock) & MILLISECONDS),
            window: Window {
                send_set_at: first_seq,
                send,
                send_max: send,
                receive: ADVERTISED_WINDOW,
                receive_from: first_seq,
                extension: Vec::new(),
            },
            received,
            send_queue: Vec::new(),
            unsent: 0,
            fin_received: false,
        };
        checkpoint.check().ok().map(|()| checkpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cookie::{CookieKey, SynAckCookie, SynOptions};
    use crate::frame::tcp_flag;
    use proptest::prelude::*;

    const KEY: CookieKey = CookieKey([1, 2]);

    fn frame(seq: u32, ack: u32, window: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let (server, client) = addresses();
        let empty = TcpFrame::new(client, server, tcp_flag::PSH | tcp_flag::ACK);
        TcpFrame { seq, ack, window, options, payload, ..empty }.bytes().expect("a frame")
    }

    fn addresses() -> (SocketAddr, SocketAddr) {
        (([10, 9, 0, 100], 80).into(), ([192, 0, 2, 1], 1).into())
    }

    proptest! {
        #[test]
        fn negotiated_options_are_in_the_state(
            (isn, window, tag, clock) in any::<(u32, u16, u8, u32)>(),
            (mss, sack, timestamps) in any::<(u16, bool, bool)>(),
            wscale in prop::option::of(0..=14_u8),
            payload in prop::collection::vec(any::<u8>(), 1..99),
            nops in 0..3_usize,
        ) {
            let (server, client) = addresses();
            let offered = SynOptions { mss: mss.max(536), sack, timestamps, wscale };
            let cookie = SynAckCookie::make(KEY, (client, server), isn, offered, 0).cookie;
            let mut options = vec![NOP; nops * 4 + 2];
            options.extend([TIMESTAMP, 10, 9, 9, 9, 9]);
            options.extend(clock.to_be_bytes());
            let options = if timestamps { &options[..] } else { &[] };
            let first = frame(isn.wrapping_add(1), cookie.0.wrapping_add(1), window, options, &payload);
            let state = Checkpoint::from_cookie(&first, addresses(), payload.clone(), tag % 128).expect("a state");
            prop_assert_eq!(state.check(), Ok(()));
            prop_assert_eq!(state.write_seq, cookie.0.wrapping_add(1));
            prop_assert_eq!(state.rcv_nxt, isn.wrapping_add(1).wrapping_add(payload.len() as u32));
            prop_assert!(state.mss <= offered.mss && state.sack == sack);
            prop_assert_eq!(state.scales.receive, wscale.map_or(0, |_| OWN_WSCALE));
            prop_assert_eq!(state.window.send, u32::from(window) << wscale.unwrap_or(0));
            prop_assert_eq!(state.timestamp.is_some(), timestamps);
            if let Some(timestamp) = state.timestamp {
                let expected = if tag % 128 == 0 { clock } else { clock & COUNTING | u32::from(tag % 128) << 24 };
                prop_assert_eq!(timestamp, expected & !1);
            }
            prop_assert_eq!(Checkpoint::decode(&state.encode().expect("a frame")), Ok(state));
        }

        #[test]
        fn arbitrary_frames_never_panic(frame in prop::collection::vec(any::<u8>(), 0..120), tag in any::<u8>()) {
            let _ = Checkpoint::from_cookie(&frame, addresses(), vec![1], tag);
        }
    }

    #[test]
    fn missing_timestamps_are_refused() {
        let offered = SynOptions { mss: 1460, sack: true, timestamps: true, wscale: Some(7) };
        let (server, client) = addresses();
        let cookie = SynAckCookie::make(KEY, (client, server), 7, offered, 0).cookie;
        let first = frame(8, cookie.0.wrapping_add(1), 500, &[], b"GET");
        assert_eq!(Checkpoint::from_cookie(&first, addresses(), b"GET".to_vec(), 1), None);
    }
}
