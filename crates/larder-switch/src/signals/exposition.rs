//! Parser of the Prometheus text format (version 0.0.4), as far as gauges and counters need it.
//!
//! ```text
//! # TYPE node_cpu_seconds_total counter
//! node_cpu_seconds_total{cpu="0",mode="idle"} 180.5 1395066363000
//! ```
//! Source: prometheus.io/docs/instrumenting/exposition_formats. Lines are parsed one by one, without copying. Label
//! values are unescaped (`\\`, `\"`, `\n`) when they are read. Quoted names, which Prometheus 3 sends only on
//! request, are skipped. A malformed line makes the whole page invalid, as for Prometheus, so that half a page is
//! never used as a whole one.

use std::borrow::Cow;

/// Maximum size of a line. Bytes.
pub(super) const LINE_MAX: usize = 64 << 10;

/// Error of parsing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    /// A line is longer than [`LINE_MAX`].
    LineTooLong,
    /// A line is malformed.
    Malformed,
}

/// One sample of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MetricSample<'a> {
    pub(super) name: &'a str,
    labels: &'a str,
    pub(super) value: f64,
    /// Whether the page declares the family a counter.
    pub(super) counter: bool,
}

impl<'a> MetricSample<'a> {
    /// Returns the value of a label; `None` if the label is absent.
    pub(super) fn label(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        while let Ok(Some((label, value, after))) = label(rest) {
            if label == name {
                return Some(unescape(value));
            }
            rest = after;
        }
        None
    }
}

/// Parses a page and passes every sample to `take`, in order.
pub(super) fn parse<'a>(page: &'a [u8], mut take: impl FnMut(MetricSample<'a>)) -> Result<(), ParseError> {
    // The family last declared a counter.
    let mut counter = "";
    for line in page.split(|&byte| byte == b'\n') {
        if line.len() > LINE_MAX {
            return Err(ParseError::LineTooLong);
        }
        let line =
            std::str::from_utf8(line).map_err(|_| ParseError::Malformed)?.trim_matches([' ', '\t', '\r']);
        if let Some(comment) = line.strip_prefix('#') {
            let mut words = comment.split([' ', '\t']).filter(|word| !word.is_empty());
            if words.next() == Some("TYPE")
                && let (Some(name), Some("counter")) = (words.next(), words.next())
            {
                counter = name;
            }
            continue;
        }
        if line.is_empty() || line.starts_with('{') {
            continue;
        }
        let mut sample = sample(line).ok_or(ParseError::Malformed)?;
        sample.counter = sample.name == counter || sample.name.strip_suffix("_total") == Some(counter);
        take(sample);
    }
    Ok(())
}

/// Parses `name{labels} value timestamp`.
fn sample(line: &str) -> Option<MetricSample<'_>> {
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    let rest = rest.trim_start_matches([' ', '\t']);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => {
            let after = skip_labels(inside)?;
            (&inside[..inside.len() - after.len()], after.strip_prefix('}')?)
        }
        None => ("", rest),
    };
    let mut words = rest.split([' ', '\t']).filter(|word| !word.is_empty());
    let value = words.next()?.parse().ok()?;
    match words.next() {
        None => {}
        // An OpenMetrics exemplar, which is ignored.
        Some(word) if word.starts_with('#') => {}
        Some(timestamp) => {
            timestamp.parse::<f64>().ok()?;
            if words.next().is_some_and(|word| !word.starts_with('#')) {
                return None;
            }
        }
    }
    Some(MetricSample { name, labels, value, counter: false })
}

/// Skips all labels up to the closing brace.
fn skip_labels(mut rest: &str) -> Option<&str> {
    while let Some((_, _, after)) = label(rest).ok()? {
        rest = after;
    }
    Some(rest.trim_start_matches([' ', '\t', ',']))
}

/// A label: name, escaped value, and the rest of the line.
type Label<'a> = (&'a str, &'a str, &'a str);

