//! Tests of [`super`] against servers on loopback.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::thread::JoinHandle;

use larder_testkit::{Authority, acceptor};
use rustls::{ServerConnection, StreamOwned};

use super::*;

/// Starts a server that answers one request with `reply`. The thread returns the request.
fn server(reply: &str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, reply) = (listener.local_addr().unwrap(), reply.to_owned());
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 1024];
        let read = stream.read(&mut asked).unwrap();
        stream.write_all(reply.as_bytes()).unwrap();
        String::from_utf8_lossy(&asked[..read]).into_owned()
    });
    (address, thread)
}

/// Starts a TLS server that answers each request with 200. The thread returns the announcement and request of
/// each connection.
fn secure_server(
    connections: usize,
    certificate: &Path,
    clients: Option<&Path>,
    protocols: &[&[u8]],
) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = Arc::clone(acceptor(certificate, clients, protocols).config());
    let thread = std::thread::spawn(move || {
        let serve = |_| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut first = [0; 15];
            let announced = stream.peek(&mut first).unwrap();
            let announced = first[..announced].starts_with(b"PROXY UNKNOWN");
            if announced {
                stream.read_exact(&mut first).unwrap();
            }
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), stream);
            let mut asked = [0; 1024];
            // A client that refuses the certificate sends no request.
            let read = stream.read(&mut asked).unwrap_or(0);
            if read > 0 {
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
            }
            format!("{announced} {}", String::from_utf8_lossy(&asked[..read]))
        };
        (0..connections).map(serve).collect()
    });
    (address, thread)
}

fn host(authority: SocketAddr, probe: Probe) -> Host {
    Host {
        what: "node a".to_owned(),
        authority: authority.to_string(),
        probe,
        announcement: Vec::new(),
        tls: None,
        tolerance: Tolerance::Seconds,
    }
}

fn probe_server(reply: &str, probe: Probe) -> (HostResult, String) {
    let (address, thread) = server(reply);
    (probe_host(&host(address, probe), &ResolvedNames::default()), thread.join().unwrap())
}

fn secure_host(at: SocketAddr, tls: &OutboundTls, http2: bool) -> Host {
    let to = tls_client(Arc::new(tls.load().unwrap()), &at.to_string(), http2);
    let tls = Some(HostTls { table: "switch.connect.tls".to_owned(), to });
    Host { tls, ..host(at, Probe::Ping) }
}

#[test]
fn a_host_is_probed_by_its_health_check_or_by_options() {
    let get = Probe::Get("/health".to_owned());
    let (answer, request) = probe_server("HTTP/1.1 204 No Content\r\n\r\n", get.clone());
    assert_eq!(answer.finding.state, FindingState::Works, "{answer:?}");
    assert!(request.starts_with("GET /health HTTP/1.1\r\nhost: 127.0.0.1:"), "{request}");
    let (answer, _) = probe_server("HTTP/1.1 503 x\r\n\r\n", get);
    assert_eq!(answer.finding.state, FindingState::Missing);
    assert!(answer.finding.found.ends_with("GET /health gets 503"), "{answer:?}");
    // Any HTTP reply shows that the host speaks HTTP.
    let (answer, request) = probe_server("HTTP/1.1 405 Method Not Allowed\r\n\r\n", Probe::Ping);
    assert_eq!(answer.finding.state, FindingState::Works, "{answer:?}");
    assert!(request.starts_with("OPTIONS * HTTP/1.1\r\n"), "{request}");
    for (reply, says) in [("SSH-2.0-x\r\n\r\n", "not HTTP/1.1"), ("", "was closed")] {
        let (answer, _) = probe_server(reply, Probe::Ping);
        assert_eq!(answer.finding.state, FindingState::Missing);
        assert!(answer.finding.found.contains(says), "{answer:?}");
    }
}

#[test]
fn a_host_that_does_not_listen_is_missing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = listener.local_addr().unwrap();
    drop(listener);
    let answer = probe_host(&host(authority, Probe::Connect), &ResolvedNames::default());
    assert_eq!(answer.finding.state, FindingState::Missing);
    assert!(answer.finding.found.contains("refused"), "{answer:?}");
}

#[test]
fn the_clock_difference_is_read_from_the_reply() {
    let date = httpdate::fmt_http_date(SystemTime::now() + std::time::Duration::from_secs(600));
    let (answer, _) = probe_server(&format!("HTTP/1.1 200 OK\r\nDate: {date}\r\n\r\n"), Probe::Ping);
    let ahead_s = answer.ahead_s.unwrap();
    assert!((595.0..=600.0).contains(&ahead_s), "{ahead_s}");
}

