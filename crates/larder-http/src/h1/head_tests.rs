//! Tests of heads: parsing, refusal and writing.

use super::*;
use proptest::prelude::*;

fn request(text: &str) -> Result<RequestHead, Fault> {
    let mut head = RequestHead::new();
    head.read(text.as_bytes()).map(|()| head)
}

fn reply(text: &str) -> Result<ReplyHead, Fault> {
    let mut head = ReplyHead::new();
    head.read(text.as_bytes()).map(|()| head)
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).expect("text")
}

#[test]
fn a_request_head_is_parsed() {
    let head = request(
        "POST /a?b HTTP/1.1\r\nHost: a.test:80\r\nX-One:  two \t\r\nContent-Length: 07\nExpect: 100-Continue\r\n\r\n",
    )
    .expect("a request");
    assert_eq!((head.method(), head.target(), head.form()), (&b"POST"[..], &b"/a?b"[..], Form::Origin));
    assert_eq!((head.body(), head.is_http10(), head.is_persistent()), (Body::Length(7), false, true));
    assert!(head.expects_continue() && !head.asks_for_upgrade());
    assert_eq!(head.fields.get(b"x-one"), Some(&b"two"[..]));
    assert_eq!(head.fields.named(FieldName::Host), Some(&b"a.test:80"[..]));
    assert_eq!(head.fields.len(), 4);
    for (text, form) in [
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Form::Asterisk),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", Form::Authority),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Form::Absolute),
    ] {
        assert_eq!(request(text).expect("a request").form(), form, "{text}");
    }
}

