//! Lines and fixed-size records out of a [`Source`], without an allocation each.

use std::io;

use memchr::memchr;

use crate::source::Source;

/// What stands next in the file.
pub(crate) enum Piece<'a> {
    /// A line without its end, or a whole record.
    Whole(&'a [u8]),
    /// A line longer than allowed; it is skipped to its end.
    TooLong,
    /// The file ends inside a fixed-size record.
    Partial,
    /// The end of the file.
    End,
}

/// The next line, at most `line_bytes_max` long, without `\n` or `\r\n`.
pub(crate) fn next_line<'a>(source: &'a mut Source<'_>, line_bytes_max: usize) -> io::Result<Piece<'a>> {
    let mut searched = 0;
    let length = loop {
        let window = source.window();
        if let Some(at) = memchr(b'\n', &window[searched..]) {
            break searched + at;
        }
        searched = window.len();
        if searched > line_bytes_max {
            skip_line(source)?;
            return Ok(Piece::TooLong);
        }
        if !source.fill()? {
            if searched == 0 {
                return Ok(Piece::End);
            }
            break searched;
        }
    };
    let begin = source.advance(length, 1);
    if length > line_bytes_max {
        return Ok(Piece::TooLong);
    }
    let line = source.at(begin, length);
    Ok(Piece::Whole(line.strip_suffix(b"\r").unwrap_or(line)))
}

/// The next record of `size` bytes.
pub(crate) fn next_record<'a>(source: &'a mut Source<'_>, size: usize) -> io::Result<Piece<'a>> {
    if source.window().len() < size {
        source.fill_to(size)?;
    }
    match source.window().len() {
        0 => Ok(Piece::End),
        n if n < size => {
            source.consume(n);
            Ok(Piece::Partial)
        }
        _ => {
            let begin = source.advance(size, 0);
            Ok(Piece::Whole(source.at(begin, size)))
        }
    }
}

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
                Piece::Whole(line) => out.push(Some(line.to_vec())),
                Piece::TooLong => out.push(None),
                Piece::Partial => unreachable!("lines have no partial records"),
                Piece::End => return out,
            }
        }
    }

    #[test]
    fn a_line_over_the_limit_is_skipped_and_the_next_is_read() {
        let long = [b"x".repeat(700_000), b"\nok\r\n".to_vec(), b"y".repeat(101)].concat();
        assert_eq!(lines(&long, 100), [None, Some(b"ok".to_vec()), None]);
    }

    #[test]
    fn records_are_cut_to_size_and_a_rest_is_named() {
        let mut source = Source::new(&b"abcdefgh"[..], None).expect("starts");
        for expected in [&b"abc"[..], b"def"] {
            assert!(matches!(next_record(&mut source, 3), Ok(Piece::Whole(r)) if r == expected));
        }
        assert!(matches!(next_record(&mut source, 3), Ok(Piece::Partial)));
        assert!(matches!(next_record(&mut source, 3), Ok(Piece::End)));
    }

    proptest! {
        #[test]
        fn lines_are_those_of_split(text in "[ab\n]{0,200}") {
            let mut expected: Vec<_> = text.split('\n').map(|l| Some(l.as_bytes().to_vec())).collect();
            if text.is_empty() || text.ends_with('\n') {
                expected.pop();
            }
            // The source takes a leading magic for packing; these letters are none.
            prop_assert_eq!(lines(text.as_bytes(), 1_000), expected);
        }
    }
}
