//! TLS, HTTP/2 and announced clients, by real clients' libraries.

mod support;

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use larder_switch::{ClientCertificates, SwitchConfig, TlsConfig, TlsVersion};
use larder_testkit::{Authority, take_time_async};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use support::{Act, Client, Node, Running, config, eventually, header, ok};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority, a certificate of it for the switch, and one for a client.
struct Certificates {
    authority: Authority,
    switch: PathBuf,
    client: PathBuf,
}

impl Certificates {
    fn new() -> Self {
        let authority = Authority::new();
        let (switch, client) = (authority.leaf("test"), authority.leaf("client"));
        Self { authority, switch, client }
    }

    fn tls(&self) -> TlsConfig {
        TlsConfig::new(vec![([127, 0, 0, 1], 0).into()], vec![self.switch.clone()])
    }

    /// A client's connection, which offers these protocols.
    async fn connect(
        &self,
        address: SocketAddr,
        protocols: &[&[u8]],
        with_own: bool,
    ) -> TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(self.authority.roots());
        let mut config = if with_own {
            let chain = vec![CertificateDer::from_pem_file(&self.client).expect("a certificate")];
            let key = PrivateKeyDer::from_pem_file(&self.client).expect("a key");
            builder.with_client_auth_cert(chain, key).expect("a certificate")
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let tcp = TcpStream::connect(address).await.expect("connects");
        let name = ServerName::try_from("test").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("shakes hands")
    }
}

fn secure(nodes: &[&Node], tls: TlsConfig) -> SwitchConfig {
    SwitchConfig { listen: Vec::new(), tls: Some(tls), ..config(nodes) }
}

/// Whatever comes until the end, or until `end` has come.
async fn read_until(stream: &mut (impl AsyncReadExt + Unpin), end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) && stream.read_buf(&mut bytes).await.unwrap_or(0) > 0 {}
    String::from_utf8(bytes).expect("text")
}

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

