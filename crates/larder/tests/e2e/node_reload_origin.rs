//! Reloads of a node before an origin.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;

use crate::http::{Client, get};
use crate::node_reload::Node;
use crate::origin::{Origin, echoed_request, values};
use crate::process::until;

#[test]
fn origin_settings_change_and_stored_replies_stay() {
    let origin = Origin::start("o", "Cache-Control: max-age=60\r\n");
    let node = Node::start(|_| format!("origin = {{ url = \"http://{}\" }}\n", origin.address));
    assert!(!node.hits("/a") && node.hits("/a"));
    node.reload(&format!(
        "origin = {{ url = \"http://{}\", idle_max = 1, headers_max = 8 }}\n",
        origin.address
    ));
    assert!(node.hits("/a") && !node.hits("/b") && node.hits("/b"));
    let error = node.reload_error("origin = { url = \"http://127.0.0.1:1\" }\n");
    assert!(error.contains("node.origin.url (line 6): restart"), "{error}");
    assert!(node.hits("/a"));

    // An origin that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("url = \"http://{}\"", silent.local_addr().unwrap());
    let node = Node::start(|_| format!("origin = {{ {url}, head_timeout = \"1h\" }}\n"));
    node.reload(&format!(
        "origin = {{ {url}, connect_timeout = \"100ms\", head_timeout = \"100ms\", requests_max = 1 }}\n"
    ));
    let reply = get(node.address, "/a");
    assert_eq!(reply.status, 504, "{}", reply.head);
    node.reload(&format!("origin = {{ {url}, head_timeout = \"20s\", requests_max = 1 }}\n"));
    let address = node.address;
    let waits = std::thread::spawn(move || drop(Client::connect(address).unwrap().ask("GET", "/b", "")));
    until("one asks", || (node.stats("store_reading") == 1).then_some(()));
    let reply = get(node.address, "/c");
    assert!(reply.header("cache-status").unwrap().contains("origin-full"), "{}", reply.head);
    drop(silent);
    waits.join().unwrap();
}

#[test]
fn tokens_and_keys_for_an_origin_are_read_again_at_sighup() {
    let origin = Origin::start("o", "Cache-Control: no-store\r\n");
    let secret = |folder: &Path, name: &str, text: &str, mode| {
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    let node = Node::start(|folder| {
        for (name, text) in
            [("token", "Bearer old-s3cret"), ("key", "old-s3cret"), ("session", "old-session")]
        {
            secret(folder, name, text, 0o600);
        }
        let file = |name| folder.join(name);
        format!(
            "[node.origin]\nurl = \"http://{}\"\nhost = \"origin\"\nheaders = {{ X-Token = {{ file = {:?} }} }}\n\
             sign = {{ region = \"us-east-1\", access_key = \"a\", secret_key_file = {:?}, session_token_file = {:?} }}\n",
            origin.address,
            file("token"),
            file("key"),
            file("session")
        )
    });
    let sent = || {
        let asked = echoed_request(&get(node.address, "/a"));
        ["x-token", "x-amz-security-token"].map(|name| values(&asked, name).join(" "))
    };
    assert_eq!(sent(), ["Bearer old-s3cret", "old-session"]);
    let folder = node.folder.path();
    for (name, text) in [("token", "Bearer new-s3cret"), ("key", "new-s3cret"), ("session", "new-session")] {
        secret(folder, name, text, 0o600);
    }
    node.signal(Signal::HUP);
    until("the reload is done", || (node.status()["done"] == 1).then_some(()));
    assert_eq!(sent(), ["Bearer new-s3cret", "new-session"]);
    // A secret file that other users may read is refused, and the previous secret stays in force.
    secret(folder, "token", "Bearer other-s3cret", 0o644);
    node.signal(Signal::HUP);
    until("the reload is refused", || (node.status()["refused"] == 1).then_some(()));
    assert_eq!(sent(), ["Bearer new-s3cret", "new-session"]);
    let (talk, status) = (node.log_text(), node.status().to_string());
    assert!(talk.contains("chmod 600") && status.contains("node.origin.headers.X-Token"), "{talk}\n{status}");
    assert!(!talk.contains("s3cret") && !status.contains("s3cret") && !talk.contains("-session"), "{talk}");
}
