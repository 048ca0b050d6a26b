//! Closed connections are reported, and open ones are listed.

use crate::frame::{ACK, FIN, RST, Segment};
use crate::lab::{eventually, vip};
use crate::support::{COOKIE, SERVICE, closed, count, exchange, expect_bytes, listen, start_lab};
use larder_kernel::FlowKey;
use larder_testkit::holds_for;
use socket2::Socket;
use std::io::Read as _;
use std::io::Write;
use std::time::Duration;

#[test]
fn closed_connections_are_reported_once_and_open_ones_listed() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let mut ended = Vec::new();
    let live = || {
        let mut live = Vec::new();
        guard.each_connection(|conn| live.push((conn.key, conn.first_seq))).expect("read");
        live
    };
    for who_first in ["client", "server", "server, long before", "reset"] {
        let (mut client, server) = exchange(&lab, &listener, false);
        let from = client.local_addr().expect("an address");
        let key = FlowKey::new(from, SERVICE);
        let first_seq = lab.first_segment_from(from).map(|segment| segment.seq);
        assert_eq!(live(), [(key, first_seq)], "{who_first}");
        closed(&guard, &mut ended);
        assert!(ended.is_empty(), "{who_first}");
        match who_first {
            "client" => {
                drop(client);
                eventually("half an end", || {
                    lab.settings().to_node.iter().any(|s| s.from == from && s.flags & FIN != 0).then_some(())
                });
                closed(&guard, &mut ended);
                assert!(ended.is_empty(), "half closed");
                drop(server);
            }
            "server" => {
                drop(server);
                drop(client);
            }
            "server, long before" => {
                drop(server);
                assert_eq!(client.read(&mut [0; 1]).expect("its end"), 0);
                let fin = lab.expect_from_node("a FIN", |s| s.to == from && s.flags & FIN != 0);
                let heard = |s: &Segment| s.from == from && s.ack == fin.seq.wrapping_add(1);
                eventually("an ACK", || lab.settings().to_node.iter().any(heard).then_some(()));
                // By then the kernel has replaced the socket by the form that it also keeps for TIME_WAIT.
                holds_for(Duration::from_millis(20), "a half-closed connection has not ended", || {
                    closed(&guard, &mut ended);
                    ended.is_empty()
                });
                drop(client);
            }
            _ => {
                Socket::from(client).set_linger(Some(Duration::ZERO)).expect("set");
                drop(server);
            }
        }
        eventually(who_first, || {
            closed(&guard, &mut ended);
            (!ended.is_empty()).then_some(())
        });
        assert_eq!(ended, [(key, first_seq)], "{who_first}");
        assert_eq!(live(), []);
        ended.clear();
    }
    holds_for(Duration::from_millis(50), "no further connection ends", || {
        closed(&guard, &mut ended);
        ended.is_empty()
    });
}

/// A RST or FIN with numbers far from the connection's ends nothing.
#[test]
fn forged_reset_does_not_close() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let listener = listen(&lab, vip(false));
    let (mut client, mut server) = exchange(&lab, &listener, false);
    let last = lab.settings().to_node.last().cloned().expect("sent");
    for flags in [RST, FIN | ACK] {
        let seq = last.seq.wrapping_add(0x5000_0000);
        lab.inject(&Segment { seq, flags, options: Vec::new(), payload: Vec::new(), ..last.clone() });
    }
    client.write_all(b"still here").expect("sent");
    expect_bytes(&mut server, b"still here");
    let mut live = 0;
    guard.each_connection(|_| live += 1).expect("read");
    assert_eq!((live, count(&guard, "closed")), (1, 0));
}

/// The server has closed and the client has not: the kernel would accept any RST in the window then.
#[test]
fn inexact_reset_does_not_close_a_half_closed_connection() {
    let Some((lab, guard)) = start_lab(COOKIE) else { return };
    let mut ended = Vec::new();
    for v6 in [false, true] {
        let listener = listen(&lab, vip(v6));
        let (mut client, server) = exchange(&lab, &listener, v6);
        let from = client.local_addr().expect("an address");
        let first_seq = lab.first_segment_from(from).map(|segment| segment.seq);
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).expect("its end"), 0);
        let fin = lab.expect_from_node("a FIN", |s| s.to == from && s.flags & FIN != 0);
        let heard = |s: &Segment| s.from == from && s.ack == fin.seq.wrapping_add(1);
        let ack = eventually("an ACK", || lab.settings().to_node.iter().find(|s| heard(s)).cloned());
        let seq = ack.seq.wrapping_add(1000);
        lab.inject(&Segment { seq, flags: RST, options: Vec::new(), payload: Vec::new(), ..ack.clone() });
        drop(client);
        lab.expect_from_node("its FIN's acknowledgement", |s| {
            s.to == from && s.ack == ack.seq.wrapping_add(1)
        });
        eventually("an end", || {
            closed(&guard, &mut ended);
            (!ended.is_empty()).then_some(())
        });
        assert_eq!(ended, [(FlowKey::new(from, SERVICE), first_seq)]);
        ended.clear();
    }
    assert_eq!(count(&guard, "inexact_end"), 2);
}
