//! Races of moved sockets that the guard fixes: with its rules and without.

use crate::lab::{INTERFACE, Lab, eventually, vip};
use crate::support::{COOKIE, SERVICE, cookies_or_skip, count, exchange, listen, start_lab};
use crate::wire::set_repair;
use larder_kernel::FlowKey;
use larder_kernel::guard::{Guard, GuardEvent};
use larder_kernel::inject::Tap;
use larder_kernel::repair::{RaceFixes, RestoreOptions, TcpInfo, checkpoint, close_silently, restore};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;

fn ready() -> Option<(Lab, Guard)> {
    if !cookies_or_skip() {
        return None;
    }
    start_lab(COOKIE)
}

fn kept(guard: &Guard, into: &mut Vec<Vec<u8>>) {
    guard.read_events(|event| {
        if let GuardEvent::Stash { packet, .. } = event {
            into.push(packet.to_vec());
        }
    });
}

/// Returns what the server reads after a move from a client that has written "late" after the state was read. `held`
/// says whether the guard of the old host held it.
fn written_late(held: bool) -> Option<Result<Vec<u8>, ErrorKind>> {
    let (lab, guard) = ready()?;
    let tap = lab.node.run(|| Tap::open(INTERFACE)).expect("entered").expect("a device");
    let listener = listen(&lab, vip(false));
    let (mut client, server) = exchange(&lab, &listener, false);
    let key = FlowKey::new(client.local_addr().expect("an address"), SERVICE);
    if held {
        guard.freeze(key).expect("frozen");
    } else {
        guard.remove_service(vip(false)).expect("removed");
    }
    let state = checkpoint(server.as_fd(), &RaceFixes::default()).expect("an open connection");
    client.write_all(b"late").expect("sent");
    let mut packets = Vec::new();
    if held {
        eventually("a packet that is kept", || {
            kept(&guard, &mut packets);
            (!packets.is_empty()).then_some(())
        });
        assert_eq!(count(&guard, "egress_dropped"), 0, "nothing to acknowledge");
    } else {
        larder_testkit::take_time(Duration::from_millis(100));
    }
    close_silently(OwnedFd::from(server)).expect("closed");
    guard.thaw(key).expect("thawed");
    let restored = lab.node.run(|| restore(&state, &RestoreOptions::default())).expect("entered");
    let mut server = TcpStream::from(restored.expect("restored").socket);
    guard.set_service(SERVICE, vip(false), COOKIE).expect("set");
    for packet in &packets {
        tap.write_frame(packet).expect("written");
    }
    server.set_nonblocking(false).expect("set");
    server.set_read_timeout(Some(Duration::from_millis(1_500))).expect("set");
    let mut got = [0; 4];
    Some(server.read_exact(&mut got).map(|()| got.to_vec()).map_err(|error| error.kind()))
}

/// R4: the old socket must not acknowledge data that is not in the state.
#[test]
fn owner_is_held_before_the_state_is_read() {
    let Some(held) = written_late(true) else { return };
    assert_eq!(held, Ok(b"late".to_vec()));
    assert_eq!(written_late(false), Some(Err(ErrorKind::WouldBlock)), "read without the mend");
}

/// Returns the state of a socket in repair mode whose client has closed meanwhile. `start_lab` says whether its packets
/// are held.
fn state_after_fin_during_restore(start_lab: bool) -> Option<u8> {
    let (lab, guard) = ready()?;
    let listener = listen(&lab, vip(false));
    let (client, server) = exchange(&lab, &listener, false);
    if !start_lab {
        guard.remove_service(vip(false)).expect("removed");
    }
    set_repair(&server, 1).expect("into repair");
    client.shutdown(Shutdown::Write).expect("ended");
    let state = || TcpInfo::read(server.as_fd()).expect("a connection").state;
    if start_lab {
        let mut packets = Vec::new();
        eventually("a packet that is kept", || {
            kept(&guard, &mut packets);
            (!packets.is_empty()).then_some(())
        });
    } else {
        eventually("the end of the client's side", || (state() != ESTABLISHED).then_some(()));
    }
    Some(state())
}

/// R6: a packet reaches a socket that is being restored. If the client closes it, it accepts no more options, and is
/// lost.
#[test]
fn incomplete_socket_gets_no_packets() {
    let Some(with) = state_after_fin_during_restore(true) else { return };
    assert_eq!((with, state_after_fin_during_restore(false)), (ESTABLISHED, Some(CLOSE_WAIT)));
}
