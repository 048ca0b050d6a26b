//! `Content-Type` by the extension of a name.
//!
//! The list has the types that a web server usually serves. Any other extension is `application/octet-stream`,
//! which a browser saves and does not interpret. Replies carry `X-Content-Type-Options: nosniff`, so the type
//! alone counts.

/// Extensions in lower case, sorted, with their types.
const TYPES: [(&str, &str); 50] = [
    ("avif", "image/avif"),
    ("bin", "application/octet-stream"),
    ("bmp", "image/bmp"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("eot", "application/vnd.ms-fontobject"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("jsonl", "application/jsonl"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/mp4"),
    ("m4s", "video/iso.segment"),
    ("map", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpd", "application/dash+xml"),
    ("mpeg", "video/mpeg"),
    ("ogg", "audio/ogg"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("ps", "application/postscript"),
    ("rss", "application/rss+xml"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("toml", "application/toml"),
    ("ts", "video/mp2t"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("webm", "video/webm"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xml", "application/xml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

/// Returns the type of a name. A query after the name does not count.
pub(crate) fn from_name(name: &[u8]) -> &'static str {
    const DEFAULT_TYPE: &str = "application/octet-stream";
    let path = name.split(|&b| b == b'?').next().unwrap_or_default();
    let file = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    let Some(dot) = file.iter().rposition(|&b| b == b'.') else { return DEFAULT_TYPE };
    let Ok(extension) = std::str::from_utf8(&file[dot + 1..]) else { return DEFAULT_TYPE };
    let extension = extension.to_ascii_lowercase();
    match TYPES.binary_search_by(|(known, _)| (*known).cmp(&extension)) {
        Ok(place) => TYPES[place].1,
        Err(_) => DEFAULT_TYPE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_found() {
        assert!(TYPES.is_sorted_by(|a, b| a.0 < b.0));
        for (extension, kind) in TYPES {
            assert_eq!(from_name(format!("x/y.{extension}").as_bytes()), kind);
        }
    }

    #[test]
    fn the_last_extension_of_the_last_segment_decides() {
        assert_eq!(from_name(b"a.html/b"), "application/octet-stream");
        assert_eq!(from_name(b"/a.b.PNG?x=y.css"), "image/png");
        assert_eq!(from_name(b"x.\xff"), "application/octet-stream");
        assert_eq!(from_name(b""), "application/octet-stream");
    }
}
