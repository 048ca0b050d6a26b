//! Compression towards clients that ask for it (RFC 9110 sections 8.4 and 12.5.3): whether a reply is compressed, by what,
//! and what its header says then.
//!
//! Compressed are replies of 200, 203, 404 and 410 (whole representations) to requests of HTTP/1.1 and later, of a type that
//! the route names, at least as long as it says where their length is known, which no other coding has been applied to,
//! whose `Cache-Control` has no `no-transform` (RFC 9110 section 7.7), and which are no range. Whatever could have been
//! compressed has `Vary: Accept-Encoding`, so that caches keep the variants apart; all else of a reply to HEAD is that of the
//! content as it is. What is compressed loses its length, its digests and `Accept-Ranges`, and its strong `ETag` becomes a
//! weak one: the bytes are others, what they mean is the same. A 304 says the tag in the form by which the client has asked.

use super::error::EditError;
use larder_edge::Fields;

/// Fields that are wrong once the contents are compressed.
const OF_PLAIN_CONTENTS: [&str; 6] =
    ["Content-Length", "Accept-Ranges", "Content-MD5", "Content-Digest", "Repr-Digest", "Digest"];

/// The most types that a route names.
const TYPES_MAX: usize = 64;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Br,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// Every coding, the best first.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Br, Self::Gzip];

    /// Its name in headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Br => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// What a route compresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    codings: Box<[Coding]>,
    /// In lower case; those that end with `/` stand for all under it, those that begin with `+` for a suffix.
    types: Box<[Box<str>]>,
    bytes_min: u64,
    level: u8,
}

impl Compression {
    /// These codings, the preferred one first; these types (`text/*`, `application/json`, `*+xml`); replies of at least
    /// `bytes_min`; effort from 1 (quick) to 9 (small).
    ///
    /// # Errors
    /// There is no coding or type, one is twice or none, or the level is out of range.
    pub fn new(codings: &[Coding], types: &[String], bytes_min: u64, level: u8) -> Result<Self, EditError> {
        if codings.is_empty() || codings.iter().enumerate().any(|(at, coding)| codings[..at].contains(coding))
        {
            return Err(EditError::new(
                "codings must be there, each once",
                "some of \"zstd\", \"br\", \"gzip\"",
            ));
        }
        if !(1..=9).contains(&level) {
            return Err(EditError::new(format!("level {level} is out of range"), "1 (quick) to 9 (small)"));
        }
        if types.is_empty() || types.len() > TYPES_MAX {
            let right = format!("1 to {TYPES_MAX}, such as \"text/*\", \"application/json\" and \"*+xml\"");
            return Err(EditError::new(format!("{} types", types.len()), right));
        }
        let types: Result<_, EditError> = types.iter().map(|text| pattern(text)).collect();
        Ok(Self { codings: codings.into(), types: types?, bytes_min, level })
    }

    /// Prepares a final reply of this status to a request of HTTP/1.1 or later: says in its header what will be done to its body, and
    /// gives what does it.
    pub(crate) fn prepare(
        &self,
        (method, asked): (&[u8], &impl Fields),
        status: u16,
        reply: &mut impl Fields,
    ) -> Option<Encoder> {
        if status == 304 {
            weaken_as_asked(asked, reply);
            return None;
        }
        if !self.suits(status, reply) {
            return None;
        }
        vary(reply);
        if method == b"HEAD" {
            // It is of the reply as it is.
            return None;
        }
        let coding = self.choose(asked)?;
        // First, so that nothing is announced that is not done.
        let encoder = Encoder::new(coding, self.level)?;
        reply.set("Content-Encoding", coding.name().as_bytes());
        for name in OF_PLAIN_CONTENTS {
            reply.remove(name);
        }
        if let Some(weak) = reply.first("ETag").and_then(weakened) {
            reply.set("ETag", &weak);
        }
        Some(encoder)
    }

