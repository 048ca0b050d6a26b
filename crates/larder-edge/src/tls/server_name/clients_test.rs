//! Tests with clients that send a port in the server name. OpenSSL can send any name, so it represents all of them.

use crate::tls::{ClientCertificates, Tls, TlsConfig, TlsHandshakeOutcome, TlsVersion};
use larder_testkit::Authority;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// Returns the output of `openssl s_client` for a connection with these options.
async fn report(tls: &Arc<Tls>, name: &str, options: &[&str]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound").to_string();
    let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
    let name = name.to_owned();
    let client = tokio::task::spawn_blocking(move || {
        Command::new("openssl")
            .args([
                "s_client",
                "-connect",
                &address,
                "-servername",
                &name,
                "-ign_eof",
                "-verify_return_error",
            ])
            .args(options)
            .stdin(Stdio::null())
            .output()
            .expect("runs openssl")
    });
    let (tcp, _) = listener.accept().await.expect("accepts");
    if let Some(mut secured) = tls.accept(tcp, Duration::from_secs(30)).await {
        secured.stream.write_all(b"served\n").await.expect("writes");
        secured.stream.shutdown().await.expect("ends");
    }
    let output = client.await.expect("ends");
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// TLS with certificates for `other.test`, which is the default, and `a.test`.
fn tls(authority: &Authority, clients: ClientCertificates) -> Arc<Tls> {
    let certificates = vec![authority.leaf("other.test"), authority.leaf("a.test")];
    let config = TlsConfig {
        clients,
        min_version: TlsVersion::Tls12,
        ..TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], certificates)
    };
    Arc::new(Tls::load(config).expect("TLS"))
}

#[tokio::test]
async fn certificate_is_selected_by_the_host_without_port() {
    let authority = Authority::new();
    let (tls, ca) = (tls(&authority, ClientCertificates::Off), authority.ca());
    for (name, host) in [
        ("a.test:8443", "a.test"),
        ("A.TEST:443", "a.test"),
        ("other.test:8443", "other.test"),
        ("127.0.0.1:8443", "other.test"),
        ("[::1]:8443", "other.test"),
        ("a.test", "a.test"),
    ] {
        // The last client sends no key share that the server supports, and continues after a HelloRetryRequest.
        for version in [&["-tls1_2"][..], &["-tls1_3"], &["-tls1_3", "-groups", "P-521:X25519"]] {
            let options = [version, &["-CAfile", text(&ca), "-verify_hostname", host]].concat();
            let report = report(&tls, name, &options).await;
            assert!(report.contains("served\n"), "{name} {version:?}\n{report}");
        }
    }
    assert_eq!(tls.handshake_count(TlsHandshakeOutcome::Done), 18);
    let refused = report(&tls, "a b:1:2", &[]).await;
    assert!(
        refused.contains("alert illegal parameter") && tls.handshake_count(TlsHandshakeOutcome::Failed) == 1,
        "{refused}"
    );
}

#[tokio::test]
async fn sessions_are_resumed() {
    let authority = Authority::new();
    let (tls, ca) = (tls(&authority, ClientCertificates::Off), authority.ca());
    for version in ["-tls1_2", "-tls1_3"] {
        let session = authority.path().join(version);
        let options = [version, "-CAfile", text(&ca)];
        let first =
            report(&tls, "a.test:8443", &[&options[..], &["-sess_out", text(&session)]].concat()).await;
        assert!(first.contains("\nNew, TLS") && first.contains("served\n"), "{first}");
        let second =
            report(&tls, "a.test:8443", &[&options[..], &["-sess_in", text(&session)]].concat()).await;
        assert!(second.contains("\nReused, TLS") && second.contains("served\n"), "{second}");
    }
}

#[tokio::test]
async fn client_certificates_are_verified() {
    let authority = Authority::new();
    let (ca, own) = (authority.ca(), authority.leaf("client.test"));
    let tls = tls(&authority, ClientCertificates::Required(ca.clone()));
    for version in ["-tls1_2", "-tls1_3"] {
        let options = [version, "-CAfile", text(&ca), "-cert", text(&own), "-key", text(&own)];
        let report = report(&tls, "a.test:8443", &options).await;
        assert!(report.contains("served\n"), "{version}\n{report}");
    }
    assert_eq!(
        (tls.handshake_count(TlsHandshakeOutcome::Done), tls.handshake_count(TlsHandshakeOutcome::Failed)),
        (2, 0)
    );
}
