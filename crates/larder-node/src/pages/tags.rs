//! Tags of replies, by which they are purged: `Cache-Tag`, a list with commas, and `Surrogate-Key`, a list with
//! spaces.

use http::header::{HeaderMap, HeaderName};

const CACHE_TAG: HeaderName = HeaderName::from_static("cache-tag");
const SURROGATE_KEY: HeaderName = HeaderName::from_static("surrogate-key");

/// Whether a reply with this header has a tag. Case counts.
pub(super) fn has(headers: &HeaderMap, tag: &str) -> bool {
    let lists = [(CACHE_TAG, b','), (SURROGATE_KEY, b' ')];
    lists.iter().any(|(name, separator)| {
        headers.get_all(name).iter().any(|value| {
            let tags = value.as_bytes().split(|byte| byte == separator || *byte == b'\t');
            tags.map(<[u8]>::trim_ascii).any(|found| found == tag.as_bytes())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn cache_tags_are_parsed_from_both_fields() {
        let mut headers = HeaderMap::new();
        headers.append(CACHE_TAG, HeaderValue::from_static("a, b/1 ,,c"));
        headers.append(CACHE_TAG, HeaderValue::from_static("d"));
        headers.append(SURROGATE_KEY, HeaderValue::from_static("e  f,g"));
        for tag in ["a", "b/1", "c", "d", "e", "f,g"] {
            assert!(has(&headers, tag), "{tag}");
        }
        for tag in ["A", "b", "f", "g", "a,", " a"] {
            assert!(!has(&headers, tag), "{tag}");
        }
    }
}
