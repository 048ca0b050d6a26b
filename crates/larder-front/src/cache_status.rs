//! Reads from `Cache-Status` (RFC 9211) whether a node had the target in memory.
//!
//! The field is a list of caches, the one nearest the origin first; members beyond the last were added on the way to
//! us. The node speaks last, so its member is the last one. Only the question "hit or forwarded" is answered; a
//! field that cannot be read answers nothing, never an error.

use larder_edge::Fields;

/// What the last cache in the list did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOutcome {
    /// It answered from its store.
    Hit,
    /// It had to go further.
    Miss,
}

impl CacheOutcome {
    /// The word used in logs and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
        }
    }
}

/// The outcome in a `Cache-Status` value; `None` if it says neither `hit` nor `fwd`, or is malformed.
pub fn cache_outcome(value: &[u8]) -> Option<CacheOutcome> {
    let member = split_outside_quotes(value, b',').last()?;
    let mut outcome = None;
    for parameter in split_outside_quotes(member, b';').skip(1) {
        let parameter = parameter.trim_ascii();
        let (key, argument) = match parameter.iter().position(|&byte| byte == b'=') {
            Some(at) => (&parameter[..at], Some(&parameter[at + 1..])),
            None => (parameter, None),
        };
        match (key, argument) {
            // `hit` is a boolean: bare means true, `?0` is the one way to say false.
            (b"hit", Some(b"?0")) => {}
            (b"hit", _) => outcome = Some(CacheOutcome::Hit),
            (b"fwd", Some(_)) => outcome = outcome.or(Some(CacheOutcome::Miss)),
            _ => {}
        }
    }
    outcome
}

/// Whether caches keep a reply that was not in the node's memory: by the reason that the last cache in a `Cache-Status` gives
/// for asking further, else by the reply's `Cache-Control` (RFC 9111 section 3).
pub(crate) fn keeps(method: &[u8], reply: &impl Fields, cache_status: Option<&[u8]>) -> bool {
    let forbids = |value: &[u8]| {
        split_outside_quotes(value, b',').any(|directive| {
            let name = directive.trim_ascii().split(|byte| *byte == b'=').next().unwrap_or_default();
            name.eq_ignore_ascii_case(b"no-store") || name.eq_ignore_ascii_case(b"private")
        })
    };
    let passes = |value: &[u8]| {
        let member = split_outside_quotes(value, b',').last().unwrap_or_default();
        split_outside_quotes(member, b';')
            .skip(1)
            .any(|parameter| matches!(parameter.trim_ascii(), b"fwd=bypass" | b"fwd=method" | b"fwd=request"))
    };
    matches!(method, b"GET" | b"HEAD")
        && !cache_status.is_some_and(passes)
        && !reply.each("Cache-Control").any(forbids)
}

/// Splits at `separator` where it is not inside a quoted string.
fn split_outside_quotes(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    value.split(move |&byte| {
        if escaped {
            escaped = false;
            return false;
        }
        match byte {
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
        !quoted && byte == separator
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_cache_is_read() {
        for (value, expected) in [
            ("n1; hit", Some(CacheOutcome::Hit)),
            ("n1;hit;ttl=30", Some(CacheOutcome::Hit)),
            ("n1; fwd=uri-miss; stored", Some(CacheOutcome::Miss)),
            ("origin; hit, n1; fwd=uri-miss", Some(CacheOutcome::Miss)),
            ("origin; fwd=miss, n1; hit", Some(CacheOutcome::Hit)),
            ("\"a; hit, b\"; fwd=stale", Some(CacheOutcome::Miss)),
            ("\"a\\\"; hit\"; fwd=miss", Some(CacheOutcome::Miss)),
            ("n1; hit=?0; fwd=miss", Some(CacheOutcome::Miss)),
            ("n1", None),
            ("", None),
            ("hit", None),
            ("n1; hits", None),
        ] {
            assert_eq!(cache_outcome(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn what_is_passed_through_is_not_kept() {
        for (method, control, status, kept) in [
            ("GET", "", "", true),
            ("GET", "max-age=60, public", "n1; fwd=uri-miss; stored", true),
            ("HEAD", "", "n1; fwd=stale; stored", true),
            ("POST", "", "", false),
            ("GET", "max-age=0, No-Store", "", false),
            ("GET", "private=\"a\"", "n1; fwd=uri-miss", false),
            ("GET", "", "n1; fwd=bypass; detail=light", false),
            ("GET", "", "n1; fwd=bypass, n2; fwd=uri-miss", true),
        ] {
            let mut reply = http::HeaderMap::new();
            if !control.is_empty() {
                reply.set("Cache-Control", control.as_bytes());
            }
            let status = (!status.is_empty()).then_some(status.as_bytes());
            assert_eq!(keeps(method.as_bytes(), &reply, status), kept, "{method} {control} {status:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(value in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = cache_outcome(&value);
        }

        #[test]
        fn a_quoted_name_changes_nothing(name in "[ -!#-\\[\\]-~]{0,20}") {
            let value = format!("\"{name}\"; hit");
            prop_assert_eq!(cache_outcome(value.as_bytes()), Some(CacheOutcome::Hit));
        }
    }
}
