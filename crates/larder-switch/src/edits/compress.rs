//! Compression of replies for clients that accept it (RFC 9110 sections 8.4 and 12.5.3).
//!
//! A reply is compressed if its status is 200, 203, 404 or 410 (a whole representation), the request uses HTTP/1.1 or
//! later, the route lists its media type, it is not shorter than the route's minimum if its length is known, it has no content coding yet,
//! it is not a range, and its `Cache-Control` has no `no-transform` (RFC 9110 section 7.7). Every reply that could be
//! compressed gets `Vary: Accept-Encoding`, so that caches keep the variants apart. Replies to HEAD otherwise keep
//! the fields of the uncompressed content. A compressed reply loses its length, its digests and `Accept-Ranges`. Its
//! strong `ETag` becomes weak, because the bytes differ but the meaning is the same. A 304 returns the tag in the
//! form that the client sent.

use super::error::EditError;
use larder_edge::Fields;

/// Fields that are wrong after compression.
const UNCOMPRESSED_FIELDS: [&str; 6] =
    ["Content-Length", "Accept-Ranges", "Content-MD5", "Content-Digest", "Repr-Digest", "Digest"];

/// Maximum number of media types per route.
const TYPES_MAX: usize = 64;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
}

impl ContentCoding {
    /// Every coding, best first.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Br, Self::Gzip];

    /// Returns its name in header fields.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Br => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// Compression of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    codings: Box<[ContentCoding]>,
    /// Media types in lower case. A type that ends with `/` matches all its subtypes; one that begins with `+`
    /// matches a suffix.
    types: Box<[Box<str>]>,
    bytes_min: u64,
    level: u8,
}

impl Compression {
    /// Creates a compression with these codings, the preferred one first, these types (`text/*`, `application/json`,
    /// `*+xml`), a minimum size, and a level from 1 (fast) to 9 (small).
    ///
    /// # Errors
    /// There is no coding or no type, one is repeated or invalid, or the level is out of range.
    pub fn new(
        codings: &[ContentCoding],
        types: &[String],
        bytes_min: u64,
        level: u8,
    ) -> Result<Self, EditError> {
        if codings.is_empty() || codings.iter().enumerate().any(|(at, coding)| codings[..at].contains(coding))
        {
            return Err(EditError::new(
                "codings must be there, each once",
                "some of \"zstd\", \"br\", \"gzip\"",
            )
            .at("codings"));
        }
        if !(1..=9).contains(&level) {
            let error = EditError::new(format!("{level} is out of range"), "1 (quick) to 9 (small)");
            return Err(error.at("level"));
        }
        if types.is_empty() || types.len() > TYPES_MAX {
            let right = format!("1 to {TYPES_MAX}, such as \"text/*\", \"application/json\" and \"*+xml\"");
            return Err(EditError::new(format!("{} types", types.len()), right).at("types"));
        }
        let types: Result<_, EditError> = types.iter().map(|text| pattern(text)).collect();
        Ok(Self { codings: codings.into(), types: types?, bytes_min, level })
    }

    /// Prepares the header of a final reply to a request of HTTP/1.1 or later. Returns the encoder of the body, if it
    /// is to be compressed.
    pub(crate) fn prepare(
        &self,
        (method, asked): (&[u8], &impl Fields),
        status: u16,
        reply: &mut impl Fields,
    ) -> Option<Encoder> {
        if status == 304 {
            match_etag_form(asked, reply);
            return None;
        }
        if !self.is_compressible(status, reply) {
            return None;
        }
        add_vary(reply);
        if method == b"HEAD" {
            // HEAD describes the uncompressed reply.
            return None;
        }
        let coding = self.choose(asked)?;
        // The encoder is created first, so that the header announces only what is done.
        let encoder = Encoder::new(coding, self.level)?;
        reply.set("Content-Encoding", coding.name().as_bytes());
        for name in UNCOMPRESSED_FIELDS {
            reply.remove(name);
        }
        if let Some(weak) = reply.first("ETag").and_then(weak_etag) {
            reply.set("ETag", &weak);
        }
        Some(encoder)
    }

    /// Whether a reply may be compressed for clients that accept it.
    fn is_compressible(&self, status: u16, reply: &impl Fields) -> bool {
        let number = |text| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        let length = reply.first("Content-Length").map(number);
        let text = |value| std::str::from_utf8(value).ok();
        matches!(status, 200 | 203 | 404 | 410)
            && !reply.has("Content-Encoding")
            && !reply.has("Content-Range")
            && length.is_none_or(|length| length.is_some_and(|length| length >= self.bytes_min.max(1)))
            && !list_members(reply, "Cache-Control").any(|word| word.eq_ignore_ascii_case("no-transform"))
            && reply.first("Content-Type").and_then(text).is_some_and(|kind| self.matches_type(kind))
    }

