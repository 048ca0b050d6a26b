use super::*;
use http::Method;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::mpsc;

const LIMITS: Limits = Limits { time: Duration::from_secs(10), body_bytes: 8 };

fn request(method: Method) -> Request<Bytes> {
    let request = Request::builder().method(method).uri("/a").header("host", "h");
    request.body(Bytes::from_static(b"q")).expect("a request")
}

/// A server. The test accepts the connections that a client opens.
struct TestServer {
    opened: mpsc::UnboundedSender<DuplexStream>,
    accepted: mpsc::UnboundedReceiver<DuplexStream>,
}

impl TestServer {
    fn new() -> Self {
        let (opened, accepted) = mpsc::unbounded_channel();
        Self { opened, accepted }
    }

    fn connect(&self) -> impl Future<Output = Result<DuplexStream, String>> + use<> {
        let opened = self.opened.clone();
        async move {
            let (near, far) = duplex(1 << 20);
            opened.send(far).map_err(|_| "no server".to_owned())?;
            Ok(near)
        }
    }

    async fn accept(&mut self) -> DuplexStream {
        self.accepted.recv().await.expect("a connection")
    }
}

/// Reads a request with a body of one byte.
async fn read_request(stream: &mut DuplexStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\nq") {
        text.push(stream.read_u8().await.expect("a request"));
    }
    String::from_utf8(text).expect("text")
}

async fn answer(stream: &mut DuplexStream, reply: &str) -> String {
    let request = read_request(stream).await;
    stream.write_all(reply.as_bytes()).await.expect("written");
    request
}

const REPLY: &str = "HTTP/1.1 201 Created\r\nx-a: b\r\ncontent-length: 2\r\n\r\nok";

async fn exchange_once(server: &mut TestServer, reply: &str) -> Result<Response<Bytes>, ClientError> {
    let (mut client, connecting) = (Client::default(), server.connect());
    let answering = async { answer(&mut server.accept().await, reply).await };
    tokio::join!(client.exchange(connecting, request(Method::POST), LIMITS), answering).0
}

#[tokio::test]
async fn a_reply_is_read_whole() {
    let reply = exchange_once(&mut TestServer::new(), REPLY).await.expect("a reply");
    assert_eq!(
        (reply.status(), &reply.headers()["x-a"]),
        (StatusCode::CREATED, &"b".parse().expect("a value"))
    );
    assert_eq!(reply.body(), "ok");
}

#[tokio::test]
async fn faulty_replies_are_reported_by_kind() {
    let head = |bytes: usize| format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(bytes));
    let long = exchange_once(&mut TestServer::new(), &head(4 * HEAD_BYTES_MAX)).await;
    assert!(matches!(long, Err(ClientError::Malformed(_))), "{long:?}");
    for (reply, expected) in [
        ("HTTP/1.1 200 OK\r\n\r\n123456789", ClientError::TooLong(8)),
        ("SSH-2.0\r\n\r\n", ClientError::Malformed("invalid HTTP version parsed".to_owned())),
        ("", ClientError::Broken("connection closed before message completed".to_owned())),
    ] {
        assert_eq!(exchange_once(&mut TestServer::new(), reply).await.err(), Some(expected), "{reply}");
    }
    let short = exchange_once(&mut TestServer::new(), "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n1").await;
    assert!(matches!(short, Err(ClientError::Broken(_))), "{short:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_times_out() {
    let server = TestServer::new();
    let late = Client::default().exchange(server.connect(), request(Method::GET), LIMITS).await;
    assert_eq!(late.err(), Some(ClientError::Late(LIMITS.time)));
    let unconnected = std::future::pending::<Result<DuplexStream, String>>();
    let late = Client::default().exchange(unconnected, request(Method::GET), LIMITS).await;
    assert_eq!(late.expect_err("no connection").to_string(), "no answer within 10 s");
}

#[tokio::test]
async fn a_connect_error_is_passed_on() {
    let connect = async { Err::<DuplexStream, _>("no route") };
    let refused = Client::default().exchange(connect, request(Method::GET), LIMITS).await;
    assert_eq!(refused.err(), Some(ClientError::Connect("no route".to_owned())));
}

#[tokio::test]
async fn an_idle_connection_is_reused_and_replaced_after_it_ends() {
    let (mut client, mut server) = (Client::default(), TestServer::new());
    let mut ask = async |server: &TestServer, method| {
        client.exchange(server.connect(), request(method), LIMITS).await.map(Response::into_body)
    };
    let serving = tokio::spawn({
        let accepted = std::mem::replace(&mut server.accepted, mpsc::unbounded_channel().1);
        let mut other = TestServer { opened: server.opened.clone(), accepted };
        async move {
            let mut first = other.accept().await;
            answer(&mut first, REPLY).await;
            answer(&mut first, REPLY).await;
            // The server closes the connection after the third request. The client has no reply, and sends
            // the request again.
            read_request(&mut first).await;
            drop(first);
            let mut second = other.accept().await;
            answer(&mut second, REPLY).await;
            // A request that is not idempotent gets a new connection.
            let mut third = other.accept().await;
            let posted = answer(&mut third, REPLY).await;
            assert!(posted.starts_with("POST /a HTTP/1.1\r\nhost: h\r\n"), "{posted}");
        }
    });
    for method in [Method::GET, Method::GET, Method::GET, Method::POST] {
        assert_eq!(ask(&server, method).await, Ok(Bytes::from_static(b"ok")));
    }
    serving.await.expect("all were asked");
}

#[tokio::test]
async fn a_connection_with_an_unread_reply_is_not_reused() {
    let (mut client, mut server) = (Client::default(), TestServer::new());
    let connecting = server.connect();
    let (reply, mut first) = tokio::join!(client.send(connecting, request(Method::GET)), async {
        let mut stream = server.accept().await;
        answer(&mut stream, REPLY).await;
        stream
    });
    let mut reply = reply.expect("a head");
    assert_eq!(reply.piece().await, Ok(Some(Bytes::from_static(b"ok"))));
    drop(reply);
    assert_eq!(first.read(&mut [0]).await.expect("readable"), 0, "the client has closed it");
    let connecting = server.connect();
    let (reply, _) = tokio::join!(client.exchange(connecting, request(Method::GET), LIMITS), async {
        let mut stream = server.accept().await;
        answer(&mut stream, REPLY).await;
        stream
    });
    assert!(reply.is_ok());
}

#[tokio::test]
async fn tcp_connects_or_returns_the_error() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    assert!(tcp(&address).await.expect("connected").nodelay().expect("an option"));
    drop(listener);
    assert_eq!(tcp(&address).await.expect_err("closed").to_string(), "Connection refused (os error 111)");
    assert!(tcp("a b").await.is_err());
}
