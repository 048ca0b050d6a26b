//! WebSocket with the Python library websockets: its server behind a switch or behind a node, and its client.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use larder_testkit::skip;

use super::{Chain, HOST, Server, client, run};
use crate::http::get;
use crate::peers::free_port;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/real_clients/websocket.py");
/// The Python for which Debian packages libraries, even if `PATH` has another one.
const PYTHON: &str = "/usr/bin/python3";

/// Starts a server of the library, if the library is installed.
fn server() -> Option<(Server, SocketAddr)> {
    let imported = Command::new(PYTHON).args(["-c", "import websockets"]).output();
    if !imported.is_ok_and(|output| output.status.success()) {
        skip("needs the Python library websockets (apt-get install python3-websockets)");
        return None;
    }
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(PYTHON);
    Some((Server::start(command.args([SCRIPT, "serve", &address.port().to_string()]), address), address))
}

/// Runs the library's client with all cases against the server behind this address.
fn run_client(address: SocketAddr, ca: Option<&Path>) {
    let url = match ca {
        Some(_) => format!("wss://{HOST}:{}/", address.port()),
        None => format!("ws://{address}/"),
    };
    run(client(Path::new(PYTHON)).args([SCRIPT, "try", &url]).args(ca));
}

#[test]
fn the_websockets_library_exchanges_messages_of_every_kind_through_a_switch() {
    let Some((_server, address)) = server() else { return };
    let chain = Chain::before_server(&format!("\"{address}\""));
    run_client(chain.switch.address, None);
    run_client(chain.switch.further[0], Some(&chain.ca()));
}

#[test]
fn the_websockets_library_exchanges_messages_of_every_kind_through_switch_and_node() {
    let Some((_server, address)) = server() else { return };
    let chain = Chain::before_node(&format!("origin = {{ url = \"http://{address}\" }}"));
    for before in [&chain.switch, chain.node()] {
        run_client(before.address, None);
        run_client(before.further[0], Some(&chain.ca()));
    }
    let stats = get(chain.node().admin.unwrap(), "/stats").json();
    let opened = stats["origin_tunnels_opened"].as_u64().unwrap();
    assert!(opened >= 4, "the node was on the way: {stats}");
}
