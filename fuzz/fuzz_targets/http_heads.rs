//! Heads and bodies of HTTP/1. What is accepted here must mean the same to httparse, a head must be read as the same again once it was
//! written, and the end of a body must not depend on how its bytes come.

#![no_main]

use larder_http::h1::{Body, Decoder, FIELDS_MAX, Fault, Fields, HeadEnd, Piece, ReplyHead, RequestHead};
use libfuzzer_sys::fuzz_target;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn ours(fields: &Fields) -> Pairs {
    fields.iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
}

fn theirs(fields: &[httparse::Header<'_>]) -> Pairs {
    fields.iter().map(|field| (field.name.as_bytes().to_vec(), field.value.to_vec())).collect()
}

fn request(bytes: &[u8], end: usize) {
    let mut head = RequestHead::new();
    if head.read(&bytes[..end]).is_err() {
        return;
    }
    let mut fields = vec![httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut other = httparse::Request::new(&mut fields);
    assert_eq!(other.parse(bytes), Ok(httparse::Status::Complete(end)));
    assert_eq!(other.method.map(str::as_bytes), Some(head.method()));
    assert_eq!(other.path.map(str::as_bytes), Some(head.target()));
    assert_eq!(theirs(other.headers), ours(&head.fields));
    let (mut written, mut again) = (Vec::new(), RequestHead::new());
    head.write(&mut written);
    // A request of HTTP/1.0 may lack the host that one of HTTP/1.1 needs.
    if again.read(&written) != Err(Fault::Host) || !head.is_http10() {
        assert_eq!((again.target(), again.body()), (head.target(), head.body()));
        assert_eq!(ours(&again.fields), ours(&head.fields));
    }
}

fn reply(bytes: &[u8], end: usize) {
    let mut head = ReplyHead::new();
    if head.read(&bytes[..end]).is_err() {
        return;
    }
    let mut fields = vec![httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut other = httparse::Response::new(&mut fields);
    assert_eq!(other.parse(bytes), Ok(httparse::Status::Complete(end)));
    assert_eq!(other.code, Some(head.status()));
    assert_eq!(theirs(other.headers), ours(&head.fields));
    let (mut written, mut again) = (Vec::new(), ReplyHead::new());
    head.write(&mut written);
    assert_eq!(again.read(&written), Ok(()));
    assert_eq!((again.status(), again.body(b"GET")), (head.status(), head.body(b"GET")));
}

/// The contents of a body in chunks, its trailers, and the number of its bytes, in pieces of this size.
fn body(bytes: &[u8], size: usize) -> Result<(Vec<u8>, Vec<u8>, usize), Fault> {
    let (mut decoder, mut contents, mut at) = (Decoder::new(Body::Chunks), Vec::new(), 0);
    while at < bytes.len() && !decoder.is_ended() {
        let piece = &bytes[at..bytes.len().min(at + size)];
        let step = decoder.step(piece)?;
        assert!(step.taken > 0 && step.taken <= piece.len());
        if step.piece == Piece::Data {
            contents.extend_from_slice(&piece[..step.taken]);
        }
        at += step.taken;
    }
    Ok((contents, decoder.trailers().to_vec(), at))
}

fuzz_target!(|bytes: &[u8]| {
    if let Some(end) = HeadEnd::new().find(bytes) {
        request(bytes, end);
        reply(bytes, end);
    }
    let whole = body(bytes, bytes.len().max(1));
    for size in [1, 2, 7, 64] {
        assert_eq!(body(bytes, size), whole, "in pieces of {size}");
    }
});
