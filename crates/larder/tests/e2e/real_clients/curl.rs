//! curl as a client: every version of HTTP, persistent connections, ranges, and a long upload with `Expect:
//! 100-continue`.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use larder_testkit::needs_tool;

use super::{Chain, HOST, client, noise, run};

const MIB: usize = 1 << 20;
/// Length of the long upload in MiB.
const UPLOAD_MIB: usize = 1024;

/// Gets a file several times with one curl process. Returns the version of HTTP and the number of new
/// connections for each transfer.
fn get(
    curl: &Path,
    folder: &Path,
    times: usize,
    options: &[&str],
    url: &str,
    expected: &[u8],
) -> Vec<String> {
    let files: Vec<PathBuf> = (0..times).map(|number| folder.join(format!("got-{number}"))).collect();
    let mut command = client(curl);
    command.args(["--silent", "--show-error", "--fail", "--write-out", "%{http_version} %{num_connects}\\n"]);
    command.args(options);
    for file in &files {
        command.arg("--output").arg(file).arg(url);
    }
    let (out, _) = run(&mut command);
    for file in &files {
        assert!(fs::read(file).unwrap() == expected, "{options:?} {url}: other bytes");
    }
    out.lines().map(str::to_owned).collect()
}

#[test]
fn curl_gets_every_byte_in_every_version_of_http() {
    let Some(curl) = needs_tool("curl", "curl") else { return };
    let site = tempfile::tempdir().unwrap();
    let content = noise(1, 5_000_000);
    fs::write(site.path().join("file"), &content).unwrap();
    let chain = Chain::before_node(&format!("root = {:?}", site.path()));
    let (node, ca) = (chain.node(), chain.ca());
    let ca = ca.to_str().unwrap();
    let (plain, node_plain) =
        (format!("{}/file", chain.plain_url()), format!("http://{}/file", node.address));
    let [secure, node_secure] =
        [chain.tls_port(), node.further[0].port()].map(|port| format!("https://{HOST}:{port}/file"));
    // For each transfer, the version in the reply and the number of new connections.
    let cases: [(&[&str], &str, &[&str]); 9] = [
        (&["--http1.0"], &plain, &["1.1 1", "1.1 1"]),
        (&["--http1.1"], &plain, &["1.1 1", "1.1 0"]),
        // curl offers `Upgrade: h2c`, which a server may ignore.
        (&["--http2"], &plain, &["1.1 1", "1.1 0"]),
        // Only one transfer: curl 7.88 cannot reuse such a connection with any server.
        (&["--http2-prior-knowledge"], &plain, &["2 1"]),
        (&["--http1.1", "--cacert", ca], &secure, &["1.1 1", "1.1 0"]),
        (&["--http2", "--cacert", ca], &secure, &["2 1", "2 0"]),
        (&["--http1.0"], &node_plain, &["1.1 1", "1.1 1"]),
        (&["--http1.1"], &node_plain, &["1.1 1", "1.1 0"]),
        (&["--http2", "--cacert", ca], &node_secure, &["2 1", "2 0"]),
    ];
    for (options, url, expected) in cases {
        let got = get(&curl, chain.folder.path(), expected.len(), options, url, &content);
        assert_eq!(got, expected, "{options:?} {url}");
    }
    let part = ["--range", "1000000-1999999", "--http2-prior-knowledge"];
    get(&curl, chain.folder.path(), 1, &part, &plain, &content[1_000_000..2_000_000]);
}

/// Writes a sparse file of this many MiB with the index of each MiB at its beginning.
fn numbered_file(path: &Path, mebibytes: usize) {
    let file = File::create(path).unwrap();
    file.set_len((mebibytes * MIB) as u64).unwrap();
    for number in 0..mebibytes {
        file.write_all_at(&number.to_be_bytes(), (number * MIB) as u64).unwrap();
    }
}

/// Starts an origin that reads request bodies, checks that each is a [`numbered_file`], and replies with its
/// length in MiB.
fn checking_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((tcp, _)) = listener.accept() {
            thread::spawn(move || check_uploads(&tcp));
        }
    });
    address
}

fn check_uploads(mut tcp: &TcpStream) {
    let mut from = BufReader::with_capacity(MIB, tcp);
    let (mut block, zeros) = (vec![0; MIB], vec![0; MIB]);
    loop {
        let (mut length, mut expects) = (0, false);
        loop {
            let mut line = String::new();
            if from.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            expects |= line == "expect: 100-continue";
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        if expects {
            tcp.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        }
        let mut right = length % MIB == 0;
        for number in 0..length / MIB {
            from.read_exact(&mut block).unwrap();
            let (head, rest) = block.split_at(size_of::<usize>());
            right &= head == number.to_be_bytes() && rest == &zeros[..rest.len()];
        }
        let body = format!("{} MiB, {}", length / MIB, if right { "as sent" } else { "other bytes" });
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        tcp.write_all(reply.as_bytes()).unwrap();
    }
}

/// Uploads a file, and returns the reply and curl's record of the heads.
fn upload(curl: &Path, file: &Path, options: &[&str], url: &str) -> (String, String) {
    let mut command = client(curl);
    command.args(["--silent", "--show-error", "--fail", "--verbose"]).args(options);
    run(command.arg("--upload-file").arg(file).arg(url))
}

#[test]
fn a_gibibyte_that_waits_for_100_continue_arrives_through_switch_and_node() {
    let Some(curl) = needs_tool("curl", "curl") else { return };
    let chain = Chain::before_node(&format!("[node.origin]\nurl = \"http://{}\"", checking_origin()));
    let file = chain.folder.path().join("upload");
    numbered_file(&file, UPLOAD_MIB);
    // curl sends no byte of the body before `100 Continue`.
    let options = ["--http1.1", "--header", "Expect: 100-continue", "--expect100-timeout", super::CLIENT_S];
    let (reply, heads) = upload(&curl, &file, &options, &format!("{}/upload", chain.plain_url()));
    assert_eq!(reply, format!("{UPLOAD_MIB} MiB, as sent"));
    assert!(heads.contains("< HTTP/1.1 100 Continue"), "{heads}");
}

#[test]
fn an_upload_by_http2_over_tls_arrives_through_switch_and_node() {
    let Some(curl) = needs_tool("curl", "curl") else { return };
    let chain = Chain::before_node(&format!("[node.origin]\nurl = \"http://{}\"", checking_origin()));
    let (file, ca) = (chain.folder.path().join("upload"), chain.ca());
    numbered_file(&file, 64);
    let options = ["--http2", "--cacert", ca.to_str().unwrap()];
    for port in [chain.tls_port(), chain.node().further[0].port()] {
        let (reply, heads) = upload(&curl, &file, &options, &format!("https://{HOST}:{port}/upload"));
        assert_eq!(reply, "64 MiB, as sent");
        assert!(heads.contains("< HTTP/2 200"), "{heads}");
    }
}