    /// Whether a reply may be compressed for whoever asks.
    fn suits(&self, status: u16, reply: &impl Fields) -> bool {
        let number = |text| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        let length = reply.first("Content-Length").map(number);
        let text = |value| std::str::from_utf8(value).ok();
        matches!(status, 200 | 203 | 404 | 410)
            && !reply.has("Content-Encoding")
            && !reply.has("Content-Range")
            && length.is_none_or(|length| length.is_some_and(|length| length >= self.bytes_min.max(1)))
            && !listed(reply, "Cache-Control").any(|word| word.eq_ignore_ascii_case("no-transform"))
            && reply.first("Content-Type").and_then(text).is_some_and(|kind| self.is_of(kind))
    }

    fn is_of(&self, kind: &str) -> bool {
        let kind = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        self.types.iter().any(|known| match &**known {
            known if known.ends_with('/') => kind.starts_with(known),
            known if known.starts_with('+') => kind.ends_with(known),
            known => kind == known,
        })
    }

    /// The coding that a client likes best, of those with equal weight the one that the route prefers; `None` for none at
    /// all, where none is named, or the client would rather have the reply as it is.
    fn choose(&self, asked: &impl Fields) -> Option<Coding> {
        let weight = |name: &str| {
            let mut any = None;
            for item in listed(asked, "Accept-Encoding") {
                let (coding, weight) = weighed(item);
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
        let mut best: Option<(u16, Coding)> = None;
        for coding in &self.codings {
            let weight = weight(coding.name()).unwrap_or(0);
            if weight > best.map_or(0, |(weight, _)| weight) {
                best = Some((weight, *coding));
            }
        }
        // "identity" that is named counts as any other; unnamed it is acceptable, and no preference.
        let plain = listed(asked, "Accept-Encoding").map(weighed).find(|(coding, _)| *coding == "identity");
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
        let what = format!("'{}' is no media type", text.escape_debug());
        EditError::new(what, "write \"text/*\", \"application/json\" or \"*+xml\"")
    })
}

/// What a route with every coding would choose.
pub(super) fn fuzz_choose(headers: &http::HeaderMap) -> Option<Coding> {
    Compression::new(&[Coding::Zstd, Coding::Br, Coding::Gzip], &["text/*".to_owned()], 0, 5)
        .ok()?
        .choose(headers)
}

/// The members of a list that may stand in several fields.
fn listed<'h>(fields: &'h impl Fields, name: &'h str) -> impl Iterator<Item = &'h str> {
    let values = fields.each(name).filter_map(|value| std::str::from_utf8(value).ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|member| !member.is_empty())
}

/// A coding and its weight in thousandths; one that cannot be read is no wish.
fn weighed(item: &str) -> (&str, u16) {
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

fn weakened(tag: &[u8]) -> Option<Vec<u8>> {
    tag.starts_with(b"\"").then(|| [b"W/", tag].concat())
}

/// A client whose compressed copy is still good knows it by its weak tag.
fn weaken_as_asked(asked: &impl Fields, reply: &mut impl Fields) {
    let Some(weak) = reply.first("ETag").and_then(weakened) else { return };
    if listed(asked, "If-None-Match").any(|tag| tag.as_bytes() == weak) {
        reply.set("ETag", &weak);
    }
}

fn vary(reply: &mut impl Fields) {
    let named = |word: &str| word == "*" || word.eq_ignore_ascii_case("accept-encoding");
    if !listed(reply, "Vary").any(named) {
        reply.add("Vary", b"accept-encoding");
    }
}

pub(crate) use encoder::Encoder;

mod encoder {
    use super::Coding;
    use brotli::CompressorWriter;
    use bytes::Bytes;
    use flate2::write::GzEncoder;
    use std::fmt;
    use std::io::{self, Write};
    use zstd::stream::write::Encoder as ZstdEncoder;

    /// log2 of the bytes that a compressor looks back: what it holds for a reply, and what a client must hold.
    const WINDOW_LOG: u32 = 19;

    enum Codec {
        Gzip(GzEncoder<Vec<u8>>),
        Br(Box<CompressorWriter<Vec<u8>>>),
        Zstd(ZstdEncoder<'static, Vec<u8>>),
        Over,
    }

    /// Encodes a body as it passes.
    pub(crate) struct Encoder(Codec);

    impl fmt::Debug for Encoder {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Encoder")
        }
    }

    impl Encoder {
        /// `None` if the codec has no memory.
        pub(super) fn new(coding: Coding, level: u8) -> Option<Self> {
            let level = u32::from(level);
            let codec = match coding {
                Coding::Gzip => Codec::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(level))),
                Coding::Br => Codec::Br(Box::new(CompressorWriter::new(Vec::new(), 4096, level, WINDOW_LOG))),
                Coding::Zstd => {
                    let mut encoder = ZstdEncoder::new(Vec::new(), i32::try_from(level).ok()?).ok()?;
                    encoder.window_log(WINDOW_LOG).ok()?;
                    Codec::Zstd(encoder)
                }
            };
            Some(Self(codec))
        }

        /// Takes a piece of the body; with `end` the last one. With `flush` all that was taken comes out.
        pub(crate) fn encode(&mut self, piece: &[u8], flush: bool, end: bool) -> io::Result<Bytes> {
            let codec = &mut self.0;
            let writer: &mut dyn Write = match &mut *codec {
                Codec::Gzip(codec) => codec,
                Codec::Br(codec) => codec,
                Codec::Zstd(codec) => codec,
                Codec::Over => return Ok(Bytes::new()),
            };
            writer.write_all(piece)?;
            if flush && !end {
                writer.flush()?;
            }
            if end {
                let done = match std::mem::replace(codec, Codec::Over) {
                    Codec::Gzip(codec) => codec.finish()?,
                    // Ends the stream, where flush only empties it.
                    Codec::Br(codec) => codec.into_inner(),
                    Codec::Zstd(codec) => codec.finish()?,
                    Codec::Over => Vec::new(),
                };
                return Ok(done.into());
            }
            let out = match codec {
                Codec::Gzip(codec) => codec.get_mut(),
                Codec::Br(codec) => codec.get_mut(),
                Codec::Zstd(codec) => codec.get_mut(),
                Codec::Over => return Ok(Bytes::new()),
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
        Compression::new(&Coding::ALL, &types, 100, 4).expect("valid")
    }

    fn chosen(accept: &[&str]) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.add("Accept-Encoding", value.as_bytes());
        }
        standard().choose(&headers).map(Coding::name)
    }

