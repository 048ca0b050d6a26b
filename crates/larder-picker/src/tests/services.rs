//! The services over connections: limits, TLS, health and shutdown.

use super::*;
use crate::counters::RequestOutcome;
use crate::proto::{HttpBody, PROCESS};
use crate::server::{Drained, PickerServer};
use futures_util::StreamExt as _;
use futures_util::stream;
use hyper_util::rt::TokioIo;
use larder_prompts::PromptConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;
use tower_service::Service;

/// A picker that serves.
pub(super) struct Running {
    pub(super) picker: Arc<Picker>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Drained>,
}

impl Running {
    pub(super) async fn start(config: PickerConfig, endpoints: u8) -> Self {
        let picker = picker(config, endpoints);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = listener.local_addr().expect("an address");
        let server = PickerServer::new(Arc::clone(&picker), listener).expect("a server");
        let (stop, stopped) = oneshot::channel::<()>();
        let ended = tokio::spawn(server.serve(async move { _ = stopped.await }));
        Self { picker, address, stop: Some(stop), ended }
    }

    async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("an address");
        endpoint.connect().await.expect("a connection")
    }

    pub(super) fn begin_stop(&mut self) {
        drop(self.stop.take());
    }
}

/// A stream of a gateway.
struct GatewayStream {
    messages: mpsc::Sender<ProcessingRequest>,
    answers: Streaming<ProcessingResponse>,
}

impl GatewayStream {
    async fn open(channel: &Channel, first: ProcessingRequest) -> Result<Self, tonic::Status> {
        let (messages, received) = mpsc::channel(16);
        messages.send(first).await.expect("the stream is open");
        let outgoing =
            stream::unfold(received, |mut received| async move { Some((received.recv().await?, received)) });
        let mut client = Grpc::new(channel.clone());
        client.ready().await.expect("a connection");
        let codec = ProstCodec::<ProcessingRequest, ProcessingResponse>::default();
        let path = PROCESS.parse().expect("a path");
        let answers = client.streaming(tonic::Request::new(outgoing.boxed()), path, codec).await?;
        Ok(Self { messages, answers: answers.into_inner() })
    }

    async fn next(&mut self) -> Result<Option<ProcessingResponse>, tonic::Status> {
        self.answers.message().await
    }

    async fn send(&mut self, message: ProcessingRequest) -> ProcessingResponse {
        self.messages.send(message).await.expect("the stream is open");
        self.next().await.expect("no error").expect("an answer")
    }
}

/// Waits until a condition holds.
pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    larder_testkit::eventually_async(what, || condition().then_some(())).await;
}

async fn health(channel: &Channel, service: &str) -> Result<i32, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let checked = HealthClient::new(channel.clone()).check(request).await;
    checked.map(|reply| reply.into_inner().status).map_err(|status| status.code())
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[tokio::test]
async fn a_gateway_streams_requests_over_one_connection() {
    let running = Running::start(config(), 3).await;
    let channel = running.channel().await;
    let mut streams = Vec::new();
    for number in 0..20 {
        let mut stream =
            GatewayStream::open(&channel, request(&format!("/{number}"))).await.expect("a stream");
        endpoints(&stream.next().await.expect("no error").expect("an answer"));
        streams.push(stream);
    }
    assert_eq!(in_flight(&running.picker), 20);
    for stream in &mut streams {
        stream.send(response("200", true)).await;
    }
    assert_eq!(
        (in_flight(&running.picker), running.picker.counters.ended(RequestOutcome::Complete)),
        (0, 20)
    );
    drop(streams);
    until("the streams end", || running.picker.status()["streams"] == 0).await;
}