#[test]
fn persistence_follows_version_and_options() {
    for (version, fields, goes_on) in [
        ("1.1", "", true),
        ("1.1", "Connection: Close\r\n", false),
        ("1.1", "Connection: x\r\nConnection: y , close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
    ] {
        let head = request(&format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n")).expect("a request");
        assert_eq!(head.is_persistent(), goes_on, "{version} {fields}");
        let head = reply(&format!("HTTP/{version} 200 OK\r\n{fields}\r\n")).expect("a reply");
        assert_eq!(head.is_persistent(), goes_on, "{version} {fields}");
    }
    let old = request("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").expect("a request");
    assert!(!old.expects_continue(), "RFC 9110 section 10.1.1");
}

#[test]
fn a_head_is_written_with_its_changes() {
    let mut head =
        request("GET / HTTP/1.0\r\nA: 1\r\nhost: h\r\nB: 2\r\na: 3\r\nC:\r\n\r\n").expect("a request");
    head.fields.set(b"A", b"one").expect("sets");
    head.fields.remove(b"b");
    head.fields.append(b"Via", b"1.0 x").expect("appends");
    head.fields.set(b"New", b"").expect("sets");
    head.set_target(b"/elsewhere").expect("sets");
    let text = "GET /elsewhere HTTP/1.1\r\nA: one\r\nhost: h\r\nC: \r\nVia: 1.0 x\r\nNew: \r\n\r\n";
    assert_eq!(written(|out| head.write(out)), text);
    // The memory is reused, and contains nothing of the previous head.
    head.read(b"GET /b HTTP/1.1\r\nHost: b\r\n\r\n").expect("a request");
    assert_eq!(written(|out| head.write(out)), "GET /b HTTP/1.1\r\nHost: b\r\n\r\n");
}

#[test]
fn invalid_changes_are_refused() {
    let mut head = request("GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("a request");
    for (name, value, fault) in [
        (&b"A\r\nB"[..], &b"1"[..], Fault::Field),
        (b"", b"1", Fault::Field),
        (b"A:", b"1", Fault::Field),
        (b"A", b"1\r\nB: 2", Fault::Control),
        (b"A", b"1\0", Fault::Control),
        (b"Host", b"\n", Fault::Control),
    ] {
        assert_eq!(head.fields.append(name, value), Err(fault), "{name:?} {value:?}");
        assert_eq!(head.fields.set(name, value), Err(fault), "{name:?} {value:?}");
    }
    for target in [&b""[..], b"/a b", b"/\r\n", b"/#a", b"/\x7f"] {
        assert_eq!(head.set_target(target), Err(Fault::Target), "{target:?}");
    }
    assert_eq!(written(|out| head.write(out)), "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    while head.fields.append(b"A", b"1").is_ok() {}
    assert!(head.fields.len() > FIELDS_MAX, "room for a proxy's own");
    assert_eq!(head.fields.append(b"A", b"1"), Err(Fault::TooLarge));
    assert_eq!(head.fields.set(b"B", b"1"), Err(Fault::TooLarge));
    head.fields.set(b"A", b"2").expect("takes no further place");
    assert_eq!(head.fields.len(), 2);
}

#[test]
fn a_head_with_too_many_fields_is_refused() {
    let fields = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: 1\r\n".repeat(count - 1));
    assert!(request(&fields(FIELDS_MAX)).is_ok());
    assert_eq!(request(&fields(FIELDS_MAX + 1)).err(), Some(Fault::TooLarge));
}

#[test]
fn a_reply_head_is_parsed() {
    let head = reply("HTTP/1.1 404 Not here\r\nContent-Length: 3\r\ncontent-length: 3\r\n\r\n").expect("one");
    assert_eq!((head.status(), head.reason()), (404, &b"Not here"[..]));
    assert_eq!(head.declared_length(), Some(3));
    for (text, reason) in
        [("HTTP/1.0 200", ""), ("HTTP/1.1 200 ", ""), ("HTTP/1.1 200 a\t\u{e9}", "a\t\u{e9}")]
    {
        let head = reply(&format!("{text}\r\n\r\n")).expect("a reply");
        assert_eq!((head.status(), head.reason()), (200, reason.as_bytes()), "{text}");
    }
    assert_eq!(
        written(|out| reply("HTTP/1.0 299 \r\nA:b\r\n\r\n").expect("a reply").write(out)),
        "HTTP/1.1 299 \r\nA: b\r\n\r\n"
    );
}

#[test]
fn the_body_of_a_reply_depends_on_the_request_and_the_status() {
    const CHUNKS: &str = "Transfer-Encoding: chunked\r\n";
    const LENGTH: &str = "Content-Length: 3\r\n";
    for (method, status, fields, body) in [
        ("GET", 200, LENGTH, Body::Length(3)),
        ("GET", 200, CHUNKS, Body::Chunks),
        ("GET", 200, "", Body::Close),
        ("GET", 200, "Content-Length: 0\r\n", Body::None),
        ("HEAD", 200, LENGTH, Body::None),
        ("HEAD", 404, CHUNKS, Body::None),
        ("GET", 204, LENGTH, Body::None),
        ("GET", 304, LENGTH, Body::None),
        ("GET", 103, "", Body::None),
        ("GET", 101, LENGTH, Body::None),
        ("CONNECT", 200, LENGTH, Body::None),
        ("CONNECT", 403, LENGTH, Body::Length(3)),
    ] {
        let head = reply(&format!("HTTP/1.1 {status} x\r\n{fields}\r\n")).expect("a reply");
        assert_eq!(head.body(method.as_bytes()), body, "{method} {status} {fields}");
        assert_eq!(head.is_interim(), status == 103, "{status}");
    }
}

#[test]
fn ambiguous_replies_are_refused() {
    use Fault as F;
    for (text, fault) in [
        ("HTTP/2.0 200 OK\r\n\r\n", F::StatusLine),
        ("HTTP/1.1  200 OK\r\n\r\n", F::StatusLine),
        ("HTTP/1.1 20 OK\r\n\r\n", F::StatusLine),
        ("HTTP/1.1 099 OK\r\n\r\n", F::StatusLine),
        ("HTTP/1.1 2000 OK\r\n\r\n", F::StatusLine),
        ("HTTP/1.1 200 a\rb\r\n\r\n", F::StatusLine),
        ("ICY 200 OK\r\n\r\n", F::StatusLine),
        ("HTTP/1.1 200 OK\r\n a: b\r\n\r\n", F::Field),
        ("HTTP/1.1 200 OK\r\na : b\r\n\r\n", F::Field),
        ("HTTP/1.1 200 OK\r\na: \x01\r\n\r\n", F::Control),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", F::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\n", F::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", F::Length),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", F::Coding),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", F::Coding),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", F::LengthAndCoding),
    ] {
        assert_eq!(reply(text).err(), Some(fault), "{text:?}");
    }
}

#[test]
fn the_end_of_a_head_is_found_in_pieces_of_any_size() {
    for head in ["a\r\nb\r\n\r\n", "a\n\n", "a\nb\n\r\n", "a\r\n\r\n"] {
        let bytes = [head.as_bytes(), b"rest\n\n"].concat();
        let mut whole = HeadEnd::new();
        assert_eq!(whole.find(&bytes), Some(head.len()), "{head:?}");
        for first in 0..head.len() {
            let mut end = HeadEnd::new();
            assert_eq!(end.find(&bytes[..first]), None, "{head:?} {first}");
            for second in first..head.len() {
                let mut end = end;
                assert_eq!(end.find(&bytes[..second]), None, "{head:?} {first} {second}");
                assert_eq!(end.find(&bytes), Some(head.len()), "{head:?} {first} {second}");
            }
        }
    }
}

#[test]
fn the_end_of_a_body_is_found() {
    let chunks = b"3;x\r\nabc\r\n0\r\nA: b\r\n\r\n";
    for (body, bytes, data, trailers) in [
        (Body::None, &b""[..], "", ""),
        (Body::Length(0), b"", "", ""),
        (Body::Length(3), b"abc", "abc", ""),
        (Body::Chunks, chunks, "abc", "A: b\r\n"),
        (Body::Chunks, b"0\r\n\r\n", "", ""),
    ] {
        for size in 1..=bytes.len().max(1) {
            let mut decoder = Decoder::new(body);
            let mut seen = Vec::new();
            let mut left = [bytes, b"GET"].concat();
            while !decoder.is_ended() {
                let step = decoder.step(&left[..size.min(left.len())]).expect("a body");
                if step.piece == Piece::Data {
                    seen.extend_from_slice(&left[..step.taken]);
                }
                left.drain(..step.taken);
            }
            assert_eq!((left, seen), (b"GET".to_vec(), data.as_bytes().to_vec()), "{body:?} {size}");
            assert_eq!(decoder.trailers(), trailers.as_bytes());
            assert_eq!(decoder.step(b"x"), Ok(Step { taken: 0, piece: Piece::Part }));
        }
    }
    let mut open = Decoder::new(Body::Close);
    assert_eq!(open.step(b"abc"), Ok(Step { taken: 3, piece: Piece::Data }));
    assert!(!open.is_ended());
}

/// Generates a head that is mostly valid, in which at most one byte was replaced.
fn mostly_valid_head(line: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just("Host".to_owned()),
        Just("Content-Length".to_owned()),
        Just("Transfer-Encoding".to_owned()),
        Just("Connection".to_owned()),
        "[A-Za-z-]{1,12}",
    ];
    let value =
        prop_oneof![Just("chunked".to_owned()), Just("close".to_owned()), "[0-9]{1,3}", "[ -~\t]{0,20}"];
    let fields = prop::collection::vec((name, value, prop_oneof![Just("\r\n"), Just("\n")]), 0..6);
    let damage = prop::option::of((any::<prop::sample::Index>(), any::<u8>()));
    (fields, damage).prop_map(move |(fields, damage)| {
        let mut text = line.to_owned();
        for (name, value, end) in fields {
            text += &format!("{name}: {value}{end}");
        }
        let mut bytes = (text + "\r\n").into_bytes();
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

fn httparse_fields(fields: &[httparse::Header<'_>]) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|field| (field.name.as_bytes().to_vec(), field.value.to_vec())).collect()
}

fn our_fields(fields: &Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Hyper's parser reads every accepted request in the same way.
    #[test]
    fn requests_are_parsed_as_by_httparse(bytes in mostly_valid_head("GET /a?b HTTP/1.1\r\nHost: a\r\n")) {
        let Some(end) = HeadEnd::new().find(&bytes) else { return Ok(()) };
        let mut ours = RequestHead::new();
        if ours.read(&bytes[..end]).is_ok() {
            let mut fields = [httparse::EMPTY_HEADER; 16];
            let mut theirs = httparse::Request::new(&mut fields);
            prop_assert_eq!(theirs.parse(&bytes), Ok(httparse::Status::Complete(end)));
            prop_assert_eq!(theirs.method.map(str::as_bytes), Some(ours.method()));
            prop_assert_eq!(theirs.path.map(str::as_bytes), Some(ours.target()));
            prop_assert_eq!(httparse_fields(theirs.headers), our_fields(&ours.fields));
            // The written head is read as the same request.
            let mut out = Vec::new();
            ours.write(&mut out);
            let mut again = RequestHead::new();
            prop_assert_eq!(again.read(&out), Ok(()));
            prop_assert_eq!((again.method(), again.target(), again.body()), (ours.method(), ours.target(), ours.body()));
            prop_assert_eq!(our_fields(&again.fields), our_fields(&ours.fields));
        }
    }

    /// Hyper's parser reads every accepted reply in the same way.
    #[test]
    fn replies_are_parsed_as_by_httparse(bytes in mostly_valid_head("HTTP/1.1 200 OK\r\n")) {
        let Some(end) = HeadEnd::new().find(&bytes) else { return Ok(()) };
        let mut ours = ReplyHead::new();
        if ours.read(&bytes[..end]).is_ok() {
            let mut fields = [httparse::EMPTY_HEADER; 16];
            let mut theirs = httparse::Response::new(&mut fields);
            prop_assert_eq!(theirs.parse(&bytes), Ok(httparse::Status::Complete(end)));
            prop_assert_eq!(theirs.code, Some(ours.status()));
            prop_assert_eq!(httparse_fields(theirs.headers), our_fields(&ours.fields));
        }
    }
}
