//! Hostile clients beside an ordinary one, in small: bench/hostile has them by the ten thousand.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::http::{Client, get};
use crate::process::{Process, until};
use crate::secured::write_key;

/// How long the attacks go on.
const LENGTH: Duration = Duration::from_secs(4);
const SLOW: usize = 150;
/// What the switch may take for them.
const GROWS_KIB_MAX: u64 = 200 << 10;

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    stream.set_write_timeout(Some(Duration::from_millis(200))).ok()?;
    Some(stream)
}

/// Holds connections that begin so and go on byte by byte; a new one for each that is closed.
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

/// Sends a beginning, and then the same again and again until that is refused; over and over.
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

/// Asks for what nobody has asked for before.
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

/// A switch with TLS and HTTP/2 before this node, which bears with slow clients for a second.
fn config(folder: &Path, node: SocketAddr) -> PathBuf {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    let certificate = folder.join("tls.pem");
    write_key(&certificate, &(made.cert.pem() + &made.signing_key.serialize_pem()));
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nh2c = true\nnodes = [\"{node}\"]\nadmission = \"unlimited\"\ntargets_max = 1000\n\
         [switch.tls]\nlisten = \"127.0.0.1:0\"\ncertificates = {certificate:?}\n\
         [switch.timeouts]\nheader = \"1s\"\nkeepalive = \"1s\"\nclient_read = \"1s\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n"
    );
    let config = folder.join("larder.toml");
    fs::write(&config, text).unwrap();
    config
}

#[test]
fn ordinary_clients_notice_nothing_of_hostile_ones() {
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
                // Settings, and streams that are reset as soon as they are opened.
                let preface =
                    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
                let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
                endless(address, &preface, &ping.repeat(100), stop)
            }),
            scope.spawn(move || distinct(address, stop)),
        ];
        let end = Instant::now() + LENGTH;
        while Instant::now() < end {
            let mut client = Client::connect(address).unwrap();
            for _ in 0..20 {
                // One that was kept from running for longer than an idle connection lasts comes back with another.
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
    let metrics = String::from_utf8(get(switch.admin.unwrap(), "/metrics").body).unwrap();
    let value =
        |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert_eq!(value("larder_switch_panics_total "), Some(0.0));
    assert!(value("larder_switch_targets ").is_some_and(|targets| targets <= 1000.0), "the map has a limit");
    for error in ["header_timeout", "header_too_large", "bad_request"] {
        let counted = value(&format!("larder_switch_failures_total{{error=\"{error}\"}} "));
        assert!(counted.is_some_and(|count| count > 0.0), "{error}: {counted:?}");
    }
    assert_eq!(get(switch.address, "/a").status, 200);
    assert!(switch.terminate().success());
}
