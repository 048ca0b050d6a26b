//! Header fields that a proxy removes, adds and updates (RFC 9110 section 7.6, RFC 9111 sections 3.1 and 3.2).

use super::cache_control::ListMembers;
use super::hop::HOP_BY_HOP;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use std::time::SystemTime;

/// Fields of a 304 that do not describe the stored reply.
const BODY_FIELDS: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::CONTENT_ENCODING, header::CONTENT_RANGE, header::CONTENT_TYPE];

/// Digests of the content of one message: `Content-Digest` (RFC 9530), `Digest` (RFC 3230) and `Content-MD5`
/// (RFC 2616). `Repr-Digest` is not among them, because it describes the whole representation in every reply.
const CONTENT_DIGESTS: [HeaderName; 3] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
];

/// Prefix of the names of Amazon S3's digests of an object (`x-amz-checksum-crc32`, `x-amz-checksum-type`).
const S3_DIGESTS: &str = "x-amz-checksum-";

/// Fields that identify the sender of a request.
const CREDENTIALS: [HeaderName; 3] =
    [header::AUTHORIZATION, header::COOKIE, HeaderName::from_static("client-cert")];

/// Returns whether a request identifies its sender.
pub(crate) fn has_credentials(request: &HeaderMap) -> bool {
    CREDENTIALS.iter().any(|name| request.contains_key(name))
}

/// Preconditions and ranges. A cache sends its own, for all its clients.
pub(crate) const CONDITIONS: [HeaderName; 6] = [
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::IF_UNMODIFIED_SINCE,
    header::IF_RANGE,
    header::RANGE,
];

/// Removes the hop-by-hop fields from a reply, including those that `Connection` names. Requests lose theirs at
/// admission ([`crate::service::Admission`]).
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let mut named = Vec::new();
    for value in headers.get_all(header::CONNECTION) {
        named.extend(ListMembers(value.as_bytes()).filter_map(|name| HeaderName::from_bytes(name).ok()));
    }
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Removes the digests of the whole content from the header of a partial reply. A client that verifies them
/// would take the part for corrupt.
pub(crate) fn remove_content_digests(headers: &mut HeaderMap) {
    let of_content = |name: &&HeaderName| is_content_digest(name);
    let names: Vec<HeaderName> = headers.keys().filter(of_content).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

fn is_content_digest(name: &HeaderName) -> bool {
    CONTENT_DIGESTS.contains(name) || name.as_str().starts_with(S3_DIGESTS)
}

/// Returns the value of `Max-Forwards`, if there is one.
pub(crate) fn max_forwards(headers: &HeaderMap) -> Option<u32> {
    headers.get(header::MAX_FORWARDS)?.to_str().ok()?.parse().ok()
}

/// Decrements `Max-Forwards` (RFC 9110 section 7.6.2).
pub(crate) fn decrement_max_forwards(headers: &mut HeaderMap) {
    if let Some(remaining) = max_forwards(headers) {
        headers.insert(header::MAX_FORWARDS, HeaderValue::from(remaining.saturating_sub(1)));
    }
}

/// Adds this node to `Via`.
pub(crate) fn add_via(headers: &mut HeaderMap, by: &HeaderValue) {
    headers.append(header::VIA, by.clone());
}

/// Returns the header of a stored reply after a 304 that arrived at `now` (RFC 9111 section 3.2). The new
/// fields replace stored fields of the same name, except fields about the content, which a 304 does not have.
/// The 304 alone determines the age. Without `Age`, its `Date` counts; without `Date`, `now` counts (RFC 9110
/// section 6.6.1).
///
/// `Vary` is the union of both. The body was selected by the stored fields, so the 304 cannot make it valid for
/// requests that differ in them.
pub(crate) fn merge_not_modified(stored: &HeaderMap, mut new: HeaderMap, now: SystemTime) -> HeaderMap {
    remove_hop_by_hop(&mut new);
    let mut fields = stored.clone();
    fields.remove(header::AGE);
    if let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(now)) {
        fields.insert(header::DATE, date);
    }
    let narrows_vary = vary_fields(stored)
        .zip(vary_fields(&new))
        .is_some_and(|(before, named)| named.iter().all(|name| before.contains(name)));
    if narrows_vary {
        new.remove(header::VARY);
    }
    for name in new.keys().filter(|name| !BODY_FIELDS.contains(name) && !is_content_digest(name)) {
        if *name != header::VARY {
            fields.remove(name);
        }
        for value in new.get_all(name) {
            fields.append(name, value.clone());
        }
    }
    fields
}

/// Returns the fields that a reply depends on (`Vary`), sorted by name and without duplicates. `None` if there
/// are more than a cache should compare.
pub(crate) fn vary_fields(reply: &HeaderMap) -> Option<Vec<HeaderName>> {
    const NAMES_MAX: usize = 16;
    let mut names = Vec::new();
    for value in reply.get_all(header::VARY) {
        for item in ListMembers(value.as_bytes()) {
            names.push(HeaderName::from_bytes(item).ok()?);
        }
    }
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    (names.len() <= NAMES_MAX).then_some(names)
}

/// Returns the value of a field in the form that `Vary` compares: members in order, without surrounding white
/// space. Credentials are compared byte by byte, because a comma does not separate members in them. `None` for
/// a field that the origin is not sent.
pub(crate) fn comparable_value(headers: &HeaderMap, name: &HeaderName) -> Option<Box<[u8]>> {
    if HOP_BY_HOP.contains(name) || !headers.contains_key(name) {
        return None;
    }
    let mut joined = Vec::new();
    if CREDENTIALS.contains(name) {
        for value in headers.get_all(name) {
            joined.extend_from_slice(value.as_bytes());
            joined.push(b'\n');
        }
        return Some(joined.into());
    }
    for value in headers.get_all(name) {
        for item in ListMembers(value.as_bytes()) {
            if !joined.is_empty() {
                joined.push(b',');
            }
            joined.extend_from_slice(item);
        }
    }
    Some(joined.into())
}

