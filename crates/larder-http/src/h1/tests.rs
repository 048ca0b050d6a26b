use super::*;

/// Checks bytes that arrive in pieces of `size` bytes.
fn in_pieces(bytes: &[u8], size: usize) -> Result<Framing, Fault> {
    let mut framing = Framing::new();
    for piece in bytes.chunks(size.max(1)) {
        framing.check(piece).map_err(|error| error.fault)?;
    }
    Ok(framing)
}

fn verdict(text: &str) -> Option<Fault> {
    let bytes = text.as_bytes();
    let whole = in_pieces(bytes, bytes.len()).err();
    for size in 1..bytes.len() {
        assert_eq!(in_pieces(bytes, size).err(), whole, "{text:?} in pieces of {size}");
    }
    whole
}

fn get(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

#[test]
fn valid_requests_pass_in_pieces_of_any_size() {
    for text in [
        get(""),
        get("X: \u{e9}\tb\r\nY:\r\n"),
        "\r\nGET / HTTP/1.0\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\nHost: a\n\nGET / HTTP/1.1\nHost: a\n\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        "GET HTTP://A:80/?b HTTP/1.1\r\nHost: a:80\r\n\r\n".to_owned(),
        "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n".to_owned(),
        get("Content-Length: 3\r\n") + "abc" + &get(""),
        get("Transfer-Encoding: Chunked\r\n")
            + "3;a=\"b\"\r\nabc\r\n0A \t\r\n0123456789\r\n0\r\n\r\n"
            + &get(""),
        get("Transfer-Encoding: chunked\r\n") + "0\r\nX: a\r\nY: b\r\n\r\n" + &get(""),
    ] {
        assert_eq!(verdict(&text), None, "{text:?}");
    }
}

#[test]
fn ambiguous_requests_are_refused() {
    use Fault as F;
    let chunked = |rest: &str| get("Transfer-Encoding: chunked\r\n") + rest;
    for (text, fault) in [
        ("GET / HTTP/2.0\r\n\r\n".to_owned(), F::RequestLine),
        ("GET /\r\n\r\n".to_owned(), F::RequestLine),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::RequestLine),
        (" GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::RequestLine),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::RequestLine),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::Target),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::Target),
        ("GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::Target),
        ("GET /#a HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::Target),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::Target),
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::Host),
        ("GET http:///b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), F::Host),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), F::Host),
        (get("Host: a\r\n"), F::Host),
        (get("Connection: close , hOst\r\n"), F::Host),
        (get(" b\r\n"), F::Field),
        (get("X : b\r\n"), F::Field),
        (get("X\r\n"), F::Field),
        (get(": b\r\n"), F::Field),
        (get("X: a\rb\r\n"), F::Control),
        (get("X: a\u{0}b\r\n"), F::Control),
        (get("X: a\r\r\n"), F::Control),
        (get("Content-Length: +3\r\n"), F::Length),
        (get("Content-Length: 3, 3\r\n"), F::Length),
        (get("Content-Length: \r\n"), F::Length),
        (get("Content-Length: 9223372036854775808\r\n"), F::Length),
        (get("Content-Length: 3\r\nContent-Length: 3\r\n"), F::Length),
        (get("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), F::LengthAndCoding),
        (get("Transfer-Encoding: gzip, chunked\r\n"), F::Coding),
        (get("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), F::Coding),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), F::Coding),
        ("TRACE / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n".to_owned(), F::Body),
        (chunked("\r\n"), F::Chunk),
        (chunked("0x3\r\n"), F::Chunk),
        (chunked(" 3\r\n"), F::Chunk),
        (chunked("3 4\r\n"), F::Chunk),
        (chunked("3\n"), F::Chunk),
        (chunked("3;a\u{0}\r\n"), F::Chunk),
        (chunked("10000000000000003\r\n"), F::Chunk),
        (chunked("8000000000000000\r\n"), F::Chunk),
        (chunked("3\r\nabcd\r\n"), F::Chunk),
        (chunked("3\r\nabc\n"), F::Chunk),
        (chunked("0\r\nnone of it\r\n"), F::Trailer),
        (chunked("0\r\nX: a\n"), F::Trailer),
    ] {
        assert_eq!(verdict(&text), Some(fault), "{text:?}");
    }
}

#[test]
fn complete_messages_before_a_fault_are_valid() {
    let (first, bad) = (get(""), "GET  / HTTP/1.1\r\n\r\n");
    let error = Framing::new().check((first.clone() + bad).as_bytes()).expect_err("breaks");
    assert_eq!((error.valid_bytes, error.fault), (first.len(), Fault::RequestLine));
    let begun = get("Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n";
    let error = Framing::new().check((begun.clone() + "x\r\n").as_bytes()).expect_err("breaks");
    assert_eq!((error.valid_bytes, error.fault), (begun.len(), Fault::Chunk));
    let mut framing = Framing::new();
    framing.check(b"GET / HTTP/1.1\r\nX").expect("is no fault yet");
    assert_eq!(framing.check(b" : a\r\n\r\n").expect_err("breaks").valid_bytes, 0);
    assert_eq!(framing.check(b"G").expect_err("stays broken").valid_bytes, 0);
}

#[test]
fn another_protocol_is_not_checked_and_may_be_refused() {
    let upgrade = get("Upgrade: websocket\r\n");
    let mut framing = Framing::new();
    framing.check(upgrade.as_bytes()).expect("passes");
    assert!(framing.is_upgrading() && framing.continue_http() && !framing.is_upgrading());
    framing.check(upgrade.as_bytes()).expect("passes");
    framing.check(b"\0\0").expect("is none of ours");
    assert!(!framing.continue_http() && framing.is_upgrading(), "what has come was not looked at");
    let body = get("Upgrade: websocket\r\nContent-Length: 3\r\n") + "abc";
    let mut framing = Framing::new();
    framing.check(body.as_bytes()).expect("passes");
    assert!(framing.is_upgrading());
}

#[test]
fn buffered_bytes_are_limited() {
    let mut framing = Framing::new();
    framing.check(b"GET / HTTP/1.1\r\nX: ").expect("passes");
    let fault = (0..100).find_map(|_| framing.check(&[b'a'; 64 << 10]).err());
    assert_eq!(fault.map(|error| error.fault), Some(Fault::TooLarge));
    let mut framing = Framing::new();
    framing.check((get("Transfer-Encoding: chunked\r\n") + "0\r\n").as_bytes()).expect("passes");
    let fault = (0..10_000).find_map(|_| framing.check(b"X: a\r\n").err());
    assert_eq!(fault.map(|error| error.fault), Some(Fault::Trailer));
}
