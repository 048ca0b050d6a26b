//! Compression of replies by a switch.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use larder_testkit::http::{head_bytes, read_head, status, take_head};

use crate::http::Reply;
use crate::http2;
use crate::origin::values;
use crate::process::Process;

/// Starts an origin with scripted replies, which the path selects.
fn origin() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((tcp, _)) = listener.accept() {
            std::thread::spawn(move || serve(tcp));
        }
    });
    address
}

fn text() -> String {
    (0..2000).map(|number| format!("line {number}\n")).collect()
}

fn serve(mut tcp: TcpStream) {
    loop {
        let Ok(head) = read_head(&mut tcp) else { return };
        let path = head.split(' ').nth(1).unwrap();
        let body = text();
        let plain = |status: &str, fields: &str| {
            let body = if head.starts_with("HEAD") { "" } else { &body };
            format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n{body}", text().len())
                .into_bytes()
        };
        let reply = match path {
            "/html" => plain(
                "200 OK",
                "Content-Type: text/html; charset=utf-8\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\n",
            ),
            "/png" => plain("200 OK", "Content-Type: image/png\r\nETag: \"v1\"\r\n"),
            "/still" => plain("200 OK", "Content-Type: text/html\r\nCache-Control: no-transform\r\n"),
            "/gone" => plain("404 Not Found", "Content-Type: text/html\r\n"),
            "/part" => {
                plain("206 Partial Content", "Content-Type: text/html\r\nContent-Range: bytes 0-9/10\r\n")
            }
            "/encoded" => plain("200 OK", "Content-Type: text/html\r\nContent-Encoding: gzip\r\n"),
            "/unchanged" => b"HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n\r\n".to_vec(),
            "/small" => {
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nsmall".to_vec()
            }
            "/empty" => b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n".to_vec(),
            "/chunks" | "/plain/chunks" => {
                let chunks = body
                    .as_bytes()
                    .chunks(1000)
                    .map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
                let head =
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
                        .to_vec();
                [head, chunks.collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat()
            }
            "/stream" => {
                let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                tcp.write_all(&[&head[..], b"d\r\ndata: first\n\n\r\n"].concat()).unwrap();
                // The rest is sent only after the client has received the first part and requested more by
                // closing.
                let _ = tcp.read(&mut [0]);
                return;
            }
            _ => plain("200 OK", "Content-Type: text/html\r\n"),
        };
        if tcp.write_all(&reply).is_err() {
            return;
        }
    }
}

fn start(folder: &Path) -> Process {
    let config = folder.join("larder.toml");
    let text = format!(
        r#"
[switch]
listen = "127.0.0.1:0"
h2c = true
nodes = ["{}"]
compress = {{ min = 100 }}

[[switch.routes]]
name = "plain"
path = "/plain/*"
compress = {{ codings = [] }}

[[switch.routes]]
name = "gzip"
path = "/gzip"
compress = {{ codings = "gzip", level = 9 }}
"#,
        origin()
    );
    fs::write(&config, text).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"])
}

/// Returns the bytes of a chunked body.
fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = bytes.windows(2).position(|two| two == b"\r\n").expect("a chunk's line");
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap().trim(), 16).unwrap();
        bytes = &bytes[line + 2..];
        if length == 0 {
            assert_eq!(bytes, b"\r\n", "nothing behind the last chunk");
            return body;
        }
        body.extend_from_slice(&bytes[..length]);
        assert_eq!(&bytes[length..length + 2], b"\r\n");
        bytes = &bytes[length + 2..];
    }
}

fn raw(switch: &Process, method: &str, target: &str, version: &str, fields: &str) -> Reply {
    let mut tcp = TcpStream::connect(switch.address).unwrap();
    write!(tcp, "{method} {target} {version}\r\nHost: test\r\nConnection: close\r\n{fields}\r\n").unwrap();
    let mut bytes = Vec::new();
    tcp.read_to_end(&mut bytes).unwrap();
    let head = take_head(&mut bytes).unwrap();
    let status = status(&head).unwrap();
    let chunked = values(&head, "transfer-encoding") == ["chunked"];
    let body = if chunked { dechunked(&bytes) } else { bytes };
    Reply { status, head, body }
}

/// Sends the request over HTTP/1.1 and HTTP/2.
fn both(switch: &Process, target: &str, fields: &str) -> [Reply; 2] {
    let by2 = http2::ask(switch.address, "GET", &format!("http://test{target}"), fields);
    [raw(switch, "GET", target, "HTTP/1.1", fields), by2]
}

/// Decodes the whole body. The decoder checks that the stream is complete.
fn decoded(reply: &Reply) -> Vec<u8> {
    let (bytes, mut out) = (&reply.body[..], Vec::new());
    match values(&reply.head, "content-encoding")[..] {
        ["gzip"] => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap(),
        ["br"] => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).unwrap(),
        ["zstd"] => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out).unwrap(),
        _ => panic!("{}", reply.head),
    };
    out
}

