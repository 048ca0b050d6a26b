//! Tests of the client itself, with servers on loopback that have one fault each.

use larder_testkit::{PATIENCE, free_port};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::client::{self, Behaviour, ClientSettings, Fault, Plan, Tally};
use crate::content::Target;

const BYTES: u64 = 5_000;

/// Starts a server that answers one connection after the request's head.
fn server(answer: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 4096];
        let _ = stream.read(&mut head);
        answer(stream);
    });
    address
}

fn ask(behaviour: Behaviour, server: SocketAddr) -> Tally {
    ask_within(PATIENCE, behaviour, server)
}

/// Sends a request. A server that sends nothing for `stall` is at fault.
fn ask_within(stall: Duration, behaviour: Behaviour, server: SocketAddr) -> Tally {
    let plan = Plan { behaviour, server, same_port: false, targets: vec![Target::new(BYTES, 0)] };
    client::run(&[plan], ClientSettings { threads: 1, first_port: 20_000, stall })
}

fn fault(behaviour: Behaviour, answer: impl FnOnce(TcpStream) + Send + 'static) -> Option<Fault> {
    fault_of(ask(behaviour, server(answer)))
}

fn fault_of(mut tally: Tally) -> Option<Fault> {
    assert_eq!(tally.right + tally.faults.len(), 1);
    tally.faults.pop().map(|(_, fault)| fault)
}

/// Returns a correct reply.
fn reply() -> Vec<u8> {
    let mut reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n").into_bytes();
    let from = reply.len();
    reply.resize(from + BYTES as usize, 0);
    Target::new(BYTES, 0).fill(0, &mut reply[from..]);
    reply
}

fn send(change: impl FnOnce(&mut Vec<u8>) + Send + 'static) -> impl FnOnce(TcpStream) + Send + 'static {
    move |mut stream| {
        let mut reply = reply();
        change(&mut reply);
        let _ = stream.write_all(&reply);
    }
}

#[test]
fn a_correct_reply_is_accepted() {
    let tally = ask(Behaviour::Plain, server(send(|_| {})));
    tally.assert_faultless();
    assert_eq!((tally.right, tally.replies, tally.bytes), (1, 1, BYTES));
    assert!(tally.quantiles(0.999).iter().all(|time| *time > Duration::ZERO));
}

#[test]
fn one_wrong_byte_is_noticed() {
    let wrong = fault(Behaviour::Plain, send(|reply| *reply.last_mut().unwrap() ^= 1));
    assert!(matches!(wrong, Some(Fault::Wrong { offset, .. }) if offset == BYTES - 1), "{wrong:?}");
}

#[test]
fn a_missing_and_a_surplus_byte_are_noticed() {
    let short = fault(Behaviour::Plain, send(|reply| _ = reply.pop()));
    assert!(matches!(short, Some(Fault::Short { got, .. }) if got == BYTES - 1), "{short:?}");
    for behaviour in [Behaviour::Plain, Behaviour::KeptAlive] {
        let surplus = fault(behaviour, send(|reply| reply.push(0)));
        assert!(matches!(surplus, Some(Fault::Surplus)), "{surplus:?}");
    }
}

#[test]
fn another_status_or_length_is_noticed() {
    let changes: [fn(&mut Vec<u8>); 3] =
        [|reply| reply[9] = b'5', |reply| reply[33] = b'4', |reply| *reply = vec![b'x'; 20_000]];
    for change in changes {
        let head = fault(Behaviour::Plain, send(change));
        assert!(matches!(head, Some(Fault::Head(_))), "{head:?}");
    }
}

#[test]
fn a_reset_and_a_stall_are_noticed() {
    let reset = fault(Behaviour::Plain, |mut stream| {
        let _ = stream.write_all(&reply()[..1_000]);
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    });
    assert!(matches!(reset, Some(Fault::Reset)), "{reset:?}");
    let silent = server(|mut stream| {
        let _ = stream.write_all(&reply()[..1_000]);
        // Until the client closes.
        let _ = stream.read(&mut [0]);
    });
    let stall = fault_of(ask_within(Duration::from_millis(200), Behaviour::Plain, silent));
    assert!(matches!(stall, Some(Fault::Stall(_))), "{stall:?}");
    let refused = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let tally = ask(Behaviour::Plain, refused);
    assert!(matches!(tally.faults[..], [(_, Fault::Connect(_))]), "{tally:?}");
}

/// The client itself resets. The server sees it, and the client does not count it as a fault.
#[test]
fn a_resetting_client_resets() {
    let (tell, told) = std::sync::mpsc::channel();
    let at = server(move |mut stream| {
        let _ = stream.write_all(&reply());
        let mut byte = [0; 1];
        let _ = tell.send(stream.read(&mut byte).map_err(|error| error.kind()));
    });
    ask(Behaviour::Resetting { after: 10 }, at).assert_faultless();
    let seen = told.recv_timeout(PATIENCE).unwrap();
    assert_eq!(seen, Err(std::io::ErrorKind::ConnectionReset));
}
