//! The fields of a head, in the order and spelling in which they arrived.

use super::{FIELDS_MAX, Fault, line};

/// A range of bytes in the text of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(super) const EMPTY: Self = Self { start: 0, end: 0 };

    /// Returns the bytes of this range in `text`. Returns nothing if the range is outside of `text`.
    pub(super) fn slice(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// A field name that HTTP/1 message parsing depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldName {
    /// `Connection` (RFC 9110 section 7.6.1).
    Connection,
    /// `Content-Length` (RFC 9110 section 8.6).
    ContentLength,
    /// `Expect` (RFC 9110 section 10.1.1).
    Expect,
    /// `Host` (RFC 9110 section 7.2).
    Host,
    /// `Transfer-Encoding` (RFC 9112 section 6.1).
    TransferEncoding,
    /// `Upgrade` (RFC 9110 section 7.8).
    Upgrade,
    /// Any other name.
    Other,
}

impl FieldName {
    fn from_bytes(name: &[u8]) -> Self {
        // The length excludes most names before a comparison of text.
        let (spelling, known): (&[u8], _) = match name.len() {
            4 => (b"host", Self::Host),
            6 => (b"expect", Self::Expect),
            7 => (b"upgrade", Self::Upgrade),
            10 => (b"connection", Self::Connection),
            14 => (b"content-length", Self::ContentLength),
            17 => (b"transfer-encoding", Self::TransferEncoding),
            _ => return Self::Other,
        };
        if name.eq_ignore_ascii_case(spelling) { known } else { Self::Other }
    }
}

/// Fields that can be added to a head with [`FIELDS_MAX`] fields. A client must not be able to keep a proxy
/// from adding fields such as `X-Forwarded-For`.
const ADDED_FIELDS_MAX: usize = 512;

/// The ranges of the name and the value of a field in the text of its head.
#[derive(Clone, Copy, Debug)]
struct FieldSpan {
    name: Span,
    value: Span,
    kind: FieldName,
}

/// A header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name, as it was spelled.
    pub name: &'a [u8],
    /// The value, without white space around it.
    pub value: &'a [u8],
    /// The known name, or [`FieldName::Other`].
    pub kind: FieldName,
}

/// The fields of a head at an earlier time.
#[derive(Clone, Debug)]
pub struct SavedFields(Vec<FieldSpan>);

/// The fields of a head. The memory is kept from one head to the next, so that the heads of a connection cost
/// no allocation.
///
/// Names are compared without regard to case (RFC 9110 section 5.1). A lookup takes O(n) time for n fields.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The bytes of the head, followed by text that was added later.
    text: Vec<u8>,
    spans: Vec<FieldSpan>,
}

