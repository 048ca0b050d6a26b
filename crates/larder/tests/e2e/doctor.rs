//! `larder doctor` with origins: TLS certificates and clocks.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use larder_testkit::{Authority, acceptor};
use rustls::{ServerConnection, StreamOwned};
use serde_json::Value;

use crate::process::LARDER;

/// Answers one request with 200 and this `Date`, over TLS if there is a certificate.
fn origin(date: SystemTime, certificate: Option<&Path>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let tls = certificate.map(|file| Arc::clone(acceptor(file, None, &[b"http/1.1"]).config()));
    let reply = format!("HTTP/1.1 200 OK\r\ndate: {}\r\n\r\n", httpdate::fmt_http_date(date));
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        match tls {
            None => answer(stream, &reply),
            Some(tls) => answer(StreamOwned::new(ServerConnection::new(tls).unwrap(), stream), &reply),
        }
    });
    (address, thread)
}

fn answer(mut stream: impl Read + Write, reply: &str) {
    // A client that refuses the certificate sends no request.
    if stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {
        stream.write_all(reply.as_bytes()).unwrap();
        stream.flush().unwrap();
    }
}

/// Returns the doctor's JSON for a node with this origin table, and its output.
fn examine(folder: &Path, origin: &str) -> (Value, Output) {
    let config = format!("[node]\nlisten = \"127.0.0.1:0\"\n[node.origin]\n{origin}");
    fs::write(folder.join("larder.toml"), config).unwrap();
    let output = Command::new(LARDER)
        .args(["doctor", "--json", "--config", "larder.toml"])
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (serde_json::from_slice(&output.stdout).unwrap_or_default(), output)
}

fn found<'a>(json: &'a Value, what: &str) -> (&'a str, &'a str, &'a str) {
    let all = json["reach"].as_array().unwrap_or_else(|| panic!("{json:#}"));
    let one = all.iter().find(|one| one["what"] == what).unwrap_or_else(|| panic!("{what} in {json:#}"));
    let text = |key: &str| one[key].as_str().unwrap_or_default();
    (text("state"), text("found"), text("remedy"))
}

#[test]
fn the_certificate_of_an_origin_is_verified_as_by_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let right = authority.leaf("store.test");
    let cases: [(PathBuf, &str, &str, &str); 4] = [
        (right, "works", "its certificate for store.test is valid; it speaks HTTP", ""),
        (
            authority.leaf("other.test"),
            "missing",
            "its certificate is for other.test, not for store.test",
            "write name = \"other.test\" in [node.origin.tls]",
        ),
        (
            authority.expired_leaf("store.test"),
            "missing",
            "its certificate has expired on Tue, 01 Jan 2002 00:00:00 GMT",
            "renew the certificate on the server",
        ),
        (
            other.leaf("store.test"),
            "missing",
            "the issuer of its certificate is unknown",
            "write ca = \"FILE\" in [node.origin.tls]",
        ),
    ];
    for (certificate, state, says, remedy) in cases {
        let (at, thread) = origin(SystemTime::now(), Some(&certificate));
        let ca = authority.ca();
        let table = format!(
            "url = \"https://{at}\"\n[node.origin.tls]\nname = \"store.test\"\nca = \"{}\"\n",
            ca.display()
        );
        let (json, output) = examine(folder.path(), &table);
        let (found_state, found_text, found_remedy) = found(&json, "origin");
        assert_eq!(found_state, state, "{json:#}");
        assert!(found_text.contains(says) && found_remedy.contains(remedy), "{json:#}");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let clock = if state == "works" { "works" } else { "unknown" };
        assert_eq!(found(&json, "clock").0, clock, "{json:#}");
        thread.join().unwrap();
    }
}

#[test]
fn a_clock_outside_the_tolerance_of_signatures_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("secret.key");
    fs::write(&key, "secret\n").unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    for (apart_s, state, success) in [(0, "works", true), (120, "degraded", true), (400, "missing", false)] {
        let (at, thread) = origin(SystemTime::now() + Duration::from_secs(apart_s), None);
        let table = format!(
            "url = \"http://{at}\"\nhost = \"origin\"\n[node.origin.sign]\nregion = \"eu-central-1\"\naccess_key = \"AK\"\n\
             secret_key_file = \"{}\"\n",
            key.display()
        );
        let (json, output) = examine(folder.path(), &table);
        let (found_state, text, remedy) = found(&json, "clock");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((found_state, output.status.success()), (state, success), "{json:#}{said}");
        assert_eq!(text.contains("S3 refuses signed requests above 15 minutes"), state != "works", "{text}");
        assert_eq!(remedy.contains("chrony"), state != "works", "{remedy}");
        assert_eq!(said.contains("this machine's clock is wrong"), !success, "{said}");
        thread.join().unwrap();
    }
}
