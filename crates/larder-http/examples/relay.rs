//! The smallest proxy on this engine: it relays every request to one server.
//!
//! ```text
//! cargo run --release -p larder-http --example relay -- 127.0.0.1:8080 127.0.0.1:80 [CERTIFICATE.pem]
//! ```
//!
//! If the file has a certificate and its key, clients use TLS, and HTTP/2 if they offer it.

use larder_http::h1::{ReplyHead, RequestHead};
use larder_http::relay::{
    Answer, End, Failure, Next, PoolLimits, Proxy, Stage, Start, Worker, runtime, serve, serve_http2,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

struct OneServerProxy(SocketAddr);

impl Proxy for OneServerProxy {
    type Client = ();
    type Exchange = ();
    type Server = SocketAddr;
    type Stream = TcpStream;

    fn request(&self, (): &(), _: &mut RequestHead) -> ((), Next<SocketAddr>) {
        ((), Next::Server(self.0))
    }

    async fn connect(&self, (): &(), server: &SocketAddr) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn on_failure(
        &self,
        (): &(),
        (): &mut (),
        (request, _): (&RequestHead, &ReplyHead),
        failure: &Failure,
    ) -> Next<SocketAddr> {
        // The server may have closed an idle connection.
        if failure.stage == (Stage::Request { reused: true }) && request.is_idempotent() {
            return Next::Server(self.0);
        }
        Next::Answer(Answer::new(502))
    }
}

/// Returns a TLS acceptor with the certificate and the key in a file.
fn acceptor(file: &str) -> Result<TlsAcceptor, Box<dyn Error>> {
    let chain = CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>()?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(file)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (listen, server, tls) = match &arguments[..] {
        [listen, server] => (listen, server, None),
        [listen, server, certificate] => (listen, server, Some(acceptor(certificate)?)),
        _ => return Err("usage: relay LISTEN SERVER [CERTIFICATE.pem]".into()),
    };
    let listen = listen.parse::<SocketAddr>()?;
    let worker = Rc::new(Worker::new(OneServerProxy(server.parse()?), PoolLimits::default()));
    runtime()?.block_on(async {
        let listener = TcpListener::bind(listen).await?;
        let sweeping = worker.clone();
        tokio::task::spawn_local(async move { sweeping.run_sweeper().await });
        loop {
            let (client, _) = listener.accept().await?;
            client.set_nodelay(true)?;
            let (worker, tls) = (worker.clone(), tls.clone());
            tokio::task::spawn_local(async move {
                let cut = match tls {
                    None => serve(Start::new(client), &(), &worker).await,
                    Some(tls) => {
                        match tls.accept(client).await {
                            Ok(client) if client.get_ref().1.alpn_protocol() == Some(b"h2") => {
                                serve_http2(client, None, &(), &worker).await;
                            }
                            // Without a close_notify of TLS the client detects an incomplete reply.
                            Ok(client) => drop(serve(Start::new(client), &(), &worker).await),
                            Err(_) => {}
                        }
                        End::Closed
                    }
                };
                if let End::Reset(client) = cut {
                    // This fails only if the connection is already reset.
                    let _ = client.set_zero_linger();
                }
            });
        }
    })
}
