//! WebSocket by the Python library websockets, its server behind a switch and its client before it.
//!
//! A node is not on the way: before an origin it removes `Upgrade`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use larder_testkit::skip;

use super::{Chain, HOST, Server, client, run};
use crate::peers::free_port;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/real_clients/websocket.py");
/// The Python that Debian's packages of libraries are for, whatever other one is in `PATH`.
const PYTHON: &str = "/usr/bin/python3";

#[test]
fn the_websockets_library_exchanges_messages_of_every_kind_through_a_switch() {
    let python = Path::new(PYTHON);
    let imported = Command::new(python).args(["-c", "import websockets"]).output();
    if !imported.is_ok_and(|output| output.status.success()) {
        skip("needs the Python library websockets (apt-get install python3-websockets)");
        return;
    }
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let _server =
        Server::start(Command::new(python).args([SCRIPT, "serve", &address.port().to_string()]), address);
    let chain = Chain::before_server(&format!("\"{address}\""));
    run(client(python).args([SCRIPT, "try", &format!("ws://{}/", chain.switch.address)]));
    let secure = format!("wss://{HOST}:{}/", chain.tls_port());
    run(client(python).args([SCRIPT, "try", &secure]).arg(chain.ca()));
}
