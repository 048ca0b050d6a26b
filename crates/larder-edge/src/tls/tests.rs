use super::certificates::Certificates;
use super::*;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Makes a certificate for these hosts that expires on the first of January, and its key, PEM.
fn make_certificate(names: &[&str], year: i32) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params =
        CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Writes a file that only its owner may read.
fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    permit(&path, 0o600);
    path
}

fn permit(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn names(certificates: &Certificates) -> Vec<String> {
    certificates.status().into_iter().flat_map(|status| status.names).collect()
}

#[test]
fn files_and_folders_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (a, b, c) = (
        make_certificate(&["a.test"], 2040),
        make_certificate(&["*.b.test", "B.test"], 2040),
        make_certificate(&["c.test"], 2040),
    );
    let both = write(at, "one.pem", &(a.0.clone() + &a.1));
    let apart = write(at, "many/two.crt", &b.0);
    write(at, "many/two.key", &b.1);
    write(at, "many/live/fullchain.pem", &c.0);
    write(at, "many/live/privkey.pem", &c.1);
    write(at, "many/README", "nothing");
    write(at, "many/params.pem", "-----BEGIN DH PARAMETERS-----\nMAA=\n-----END DH PARAMETERS-----\n");
    let read = |paths: &[&Path]| {
        Certificates::read(
            &paths.iter().map(|path| path.to_path_buf()).collect::<Vec<_>>(),
            None,
            &provider(),
        )
    };
    assert_eq!(names(&read(&[&both, &apart]).unwrap()), ["a.test", "*.b.test", "b.test"]);
    let all = read(&[&both, &at.join("many")]).unwrap();
    assert_eq!(names(&all), ["a.test", "c.test", "*.b.test", "b.test"]);
    assert_eq!(all, read(&[&both, &at.join("many")]).unwrap());
    assert!(all.status()[0].default && all.status()[0].not_after == 2_208_988_800);
}

#[test]
fn faults_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (a, b) = (make_certificate(&["a.test"], 2040), make_certificate(&["b.test"], 2040));
    let cases = [
        (at.join("none.pem"), "none.pem: cannot be read"),
        (write(at, "text.pem", "hello"), "text.pem: holds no certificate"),
        (write(at, "bare.pem", &a.0), "bare.pem: has no key: put it into the same file, or into"),
        (write(at, "wrong.pem", &(a.0.clone() + &b.1)), "wrong.pem: its key belongs to another certificate"),
        (write(at, "cut.pem", &a.0[..a.0.len() / 2]), "cut.pem: "),
        (write(at, "empty/README", "x").parent().unwrap().to_path_buf(), "empty: holds no certificate"),
        (write(at, "large.pem", &"x".repeat((1 << 20) + 1)), "large.pem: is larger than 1048576 bytes"),
    ];
    for (path, said) in cases {
        let fault = Certificates::read(&[path], None, &provider()).unwrap_err().to_string();
        assert!(fault.contains(said), "{fault}");
    }
}

/// A key is exposed both in the certificate's file and beside it. A certificate without its key may be public.
#[test]
fn exposed_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (certificate, key) = make_certificate(&["a.test"], 2040);
    let (both, certificate) =
        (write(at, "both.pem", &(certificate.clone() + &key)), write(at, "a.crt", &certificate));
    let key = write(at, "a.key", &key);
    let refusal = |path: &Path| {
        let read = Certificates::read(&[path.to_owned()], None, &provider());
        read.err().map(|fault| fault.to_string())
    };
    permit(&certificate, 0o644);
    assert_eq!((refusal(&both), refusal(&certificate)), (None, None));
    for (file, certificate) in [(&both, &both), (&key, &certificate)] {
        for mode in [0o644, 0o604, 0o660] {
            permit(file, mode);
            let shown = file.display();
            let expected = format!(
                "{shown}: holds a secret, but other users may access it (mode {mode:04o}); run chmod 600 {shown}"
            );
            assert_eq!(refusal(certificate), Some(expected.clone()));
            assert_eq!(certificates::private_key(file).unwrap_err().to_string(), expected);
        }
        permit(file, 0o400);
        assert_eq!(refusal(certificate), None);
        certificates::private_key(file).unwrap();
    }
}

/// Returns the certificate that a client with this host gets.
async fn served_certificate(tls: &Arc<Tls>, host: &str) -> Result<Vec<u8>, String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tls.clone();
    let server = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        serving.accept(tcp, Duration::from_secs(5)).await.map(|secured| secured.http2)
    });
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(host.to_owned()).unwrap();
    let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
    let http2 = server.await.unwrap();
    let stream = stream.map_err(|error| error.to_string())?;
    assert_eq!(http2, Some(true));
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].to_vec())
}

#[derive(Debug)]
struct AcceptAnyCertificate;

impl rustls::client::danger::ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &rustls::pki_types::CertificateDer<'_>,
        signed: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn der(pem: &str) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

