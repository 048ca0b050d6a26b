//! Checks whether one rule takes every request that another takes.
//!
//! The answer is positive only if it is certain. A pattern with one `*` at its end covers all patterns with the same
//! beginning, and one with `*` at its beginning those with the same end. Any other pattern covers itself. So a reported
//! rule is never reached; a rule that is not reported may be unreachable too.

use crate::config::sections::switch::rule::Conditions;

/// Whether `wide` takes all that `narrow` takes.
pub(crate) fn covers(wide: &Conditions<'_>, narrow: &Conditions<'_>) -> bool {
    let kind = |wide: &[String], narrow: &[String], one: fn(&str, &str) -> bool| {
        wide.is_empty()
            || (!narrow.is_empty() && narrow.iter().all(|narrow| wide.iter().any(|wide| one(wide, narrow))))
    };
    kind(wide.method, narrow.method, |wide, narrow| wide == narrow)
        && kind(wide.host, narrow.host, host)
        && kind(wide.path, narrow.path, pattern)
        && kind(wide.extension, narrow.extension, str::eq_ignore_ascii_case)
        && wide.header.iter().all(|(name, values)| {
            let mut same = narrow.header.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
            same.any(|(_, narrow)| kind(&values.0, &narrow.0, pattern))
        })
}

/// Whether one pattern covers another.
fn pattern(wide: &str, narrow: &str) -> bool {
    let star = |rest: &str| rest.contains('*');
    wide == narrow
        || wide.strip_suffix('*').is_some_and(|prefix| !star(prefix) && narrow.starts_with(prefix))
        || wide.strip_prefix('*').is_some_and(|suffix| !star(suffix) && narrow.ends_with(suffix))
}

/// Whether one host covers another.
fn host(wide: &str, narrow: &str) -> bool {
    let (wide, narrow) = (wide.to_ascii_lowercase(), narrow.to_ascii_lowercase());
    let under = |wide: &str, narrow: &str| {
        wide.strip_prefix('*').is_some_and(|suffix| narrow.len() > suffix.len() && narrow.ends_with(suffix))
    };
    let bare = narrow.rsplit_once(':').filter(|_| !narrow.ends_with(']')).map_or(&*narrow, |(name, _)| name);
    [&*narrow, bare].into_iter().any(|narrow| wide == narrow || under(&wide, narrow))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use larder_core::rules::Head;
    use proptest::prelude::*;

    use super::*;
    use crate::config::sections::switch::rule::matcher;
    use crate::config::text::Texts;

    #[test]
    fn a_pattern_covers_what_begins_or_ends_as_it_does() {
        for (wide, narrow, expected) in [
            ("/a*", "/ab*", true),
            ("/a*", "/a", true),
            ("*.php", "/x*.php", true),
            ("*", "/x", true),
            ("/ab*", "/a*", false),
            ("/a*b", "/ab", false),
            ("*.php", "*", false),
        ] {
            assert_eq!(pattern(wide, narrow), expected, "{wide} {narrow}");
        }
        for (wide, narrow, expected) in [
            ("a.example", "A.example:80", true),
            ("a.example:80", "a.example", false),
            ("*.example", "a.example", true),
            ("*.example", "*.a.example", true),
            ("*.example", "example", false),
            ("*.a.example", "*.example", false),
        ] {
            assert_eq!(host(wide, narrow), expected, "{wide} {narrow}");
        }
    }

    fn conditions() -> impl Strategy<Value = [Vec<String>; 4]> {
        let some = |one: &'static str| prop::collection::vec(one, 0..3);
        [
            some("GET|PUT").boxed(),
            some("(\\*\\.)?(a\\.)?b(:80)?").boxed(),
            some("[/*]([ab*]{0,3})(\\.php)?").boxed(),
            some("php|PHP|gif").boxed(),
        ]
    }

    fn of<'a>(kinds: &'a [Vec<String>; 4], header: &'a BTreeMap<String, Texts>) -> Conditions<'a> {
        let [method, host, path, extension] = kinds;
        Conditions { method, host, path, extension, header }
    }

    proptest! {
        // One pair in twenty is covered.
        #![proptest_config(ProptestConfig::with_cases(8_192))]

        /// A covered rule never matches a request that the wide rule does not match.
        #[test]
        fn a_covered_rule_never_matches_alone(
            wide in conditions(),
            narrow in conditions(),
            method in "GET|PUT",
            host in "(a\\.)?(a\\.)?b(:80)?",
            path in "/[ab]{0,3}(\\.php|\\.gif)?",
        ) {
            let header = BTreeMap::new();
            let (wide, narrow) = (of(&wide, &header), of(&narrow, &header));
            if !covers(&wide, &narrow) {
                return Ok(());
            }
            let (Ok(wide), Ok(narrow)) = (matcher("", wide), matcher("", narrow)) else { return Ok(()) };
            let head = Head { method: method.as_bytes(), ..Head::get(host.as_bytes(), path.as_bytes()) };
            prop_assert!(!narrow.matches(&head) || wide.matches(&head), "{} {}", wide, narrow);
        }
    }
}
