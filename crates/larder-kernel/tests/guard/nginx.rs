//! An unmodified server behind the guard: nginx.

use crate::lab::{INTERFACE, KEY, Lab, NO_KEY, PATIENCE, eventually, vip};
use crate::support::cookies_or_skip;
use larder_kernel::guard::{Guard, GuardConfig, GuardService};
use larder_testkit::http::take_head;
use larder_testkit::skip;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A server in the node's namespace, stopped when dropped; its files are removed too.
struct Nginx {
    child: Child,
    directory: PathBuf,
}

impl Nginx {
    /// Returns `None` if nginx is not installed.
    fn start(lab: &Lab) -> Option<Self> {
        let directory = std::env::temp_dir().join(format!("larder-guard-nginx-{}", std::process::id()));
        fs::create_dir_all(directory.join("files")).expect("made");
        fs::write(directory.join("nginx.conf"), config(&directory)).expect("written");
        let mut command = Command::new("nginx");
        command.arg("-p").arg(&directory).arg("-c").arg(directory.join("nginx.conf"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        match lab.node.run(|| command.spawn()).expect("entered") {
            Ok(child) => Some(Self { child, directory }),
            Err(e) => {
                let _ = fs::remove_dir_all(&directory);
                skip(&format!("needs nginx: {e}"));
                None
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("access.log")).unwrap_or_default()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A single process, so that killing it stops everything.
fn config(directory: &Path) -> String {
    let at = directory.display();
    format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\n\
         events {{}}\n\
         http {{ log_format who '$remote_addr $remote_port $request_uri $status';\n\
         client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;\n\
         uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
         server {{ listen 80; listen [::]:80; root {at}/files; access_log {at}/access.log who; }} }}\n"
    )
}

fn get(lab: &Lab, to: SocketAddr, path: &str) -> (Vec<u8>, SocketAddr) {
    let made = lab.client.run(|| TcpStream::connect_timeout(&to, PATIENCE)).expect("entered");
    let mut client = made.expect("a connection");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    let from = client.local_addr().expect("an address");
    write!(client, "GET {path} HTTP/1.1\r\nHost: larder\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("all of it");
    let head = take_head(&mut answer).expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    (answer, from)
}

#[test]
fn nginx_serves_and_sees_the_client_address() {
    let Some(lab) = Lab::new() else { return };
    if !cookies_or_skip() {
        return;
    }
    let config = GuardConfig {
        name: format!("guard-nginx-{}", std::process::id()),
        interface: INTERFACE.to_owned(),
        ring_bytes: 1 << 20,
        connections_max: 4096,
    };
    let guard = lab.node.run(|| Guard::start(&config)).expect("entered").expect("a guard");
    for v6 in [false, true] {
        let service = GuardService { cookie: true, ..GuardService::default() };
        guard.set_service(0, vip(v6), service).expect("set");
    }
    guard.set_keys(&[KEY, NO_KEY]).expect("set");
    let Some(nginx) = Nginx::start(&lab) else { return };
    let sizes = [0, 1, 1000, 100_000, 3_000_000];
    for size in sizes {
        let body: Vec<u8> = (0..size).map(|i: u32| (i % 253) as u8).collect();
        fs::write(nginx.directory.join(format!("files/{size}")), body).expect("written");
    }
    eventually("nginx listens", || {
        lab.node.run(|| TcpStream::connect("127.0.0.1:80")).expect("entered").ok()
    });
    for v6 in [false, true] {
        for size in sizes {
            let (body, from) = get(&lab, vip(v6), &format!("/{size}"));
            let expected = (0..size).map(|i| (i % 253) as u8);
            assert!(body.iter().copied().eq(expected), "{size} bytes over IPv6 {v6}");
            let line = format!("{} {} /{size} 200\n", from.ip(), from.port());
            eventually("a line in the log", || nginx.log().contains(&line).then_some(()));
        }
    }
    let accepted =
        larder_kernel::abi::COUNTERS.iter().position(|&name| name == "accepted").expect("a counter");
    assert_eq!(guard.counters().expect("counters")[accepted], 10);
}