#[tokio::test]
async fn certificate_is_selected_by_host() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (a, b, newer) = (
        make_certificate(&["a.test"], 2040),
        make_certificate(&["*.b.test"], 2040),
        make_certificate(&["x.b.test", "*.b.test"], 2041),
    );
    write(at, "1.pem", &(a.0.clone() + &a.1));
    write(at, "2.pem", &(b.0.clone() + &b.1));
    let tls = Tls::load(TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![at.to_path_buf()])).unwrap();
    let tls = Arc::new(tls);
    for (host, pem) in [
        ("a.test", &a.0),
        ("A.TEST", &a.0),
        ("x.b.test", &b.0),
        ("x.y.b.test", &a.0),
        ("b.test", &a.0),
        ("other.test", &a.0),
    ] {
        assert_eq!(served_certificate(&tls, host).await, Ok(der(pem)), "{host}");
    }
    // An invalid file changes nothing, and is reported.
    write(at, "3.pem", &newer.0);
    tls.renew();
    assert_eq!(served_certificate(&tls, "y.b.test").await, Ok(der(&b.0)));
    assert!(tls.status().1.unwrap().contains("3.pem: has no key"));
    // The certificate that expires last is used.
    write(at, "3.pem", &(newer.0.clone() + &newer.1));
    tls.renew();
    assert_eq!(served_certificate(&tls, "y.b.test").await, Ok(der(&newer.0)));
    assert_eq!((tls.status().0.len(), tls.status().1), (3, None));
    assert_eq!(
        (tls.handshake_count(TlsHandshakeOutcome::Done), tls.handshake_count(TlsHandshakeOutcome::Failed)),
        (8, 0)
    );
}

#[tokio::test]
async fn client_without_a_certificate_is_served_only_if_optional() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (own, authority) = (make_certificate(&["a.test"], 2040), make_certificate(&["authority.test"], 2040));
    let file = write(at, "own.pem", &(own.0.clone() + &own.1));
    let authority = write(at, "authority.crt", &authority.0);
    for (clients, served) in [
        (ClientCertificates::Optional(authority.clone()), true),
        (ClientCertificates::Required(authority), false),
    ] {
        let config = TlsConfig {
            clients,
            // In TLS 1.2, the client learns of the refusal during the handshake, not after it.
            min_version: TlsVersion::Tls12,
            ..TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![file.clone()])
        };
        let tls = Arc::new(Tls::load(config).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = tokio::spawn(async move {
            let config = rustls::ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&rustls::version::TLS12])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
                .with_no_client_auth();
            let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("a.test").unwrap();
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.is_ok()
        });
        let (tcp, _) = listener.accept().await.unwrap();
        let secured = tls.accept(tcp, Duration::from_secs(5)).await;
        assert_eq!((secured.is_some(), client.await.unwrap()), (served, served));
        assert_eq!(tls.handshake_count(TlsHandshakeOutcome::Failed), u64::from(!served));
    }
}

#[tokio::test]
async fn handshake_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let own = make_certificate(&["a.test"], 2040);
    let file = write(folder.path(), "own.pem", &(own.0 + &own.1));
    let tls = Tls::load(TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![file])).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let _client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (tcp, _) = listener.accept().await.unwrap();
    assert!(tls.accept(tcp, Duration::from_millis(20)).await.is_none());
    assert_eq!(tls.handshake_count(TlsHandshakeOutcome::TimedOut), 1);
}

#[tokio::test]
async fn hybrid_key_exchange_is_used_if_the_client_sends_a_key_share() {
    use rustls::{HandshakeKind, NamedGroup};
    let folder = tempfile::tempdir().unwrap();
    let own = make_certificate(&["a.test"], 2040);
    let file = write(folder.path(), "own.pem", &(own.0 + &own.1));
    let tls = Arc::new(Tls::load(TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![file])).unwrap());
    let hybrid: &'static dyn rustls::crypto::SupportedKxGroup =
        rustls::crypto::aws_lc_rs::kx_group::X25519MLKEM768;
    let classical = rustls::crypto::aws_lc_rs::kx_group::X25519;
    for (groups, version, group) in [
        (vec![hybrid, classical], &rustls::version::TLS13, NamedGroup::X25519MLKEM768),
        // Without a second round trip.
        (vec![classical, hybrid], &rustls::version::TLS13, NamedGroup::X25519),
        (vec![classical], &rustls::version::TLS13, NamedGroup::X25519),
        (vec![hybrid, classical], &rustls::version::TLS12, NamedGroup::X25519),
    ] {
        let offered = CryptoProvider { kx_groups: groups, ..rustls::crypto::aws_lc_rs::default_provider() };
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(offered))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
            .with_no_client_auth();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tls.clone();
        let server = tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            serving.accept(tcp, Duration::from_secs(5)).await.is_some()
        });
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
        let client = stream.get_ref().1;
        let taken = client.negotiated_key_exchange_group().map(rustls::crypto::SupportedKxGroup::name);
        assert_eq!((taken, client.handshake_kind()), (Some(group), Some(HandshakeKind::Full)));
        assert!(server.await.unwrap());
    }
}

