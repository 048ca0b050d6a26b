//! The smallest proxy on this engine: every request goes to one server.
//!
//! ```text
//! cargo run --release -p larder-http --example relay -- 127.0.0.1:8080 127.0.0.1:80 [CERTIFICATE.pem]
//! ```
//!
//! With a file that holds a certificate and its key, clients speak TLS.

use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{Answer, ClientInfo, Failure, Limits, Next, Pool, Proxy, Report, runtime, serve};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;
use tokio_rustls::TlsAcceptor;

struct One(SocketAddr);

impl Proxy for One {
    type Exchange = ();
    type Server = SocketAddr;
    type Stream = TcpStream;

    fn request(&self, _: ClientInfo, _: &mut RequestHead) -> ((), Next<SocketAddr>) {
        ((), Next::Server(self.0))
    }

    async fn connect(&self, server: &SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn reply(&self, (): &mut (), _: &mut ReplyHead) {}

    fn on_failure(&self, (): &mut (), _: Failure) -> Next<SocketAddr> {
        Next::Answer(Answer { status: 502, ..Answer::default() })
    }

    fn on_end(&self, (): (), _: Report) {}

    fn on_refusal(&self, _: ClientInfo, _: u16) {}

    fn limits(&self) -> Limits {
        let long = Duration::from_secs(60);
        Limits {
            head_bytes: 64 << 10,
            head: long,
            keepalive: long,
            client: long,
            connect: long,
            server: long,
            half_close: false,
        }
    }

    fn is_draining(&self) -> bool {
        false
    }
}

/// TLS with the certificate and the key in a file.
fn acceptor(file: &str) -> Result<TlsAcceptor, Box<dyn Error>> {
    let chain = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(file)?)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (listen, server, tls) = match &arguments[..] {
        [listen, server] => (listen, server, None),
        [listen, server, certificate] => (listen, server, Some(acceptor(certificate)?)),
        _ => return Err("usage: relay LISTEN SERVER [CERTIFICATE.pem]".into()),
    };
    let (listen, proxy) = (listen.parse::<SocketAddr>()?, Rc::new(One(server.parse()?)));
    LocalSet::new().block_on(&runtime()?, async {
        let listener = TcpListener::bind(listen).await?;
        let pool = Rc::new(Pool::default());
        let tended = pool.clone();
        tokio::task::spawn_local(async move { tended.tend().await });
        loop {
            let (client, address) = listener.accept().await?;
            client.set_nodelay(true)?;
            let (proxy, pool, tls) = (proxy.clone(), pool.clone(), tls.clone());
            let info = ClientInfo { address, secure: tls.is_some() };
            tokio::task::spawn_local(async move {
                match tls {
                    None => serve(client, info, &*proxy, &pool).await,
                    Some(tls) => {
                        if let Ok(client) = tls.accept(client).await {
                            serve(client, info, &*proxy, &pool).await;
                        }
                    }
                }
            });
        }
    })
}