#[test]
fn an_unresolved_name_is_not_resolved_again() {
    let host = Host { authority: "localhost:1".to_owned(), ..host(([0; 4], 1).into(), Probe::Ping) };
    let answer = probe_host(&host, &ResolvedNames::default());
    assert!(answer.finding.found.contains("cannot resolve 'localhost': no answer within 5 s"), "{answer:?}");
}

#[test]
fn certificate_faults_are_described_with_their_remedies() {
    let (authority, other) = (Authority::new(), Authority::new());
    let later = authority.leaf_with("store.test", "later.pem", |params| {
        params.not_before = rcgen::date_time_ymd(4_000, 1, 1);
        params.not_after = rcgen::date_time_ymd(4_001, 1, 1);
    });
    let tls = OutboundTls {
        authorities: Some(authority.ca()),
        name: Some("store.test".to_owned()),
        ..OutboundTls::default()
    };
    let right = authority.leaf("store.test");
    let http1: &[&[u8]] = &[b"http/1.1"];
    for (certificate, clients, found, remedy) in [
        (&right, None, "its certificate for store.test is valid; it speaks HTTP", ""),
        (
            &authority.leaf("other.test"),
            None,
            "its certificate is for other.test, not for store.test",
            "write name = \"other.test\" in [switch.connect.tls]",
        ),
        (
            &authority.expired_leaf("store.test"),
            None,
            "its certificate has expired on Tue, 01 Jan 2002 00:00:00 GMT",
            "renew the certificate",
        ),
        (&later, None, "its certificate is not valid before Sat, 01 Jan 4000 00:00:00 GMT", "clock"),
        (
            &other.leaf("store.test"),
            None,
            "the issuer of its certificate is unknown",
            "write ca = \"FILE\" in [switch.connect.tls]",
        ),
        (
            &right,
            Some(authority.ca()),
            "it requires a client certificate",
            "write certificate = \"FILE\" in [switch.connect.tls]",
        ),
    ] {
        let (at, thread) = secure_server(1, certificate, clients.as_deref(), http1);
        let answer = probe_host(&secure_host(at, &tls, false), &ResolvedNames::default()).finding;
        let works = remedy.is_empty();
        assert_eq!(
            answer.state,
            if works { FindingState::Works } else { FindingState::Missing },
            "{answer:?}"
        );
        assert!(answer.found.contains(found), "{answer:?}");
        assert!(answer.remedy.unwrap_or_default().contains(remedy), "{remedy}");
        let asked = thread.join().unwrap();
        assert!(!works || asked[0].starts_with("false OPTIONS * HTTP/1.1\r\n"), "{asked:?}");
    }
}

#[test]
fn the_client_certificate_and_the_proxy_announcement_are_sent() {
    let authority = Authority::new();
    let own = authority.leaf("switch.test");
    let server = authority.leaf("store.test");
    let tls = OutboundTls {
        authorities: Some(authority.ca()),
        name: Some("store.test".to_owned()),
        certificate: Some(own),
        ..OutboundTls::default()
    };
    let (at, thread) = secure_server(1, &server, Some(&authority.ca()), &[]);
    let announcement = larder_switch::ProxyVersion::V1.own_announcement();
    let answer =
        probe_host(&Host { announcement, ..secure_host(at, &tls, false) }, &ResolvedNames::default()).finding;
    assert_eq!(answer.state, FindingState::Works, "{answer:?}");
    assert!(thread.join().unwrap()[0].starts_with("true OPTIONS * "));
}

#[test]
fn a_server_that_speaks_only_http2_is_reached() {
    let authority = Authority::new();
    let server = authority.leaf("store.test");
    let tls = OutboundTls {
        authorities: Some(authority.ca()),
        name: Some("store.test".to_owned()),
        ..OutboundTls::default()
    };
    for (http2, connections, says) in
        [(true, 2, "is valid; it speaks HTTP/2"), (false, 1, "none of the offered protocols")]
    {
        let (at, thread) = secure_server(connections, &server, None, &[b"h2"]);
        let answer = probe_host(&secure_host(at, &tls, http2), &ResolvedNames::default()).finding;
        assert!(answer.found.contains(says), "{answer:?}");
        thread.join().unwrap();
    }
}

#[test]
fn a_server_without_tls_and_a_silent_server_are_reported() {
    let tls = OutboundTls { verify: false, ..OutboundTls::default() };
    let (at, thread) = server("HTTP/1.1 400 Bad Request\r\n\r\n");
    let answer = probe_host(&secure_host(at, &tls, false), &ResolvedNames::default()).finding;
    assert!(answer.found.contains("this port does not speak TLS"), "{answer:?}");
    thread.join().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let answer =
        probe_host(&secure_host(silent.local_addr().unwrap(), &tls, false), &ResolvedNames::default())
            .finding;
    assert!(answer.found.contains("did not finish the handshake in time"), "{answer:?}");
}