    #[test]
    fn weights_decide_and_then_the_route() {
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
    fn only_whole_plain_replies_of_a_type_are_compressed() {
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
    fn the_header_says_what_was_done() {
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
    fn what_is_no_type_or_level_is_refused() {
        let types = |text: &str| Compression::new(&[Coding::Gzip], &[text.to_owned()], 1, 1);
        for text in ["", "text", "*", "*/*", "text/", "text/*;q=1", "*+", "a b/c"] {
            assert!(types(text).is_err(), "{text}");
        }
        assert!(types("Application/JSON").is_ok());
        let one = ["text/*".to_owned()];
        assert!(Compression::new(&[], &one, 1, 1).is_err());
        assert!(Compression::new(&[Coding::Br, Coding::Br], &one, 1, 1).is_err());
        assert!(Compression::new(&[Coding::Br], &one, 1, 0).is_err());
        assert!(Compression::new(&[Coding::Br], &one, 1, 10).is_err());
    }

    fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
            Coding::Br => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
            Coding::Zstd => zstd::stream::read::Decoder::new(bytes).expect("a decoder").read_to_end(&mut out),
        }
        .expect("a whole stream");
        out
    }

    proptest! {
        /// What comes out decodes to what went in, in whatever pieces, and is a whole stream.
        #[test]
        fn bodies_come_back(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..6),
                            flush: bool, level in 1..=9_u8) {
            for coding in Coding::ALL {
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