#[test]
fn a_client_gets_a_coding_that_it_accepts() {
    let folder = tempfile::tempdir().unwrap();
    let switch = start(folder.path());
    for (accept, coding) in
        [("gzip", "gzip"), ("gzip, br", "br"), ("br;q=0.1, gzip", "gzip"), ("*;q=0.3", "zstd")]
    {
        for target in ["/html", "/chunks"] {
            for reply in both(&switch, target, &format!("Accept-Encoding: {accept}\r\n")) {
                assert_eq!((reply.status, reply.header("content-encoding")), (200, Some(coding)), "{accept}");
                assert!(decoded(&reply) == text().as_bytes(), "{accept} {target}");
                assert!(reply.body.len() < text().len() / 2);
                assert_eq!(values(&reply.head, "vary"), ["accept-encoding"]);
                assert_eq!(values(&reply.head, "content-length"), [""; 0]);
            }
        }
    }
    for reply in both(&switch, "/html", "Accept-Encoding: gzip\r\n") {
        assert_eq!((reply.header("etag"), reply.header("accept-ranges")), (Some("W/\"v1\""), None));
    }
    for reply in both(&switch, "/gone", "Accept-Encoding: gzip\r\n") {
        assert_eq!((reply.status, decoded(&reply).len()), (404, text().len()));
    }
    // A route may allow only one coding.
    for reply in both(&switch, "/gzip", "Accept-Encoding: zstd, br, gzip;q=0.1\r\n") {
        assert_eq!(reply.header("content-encoding"), Some("gzip"));
        assert!(decoded(&reply) == text().as_bytes());
    }
}

#[test]
fn replies_that_must_not_be_compressed_are_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let switch = start(folder.path());
    for (target, accept, varies) in [
        ("/html", "identity", true),
        ("/html", "gzip;q=0, br;q=0, zstd;q=0", true),
        ("/html", "", true),
        ("/png", "gzip", false),
        ("/still", "gzip", false),
        ("/part", "gzip", false),
        ("/encoded", "gzip", false),
        ("/small", "gzip", false),
        ("/empty", "gzip", false),
        ("/plain/chunks", "gzip", false),
    ] {
        for reply in both(&switch, target, &format!("Accept-Encoding: {accept}\r\n")) {
            let coding = if target == "/encoded" { vec!["gzip"] } else { vec![] };
            assert_eq!(values(&reply.head, "content-encoding"), coding, "{target} {accept}");
            assert_eq!(!values(&reply.head, "vary").is_empty(), varies, "{target} {accept}");
            let body = match target {
                "/small" => "small".to_owned(),
                "/empty" => String::new(),
                _ => text(),
            };
            assert!(reply.body == body.as_bytes(), "{target}");
        }
    }
    let head = raw(&switch, "HEAD", "/html", "HTTP/1.1", "Accept-Encoding: gzip\r\n");
    assert_eq!(
        (head.header("content-encoding"), head.header("etag"), head.body.len()),
        (None, Some("\"v1\""), 0)
    );
    assert_eq!(head.header("content-length"), Some(&*text().len().to_string()));
    let old = raw(&switch, "GET", "/html", "HTTP/1.0", "Accept-Encoding: gzip\r\n");
    assert!(old.header("content-encoding").is_none() && old.body == text().as_bytes());
    // A compressed copy has a weak tag.
    let kept =
        raw(&switch, "GET", "/unchanged", "HTTP/1.1", "Accept-Encoding: gzip\r\nIf-None-Match: W/\"v1\"\r\n");
    assert_eq!((kept.status, kept.header("etag")), (304, Some("W/\"v1\"")));
}

#[test]
fn streamed_replies_are_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let switch = start(folder.path());
    let mut tcp = TcpStream::connect(switch.address).unwrap();
    tcp.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    tcp.write_all(b"GET /stream HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    // The node sends the rest only after this part was received.
    let mut bytes = Vec::new();
    let first = loop {
        let mut buffer = [0; 4096];
        let count = tcp.read(&mut buffer).expect("the first event in time");
        assert!(count > 0, "the reply goes on");
        bytes.extend_from_slice(&buffer[..count]);
        let Some(end) = head_bytes(&bytes) else { continue };
        let mut out = Vec::new();
        let chunks: Vec<u8> = pieces(&bytes[end..]);
        // The stream is unfinished. The decoder returns the data and then reports that more is missing.
        let _ = flate2::read::GzDecoder::new(&chunks[..]).read_to_end(&mut out);
        if !out.is_empty() {
            break out;
        }
    };
    assert_eq!(first, b"data: first\n\n");
}

/// Returns the bytes of the chunks that have been received.
fn pieces(mut bytes: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(line) = bytes.windows(2).position(|two| two == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        let Some(piece) = bytes.get(line + 2..line + 2 + length) else { break };
        all.extend_from_slice(piece);
        bytes = bytes.get(line + 4 + length..).unwrap_or_default();
    }
    all
}
