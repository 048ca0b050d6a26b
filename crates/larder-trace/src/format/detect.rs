//! Detection of the format of a file: by its name, or by its first bytes.

use std::ops::ControlFlow;

use super::{Format, FormatParser};
use crate::error::TraceError;

/// Number of unpacked bytes from which the format is detected.
pub(crate) const DETECT_BYTES: usize = 64 << 10;

/// Largest number of bytes shown of a line that has no known format.
const SAMPLE_BYTES: usize = 80;

impl Format {
    /// Returns the format that the extension of a file name implies. The extension of a compression is
    /// ignored.
    pub(crate) fn of_file_name(name: &str) -> Option<Self> {
        let name =
            [".gz", ".zst", ".xz", ".bz2"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        Self::ALL.into_iter().find(|format| format.file_extension().is_some_and(|end| name.ends_with(end)))
    }

    /// Detects the format from the first bytes of a file. `whole` is true if the file has no more bytes.
    pub(crate) fn detect(head: &[u8], whole: bool) -> Result<Self, TraceError> {
        if head.is_empty() {
            return Err(TraceError::Empty);
        }
        if looks_like_text(head) {
            return detect_text(head, whole).ok_or_else(|| unknown(head, "text"));
        }
        // The last format in the table is tried first.
        let binary = Self::ALL.into_iter().rev().find(|format| format.fits(head));
        // A log with binary garbage in its first lines is still a log.
        binary.or_else(|| detect_text(head, whole)).ok_or_else(|| unknown(head, "binary"))
    }
}

/// Returns whether at most 1 % of the bytes are control characters.
fn looks_like_text(head: &[u8]) -> bool {
    let odd = head.iter().filter(|&&b| b < b' ' && !matches!(b, b'\n' | b'\r' | b'\t')).count();
    odd * 100 <= head.len()
}

/// Returns the text format that most lines have. Among equal counts, the first format in [`Format::ALL`]
/// wins.
///
/// The last line may be cut off by the sample. It counts only if it is the last line of the file.
fn detect_text(head: &[u8], whole: bool) -> Option<Format> {
    let mut lines: Vec<&[u8]> = head.split(|&b| b == b'\n').collect();
    if !whole && lines.len() > 1 {
        lines.pop();
    }
    let count = |format: &Format| {
        let mut parser = FormatParser::new(*format, None);
        let fits = |line: &&&[u8]| {
            let mut fits = false;
            // Only the first request of a line is needed.
            let _ = parser.parse(line.strip_suffix(b"\r").unwrap_or(line), |parsed| {
                fits = parsed.is_ok();
                ControlFlow::Break(())
            });
            fits
        };
        lines.iter().filter(fits).count()
    };
    let texts = Format::ALL.into_iter().filter(|format| format.record_bytes().is_none());
    let counted = texts.rev().map(|format| (count(&format), format));
    counted.filter(|(n, _)| *n > 0).max_by_key(|(n, _)| *n).map(|(_, format)| format)
}

/// Returns the error for a file without a known format. It shows the first line that is not blank.
fn unknown(head: &[u8], what: &'static str) -> TraceError {
    let lines = (1_u64..).zip(head.split(|&b| b == b'\n'));
    let (number, line) = lines.clone().find(|(_, line)| !line.trim_ascii().is_empty()).unwrap_or((1, head));
    let what = if line.first() == Some(&b'{') { "JSON" } else { what };
    let sample = line[..line.len().min(SAMPLE_BYTES)].escape_ascii().to_string();
    TraceError::UnknownFormat { what, line: number, sample }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_content_gives_an_error_with_a_sample() {
        let rubbish: Vec<u8> =
            (0..10_000_u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let error = Format::detect(&rubbish, true).expect_err("no format");
        assert!(matches!(error, TraceError::UnknownFormat { what: "binary", .. }), "{error}");
        let error = Format::detect(b"hello\nworld\n", true).expect_err("no format");
        assert!(error.to_string().contains("\"hello\""), "{error}");
        let error = Format::detect(b"\n{\"level\": 1}\n", true).expect_err("no format");
        let TraceError::UnknownFormat { what: "JSON", line: 2, sample } = error else { panic!("{error}") };
        assert_eq!(sample, r#"{\"level\": 1}"#);
        assert!(matches!(Format::detect(b"", true), Err(TraceError::Empty)));
    }

    #[test]
    fn bare_keys_are_detected_by_name_only() {
        assert_eq!(Format::of_file_name("a.u64be.zst"), Some(Format::Keys64));
        assert_eq!(Format::of_file_name("a.u64be.xz"), Some(Format::Keys64));
        assert_eq!(Format::of_file_name("a.u64be"), Some(Format::Keys64));
        assert_eq!(Format::of_file_name("a.clf.zst"), None);
    }

    #[test]
    fn a_log_with_a_bad_start_is_detected() {
        let log = b"# comment\n\x00\x01\nh - - [20/Feb/2016:00:00:45 -0500] \"GET / HTTP/1.1\" 200 1\n";
        assert_eq!(Format::detect(log, true).expect("one good line"), Format::Clf);
    }
}
