//! Preconditions (RFC 9110 section 13): `If-Match`, `If-Unmodified-Since`, `If-None-Match` and
//! `If-Modified-Since` in the order of section 13.2.2, and `If-Range`.

use http::HeaderMap;
use http::header::{self, HeaderValue};
use std::time::{SystemTime, UNIX_EPOCH};

/// The validators of a representation, for the evaluation of preconditions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validators<'a> {
    /// The entity tag between its quotes; empty if there is none.
    pub(crate) opaque: &'a [u8],
    /// Whether tag and time distinguish every change. If not, the tag is sent with `W/`.
    pub(crate) strong: bool,
    /// Time of the last change, in whole seconds since 1970; `None` if it is unknown. Preconditions with a time
    /// count only if it is known (sections 13.1.3 and 13.1.4).
    pub(crate) modified: Option<i64>,
}

/// The result of the preconditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreconditionResult {
    /// The request is answered as if there were no preconditions.
    Proceed,
    /// The client already has the representation: 304.
    NotModified,
    /// A precondition failed: 412.
    Failed,
}

/// Returns whether a request has a precondition that [`evaluate`] considers.
pub(crate) fn is_conditional(headers: &HeaderMap) -> bool {
    use header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
    [IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_MATCH, IF_UNMODIFIED_SINCE]
        .iter()
        .any(|name| headers.contains_key(name))
}

/// Evaluates the preconditions of a GET or HEAD against the current validators.
pub(crate) fn evaluate(headers: &HeaderMap, current: &Validators<'_>) -> PreconditionResult {
    // Whether the last change and the time in a field are known, and `holds` is true for them.
    let compares = |name, holds: fn(i64, i64) -> bool| {
        current.modified.zip(date(headers, name)).is_some_and(|(modified, since)| holds(modified, since))
    };
    if headers.contains_key(header::IF_MATCH) {
        if !any_matches(headers, &header::IF_MATCH, current, Comparison::Strong) {
            return PreconditionResult::Failed;
        }
    } else if compares(&header::IF_UNMODIFIED_SINCE, |modified, since| modified > since) {
        return PreconditionResult::Failed;
    }
    if headers.contains_key(header::IF_NONE_MATCH) {
        if any_matches(headers, &header::IF_NONE_MATCH, current, Comparison::Weak) {
            return PreconditionResult::NotModified;
        }
    } else if compares(&header::IF_MODIFIED_SINCE, |modified, since| modified <= since) {
        return PreconditionResult::NotModified;
    }
    PreconditionResult::Proceed
}

/// Returns whether a `Range` header counts. It counts if there is no `If-Range`, or if `If-Range` names the
/// current representation. A strong tag or the exact time of the last change names it; the time only if it is a
/// strong validator.
pub(crate) fn is_range_applicable(headers: &HeaderMap, current: &Validators<'_>) -> bool {
    let Some(value) = headers.get(header::IF_RANGE) else { return true };
    let text = value.as_bytes();
    if text.starts_with(b"\"") || text.starts_with(b"W/") {
        return EntityTags(text).any(|tag| Comparison::Strong.holds(tag, current));
    }
    current.strong && current.modified.is_some() && seconds(value) == current.modified
}

/// The comparison of entity tags (RFC 9110 section 8.8.3.2).
#[derive(Clone, Copy)]
enum Comparison {
    Strong,
    Weak,
}

impl Comparison {
    fn holds(self, tag: EntityTag<'_>, current: &Validators<'_>) -> bool {
        match (tag, self) {
            (EntityTag::Any, _) => true,
            (EntityTag::Entity { opaque, weak }, Self::Strong) => {
                !weak && current.strong && opaque == current.opaque
            }
            (EntityTag::Entity { opaque, .. }, Self::Weak) => opaque == current.opaque,
        }
    }
}

fn any_matches(
    headers: &HeaderMap,
    name: &header::HeaderName,
    current: &Validators<'_>,
    comparison: Comparison,
) -> bool {
    let values = headers.get_all(name);
    values.iter().any(|value| EntityTags(value.as_bytes()).any(|tag| comparison.holds(tag, current)))
}

fn date(headers: &HeaderMap, name: &header::HeaderName) -> Option<i64> {
    headers.get(name).and_then(seconds)
}

fn seconds(value: &HeaderValue) -> Option<i64> {
    let time: SystemTime = httpdate::parse_http_date(value.to_str().ok()?).ok()?;
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}

/// A member of a list of entity tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntityTag<'a> {
    /// `*`.
    Any,
    /// `"opaque"` or `W/"opaque"`.
    Entity { opaque: &'a [u8], weak: bool },
}

/// The entity tags of a header value. Ends at the first invalid member.
struct EntityTags<'a>(&'a [u8]);

impl<'a> Iterator for EntityTags<'a> {
    type Item = EntityTag<'a>;

