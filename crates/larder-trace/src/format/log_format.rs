//! The interface of a log format.

use std::ops::ControlFlow;

use super::json_fields::JsonFields;
use crate::record::{Reason, Record, TokenSums};
use crate::size_unit::SizeUnit;

/// The parser of a format, with its state from line to line, and the properties of the format.
pub(crate) trait LogFormat: Default {
    /// The name on command lines and in reports.
    const NAME: &'static str;

    /// Size of a record in bytes. `None` for a format of lines.
    const RECORD_BYTES: Option<usize> = None;

    /// Whether targets are numbers.
    const NUMBERED_TARGETS: bool = false;

    /// The unit of the sizes, or [`SizeUnit::Unknown`] if the format has none.
    const SIZE_UNIT: SizeUnit = SizeUnit::Bytes;

    /// The file name extension that implies this format, for a format that no bytes can show.
    const FILE_EXTENSION: Option<&'static str> = None;

    /// Returns whether the first bytes of a binary file are records of this format. Formats of lines are
    /// detected by [`LogFormat::parse`] instead.
    fn fits(_head: &[u8]) -> bool {
        false
    }

    /// Creates a parser. Only the format of JSON lines uses the fields of the user.
    fn new(_fields: Option<&JsonFields>) -> Self {
        Self::default()
    }

    /// Parses one record, or one line without its line end. `take` gets each request, or the reason why there
    /// is none. A directive gives neither. The parser stops if `take` breaks.
    fn parse(
        &mut self,
        bytes: &[u8],
        take: impl FnMut(Result<Record<'_>, Reason>) -> ControlFlow<()>,
    ) -> ControlFlow<()>;

    /// Returns the token sums of all parsed lines, if the format has tokens and a line was valid.
    fn tokens(&self) -> Option<TokenSums> {
        None
    }
}