    fn matches_type(&self, kind: &str) -> bool {
        let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        self.types.iter().any(|known| match &**known {
            known if known.ends_with('/') => kind.starts_with(known),
            known if known.starts_with('+') => kind.ends_with(known),
            known => kind == known,
        })
    }

    /// Returns the client's preferred coding; among equal weights, the route's preferred one. Returns `None` if the
    /// client accepts none or prefers the uncompressed reply.
    fn choose(&self, asked: &impl Fields) -> Option<ContentCoding> {
        let weight = |name: &str| {
            let mut any = None;
            for item in list_members(asked, "Accept-Encoding") {
                let (coding, weight) = parse_weight(item);
                if coding.eq_ignore_ascii_case(name)
                    || name == "gzip" && coding.eq_ignore_ascii_case("x-gzip")
                {
                    return Some(weight);
                }
                if coding == "*" {
                    any = Some(weight);
                }
            }
            any
        };
        let mut best: Option<(u16, ContentCoding)> = None;
        for coding in &self.codings {
            let weight = weight(coding.name()).unwrap_or(0);
            if weight > best.map_or(0, |(weight, _)| weight) {
                best = Some((weight, *coding));
            }
        }
        // A listed "identity" counts like any coding; otherwise it is acceptable but not preferred.
        let plain = list_members(asked, "Accept-Encoding")
            .map(parse_weight)
            .find(|(coding, _)| *coding == "identity");
        best.filter(|(weight, _)| plain.is_none_or(|(_, plain)| *weight >= plain)).map(|(_, coding)| coding)
    }
}

fn pattern(text: &str) -> Result<Box<str>, EditError> {
    let lower = text.trim().to_ascii_lowercase();
    let token = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
    };
    let known = match lower.split_once('/') {
        Some((main, "*")) if token(main) => Some(format!("{main}/")),
        Some((main, sub)) if token(main) && token(sub) => Some(lower.clone()),
        _ => lower.strip_prefix("*+").filter(|suffix| token(suffix)).map(|suffix| format!("+{suffix}")),
    };
    known.map(Into::into).ok_or_else(|| {
        let what = format!("'{}' is not a media type", text.escape_debug());
        EditError::new(what, "write \"text/*\", \"application/json\" or \"*+xml\"").at("types")
    })
}

/// Returns the choice of a route with every coding.
pub(super) fn fuzz_choose(headers: &http::HeaderMap) -> Option<ContentCoding> {
    Compression::new(
        &[ContentCoding::Zstd, ContentCoding::Br, ContentCoding::Gzip],
        &["text/*".to_owned()],
        0,
        5,
    )
    .ok()?
    .choose(headers)
}

/// Returns the members of a list field, which may be repeated.
fn list_members<'h>(fields: &'h impl Fields, name: &'h str) -> impl Iterator<Item = &'h str> {
    let values = fields.each(name).filter_map(|value| std::str::from_utf8(value).ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|member| !member.is_empty())
}