/// Parses the next `name="value"`, with a comma before it if there is one. Returns `None` at the closing brace or the
/// end.
fn label(rest: &str) -> Result<Option<Label<'_>>, ParseError> {
    let rest = rest.trim_start_matches([' ', '\t', ',']);
    if rest.is_empty() || rest.starts_with('}') {
        return Ok(None);
    }
    let bad = ParseError::Malformed;
    let (name, rest) = rest.split_once('=').ok_or(bad)?;
    let name = name.trim_end_matches([' ', '\t']);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(bad);
    }
    let value = rest.trim_start_matches([' ', '\t']).strip_prefix('"').ok_or(bad)?;
    let mut escaped = false;
    let end = value.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    let end = end.ok_or(bad)?;
    Ok(Some((name, &value[..end], &value[end + 1..])))
}

fn unescape(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some(escaped @ ('\\' | '"'))) => out.push(escaped),
            // Unknown escapes are kept.
            ('\\', Some(other)) => out.extend(['\\', other]),
            (c, _) => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn points(page: &str) -> Result<Vec<MetricSample<'_>>, ParseError> {
        let mut points = Vec::new();
        parse(page.as_bytes(), |sample| points.push(sample)).map(|()| points)
    }

    /// The example of the format's documentation, with its special cases.
    const PAGE: &str = r#"# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post",code="400"}    3 1395066363000

# Escaping in label values:
msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1.458255915e9

metric_without_timestamp_and_labels 12.47
something_weird{problem="division by zero"} +Inf -3982045
http_request_duration_seconds_bucket { le = "0.05" , } 24054
"#;

    #[test]
    fn the_documented_example_parses() {
        let points = points(PAGE).expect("it is well formed");
        let values: Vec<(&str, f64)> = points.iter().map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(
            values,
            [
                ("http_requests_total", 1027.0),
                ("http_requests_total", 3.0),
                ("msdos_file_access_time_seconds", 1.458255915e9),
                ("metric_without_timestamp_and_labels", 12.47),
                ("something_weird", f64::INFINITY),
                ("http_request_duration_seconds_bucket", 24054.0),
            ]
        );
        assert_eq!(points[1].label("code").as_deref(), Some("400"));
        assert_eq!(points[1].label("cod"), None);
        assert_eq!(points[2].label("path").as_deref(), Some(r"C:\DIR\FILE.TXT"));
        assert_eq!(points[2].label("error").as_deref(), Some("Cannot find file:\n\"FILE.TXT\""));
        assert_eq!(points[5].label("le").as_deref(), Some("0.05"));
        let counters: Vec<bool> = points.iter().map(|sample| sample.counter).collect();
        assert_eq!(counters, [true, true, false, false, false, false]);
    }

    #[test]
    fn malformed_lines_are_refused() {
        for line in [
            "a",
            "a b",
            "1a 2",
            "a{b} 1",
            "a{b=c} 1",
            "a{b=\"c} 1",
            "a{b=\"c\\\"} 1",
            "a{b=\"c\" 1",
            "a{b-c=\"d\"} 1",
            "a 1 x",
            "a 1 2 3",
            "\u{e4} 1",
            "<html>",
        ] {
            assert_eq!(points(line), Err(ParseError::Malformed), "{line}");
        }
        assert_eq!(points(&"a".repeat(LINE_MAX + 1)), Err(ParseError::LineTooLong));
        let mut nothing = 0;
        assert_eq!(parse(b"a \xff", |_| nothing += 1), Err(ParseError::Malformed));
    }

    #[test]
    fn numbers_parse_as_written() {
        let points = points("a NaN\nb -Inf\nc -0.5e-3\nd 0x1\n");
        assert_eq!(points, Err(ParseError::Malformed), "no hexadecimal");
        let points = self::points("a NaN\nb -Inf\nc -0.5e-3\n{\"quoted.name\"} 1\n").expect("well formed");
        assert!(points[0].value.is_nan());
        assert_eq!((points[1].value, points[2].value, points.len()), (f64::NEG_INFINITY, -0.5e-3, 3));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(page in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&page, |sample| {
                let _ = sample.label("x");
            });
        }

        #[test]
        fn label_values_round_trip(value in "\\PC{0,20}", other in "[a-z\"\\\\\n]{0,9}") {
            let escape = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let page = format!("m{{a=\"{}\",b=\"{}\"}} 1\n", escape(&other), escape(&value));
            let points = points(&page).expect("well formed");
            let labels = ["a", "b"].map(|name| points[0].label(name).unwrap_or_default().into_owned());
            prop_assert_eq!(labels, [other, value]);
        }
    }
}
