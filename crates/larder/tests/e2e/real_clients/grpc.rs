//! gRPC's interoperability tests with its own Go client and server, through a switch.
//!
//! No node is involved: a node reaches its origin by HTTP/1.1 without trailers, and gRPC needs trailers.

use std::net::SocketAddr;
use std::process::Command;

use super::{Chain, HOST, Server, client, run};
use crate::acme::tool;
use crate::peers::free_port;

/// All test cases that need no cloud account and no second server.
const CASES: [&str; 16] = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    "rpc_soak",
    "channel_soak",
];

#[test]
fn the_interoperability_tests_of_grpc_pass_through_a_switch() {
    let Some(program) = tool("grpc-interop-client") else { return };
    let Some(server) = tool("grpc-interop-server") else { return };
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let _server = Server::start(Command::new(server).args(["-port", &address.port().to_string()]), address);
    let chain = Chain::before_server(&format!("{{ address = \"{address}\", http2 = true }}"));
    let (plain, secure) = (chain.switch.address.port().to_string(), chain.tls_port().to_string());
    let ca = chain.ca();
    let with_tls =
        ["-use_tls", "-use_test_ca", "-ca_file", ca.to_str().unwrap(), "-server_host_override", HOST];
    for case in CASES {
        for (port, options) in [(&plain, &[][..]), (&secure, &with_tls[..])] {
            let mut command = client(&program);
            command
                .args(["-server_host", "127.0.0.1", "-server_port", port, "-test_case", case])
                .args(options);
            run(&mut command);
        }
    }
}