/// Parses a coding and its weight in thousandths. An invalid weight counts as 0.
fn parse_weight(item: &str) -> (&str, u16) {
    let mut parts = item.split(';').map(str::trim);
    let coding = parts.next().unwrap_or("");
    let weight = parts.find_map(|part| {
        let (name, value) = part.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let thousandths = |text: &str| {
        let weight: f32 = text.parse().ok()?;
        (0.0..=1.0).contains(&weight).then(|| (weight * 1000.0).round() as u16)
    };
    (coding, weight.map_or(1000, |text| thousandths(text).unwrap_or(0)))
}

fn weak_etag(tag: &[u8]) -> Option<Vec<u8>> {
    tag.starts_with(b"\"").then(|| [b"W/", tag].concat())
}

/// Returns the weak tag to a client whose compressed copy is still valid.
fn match_etag_form(asked: &impl Fields, reply: &mut impl Fields) {
    let Some(weak) = reply.first("ETag").and_then(weak_etag) else { return };
    if list_members(asked, "If-None-Match").any(|tag| tag.as_bytes() == weak) {
        reply.set("ETag", &weak);
    }
}

fn add_vary(reply: &mut impl Fields) {
    let named = |word: &str| word == "*" || word.eq_ignore_ascii_case("accept-encoding");
    if !list_members(reply, "Vary").any(named) {
        reply.add("Vary", b"accept-encoding");
    }
}

pub(crate) use encoder::Encoder;

mod encoder {
    use super::ContentCoding;
    use brotli::CompressorWriter;
    use bytes::Bytes;
    use flate2::write::GzEncoder;
    use std::fmt;
    use std::io::{self, Write};
    use zstd::stream::write::Encoder as ZstdEncoder;

    /// Logarithm of the compression window in bytes, which the switch holds per reply and the client must hold too.
    const WINDOW_LOG: u32 = 19;

    enum Codec {
        Gzip(GzEncoder<Vec<u8>>),
        Br(Box<CompressorWriter<Vec<u8>>>),
        Zstd(ZstdEncoder<'static, Vec<u8>>),
        Finished,
    }

    /// Encoder of a body in pieces.
    pub(crate) struct Encoder(Codec);

    impl fmt::Debug for Encoder {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Encoder")
        }
    }

    impl Encoder {
        /// Creates an encoder. Returns `None` if the codec cannot be created.
        pub(super) fn new(coding: ContentCoding, level: u8) -> Option<Self> {
            let level = u32::from(level);
            let codec = match coding {
                ContentCoding::Gzip => {
                    Codec::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(level)))
                }
                ContentCoding::Br => {
                    Codec::Br(Box::new(CompressorWriter::new(Vec::new(), 4096, level, WINDOW_LOG)))
                }
                ContentCoding::Zstd => {
                    let mut encoder = ZstdEncoder::new(Vec::new(), i32::try_from(level).ok()?).ok()?;
                    encoder.window_log(WINDOW_LOG).ok()?;
                    Codec::Zstd(encoder)
                }
            };
            Some(Self(codec))
        }

        /// Encodes a piece of the body; `end` marks the last one. With `flush`, all input so far is returned.
        pub(crate) fn encode(&mut self, piece: &[u8], flush: bool, end: bool) -> io::Result<Bytes> {
            let codec = &mut self.0;
            let writer: &mut dyn Write = match &mut *codec {
                Codec::Gzip(codec) => codec,
                Codec::Br(codec) => codec,
                Codec::Zstd(codec) => codec,
                Codec::Finished => return Ok(Bytes::new()),
            };
            writer.write_all(piece)?;
            if flush && !end {
                writer.flush()?;
            }
            if end {
                let done = match std::mem::replace(codec, Codec::Finished) {
                    Codec::Gzip(codec) => codec.finish()?,
                    // This ends the stream; `flush` would only empty it.
                    Codec::Br(codec) => codec.into_inner(),
                    Codec::Zstd(codec) => codec.finish()?,
                    Codec::Finished => Vec::new(),
                };
                return Ok(done.into());
            }
            let out = match codec {
                Codec::Gzip(codec) => codec.get_mut(),
                Codec::Br(codec) => codec.get_mut(),
                Codec::Zstd(codec) => codec.get_mut(),
                Codec::Finished => return Ok(Bytes::new()),
            };
            Ok(std::mem::take(out).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use larder_edge::Lookup as _;
    use proptest::prelude::*;
    use std::io::Read as _;

    fn standard() -> Compression {
        let types: Vec<String> = ["text/*", "application/json", "*+xml"].map(str::to_owned).into();
        Compression::new(&ContentCoding::ALL, &types, 100, 4).expect("valid")
    }

    fn chosen(accept: &[&str]) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.add("Accept-Encoding", value.as_bytes());
        }
        standard().choose(&headers).map(ContentCoding::name)
    }

    #[test]
    fn weights_choose_first_then_the_route() {
        for (accept, expected) in [
            (&[][..], None),
            (&[""][..], None),
            (&["gzip"][..], Some("gzip")),
            (&["gzip, br"][..], Some("br")),
            (&["gzip, deflate, br, zstd"][..], Some("zstd")),
            (&["gzip", "br"][..], Some("br")),
            (&["br;q=0.5, gzip;q=0.8"][..], Some("gzip")),
            (&["gzip;q=0"][..], None),
            (&["gzip;Q=0.0, *;q=0.5"][..], Some("zstd")),
            (&["zstd;q=0, br;q=0, *"][..], Some("gzip")),
            (&["*;q=0"][..], None),
            (&["*"][..], Some("zstd")),
            (&["identity"][..], None),
            (&["identity;q=0.5, gzip;q=0.2"][..], None),
            (&["identity;q=0.5, gzip;q=0.5"][..], Some("gzip")),
            (&["GZIP"][..], Some("gzip")),
            (&["x-gzip"][..], Some("gzip")),
            (&["gzip;q=2"][..], None),
            (&["gzip;q=x, br;q=0.001"][..], Some("br")),
        ] {
            assert_eq!(chosen(accept), expected, "{accept:?}");
        }
    }

    fn reply(fields: &[(&str, &str)]) -> HeaderMap {
        let mut reply = HeaderMap::new();
        for (name, value) in
            [("content-type", "Text/HTML; charset=utf-8"), ("content-length", "1000")].iter().chain(fields)
        {
            match *value {
                "" => Fields::remove(&mut reply, name),
                value => reply.set(name, value.as_bytes()),
            }
        }
        reply
    }

    fn asked() -> HeaderMap {
        let mut asked = HeaderMap::new();
        asked.set("Accept-Encoding", b"gzip");
        asked
    }

    #[test]
    fn only_compressible_replies_are_compressed() {
        let prepared = |method: &str, mut reply: HeaderMap| {
            let encoder = standard().prepare((method.as_bytes(), &asked()), 200, &mut reply);
            (encoder.is_some(), reply.has("Vary"))
        };
        assert_eq!(prepared("GET", reply(&[])), (true, true));
        assert_eq!(prepared("POST", reply(&[("content-length", "")])), (true, true));
        assert_eq!(prepared("GET", reply(&[("content-type", "image/svg+xml")])), (true, true));
        for (what, fields) in [
            ("short", ("content-length", "99")),
            ("another type", ("content-type", "image/png")),
            ("no type", ("content-type", "")),
            ("encoded", ("content-encoding", "gzip")),
            ("encoded by nothing", ("content-encoding", "identity")),
            ("a range", ("content-range", "bytes 0-9/10")),
            ("as it is", ("cache-control", "public, No-Transform")),
        ] {
            assert_eq!(prepared("GET", reply(&[fields])), (false, false), "{what}");
        }
        assert_eq!(prepared("HEAD", reply(&[])), (false, true));
        assert!(standard().prepare((b"GET", &asked()), 206, &mut reply(&[])).is_none());
    }

    #[test]
    fn header_fields_match_the_compression() {
        let mut reply = reply(&[
            ("etag", "\"v1\""),
            ("vary", "origin"),
            ("accept-ranges", "bytes"),
            ("content-md5", "x"),
        ]);
        standard().prepare((b"GET", &asked()), 200, &mut reply).expect("an encoder");
        let all =
            |name: &str| reply.get_all(name).iter().map(|v| v.to_str().expect("text")).collect::<Vec<_>>();
        assert_eq!((all("content-encoding"), all("etag")), (vec!["gzip"], vec!["W/\"v1\""]));
        assert_eq!(all("vary"), ["origin", "accept-encoding"]);
        for gone in ["content-length", "accept-ranges", "content-md5"] {
            assert_eq!(all(gone), [""; 0], "{gone}");
        }
        let mut asks = asked();
        asks.set("If-None-Match", b"\"v0\", W/\"v1\"");
        let mut unchanged = HeaderMap::new();
        unchanged.set("ETag", b"\"v1\"");
        assert!(standard().prepare((b"GET", &asks), 304, &mut unchanged).is_none());
        assert_eq!(unchanged.first("ETag"), Some(&b"W/\"v1\""[..]));
    }

    #[test]
    fn invalid_types_and_levels_are_refused() {
        let types = |text: &str| Compression::new(&[ContentCoding::Gzip], &[text.to_owned()], 1, 1);
        for text in ["", "text", "*", "*/*", "text/", "text/*;q=1", "*+", "a b/c"] {
            assert!(types(text).is_err(), "{text}");
        }
        assert!(types("Application/JSON").is_ok());
        let one = ["text/*".to_owned()];
        assert!(Compression::new(&[], &one, 1, 1).is_err());
        assert!(Compression::new(&[ContentCoding::Br, ContentCoding::Br], &one, 1, 1).is_err());
        assert!(Compression::new(&[ContentCoding::Br], &one, 1, 0).is_err());
        assert!(Compression::new(&[ContentCoding::Br], &one, 1, 10).is_err());
    }

    fn decoded(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match coding {
            ContentCoding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
            ContentCoding::Br => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
            ContentCoding::Zstd => {
                zstd::stream::read::Decoder::new(bytes).expect("a decoder").read_to_end(&mut out)
            }
        }
        .expect("a whole stream");
        out
    }

    proptest! {
        /// The output decodes to the input, in any pieces, and is a complete stream.
        #[test]
        fn bodies_round_trip(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..6),
                            flush: bool, level in 1..=9_u8) {
            for coding in ContentCoding::ALL {
                let mut encoder = Encoder::new(coding, level).expect("an encoder");
                let mut out = Vec::new();
                for piece in &pieces {
                    out.extend_from_slice(&encoder.encode(piece, flush, false).expect("encodes"));
                }
                out.extend_from_slice(&encoder.encode(b"", false, true).expect("ends"));
                prop_assert_eq!(decoded(coding, &out), pieces.concat());
                prop_assert!(encoder.encode(b"more", true, true).expect("is over").is_empty());
            }
        }
    }
}