async fn http2(io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static) -> Sender {
    let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await;
    let (sender, connection) = made.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

async fn ask(sender: &Sender, method: &str, uri: &str, body: &[u8]) -> (http::response::Parts, Bytes) {
    let body = Full::new(Bytes::copy_from_slice(body));
    let request =
        Request::builder().method(method).uri(uri).version(Version::HTTP_2).body(body).expect("a request");
    let reply = sender.clone().send_request(request).await.expect("a reply");
    let (head, body) = reply.into_parts();
    (head, body.collect().await.expect("a body").to_bytes())
}

#[tokio::test]
async fn a_connection_of_http1_comes_by_tls() {
    let (certificates, node) = (Certificates::new(), Node::named("a").await);
    let switch = Running::start(secure(&[&node], certificates.tls()));
    let mut stream = certificates.connect(switch.address, &[b"http/1.1"], false).await;
    for _ in 0..3 {
        stream
            .write_all(
                b"GET /x HTTP/1.1\r\nHost: test\r\nX-Forwarded-Proto: http\r\nClient-Cert: :AAAA:\r\n\r\n",
            )
            .await
            .expect("sends");
        assert!(read_until(&mut stream, "\r\n\r\na").await.starts_with("HTTP/1.1 200 OK\r\n"));
        assert_eq!(header(&node.last(), "x-forwarded-proto"), Some("https"));
        assert_eq!(
            (header(&node.last(), "client-cert"), header(&node.last(), "x-forwarded-for")),
            (None, Some("127.0.0.1"))
        );
    }
    // Answers of the switch's own come whole, and the end of the connection is the protocol's.
    stream
        .write_all(format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", "l".repeat(9_000)).as_bytes())
        .await
        .expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("a clean end");
    assert!(answer.starts_with("HTTP/1.1 414 ") && answer.ends_with("\r\n\r\nuri_too_long\n"), "{answer}");
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_tls_handshakes_total{outcome=\"done\"} "), 1.0);
}

#[tokio::test]
async fn requests_of_http2_are_decided_one_by_one() {
    let certificates = Certificates::new();
    let large = "x".repeat(300_000);
    let script = |name: &'static str, large: String| {
        move |head: &str| {
            if head.starts_with("GET /large") {
                Act::Reply(ok(name, &large))
            } else {
                Act::Reply(ok(name, name))
            }
        }
    };
    let a = Node::scripted("a", script("a", large.clone())).await;
    let b = Node::scripted("b", script("b", large.clone())).await;
    let mut config = secure(&[&a, &b], certificates.tls());
    config.settings.policy = larder_core::PolicyKind::Rr;
    let switch = Running::start(config);
    let sender = http2(certificates.connect(switch.address, &[b"h2", b"http/1.1"], false).await).await;
    let mut answers = tokio::task::JoinSet::new();
    for number in 0..40 {
        let sender = sender.clone();
        answers.spawn(async move {
            let uri = format!("https://test/{}?n={number}", if number % 4 == 0 { "large" } else { "small" });
            (number, ask(&sender, "GET", &uri, b"").await)
        });
    }
    while let Some(answer) = answers.join_next().await {
        let (number, (head, body)) = answer.expect("an answer");
        assert_eq!((head.status, head.version), (200.into_status(), Version::HTTP_2));
        assert_eq!(body.len(), if number % 4 == 0 { large.len() } else { 1 }, "{number}");
    }
    assert_eq!((a.requests(), b.requests()), (20, 20));
    assert_eq!(header(&a.last(), "host"), Some("test"));
    assert_eq!(header(&a.last(), "x-forwarded-proto"), Some("https"));
    let (head, _) = ask(&sender, "POST", "https://test/post", &vec![b'y'; 700_000]).await;
    assert_eq!(head.status, 200);
    // A refused request ends its own stream only.
    let (head, _) = ask(&sender, "GET", &format!("https://test/{}", "l".repeat(9_000)), b"").await;
    assert_eq!(
        (head.status.as_u16(), head.headers["x-larder-error"].as_bytes()),
        (414, &b"uri_too_long"[..])
    );
    assert_eq!(ask(&sender, "GET", "https://test/after", b"").await.0.status, 200);
    switch.settles().await;
    assert_eq!(switch.metric("larder_switch_http2_connections_total "), 1.0);
    // The target is the same for every HTTP version.
    let mut stream = certificates.connect(switch.address, &[], false).await;
    stream.write_all(b"GET /after HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await.expect("sends");
    stream.read_to_end(&mut Vec::new()).await.expect("a clean end");
    let told: Vec<Option<String>> =
        [&a, &b].map(|node| header(&node.last(), "larder-target").map(str::to_owned)).into();
    assert!(told[0].is_some() && told[0] == told[1], "{told:?}");
}

trait IntoStatus {
    fn into_status(self) -> http::StatusCode;
}

impl IntoStatus for u16 {
    fn into_status(self) -> http::StatusCode {
        http::StatusCode::from_u16(self).expect("a status")
    }
}

#[tokio::test]
async fn clients_show_their_certificates() {
    let (certificates, node) = (Certificates::new(), Node::named("a").await);
    let tls = TlsConfig {
        clients: ClientCertificates::Optional(certificates.authority.ca()),
        min_version: TlsVersion::Tls13,
        ..certificates.tls()
    };
    let switch = Running::start(secure(&[&node], tls));
    for with_own in [true, false] {
        let sender = http2(certificates.connect(switch.address, &[b"h2"], with_own).await).await;
        assert_eq!(ask(&sender, "GET", "https://test/", b"").await.0.status, 200);
        let told = header(&node.last(), "client-cert").map(str::to_owned);
        assert_eq!(told.is_some(), with_own);
        if let Some(told) = told {
            use base64::Engine as _;
            let der =
                base64::engine::general_purpose::STANDARD.decode(told.trim_matches(':')).expect("base64");
            assert_eq!(der, CertificateDer::from_pem_file(&certificates.client).expect("PEM").to_vec());
        }
    }
}

#[tokio::test]
async fn what_is_under_way_ends_when_the_switch_does() {
    let certificates = Certificates::new();
    let node = Node::scripted("a", |_| Act::Gated(ok("a", "a"))).await;
    let mut switch = Running::start(secure(&[&node], certificates.tls()));
    let sender = http2(certificates.connect(switch.address, &[b"h2"], false).await).await;
    let asked = tokio::spawn({
        let sender = sender.clone();
        async move { ask(&sender, "GET", "https://test/slow", b"").await.0.status }
    });
    eventually("the node is asked", || node.requests() == 1).await;
    switch.stop();
    eventually("the client is told to ask no more", || {
        sender.is_closed() || !sender.is_ready() || node.requests() == 1
    })
    .await;
    node.gate.add_permits(1);
    assert_eq!(asked.await.expect("an answer"), 200);
    (&mut switch.task).await.expect("ends").expect("well");
}

#[tokio::test]
async fn http2_is_spoken_without_tls_where_it_may_be() {
    let node = Node::named("a").await;
    let mut config = config(&[&node]);
    config.h2c = true;
    let switch = Running::start(config);
    let sender = http2(TcpStream::connect(switch.address).await.expect("connects")).await;
    let (head, body) = ask(&sender, "GET", "http://test/x", b"").await;
    assert_eq!((head.status.as_u16(), &body[..]), (200, &b"a"[..]));
    // HTTP/1 is served as ever, also where its first bytes come one by one.
    let mut client = switch.client().await;
    for byte in b"PROPFIND /x HTTP/1.1\r\nHost: test\r\n\r\n" {
        client.send([*byte]).await;
        take_time_async(Duration::from_millis(1)).await;
    }
    assert_eq!(client.reply().await.text(), "a");
    assert_eq!(switch.metric("larder_switch_http2_connections_total "), 1.0);
}

#[tokio::test]
async fn a_client_that_is_announced_is_the_client() {
    let (certificates, node) = (Certificates::new(), Node::named("a").await);
    let mut config = secure(&[&node], certificates.tls());
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    config.announcers = vec!["127.0.0.1".parse().expect("a range")];
    let switch = Running::start(config);
    let mut client = switch.client().await;
    client.send("PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\nGET /x HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert_eq!(client.reply().await.text(), "a");
    assert_eq!(header(&node.last(), "x-forwarded-for"), Some("192.0.2.7"));
    assert_eq!(client.get("/y").await.text(), "a");
    assert_eq!(header(&node.last(), "x-forwarded-for"), Some("192.0.2.7"));
    // A connection without a PROXY header is not served, because any client could pass for the balancer.
    let mut client = switch.client().await;
    client.send("GET /x HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert!(client.closes().await);
    assert_eq!(switch.metric("larder_switch_failures_total{error=\"bad_announcement\"} "), 1.0);
    // Whom nobody trusts announces nothing.
    let mut other = support::config(&[&node]);
    other.announcers = vec!["192.0.2.0/24".parse().expect("a range")];
    let switch = Running::start(other);
    let mut client = switch.client().await;
    client.send("PROXY TCP4 192.0.2.7 203.0.113.1 4711 80\r\nGET /x HTTP/1.1\r\nHost: test\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 400);
}

#[tokio::test]
async fn who_comes_without_tls_is_sent_to_it() {
    let (certificates, node) = (Certificates::new(), Node::named("a").await);
    let mut config = secure(&[&node], TlsConfig { redirect: true, ..certificates.tls() });
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    let switch = Running::start(config);
    let port = switch.secure.expect("a second address").port();
    let mut client: Client = switch.client().await;
    for (host, target, location) in [
        ("test", "/a?b=c", format!("https://test:{port}/a?b=c")),
        ("test:8080", "/", format!("https://test:{port}/")),
        ("[::1]:8080", "/x", format!("https://[::1]:{port}/x")),
        ("[::1]", "/x", format!("https://[::1]:{port}/x")),
    ] {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.field("location")), (308, Some(&*location)));
    }
    assert_eq!(node.requests(), 0);
    assert_eq!(client.get("/.well-known/acme-challenge/x").await.text(), "a");
    assert_eq!(header(&node.last(), "x-forwarded-proto"), Some("http"));
    let mut stream = certificates.connect(switch.secure.expect("an address"), &[], false).await;
    stream.write_all(b"GET /x HTTP/1.1\r\nHost: test\r\n\r\n").await.expect("sends");
    assert!(read_until(&mut stream, "\r\n\r\na").await.starts_with("HTTP/1.1 200 "));
    switch.settles().await;
}

/// A node that speaks HTTP/2 only, and answers with trailers.
async fn http2_node() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listens");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let service = hyper::service::service_fn(async |request: Request<hyper::body::Incoming>| {
                let said = format!("{:?} {}", request.version(), request.uri().path());
                let sent = request.into_body().collect().await?.to_bytes().len();
                let trailers = http::HeaderMap::from_iter([(
                    http::HeaderName::from_static("grpc-status"),
                    http::HeaderValue::from_static("0"),
                )]);
                let body = Full::new(Bytes::from(format!("{said} {sent}")));
                Ok::<_, hyper::Error>(http::Response::new(
                    body.with_trailers(async move { Some(Ok(trailers)) }),
                ))
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(tcp), service));
        }
    });
    address
}