    fn next(&mut self) -> Option<EntityTag<'a>> {
        while let [b' ' | b'\t' | b',', rest @ ..] = self.0 {
            self.0 = rest;
        }
        if let [b'*', rest @ ..] = self.0 {
            self.0 = rest;
            return Some(EntityTag::Any);
        }
        let (weak, quoted) = match self.0.strip_prefix(b"W/") {
            Some(rest) => (true, rest),
            None => (false, self.0),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        let end = inner.iter().position(|&b| b == b'"')?;
        self.0 = &inner[end + 1..];
        Some(EntityTag::Entity { opaque: &inner[..end], weak })
    }
}

/// Entry point for the fuzz target: no header value causes a panic, and an exact tag always matches.
#[doc(hidden)]
pub fn fuzz_conditions(value: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(value) else { return };
    let current = Validators { opaque: b"tag", strong: true, modified: Some(1_000_000_000) };
    for name in [header::IF_MATCH, header::IF_MODIFIED_SINCE, header::IF_UNMODIFIED_SINCE, header::IF_RANGE] {
        let headers = HeaderMap::from_iter([(name, value.clone())]);
        let _ = (evaluate(&headers, &current), is_range_applicable(&headers, &current));
    }
    let mut headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_static("\"tag\""))]);
    headers.append(header::IF_NONE_MATCH, value);
    assert_eq!(evaluate(&headers, &current), PreconditionResult::NotModified);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // 2001-09-09 01:46:40 UTC is second 1,000,000,000.
    const NOW: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
    const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";
    const AFTER: &str = "Sun, 09 Sep 2001 01:46:41 GMT";

    fn current(strong: bool) -> Validators<'static> {
        Validators { opaque: b"a,b", strong, modified: Some(1_000_000_000) }
    }

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|&(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn preconditions_are_evaluated_in_the_order_of_rfc_9110() {
        use PreconditionResult::{Failed, NotModified, Proceed};
        let cases: &[(&[(&str, &str)], PreconditionResult)] = &[
            (&[], Proceed),
            (&[("if-none-match", "\"a,b\"")], NotModified),
            (&[("if-none-match", "\"x\", W/\"a,b\"")], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"x\"")], Proceed),
            (&[("if-none-match", "a,b")], Proceed),
            (&[("if-none-match", "\"x\""), ("if-modified-since", NOW)], Proceed),
            (&[("if-modified-since", NOW)], NotModified),
            (&[("if-modified-since", AFTER)], NotModified),
            (&[("if-modified-since", BEFORE)], Proceed),
            (&[("if-modified-since", "yesterday")], Proceed),
            (&[("if-match", "\"a,b\"")], Proceed),
            (&[("if-match", "W/\"a,b\"")], Failed),
            (&[("if-match", "\"x\"")], Failed),
            (&[("if-match", "*"), ("if-none-match", "\"a,b\"")], NotModified),
            (&[("if-unmodified-since", BEFORE)], Failed),
            (&[("if-unmodified-since", NOW)], Proceed),
            (&[("if-match", "\"a,b\""), ("if-unmodified-since", BEFORE)], Proceed),
        ];
        for (fields, verdict) in cases {
            let headers = headers(fields);
            assert_eq!(evaluate(&headers, &current(true)), *verdict, "{fields:?}");
            assert!(is_conditional(&headers) || fields.is_empty());
        }
    }

    #[test]
    fn an_unknown_time_is_neither_earlier_nor_later() {
        let current = Validators { opaque: b"a", strong: true, modified: None };
        for name in ["if-unmodified-since", "if-modified-since"] {
            for time in [NOW, "yesterday"] {
                assert_eq!(
                    evaluate(&headers(&[(name, time)]), &current),
                    PreconditionResult::Proceed,
                    "{name} {time}"
                );
            }
        }
        for time in [NOW, "yesterday"] {
            assert!(!is_range_applicable(&headers(&[("if-range", time)]), &current), "{time}");
        }
    }

    #[test]
    fn if_range_compares_strongly() {
        for (value, strong, counts) in [
            ("\"a,b\"", true, true),
            ("\"a,b\"", false, false),
            ("W/\"a,b\"", true, false),
            ("\"x\"", true, false),
            (NOW, true, true),
            (NOW, false, false),
            (AFTER, true, false),
            ("rubbish", true, false),
        ] {
            assert_eq!(
                is_range_applicable(&headers(&[("if-range", value)]), &current(strong)),
                counts,
                "{value}"
            );
        }
        assert!(is_range_applicable(&HeaderMap::new(), &current(false)));
    }

    proptest! {
        #[test]
        fn foreign_values_are_accepted(value in prop::collection::vec(any::<u8>(), 0..60)) {
            fuzz_conditions(&value);
        }
    }
}
