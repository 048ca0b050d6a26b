//! Hostile clients together with an ordinary one, in small numbers. bench/hostile runs them by the ten
//! thousand.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use larder_testkit::write_secret;

use crate::http::{Client, get, metric};
use crate::process::{Process, until};

/// Length of the attacks.
const LENGTH: Duration = Duration::from_secs(4);
const SLOW: usize = 150;
/// Largest growth of the switch's memory.
const GROWS_KIB_MAX: u64 = 200 << 10;

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    stream.set_write_timeout(Some(Duration::from_millis(200))).ok()?;
    Some(stream)
}

/// Holds slow connections that begin with `begin` and continue byte by byte. A closed connection is replaced.
fn crowd(address: SocketAddr, begin: &[u8], drip: &[u8], stop: &AtomicBool) -> usize {
    let (mut held, mut made) = (Vec::new(), 0);
    while !stop.load(Relaxed) {
        held.retain_mut(|stream: &mut TcpStream| stream.write_all(drip).is_ok());
        while held.len() < SLOW {
            let Some(mut stream) = connect(address) else { break };
            if stream.write_all(begin).is_ok() {
                held.push(stream);
                made += 1;
            }
        }
        larder_testkit::take_time(Duration::from_millis(50));
    }
    made
}

/// Sends `begin`, and then `more` repeatedly until the server refuses. Repeats with new connections.
fn endless(address: SocketAddr, begin: &[u8], more: &[u8], stop: &AtomicBool) -> usize {
    let mut made = 0;
    while !stop.load(Relaxed) {
        let Some(mut stream) = connect(address) else { continue };
        made += 1;
        let _ = stream.write_all(begin);
        while !stop.load(Relaxed) && stream.write_all(more).is_ok() {}
        let _ = stream.read(&mut [0; 4096]);
    }
    made
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a GET request on an HTTP/2 stream.
fn ask_for(path: &str, stream: u32) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    frame(HEADERS, 5, stream, &[&b"\x82\x86\x04"[..], &[length], path.as_bytes(), b"\x41\x01a"].concat())
}

/// Returns the first bytes of an HTTP/2 client with this window for each reply.
fn begin_http2(window: u32) -> Vec<u8> {
    let settings = frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat());
    [PREFACE, &settings, &frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes())].concat()
}

/// Reads the kind of the next frame of a connection.
fn next_frame(stream: &mut TcpStream) -> std::io::Result<u8> {
    let mut header = [0; 9];
    stream.read_exact(&mut header)?;
    let length = u64::from(u32::from_be_bytes([0, header[0], header[1], header[2]]));
    std::io::copy(&mut stream.take(length), &mut std::io::sink())?;
    Ok(header[3])
}

/// Resets streams after their replies have begun, so that the switch has accepted them. Returns the number of
/// resets.
fn resets(address: SocketAddr, stop: &AtomicBool) -> usize {
    let mut made = 0;
    while !stop.load(Relaxed) {
        let Some(mut stream) = connect(address) else { continue };
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(&begin_http2(0));
        for id in (1..).step_by(2) {
            if stop.load(Relaxed) || stream.write_all(&ask_for("/a", id)).is_err() {
                break;
            }
            // The settings frame precedes the reply.
            let begun =
                std::iter::repeat_with(|| next_frame(&mut stream)).find(|kind| !matches!(kind, Ok(2..)));
            if !matches!(begun, Some(Ok(HEADERS)))
                || stream.write_all(&frame(RST_STREAM, 0, id, &[0, 0, 0, 8])).is_err()
            {
                break;
            }
            made += 1;
        }
    }
    made
}

/// Requests targets that no client has requested before.
fn distinct(address: SocketAddr, stop: &AtomicBool) -> usize {
    let mut made = 0;
    while !stop.load(Relaxed) {
        let Ok(mut client) = Client::connect(address) else { continue };
        for _ in 0..100 {
            made += 1;
            if client.ask("GET", &format!("/distinct/{made}"), "").is_err() {
                break;
            }
        }
    }
    made
}

fn files_open(process: &Process) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap().count()
}

