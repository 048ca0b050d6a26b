//! Reading of lines and fixed-size records from a [`Source`], without an allocation per line.

use std::io;

use memchr::memchr;

use crate::source::Source;

/// An item of a file.
pub(crate) enum ReadItem<'a> {
    /// A line without its end, or a complete record.
    Whole(&'a [u8]),
    /// A line that exceeds the limit. It is skipped.
    TooLong,
    /// The file ends within a fixed-size record.
    Partial,
    /// The end of the file.
    End,
}

/// Reads the next line, without `\n` or `\r\n`. The line has at most `line_bytes_max` bytes.
pub(crate) fn next_line<'a>(source: &'a mut Source<'_>, line_bytes_max: usize) -> io::Result<ReadItem<'a>> {
    let mut searched = 0;
    let length = loop {
        let window = source.window();
        if let Some(at) = memchr(b'\n', &window[searched..]) {
            break searched + at;
        }
        searched = window.len();
        if searched > line_bytes_max {
            skip_line(source)?;
            return Ok(ReadItem::TooLong);
        }
        if !source.fill()? {
            if searched == 0 {
                return Ok(ReadItem::End);
            }
            break searched;
        }
    };
    let begin = source.advance(length, 1);
    if length > line_bytes_max {
        return Ok(ReadItem::TooLong);
    }
    let line = source.at(begin, length);
    Ok(ReadItem::Whole(line.strip_suffix(b"\r").unwrap_or(line)))
}

/// Reads the next record of `size` bytes.
pub(crate) fn next_record<'a>(source: &'a mut Source<'_>, size: usize) -> io::Result<ReadItem<'a>> {
    if source.window().len() < size {
        source.fill_to(size)?;
    }
    match source.window().len() {
        0 => Ok(ReadItem::End),
        n if n < size => {
            source.consume(n);
            Ok(ReadItem::Partial)
        }
        _ => {
            let begin = source.advance(size, 0);
            Ok(ReadItem::Whole(source.at(begin, size)))
        }
    }
}

/// Skips the rest of a line that exceeds the limit.
fn skip_line(source: &mut Source<'_>) -> io::Result<()> {
    loop {
        let window = source.window();
        let (n, found) = memchr(b'\n', window).map_or((window.len(), false), |at| (at + 1, true));
        source.consume(n);
        if found || !source.fill()? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(bytes: &[u8], max: usize) -> Vec<Option<Vec<u8>>> {
        let mut source = Source::new(bytes, None).expect("starts");
        let mut out = Vec::new();
        loop {
            match next_line(&mut source, max).expect("in memory") {
                ReadItem::Whole(line) => out.push(Some(line.to_vec())),
                ReadItem::TooLong => out.push(None),
                ReadItem::Partial => unreachable!("lines have no partial records"),
                ReadItem::End => return out,
            }
        }
    }

    #[test]
    fn a_line_over_the_limit_is_skipped_and_the_next_is_read() {
        let long = [b"x".repeat(700_000), b"\nok\r\n".to_vec(), b"y".repeat(101)].concat();
        assert_eq!(lines(&long, 100), [None, Some(b"ok".to_vec()), None]);
    }

    #[test]
    fn a_partial_last_record_is_reported() {
        let mut source = Source::new(&b"abcdefgh"[..], None).expect("starts");
        for expected in [&b"abc"[..], b"def"] {
            assert!(matches!(next_record(&mut source, 3), Ok(ReadItem::Whole(r)) if r == expected));
        }
        assert!(matches!(next_record(&mut source, 3), Ok(ReadItem::Partial)));
        assert!(matches!(next_record(&mut source, 3), Ok(ReadItem::End)));
    }

    proptest! {
        #[test]
        fn lines_equal_those_of_split(text in "[ab\n]{0,200}") {
            let mut expected: Vec<_> = text.split('\n').map(|l| Some(l.as_bytes().to_vec())).collect();
            if text.is_empty() || text.ends_with('\n') {
                expected.pop();
            }
            // The letters are no magic bytes of a compression format.
            prop_assert_eq!(lines(text.as_bytes(), 1_000), expected);
        }
    }
}