#[tokio::test]
async fn a_node_is_asked_by_http2_and_its_trailers_come_through() {
    let (certificates, address) = (Certificates::new(), http2_node().await);
    let node = Node::named("a").await;
    let mut config = secure(&[&node], certificates.tls());
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    config.nodes[0].address = address.to_string();
    config.nodes[0].http2 = true;
    let switch = Running::start(config);
    let stream = certificates.connect(switch.secure.expect("an address"), &[b"h2"], false).await;
    let mut sender = http2(stream).await;
    let request = Request::post("https://test/service/call").header("te", "trailers");
    let request = request.body(Full::new(Bytes::from(vec![1; 100_000]))).expect("a request");
    let reply = sender.send_request(request).await.expect("a reply");
    let whole = reply.into_body().collect().await.expect("a body");
    assert_eq!(whole.trailers().expect("trailers")["grpc-status"], "0");
    assert_eq!(&whole.to_bytes()[..], b"HTTP/2.0 /service/call 100000");
    // A client of HTTP/1 is served by the same node.
    let mut client = switch.client().await;
    client.send("GET /one HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await;
    let mut rest = String::new();
    client.tcp.read_to_string(&mut rest).await.expect("a reply");
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n") && rest.contains("HTTP/2.0 /one 0"), "{rest}");
    switch.settles().await;
}