/// Performs a handshake of a client that stores sessions. Returns whether a session was resumed, or `None` if the
/// handshake failed.
async fn resumed(tls: &Arc<Tls>, client: &Arc<rustls::ClientConfig>) -> Option<bool> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = client.clone();
    let shaking = tokio::spawn(async move {
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        let stream = tokio_rustls::TlsConnector::from(client).connect(name, tcp).await.ok()?;
        Some(stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed))
    });
    let (tcp, _) = listener.accept().await.unwrap();
    let secured = tls.accept(tcp, Duration::from_secs(5)).await;
    let shaken = shaking.await.unwrap();
    assert_eq!(secured.is_some(), shaken.is_some());
    shaken
}

/// The relay uses the trait. TLS accepts more than its socket does.
#[tokio::test]
async fn tls_connection_reports_bytes_accepted_by_its_socket() {
    fn sent(io: &impl larder_http::relay::Transport) -> Option<u64> {
        io.sent()
    }
    let folder = tempfile::tempdir().unwrap();
    let own = make_certificate(&["a.test"], 2040);
    let file = write(folder.path(), "own.pem", &(own.0 + &own.1));
    let tls = Tls::load(TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![file])).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = tokio::spawn(async move {
        let config = rustls::ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
            .with_no_client_auth();
        let tcp = tokio::net::TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap()
    });
    let (tcp, _) = listener.accept().await.unwrap();
    let mut io = crate::ClientIo::Secure(tls.accept(tcp, Duration::from_secs(5)).await.unwrap().stream);
    let _unread = client.await.unwrap();
    let before = sent(&io).unwrap();
    assert!(before > 0, "the handshake");
    // More than the socket accepts if the client reads nothing.
    let (mut taken, piece) = (0, vec![0; 64 << 10]);
    while let Ok(bytes) = tokio::time::timeout(Duration::from_millis(100), io.write(&piece)).await {
        taken += bytes.unwrap() as u64;
    }
    let after = sent(&io).unwrap();
    assert!(after > before && after - before < taken, "{taken} bytes, of which {} have left", after - before);
}

#[tokio::test]
async fn sessions_survive_a_reload_without_client_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (own, authority) = (make_certificate(&["a.test"], 2040), make_certificate(&["authority.test"], 2040));
    let file = write(at, "own.pem", &(own.0.clone() + &own.1));
    let authority = write(at, "authority.crt", &authority.0);
    let config = |clients| {
        let config = TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![file.clone()]);
        TlsConfig { clients, ..config }
    };
    // In a TLS 1.2 handshake, a client gets its ticket, and learns of a refusal, during the handshake.
    let client = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    let client = Arc::new(client);
    let first = Arc::new(Tls::load(config(ClientCertificates::Off)).unwrap());
    assert_eq!((resumed(&first, &client).await, resumed(&first, &client).await), (Some(false), Some(true)));
    let second = Arc::new(first.successor(config(ClientCertificates::Off)).unwrap());
    assert_eq!(resumed(&second, &client).await, Some(true));
    let asks = Arc::new(second.successor(config(ClientCertificates::Required(authority.clone()))).unwrap());
    assert_eq!(resumed(&asks, &client).await, None, "who has shown none has no session here");
    let last = Arc::new(asks.successor(config(ClientCertificates::Optional(authority))).unwrap());
    assert_eq!(resumed(&last, &client).await, Some(false));
    assert_eq!(
        (last.handshake_count(TlsHandshakeOutcome::Done), last.handshake_count(TlsHandshakeOutcome::Failed)),
        (4, 1),
        "counts go on"
    );
    assert!(last.successor(config(ClientCertificates::Required(at.join("none.pem")))).is_err());
}

/// Counts the log lines of level error.
struct ErrorCounter(Arc<AtomicU64>);

impl tracing::Subscriber for ErrorCounter {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::ERROR
    }

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn expired_certificate_is_logged_every_day() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = make_certificate(&["a.test"], 2020);
    let file = write(folder.path(), "own.pem", &(certificate + &key));
    let config = TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![file]);
    let hour = Duration::from_secs(3600);
    let tls = Arc::new(Tls::load(TlsConfig { reload: hour, ..config }).unwrap());
    let lines = Arc::new(AtomicU64::new(0));
    let _guard = tracing::subscriber::set_default(ErrorCounter(lines.clone()));
    assert!(tokio::time::timeout(60 * hour, tls.watch()).await.is_err());
    assert_eq!(lines.load(Relaxed), 3, "at the start and after one and two days");
}