/// Returns the bytes that a header uses in memory: names, values, and about 48 bytes of bookkeeping for each
/// field.
pub(crate) fn header_bytes(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| (name.as_str().len() + value.len() + 48) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn fields_of_the_connection_are_removed() {
        let mut headers = map(&[
            ("connection", "close, X-Own"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("x-other", "2"),
        ]);
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-other", "2")]));
    }

    #[test]
    fn a_304_replaces_fields_but_not_those_of_the_body() {
        let now = SystemTime::UNIX_EPOCH;
        let date = "Thu, 01 Jan 1970 00:00:00 GMT";
        let stored = map(&[("content-length", "5"), ("x-a", "1"), ("x-a", "2"), ("x-b", "3"), ("age", "7")]);
        let new = map(&[
            ("content-length", "0"),
            ("content-digest", "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"),
            ("x-a", "4"),
            ("connection", "close"),
        ]);
        let expected = map(&[("content-length", "5"), ("x-a", "4"), ("x-b", "3"), ("date", date)]);
        let once = merge_not_modified(&stored, new, now);
        assert_eq!(once, expected);
        let update = map(&[("date", "then"), ("age", "8")]);
        let all = [("content-length", "5"), ("x-a", "4"), ("x-b", "3"), ("date", "then"), ("age", "8")];
        assert_eq!(merge_not_modified(&once, update, now), map(&all));
    }

    #[test]
    fn digests_of_the_content_are_removed_and_the_digest_of_the_representation_stays() {
        let mut headers = map(&[
            ("content-digest", "sha-256=:AA==:"),
            ("content-md5", "AA=="),
            ("digest", "sha-256=AA=="),
            ("repr-digest", "sha-256=:AA==:"),
            ("x-amz-checksum-crc32", "AA=="),
            ("x-amz-checksum-sha256", "AA==-2"),
            ("x-amz-checksum-type", "COMPOSITE"),
            ("x-amz-version-id", "1"),
        ]);
        remove_content_digests(&mut headers);
        assert_eq!(headers, map(&[("repr-digest", "sha-256=:AA==:"), ("x-amz-version-id", "1")]));
    }

    #[test]
    fn a_304_adds_fields_to_vary_and_removes_none() {
        let fields = |count: usize| (0..count).map(|nth| format!("x-{nth}, ")).collect::<String>();
        for (stored, named, expected) in [
            ("cookie", Some("Accept-Encoding"), Some("accept-encoding cookie")),
            ("Cookie, Accept", Some("accept"), Some("accept cookie")),
            ("cookie", Some(""), Some("cookie")),
            ("cookie", None, Some("cookie")),
            ("", Some("Cookie"), Some("cookie")),
            ("cookie", Some("*"), Some("* cookie")),
            ("cookie", Some("a b"), None),
            (&fields(16), Some("x-0"), Some(&fields(16).replace(',', ""))),
            (&fields(16), Some("cookie"), None),
        ] {
            let vary = |value: &str| {
                let value = HeaderValue::from_str(value).unwrap();
                HeaderMap::from_iter([(header::VARY, value)])
            };
            let new = named.map_or_else(HeaderMap::new, vary);
            let once = merge_not_modified(&vary(stored), new.clone(), SystemTime::UNIX_EPOCH);
            let found = vary_fields(&once);
            let found = found.map(|names| names.iter().map(HeaderName::to_string).collect::<Vec<_>>());
            let expected = expected.map(|names| {
                let mut names: Vec<_> = names.split_whitespace().map(str::to_owned).collect();
                names.sort();
                names
            });
            assert_eq!(found, expected, "{stored} {named:?}");
            if found.is_some() {
                assert_eq!(
                    merge_not_modified(&once, new, SystemTime::UNIX_EPOCH),
                    once,
                    "the list does not grow"
                );
            }
        }
    }

    #[test]
    fn vary_is_a_sorted_list_and_values_compare_without_white_space() {
        let reply = map(&[("vary", "Accept-Language, accept"), ("vary", "Accept")]);
        assert_eq!(vary_fields(&reply), Some(vec![header::ACCEPT, header::ACCEPT_LANGUAGE]));
        assert_eq!(vary_fields(&map(&[("vary", "a b")])), None);
        let (one, two) = (map(&[("accept", "a,  b"), ("accept", "c")]), map(&[("accept", "a, b,c")]));
        assert_eq!(comparable_value(&one, &header::ACCEPT), comparable_value(&two, &header::ACCEPT));
        assert_eq!(comparable_value(&one, &header::RANGE), None);
        assert_ne!(comparable_value(&map(&[("accept", "")]), &header::ACCEPT), None, "empty is not absent");
        assert_eq!(comparable_value(&map(&[("connection", "close")]), &header::CONNECTION), None, "not sent");
        for (one, two) in [("a=b,c", "a=b, c"), ("a=b,,c", "a=b,c"), ("a", "")] {
            let [one, two] =
                [one, two].map(|cookie| comparable_value(&map(&[("cookie", cookie)]), &header::COOKIE));
            assert_ne!(one, two);
        }
        assert_eq!(comparable_value(&map(&[("accept", "a")]), &header::COOKIE), None);
    }
}