#[tokio::test]
async fn a_stream_that_the_gateway_resets_gives_its_load_back() {
    let running = Running::start(config(), 3).await;
    let channel = running.channel().await;
    let mut stream = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
    endpoints(&stream.next().await.expect("no error").expect("an answer"));
    assert_eq!(in_flight(&running.picker), 1);
    drop(stream);
    until("the load is given back", || in_flight(&running.picker) == 0).await;
    assert_eq!(running.picker.counters.ended(RequestOutcome::Cancelled), 1);
    // So does the end of the connection.
    let mut stream = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
    stream.next().await.expect("no error");
    drop((stream, channel));
    until("the connection ends", || running.picker.status()["connections"] == 0).await;
    until("the load is given back", || in_flight(&running.picker) == 0).await;
}

/// A client that sends no preface must not hold a connection slot.
#[tokio::test]
async fn a_connection_without_a_preface_is_closed() {
    let mut impatient = config();
    impatient.limits.handshake = Duration::from_millis(50);
    for (config, bytes) in [
        (impatient, &b"PRI * HTTP/2.0"[..]),
        // A gateway without HTTP/2, and one with TLS.
        (config(), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (config(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdefghijklmnopqr"),
    ] {
        let running = Running::start(config, 1).await;
        let mut wrong = TcpStream::connect(running.address).await.expect("a connection");
        wrong.write_all(bytes).await.expect("room for some bytes");
        // The connection ends, perhaps by a reset, because not all bytes were read.
        assert_eq!(wrong.read(&mut [0; 64]).await.unwrap_or(0), 0);
        until("the slot is free", || running.picker.status()["connections"] == 0).await;
        assert!(running.picker.metrics().contains("larder_picker_refused_total{what=\"handshakes\"} 1\n"));
    }
}

/// A check of the port is no failure, and does not delay the end of the picker.
#[tokio::test]
async fn connections_that_send_nothing_are_no_failures() {
    let mut running = Running::start(config(), 1).await;
    drop(TcpStream::connect(running.address).await.expect("a connection"));
    let silent = TcpStream::connect(running.address).await.expect("a connection");
    until("the other connection has ended", || running.picker.status()["connections"] == 1).await;
    running.begin_stop();
    assert_eq!((&mut running.ended).await.expect("no panic"), Drained { aborted: 0 });
    assert!(running.picker.metrics().contains("larder_picker_refused_total{what=\"handshakes\"} 0\n"));
    drop(silent);
}

/// A pool that is scaled to zero must not keep the picker from serving.
#[tokio::test]
async fn a_picker_that_knows_of_no_endpoints_is_ready() {
    let running = Running::start(config(), 0).await;
    let channel = running.channel().await;
    assert_eq!(health(&channel, "readiness").await, Ok(NOT_SERVING));
    running.picker.set_ready();
    let mut watch = HealthClient::new(channel.clone())
        .watch(HealthCheckRequest { service: "readiness".to_owned() })
        .await
        .expect("a watch")
        .into_inner();
    while watch.message().await.expect("no error").expect("a status").status != SERVING {}
    let mut stream = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
    assert_eq!(refusal(&stream.next().await.expect("no error").expect("an answer")), 503);
}

#[tokio::test]
async fn health_follows_the_endpoints() {
    let mut running = Running::start(config(), 0).await;
    let channel = running.channel().await;
    assert_eq!(health(&channel, "liveness").await, Ok(SERVING));
    for service in ["", "readiness", crate::proto::SERVICE] {
        assert_eq!(health(&channel, service).await, Ok(NOT_SERVING), "{service}");
    }
    assert_eq!(health(&channel, "other").await, Err(Code::NotFound));
    let mut watch = HealthClient::new(channel.clone())
        .watch(HealthCheckRequest { service: crate::proto::SERVICE.to_owned() })
        .await
        .expect("a watch")
        .into_inner();
    assert_eq!(watch.message().await.expect("no error").map(|reply| reply.status), Some(NOT_SERVING));
    running.picker.join(NodeSpec::named("a"), "10.0.0.1:80".parse().expect("an address")).expect("it joins");
    assert_eq!(watch.message().await.expect("no error").map(|reply| reply.status), Some(SERVING));
    // Without endpoints again, the picker answers 503 itself.
    assert!(running.picker.leave("a") && !running.picker.leave("a"));
    assert_eq!(health(&channel, "readiness").await, Ok(SERVING));
    let mut stream = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
    assert_eq!(refusal(&stream.next().await.expect("no error").expect("an answer")), 503);
    assert!(stream.next().await.expect("no error").is_none(), "the stream has ended");
    running.begin_stop();
    assert_eq!(watch.message().await.expect("no error").map(|reply| reply.status), Some(NOT_SERVING));
}

#[tokio::test]
async fn limits_of_streams_and_messages_have_outcomes() {
    let mut limited = config();
    (limited.limits.streams, limited.limits.message_bytes) = (1, 64 << 10);
    let running = Running::start(limited, 1).await;
    let channel = running.channel().await;
    let mut first = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
    endpoints(&first.next().await.expect("no error").expect("an answer"));
    let second = GatewayStream::open(&channel, request("/b")).await.err().expect("refused");
    assert_eq!(second.code(), Code::ResourceExhausted);
    assert!(running.picker.metrics().contains("larder_picker_refused_total{what=\"streams\"} 1\n"));
    let large = "x".repeat(65 << 10);
    let fields = [(":status", "200"), ("x-large", large.as_str())];
    first.messages.send(message(Phase::ResponseHeaders(headers(&fields, true)))).await.expect("it is open");
    assert_eq!(first.next().await.expect_err("too large").code(), Code::OutOfRange);
    until("the stream ends", || in_flight(&running.picker) == 0).await;
    assert_eq!(running.picker.counters.ended(RequestOutcome::TooLarge), 1);
}

/// A client must not hold memory by sending its body slowly, or without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_body_of_a_completion_has_a_time_limit() {
    let prompts = PromptConfig { body_timeout: Duration::from_millis(20), ..PromptConfig::default() };
    let impatient = PickerConfig { prompts: Some(prompts), ..config() };
    let running = Running::start(impatient, 1).await;
    let channel = running.channel().await;
    let head = [(":method", "POST"), (":authority", "a"), (":path", "/v1/completions")];
    let spaces = message(Phase::RequestBody(HttpBody { body: " ".into(), end_of_stream: false }));
    for is_endless in [false, true] {
        let begin = message(Phase::RequestHeaders(headers(&head, false)));
        let mut stream = GatewayStream::open(&channel, begin).await.expect("a stream");
        let (messages, piece) = (stream.messages.clone(), spaces.clone());
        let pieces =
            tokio::spawn(async move { while messages.send(piece.clone()).await.is_ok() && is_endless {} });
        let reply = tokio::time::timeout(larder_testkit::PATIENCE, stream.next()).await.expect("in time");
        let reply = reply.expect("no error").expect("a reply");
        let Some(Answer::Immediate(immediate)) = reply.answer else { panic!("{reply:?}") };
        assert_eq!(immediate.status.expect("a status").code, 408);
        assert!(immediate.body.starts_with(b"{\"error\":"), "{immediate:?}");
        assert!(stream.next().await.expect("no error").is_none(), "the stream has ended");
        drop(stream);
        pieces.await.expect("no panic");
    }
    assert_eq!(running.picker.counters.ended(RequestOutcome::BodyTimeout), 2);
    assert!(running.picker.metrics().contains("\nlarder_picker_prompt_body_bytes 0\n"));
}

#[tokio::test]
async fn a_wrong_message_ends_the_stream_with_the_remedy() {
    let running = Running::start(config(), 1).await;
    let channel = running.channel().await;
    let observed = ProcessingRequest { observability_mode: true, ..request("/a") };
    let mut stream = GatewayStream::open(&channel, observed).await.expect("a stream");
    let status = stream.next().await.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("turn it off"), "{status}");
    assert_eq!(running.picker.counters.ended(RequestOutcome::Invalid), 1);
    let grpc = with_modes(request("/a"), BodyMode::Grpc, BodyMode::None);
    let mut stream = GatewayStream::open(&channel, grpc).await.expect("a stream");
    assert_eq!(stream.next().await.expect_err("refused").code(), Code::Unimplemented);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed() {
    let mut limited = config();
    limited.limits.connections = 1;
    let running = Running::start(limited, 1).await;
    let channel = running.channel().await;
    assert_eq!(health(&channel, "").await, Ok(SERVING));
    let other = TcpStream::connect(running.address).await.expect("the kernel accepts it");
    let read = async { other.readable().await.map(|()| other.try_read(&mut [0; 64])) };
    assert!(matches!(read.await, Ok(Ok(0) | Err(_))), "closed");
    until("it is counted", || running.picker.metrics().contains("what=\"connections\"} 1\n")).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_requests_in_flight() {
    let mut running = Running::start(config(), 1).await;
    let channel = running.channel().await;
    let mut stream = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
    stream.next().await.expect("no error");
    running.begin_stop();
    until("no more connections", || std::net::TcpStream::connect(running.address).is_err()).await;
    assert_eq!(in_flight(&running.picker), 1);
    stream.send(response("200", true)).await;
    drop((stream, channel));
    assert_eq!(running.ended.await.expect("no panic"), Drained { aborted: 0 });

    let mut impatient = config();
    impatient.limits.drain = Duration::ZERO;
    let mut running = Running::start(impatient, 1).await;
    let channel = running.channel().await;
    let mut stream = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
    stream.next().await.expect("no error");
    running.begin_stop();
    assert_eq!(running.ended.await.expect("no panic"), Drained { aborted: 1 });
    until("the load is given back", || in_flight(&running.picker) == 0).await;
}

/// Accepts the certificate that a picker makes itself, as gateways do by default.
#[derive(Debug)]
struct AnyCertificate(rustls::crypto::CryptoProvider);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Opens connections with TLS.
#[derive(Clone)]
struct TlsConnector(SocketAddr, Arc<rustls::ClientConfig>);

impl Service<http::Uri> for TlsConnector {
    type Response = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let Self(address, config) = self.clone();
        Box::pin(async move {
            let tcp = TcpStream::connect(address).await?;
            let name = ServerName::try_from("picker.test").expect("a name");
            let stream = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await?;
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            Ok(TokioIo::new(stream))
        })
    }
}

fn client_config(verifier: Arc<dyn ServerCertVerifier>) -> Arc<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider);
    let mut config = builder
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

#[tokio::test]
async fn the_listener_has_tls_with_a_certificate_of_its_own_or_from_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = rcgen::generate_simple_self_signed(["picker.test".to_owned()]).expect("a certificate");
    let file = folder.path().join("picker.pem");
    std::fs::write(&file, made.cert.pem() + &made.signing_key.serialize_pem()).expect("a file");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let files = larder_edge::TlsConfig::new(vec!["127.0.0.1:0".parse().expect("an address")], vec![file]);
    let provider = rustls::crypto::aws_lc_rs::default_provider;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let checked =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider()));
    let cases: [(PickerTls, Arc<dyn ServerCertVerifier>); 2] = [
        (PickerTls::SelfSigned, Arc::new(AnyCertificate(provider()))),
        (PickerTls::Files(Box::new(files)), checked.build().expect("a verifier")),
    ];
    for (tls, verifier) in cases {
        let running = Running::start(PickerConfig { tls, ..config() }, 2).await;
        let connector = TlsConnector(running.address, client_config(verifier));
        let endpoint = Endpoint::from_static("https://picker.test");
        let channel = endpoint.connect_with_connector(connector).await.expect("a connection");
        assert_eq!(health(&channel, "").await, Ok(SERVING));
        let mut stream = GatewayStream::open(&channel, request("/a")).await.expect("a stream");
        endpoints(&stream.next().await.expect("no error").expect("an answer"));
        // A gateway without TLS is closed and counted.
        let clear = Endpoint::from_shared(format!("http://{}", running.address)).expect("an address");
        HealthClient::new(clear.connect_lazy())
            .check(HealthCheckRequest::default())
            .await
            .expect_err("no TLS");
        until("it is counted", || !running.picker.metrics().contains("what=\"handshakes\"} 0\n")).await;
    }
}
