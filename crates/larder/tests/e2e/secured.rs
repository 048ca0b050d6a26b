//! TLS clients.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub fn roots(pem: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    roots
}

pub type TlsConnection = StreamOwned<ClientConnection, TcpStream>;

/// Connects, and completes the handshake with a server that has a certificate for this host.
pub fn connect(address: SocketAddr, host: &str, roots: RootCertStore) -> io::Result<TlsConnection> {
    shake(TcpStream::connect(address)?, host, roots, None)
}

/// Completes the handshake on a connection. `own` is a file with the client's certificate and key.
pub fn shake(
    tcp: TcpStream,
    host: &str,
    roots: RootCertStore,
    own: Option<&Path>,
) -> io::Result<TlsConnection> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(file) => {
            let chain = vec![CertificateDer::from_pem_file(file).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(file).unwrap()).unwrap()
        }
    };
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut stream = StreamOwned::new(session, tcp);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// Returns the certificate that is presented for a host, if it is valid for these roots.
pub fn shown(address: SocketAddr, host: &str, roots: &RootCertStore) -> io::Result<Vec<u8>> {
    let stream = connect(address, host, roots.clone())?;
    Ok(stream.conn.peer_certificates().unwrap()[0].to_vec())
}
