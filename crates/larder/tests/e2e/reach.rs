//! Foreign servers that require the client's address (PROXY protocol) or the switch's identity (TLS with
//! certificates on both sides).

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use larder_testkit::{Authority, needs_tool};

use crate::http::{Client, get};
use crate::origin::Origin;
use crate::peers::free_port;
use crate::process::{Process, until};

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn switch(folder: &Path, nodes: &str, rest: &str) -> Process {
    let config = folder.join("larder.toml");
    let text = format!(
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = {nodes}\nhealth = {{ check = \"/\", interval = \"50ms\" }}\n{rest}"
    );
    fs::write(&config, text).unwrap();
    Process::start(&["switch", "--config", config.to_str().unwrap(), "--admin", "127.0.0.1:0"])
}

fn spawn(command: &mut Command) -> KillOnDrop {
    KillOnDrop(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
}

fn state(switch: &Process, node: &str) -> String {
    let nodes = get(switch.admin.unwrap(), "/nodes").json();
    let found = nodes.as_array().unwrap().iter().find(|row| row["name"] == node).unwrap();
    found["state"].as_str().unwrap().to_owned()
}

/// Starts nginx. Its replies contain the client's address and the switch's identity, for HTTP/1.1 or, over
/// TLS, HTTP/2.
fn nginx(folder: &Path, port: u16, certificate: &Path, clients: &Path, http2: bool) -> KillOnDrop {
    let here = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {here}/{name};"))
        .concat();
    let (certificate, clients) = (certificate.display(), clients.display());
    let speaks = if http2 { "ssl http2" } else { "ssl proxy_protocol" };
    let text = format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;\nevents {{}}\nhttp {{ access_log off; \
         {temporary} server {{ listen 127.0.0.1:{port} {speaks}; ssl_certificate {certificate}; ssl_certificate_key \
         {certificate}; ssl_client_certificate {clients}; ssl_verify_client on; keepalive_requests 1000;\nlocation / {{ \
         default_type text/plain; return 200 \"$proxy_protocol_addr:$proxy_protocol_port|$proxy_protocol_server_port|\
         $ssl_client_s_dn|$ssl_server_name|$server_protocol|$connection\"; }} }} }}\n"
    );
    let config = folder.join("nginx.conf");
    fs::write(&config, text).unwrap();
    spawn(Command::new("nginx").arg("-p").arg(folder).arg("-c").arg(config))
}

fn parts(body: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(body).split('|').map(ToOwned::to_owned).collect()
}

#[test]
fn nginx_gets_the_client_s_address_and_the_switch_s_identity() {
    if needs_tool("nginx", "nginx").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (servers, switches) =
        (Authority::in_folder(folder.path(), "servers"), Authority::in_folder(folder.path(), "switches"));
    let (own, shown, port) = (servers.leaf("node.test"), switches.leaf("switch.test"), free_port());
    let _nginx = nginx(folder.path(), port, &own, &switches.ca(), false);
    let tls = format!(
        "[switch.connect.tls]\nca = {:?}\nname = \"node.test\"\ncertificate = {shown:?}\n",
        servers.ca()
    );
    let nodes = format!("[{{ name = \"a\", address = \"127.0.0.1:{port}\", proxy_protocol = \"v2\" }}]");
    let switch = switch(folder.path(), &nodes, &tls);
    until("nginx answers", || (get(switch.address, "/").status == 200).then_some(()));
    let mut connections = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(switch.address).unwrap();
        let said: Vec<_> = (0..3).map(|_| parts(&client.ask("GET", "/", "").unwrap().body)).collect();
        assert_eq!(said[0], said[2], "one client, one connection");
        let said = &said[0];
        assert_eq!(said[0], client.local().to_string());
        assert_eq!(said[1], switch.address.port().to_string());
        assert_eq!((&*said[2], &*said[3], &*said[4]), ("CN=switch.test", "node.test", "HTTP/1.1"));
        connections.push(said[5].clone());
    }
    assert_ne!(connections[0], connections[1]);
    assert_eq!(state(&switch, "a"), "up");
}

#[test]
fn nginx_is_reached_by_http2_over_tls() {
    if needs_tool("nginx", "nginx").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (servers, switches) =
        (Authority::in_folder(folder.path(), "servers"), Authority::in_folder(folder.path(), "switches"));
    let (own, shown, port) = (servers.leaf("node.test"), switches.leaf("switch.test"), free_port());
    let _nginx = nginx(folder.path(), port, &own, &switches.ca(), true);
    let nodes = format!(
        "[{{ name = \"a\", address = \"127.0.0.1:{port}\", http2 = true, tls = {{ ca = {:?}, name = \"node.test\", \
         certificate = {shown:?} }} }}]",
        servers.ca()
    );
    let switch = switch(folder.path(), &nodes, "");
    until("nginx answers", || (get(switch.address, "/").status == 200).then_some(()));
    let said = parts(&get(switch.address, "/").body);
    assert_eq!((&*said[2], &*said[3], &*said[4]), ("CN=switch.test", "node.test", "HTTP/2.0"));
}

#[test]
fn haproxy_gets_client_addresses_and_checks_announce_none() {
    if needs_tool("haproxy", "haproxy").is_none() {
        return;
    }
    for version in ["v1", "v2"] {
        let folder = tempfile::tempdir().unwrap();
        let (origin, port) = (Origin::start("origin", ""), free_port());
        let config = folder.path().join("haproxy.cfg");
        let text = format!(
            "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\n\
             frontend f\n bind 127.0.0.1:{port} accept-proxy\n http-request set-header x-said %[src]:%[src_port]\n\
             default_backend b\nbackend b\n server s {}\n",
            origin.address
        );
        fs::write(&config, text).unwrap();
        let _haproxy = spawn(Command::new("haproxy").arg("-db").arg("-f").arg(config));
        let nodes = format!("[\"127.0.0.1:{port}\"]");
        let rest = format!("connect.proxy_protocol = \"{version}\"\n");
        let switch = switch(folder.path(), &nodes, &rest);
        until("HAProxy answers", || (get(switch.address, "/").status == 200).then_some(()));
        let mut client = Client::connect(switch.address).unwrap();
        assert_eq!(client.ask("GET", "/", "").unwrap().status, 200);
        let line = format!("x-said: {}\r\n", client.local());
        let seen = origin.requests.lock().unwrap().clone();
        assert!(seen.iter().any(|text| text.to_lowercase().contains(&line)), "{line}: {seen:?}");
    }
}

#[test]
fn a_node_with_another_certificate_is_down_with_the_reason() {
    if needs_tool("nginx", "nginx").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (servers, others) =
        (Authority::in_folder(folder.path(), "servers"), Authority::in_folder(folder.path(), "others"));
    let (own, shown, port) = (others.leaf("node.test"), others.leaf("switch.test"), free_port());
    let _nginx = nginx(folder.path(), port, &own, &others.ca(), true);
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    until("nginx listens", || Client::connect(address).ok());
    let tls = format!(
        "[switch.connect.tls]\nca = {:?}\nname = \"node.test\"\ncertificate = {shown:?}\n",
        servers.ca()
    );
    let switch = switch(folder.path(), &format!("[{{ name = \"a\", address = \"{address}\" }}]"), &tls);
    let mut first = String::new();
    until("the checks find it", || {
        let reply = get(switch.address, "/");
        if reply.status == 502 && first.is_empty() {
            first = reply.header("x-larder-error").unwrap_or_default().to_owned();
        }
        (state(&switch, "a") == "down").then_some(())
    });
    assert!(first.is_empty() || first == "node_tls", "{first}");
}
