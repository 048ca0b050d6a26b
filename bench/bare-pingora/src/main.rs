//! `bare-pingora LISTEN UPSTREAM [THREADS]`: every request to one upstream, nothing else.

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use std::net::SocketAddr;

/// As in larder, so that the two differ in what they do and not in what they allocate with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Bare {
    upstream: SocketAddr,
}

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _session: &mut Session, _context: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.upstream, false, String::new())))
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(listen), Some(upstream)) = (args.next(), args.next().and_then(|text| text.parse().ok())) else {
        eprintln!("usage: bare-pingora LISTEN UPSTREAM [THREADS]");
        std::process::exit(2);
    };
    let threads = args.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut server = Server::new_with_opt_and_conf(None, ServerConf { threads, ..ServerConf::default() });
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare { upstream });
    service.add_tcp(&listen);
    server.add_service(service);
    server.run_forever();
}
