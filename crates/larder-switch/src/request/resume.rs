//! Resumption of a broken reply from another node (RFC 9110 section 14: `Range` with `If-Range`). The client sees one
//! reply.

use larder_http::h1::{ReplyHead, RequestHead};

/// Missing rest of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resume {
    etag: Box<[u8]>,
    total: u64,
    from: u64,
}

impl Resume {
    /// Returns the rest of a reply if the client has `from` bytes of it. Returns `None` if the reply cannot be
    /// resumed: it must be the whole representation, with a length and a strong entity tag.
    pub(super) fn new(request: &RequestHead, reply: &ReplyHead, from: u64) -> Option<Self> {
        if request.method() != b"GET" || request.fields.get(b"range").is_some() || reply.status() != 200 {
            return None;
        }
        let etag = reply.fields.get(b"etag").filter(|etag| etag.starts_with(b"\""))?;
        let total = std::str::from_utf8(reply.fields.get(b"content-length")?).ok()?.parse().ok()?;
        (from < total).then(|| Self { etag: etag.into(), total, from })
    }

    /// Turns the request into a range request for the rest.
    pub(super) fn apply(&self, request: &mut RequestHead) {
        for name in ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"] {
            request.fields.remove(name.as_bytes());
        }
        // There is room: four fields were removed, or two of these fields exist already.
        let _ = request.fields.set(b"Range", format!("bytes={}-", self.from).as_bytes());
        let _ = request.fields.set(b"If-Range", &self.etag);
    }

    /// Whether the reply is the rest of the same representation.
    pub(super) fn is_continued_by(&self, reply: &ReplyHead) -> bool {
        let expected = format!("bytes {}-{}/{}", self.from, self.total - 1, self.total);
        reply.status() == 206
            && reply.fields.get(b"content-range") == Some(expected.as_bytes())
            && reply.fields.get(b"etag") == Some(&self.etag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &str) -> RequestHead {
        let mut request = RequestHead::new();
        request.read(format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes()).expect("a request");
        request
    }

    fn reply(head: &str) -> ReplyHead {
        let mut reply = ReplyHead::new();
        reply.read(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).expect("a reply");
        reply
    }

    #[test]
    fn only_a_whole_reply_with_length_and_strong_tag_can_be_continued() {
        let whole = "200 OK\r\nContent-Length: 100\r\nETag: \"v1\"";
        let resume = Resume::new(&request(""), &reply(whole), 40).expect("can be continued");
        assert_eq!(resume, Resume { etag: (*b"\"v1\"").into(), total: 100, from: 40 });
        assert_eq!(Resume::new(&request(""), &reply(whole), 100), None);
        assert_eq!(Resume::new(&request("Range: bytes=0-\r\n"), &reply(whole), 40), None);
        for head in [
            "206 x\r\nContent-Length: 100\r\nETag: \"v1\"",
            "200 x\r\nTransfer-Encoding: chunked\r\nETag: \"v1\"",
            "200 x\r\nContent-Length: 100\r\nETag: W/\"v1\"",
            "200 x\r\nContent-Length: 100",
        ] {
            assert_eq!(Resume::new(&request(""), &reply(head), 40), None, "{head}");
        }
    }

    #[test]
    fn a_range_request_has_no_other_conditions() {
        let mut request = request("If-None-Match: \"v0\"\r\n");
        Resume { etag: (*b"\"v1\"").into(), total: 100, from: 40 }.apply(&mut request);
        assert_eq!(request.fields.get(b"range"), Some(&b"bytes=40-"[..]));
        assert_eq!(request.fields.get(b"if-range"), Some(&b"\"v1\""[..]));
        assert_eq!(request.fields.get(b"if-none-match"), None);
    }

    #[test]
    fn only_the_rest_of_the_same_representation_is_accepted() {
        let resume = Resume { etag: (*b"\"v1\"").into(), total: 100, from: 40 };
        assert!(resume.is_continued_by(&reply("206 x\r\nContent-Range: bytes 40-99/100\r\nETag: \"v1\"")));
        for head in [
            "206 x\r\nContent-Range: bytes 40-99/100",
            "206 x\r\nContent-Range: bytes 40-99/100\r\nETag: \"v2\"",
            "206 x\r\nContent-Range: bytes 40-98/100\r\nETag: \"v1\"",
            "206 x\r\nContent-Range: bytes 0-99/100\r\nETag: \"v1\"",
            "200 x\r\nContent-Range: bytes 40-99/100\r\nETag: \"v1\"",
        ] {
            assert!(!resume.is_continued_by(&reply(head)), "{head}");
        }
    }
}