fn resident_kib(process: &Process) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Writes the config of a switch with TLS before this node. It tolerates slow clients for one second.
fn config(folder: &Path, node: SocketAddr) -> PathBuf {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let certificate = folder.join("tls.pem");
    write_secret(&certificate, &(made.cert.pem() + &made.signing_key.serialize_pem()));
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nh2c = true\nnodes = [\"{node}\"]\nadmission.limit = \"unlimited\"\npolicies.targets_max = 1000\n\
         [switch.tls]\nlisten = \"127.0.0.1:0\"\ncertificates = {certificate:?}\n\
         [switch.timeouts]\nheader = \"1s\"\nkeepalive = \"1s\"\nclient_read = \"1s\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    let config = folder.join("larder.toml");
    fs::write(&config, text).unwrap();
    config
}

#[test]
fn hostile_clients_do_not_affect_ordinary_ones() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("manifest.tsv");
    fs::write(&manifest, "1000\t/a\n").unwrap();
    let node = Process::model_node("n", "127.0.0.1:0", &manifest);
    let config = config(folder.path(), node.address);
    let switch = Process::start(&["switch", "--one-process", "--config", config.to_str().unwrap()]);
    let secure = switch.further[0];
    assert_eq!(get(switch.address, "/a").status, 200);
    let (before, memory) = (files_open(&switch), resident_kib(&switch));

    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (address, stop) = (switch.address, &stop);
    thread::scope(|scope| {
        let attacks = [
            scope.spawn(move || crowd(address, b"GET /a HTTP/1.1\r\nHost: a\r\nX: ", b"a", stop)),
            scope.spawn(move || {
                crowd(address, b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\n", b"a", stop)
            }),
            scope.spawn(move || crowd(secure, b"\x16\x03\x01\x02\x00\x01\x00", b"\x01", stop)),
            scope.spawn(move || {
                let line = [b"X: ".as_slice(), &[b'a'; 8000], b"\r\n"].concat();
                endless(address, b"GET /a HTTP/1.1\r\nHost: a\r\n", &line, stop)
            }),
            scope.spawn(move || {
                let begin = b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;";
                endless(address, begin, &[b'a'; 8000], stop)
            }),
            scope.spawn(move || endless(secure, &[0x80; 3000], &[0xff; 3000], stop)),
            scope.spawn(move || {
                // PINGs during a request.
                let begin = [begin_http2(0), ask_for("/a", 1)].concat();
                endless(address, &begin, &frame(PING, 0, 0, &[0; 8]).repeat(100), stop)
            }),
            scope.spawn(move || resets(address, stop)),
            scope.spawn(move || distinct(address, stop)),
        ];
        let end = Instant::now() + LENGTH;
        while Instant::now() < end {
            let mut client = Client::connect(address).unwrap();
            for _ in 0..20 {
                // A client that did not run for longer than the idle timeout reconnects.
                let Ok(reply) = client.ask("GET", "/a", "") else { break };
                assert_eq!((reply.status, reply.body.len()), (200, 1000));
                served.fetch_add(1, Relaxed);
            }
        }
        stop.store(true, Relaxed);
        for (number, attack) in attacks.into_iter().enumerate() {
            assert!(attack.join().unwrap() > 0, "attack {number} has not begun");
        }
    });
    assert!(served.load(Relaxed) >= 20);
    let grown = resident_kib(&switch).saturating_sub(memory);
    assert!(grown < GROWS_KIB_MAX, "{grown} KiB more");
    until("descriptors come back", || (files_open(&switch) <= before + 8).then_some(()));
    let value = |name: &str, labels: &[&str]| metric(switch.admin.unwrap(), name, labels);
    assert_eq!(value("larder_switch_panics_total", &[]), Some(0));
    assert!(
        value("larder_switch_targets", &[]).is_some_and(|targets| targets <= 1000),
        "the map has a limit"
    );
    for error in ["header_timeout", "header_too_large", "bad_request", "http2_flood"] {
        let counted = value("larder_switch_failures_total", &[&format!("{{error=\"{error}\"}}")]);
        assert!(counted.is_some_and(|count| count > 0), "{error}: {counted:?}");
    }
    assert_eq!(get(switch.address, "/a").status, 200);
    assert!(switch.terminate().success());
}

/// HTTP/2 connections with the maximum number of requests, whose replies the client does not read.
#[test]
fn stalled_streams_hold_little_memory() {
    const CONNECTIONS: usize = 6;
    const MAX_KIB: u64 = 10 << 10;
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("manifest.tsv");
    fs::write(&manifest, "1000\t/a\n4000000\t/large\n").unwrap();
    let node = Process::model_node("n", "127.0.0.1:0", &manifest);
    let config = config(folder.path(), node.address);
    let switch = Process::start(&["switch", "--one-process", "--config", config.to_str().unwrap()]);
    assert_eq!(get(switch.address, "/large").body.len(), 4_000_000);
    let before = resident_kib(&switch);
    let held: Vec<TcpStream> = (0..CONNECTIONS)
        .map(|at| {
            let mut stream = connect(switch.address).unwrap();
            // A window of zero, a window of one byte, and an open window whose data is not read.
            let begin = begin_http2([0, 1, 0x7fff_ffff][at % 3]);
            let asked = (0..128).flat_map(|id| ask_for("/large", 1 + 2 * id));
            stream.write_all(&begin.into_iter().chain(asked).collect::<Vec<_>>()).unwrap();
            stream
        })
        .collect();
    // Waits until the memory does not grow any more.
    let (mut most, mut same) = (0, 0);
    until("memory stops growing", || {
        let now = resident_kib(&switch);
        same = if now > most + 64 { 0 } else { same + 1 };
        most = most.max(now);
        (same >= 20).then_some(())
    });
    let grown = most.saturating_sub(before);
    assert!(grown > 0 && grown < MAX_KIB * CONNECTIONS as u64, "{grown} KiB for {CONNECTIONS} connections");
    assert_eq!(get(switch.address, "/a").status, 200);
    drop(held);
    assert!(switch.terminate().success());
}
