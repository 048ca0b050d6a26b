//! Framing by examples and properties: the result does not depend on how the bytes are split.

use super::*;
use proptest::prelude::*;

/// The result of a reply at the end of the stream.
type Outcome = Result<(ReadStatus, u16, u64, bool), ReplyError>;

fn read(pieces: &[&[u8]], head_request: bool) -> Outcome {
    let mut reader = ReplyReader::new();
    reader.begin(head_request);
    let mut status = ReadStatus::More;
    for piece in pieces {
        status = reader.feed(piece)?;
    }
    Ok((status, reader.status(), reader.body_bytes(), reader.keep_alive()))
}

fn whole(text: &str) -> Outcome {
    read(&[text.as_bytes()], false)
}

#[test]
fn each_framing_finds_its_end() {
    let done = |status, body, keep| Ok((ReadStatus::Done, status, body, keep));
    for (text, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", done(200, 5, true)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\ncontent-length: 5\r\n\r\nhello", done(200, 5, true)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", done(200, 0, false)),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", done(200, 1, false)),
        ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nx", done(200, 1, true)),
        ("HTTP/1.1 204 No Content\r\n\r\n", done(204, 0, true)),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n", done(304, 0, true)),
        ("HTTP/1.1 503 Busy\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\nno", done(503, 2, true)),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            done(200, 1, true),
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\nContent-Length: 3\r\n\r\n5;a=b\r\nhello\r\nA \r\n0123456789\r\n0\r\nT: v\r\n\r\n",
            done(200, 15, true),
        ),
        // More bytes than announced: the reply is valid, but the connection is not reused.
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxyz", done(200, 1, false)),
    ] {
        assert_eq!(whole(text), expected, "{text}");
    }
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n";
    assert_eq!(read(&[head.as_bytes()], true), done(200, 0, true));
}

#[test]
fn the_end_of_the_stream_ends_only_some_bodies() {
    for (text, expected) in [
        ("HTTP/1.1 200 OK\r\n\r\nsome", Ok(4)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nsome", Ok(4)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsome", Err(ReplyError::ShortBody)),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", Err(ReplyError::ShortBody)),
        ("HTTP/1.1 200 OK\r\nContent-Le", Err(ReplyError::ClosedInHead)),
    ] {
        let mut reader = ReplyReader::new();
        assert_eq!(reader.feed(text.as_bytes()), Ok(ReadStatus::More), "{text}");
        assert_eq!(reader.eof().map(|()| reader.body_bytes()), expected, "{text}");
        assert!(!reader.keep_alive());
    }
}

#[test]
fn invalid_replies_are_errors() {
    for (text, expected) in [
        ("SSH-2.0-x\r\n\r\n", ReplyError::Head),
        ("HTTP/1.1 099 Low\r\n\r\n", ReplyError::Head),
        ("HTTP/1.1 101 Switching\r\n\r\n", ReplyError::Interim),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", ReplyError::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", ReplyError::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", ReplyError::Length),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", ReplyError::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n", ReplyError::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab", ReplyError::Chunk),
    ] {
        assert_eq!(whole(text), Err(expected), "{text}");
    }
    let interims = "HTTP/1.1 100 Continue\r\n\r\n".repeat(INTERIM_MAX as usize + 1);
    assert_eq!(whole(&interims), Err(ReplyError::Interim));
    let lines = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
    assert_eq!(whole(&lines), Err(ReplyError::TooManyHeaders));
    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "x".repeat(HEAD_BYTES_MAX));
    assert_eq!(whole(&long), Err(ReplyError::HeadTooLong));
    let (front, back) = long.as_bytes().split_at(1_000);
    assert_eq!(read(&[front, back], false), Err(ReplyError::HeadTooLong));
}