impl Fields {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self { text: Vec::new(), spans: Vec::new() }
    }

    /// Creates an empty list with memory for `bytes` bytes of text and `fields` fields.
    pub(super) fn with_capacity(bytes: usize, fields: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), spans: Vec::with_capacity(fields) }
    }

    /// Removes all fields, and the first line of the head.
    pub fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    /// Releases all memory if more than `bytes` bytes are allocated. Removes all fields in that case.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if self.text.capacity() + self.spans.capacity() * size_of::<FieldSpan>() > bytes {
            *self = Self::new();
        }
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns all fields in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Field<'_>> + Clone {
        self.spans.iter().map(|span| self.field(*span))
    }

    fn field(&self, span: FieldSpan) -> Field<'_> {
        Field { name: span.name.slice(&self.text), value: span.value.slice(&self.text), kind: span.kind }
    }

    /// Returns the values of all fields of this name, in order.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    /// Returns the value of the first field of this name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        // `all` would tie the lifetime of the result to the name.
        let first = self.spans.iter().find(|span| span.name.slice(&self.text).eq_ignore_ascii_case(name))?;
        Some(first.value.slice(&self.text))
    }

    /// Returns the value of the first field of this name. Compares no text.
    pub fn named(&self, name: FieldName) -> Option<&[u8]> {
        self.spans.iter().find(|span| span.kind == name).map(|span| span.value.slice(&self.text))
    }

    /// Removes the fields for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(Field<'_>) -> bool) {
        let Self { text, spans } = self;
        spans.retain(|span| {
            keep(Field { name: span.name.slice(text), value: span.value.slice(text), kind: span.kind })
        });
    }

    /// Removes all fields of this name.
    pub fn remove(&mut self, name: &[u8]) {
        self.retain(|field| !field.name.eq_ignore_ascii_case(name));
    }

    /// Appends a field. The name must be a token and the value must be text (RFC 9110 sections 5.1 and 5.5),
    /// because a line end would start another field.
    ///
    /// # Errors
    /// The name or the value is invalid, or the head has as many fields as it may have. The fields are
    /// unchanged.
    pub fn append(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        if !super::scan::is_token(name) {
            return Err(Fault::Field);
        }
        if !super::scan::is_text(value) {
            return Err(Fault::Control);
        }
        self.append_valid(name, value)
    }

    /// Appends a field whose name and value are known to be valid.
    pub(crate) fn append_valid(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        let name = self.append_text(name)?;
        let value = self.append_text(value)?;
        self.push(name, value)
    }

    /// Sets the only field of this name. The field replaces the first field of this name; further ones are
    /// removed.
    ///
    /// # Errors
    /// As for [`Self::append`].
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        let first = self.spans.iter().position(|span| span.name.slice(&self.text).eq_ignore_ascii_case(name));
        let Some(first) = first else { return self.append(name, value) };
        if !super::scan::is_text(value) {
            return Err(Fault::Control);
        }
        self.spans[first].value = self.append_text(value)?;
        let mut index = 0;
        self.retain(|field| {
            index += 1;
            index - 1 <= first || !field.name.eq_ignore_ascii_case(name)
        });
        Ok(())
    }

    /// Saves the fields, so that [`Self::restore`] can undo later changes.
    pub fn save(&self) -> SavedFields {
        SavedFields(self.spans.clone())
    }

    /// Undoes all changes since `saved`, which must come from the same head.
    pub fn restore(&mut self, saved: &SavedFields) {
        // The text of the saved fields is still there, because text is only appended.
        self.spans.clone_from(&saved.0);
    }

    /// Writes the fields as lines, without the empty line at the end of the head.
    pub fn write(&self, out: &mut Vec<u8>) {
        for field in self.iter() {
            out.extend_from_slice(field.name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(field.value);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Returns all fields, each with the range of its value in [`Self::text`].
    pub(crate) fn value_ranges(&self) -> impl Iterator<Item = (Field<'_>, std::ops::Range<usize>)> {
        let range = |span: Span| span.start as usize..span.end as usize;
        self.spans.iter().map(move |span| (self.field(*span), range(span.value)))
    }

    /// Reads the fields of a complete head, starting at the line at byte `from`.
    pub(super) fn read(&mut self, head: &[u8], from: usize) -> Result<(), Fault> {
        self.text.extend_from_slice(head);
        let mut rest = head.get(from..).unwrap_or_default();
        loop {
            let line = line::take_line(&mut rest);
            if line.is_empty() {
                return Ok(());
            }
            let (name, value) = line::parse_field(line)?;
            if self.spans.len() == FIELDS_MAX {
                return Err(Fault::TooLarge);
            }
            self.push(span(head, name)?, span(head, value)?)?;
        }
    }

    /// Returns the range of a part of the first line of the head.
    pub(super) fn span_in(&self, head: &[u8], part: &[u8]) -> Result<Span, Fault> {
        span(head, part)
    }

    /// Returns the bytes of the head, followed by text that was added later.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Appends text that is not a field, for example a target.
    pub(super) fn append_text(&mut self, text: &[u8]) -> Result<Span, Fault> {
        let start = u32::try_from(self.text.len()).map_err(|_| Fault::TooLarge)?;
        self.text.extend_from_slice(text);
        Ok(Span { start, end: u32::try_from(self.text.len()).map_err(|_| Fault::TooLarge)? })
    }

    /// Appends a field whose name and value are in the text.
    fn push(&mut self, name: Span, value: Span) -> Result<(), Fault> {
        if self.spans.len() == FIELDS_MAX + ADDED_FIELDS_MAX {
            return Err(Fault::TooLarge);
        }
        let kind = FieldName::from_bytes(name.slice(&self.text));
        self.spans.push(FieldSpan { name, value, kind });
        Ok(())
    }
}

/// Returns the range of `part` in `whole`. `part` must be a slice of `whole`.
fn span(whole: &[u8], part: &[u8]) -> Result<Span, Fault> {
    let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    let end = start.wrapping_add(part.len());
    // An empty slice at the end of `whole` is valid.
    debug_assert!(end <= whole.len());
    let number = |at| u32::try_from(at).map_err(|_| Fault::TooLarge);
    Ok(Span { start: number(start)?, end: number(end)? })
}