#[test]
fn the_cache_result_is_parsed() {
    let mut reader = ReplyReader::new();
    let text = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nCache-Status: node-7; hit\r\ncache-status: edge; fwd=miss\r\n\r\n";
    assert_eq!(reader.feed(text), Ok(ReadStatus::Done));
    assert_eq!(
        (reader.cache().name(), reader.cache().hit(), reader.cache().members()),
        (&b"node-7"[..], true, 2)
    );
    reader.begin(false);
    assert_eq!(reader.cache().name(), b"");
    assert_eq!(
        reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nCache-Status: \"x\r\n\r\n"),
        Ok(ReadStatus::Done)
    );
    assert!(reader.cache_malformed());
}

#[test]
fn further_lines_continue_the_list_of_caches() {
    let mut note = CacheResult::default();
    assert!(note.read(b"\"inner \\\"1\\\"\"; hit"));
    assert!(note.read(b"outer; fwd=miss"));
    assert_eq!((note.name(), note.hit(), note.members()), (&b"inner \"1\""[..], true, 2));
    assert!(!note.read(b"?"));
    assert_eq!(note, CacheResult::default());
    assert!(note.read(b"") && note == CacheResult::default());
    assert!(note.read("x".repeat(CACHE_NAME_BYTES_MAX).as_bytes()));
    note.clear();
    assert!(!note.read("x".repeat(CACHE_NAME_BYTES_MAX + 1).as_bytes()));
}

#[test]
fn skipped_bytes_are_counted() {
    let mut reader = ReplyReader::new();
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n0123").unwrap();
    assert_eq!(reader.skippable(), 96);
    assert_eq!(reader.skip(95), ReadStatus::More);
    assert_eq!(reader.skip(1), ReadStatus::Done);
    assert_eq!((reader.body_bytes(), reader.keep_alive()), (100, true));
    reader.begin(false);
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n01").unwrap();
    assert_eq!(reader.skippable(), 14);
    assert_eq!(reader.skip(14), ReadStatus::More);
    assert_eq!(reader.skippable(), 0);
    assert_eq!(reader.feed(b"\r\n0\r\n\r\n"), Ok(ReadStatus::Done));
    assert_eq!(reader.body_bytes(), 16);
}

/// Mostly well-formed pieces of replies, so that the cuts fall into every state.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        Just("HTTP/1.1 200 OK\r\n".to_owned()),
        Just("HTTP/1.1 100 Continue\r\n\r\n".to_owned()),
        Just("HTTP/1.0 404 No\r\n".to_owned()),
        Just("Content-Length: 12\r\n".to_owned()),
        Just("Transfer-Encoding: chunked\r\n".to_owned()),
        Just("Cache-Status: n1; hit\r\n".to_owned()),
        Just("Connection: close\r\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("\n".to_owned()),
        Just("c;x\r\nhello, world\r\n".to_owned()),
        Just("0\r\n\r\n".to_owned()),
        "[ -~\r\n]{0,20}",
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat().into_bytes())
}

proptest! {
    #[test]
    fn the_split_of_the_bytes_does_not_matter(text in text(), cuts in prop::collection::vec(0usize..200, 0..8)) {
        let text = [b"HTTP/1.1 200 OK\r\n", &text[..]].concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        match (read(&[&text], false), read(&pieces, false)) {
            // A piece that arrives after the end finds a finished reader; only then may the reuse verdict agree
            // by another way.
            (Ok(one), Ok(many)) => prop_assert_eq!(one, many),
            (Err(_), Err(_)) => {}
            // A broken head is noticed at once in one piece, at its next line end in many.
            (Err(_), Ok((step, ..))) => prop_assert_eq!(step, ReadStatus::More),
            (Ok(one), Err(many)) => prop_assert!(false, "{one:?} but in pieces {many:?}"),
        }
    }

    #[test]
    fn any_bytes_can_be_parsed(text in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut reader = ReplyReader::new();
        for piece in text.chunks(7) {
            if reader.feed(piece).is_err() {
                break;
            }
        }
        let _ = reader.eof();
        prop_assert!(reader.body_bytes() <= text.len() as u64);
    }
}
