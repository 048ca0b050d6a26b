//! The fields of a head, in the order and spelling in which they came.

use super::{FIELDS_MAX, Fault, line};

/// A range of bytes in a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(super) const NOWHERE: Self = Self { start: 0, end: 0 };

    pub(super) fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// The names of fields that HTTP/1 itself acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldName {
    /// RFC 9110 section 7.6.1.
    Connection,
    /// RFC 9110 section 8.6.
    ContentLength,
    /// RFC 9110 section 10.1.1.
    Expect,
    /// RFC 9110 section 7.2.
    Host,
    /// RFC 9112 section 6.1.
    TransferEncoding,
    /// RFC 9110 section 7.8.
    Upgrade,
    /// Any other name.
    Other,
}

impl FieldName {
    fn of(name: &[u8]) -> Self {
        // The lengths of most names differ from all of these.
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

/// Fields that can be added to a head that was read with [`FIELDS_MAX`]: a client must not keep a proxy from writing who it is.
const ROOM: usize = 512;

#[derive(Clone, Copy, Debug)]
struct Place {
    name: Span,
    value: Span,
    kind: FieldName,
}

/// A field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name as it was spelt.
    pub name: &'a [u8],
    /// The value, without white space around it.
    pub value: &'a [u8],
    /// The name, if HTTP/1 acts on it.
    pub kind: FieldName,
}

/// The state of the fields of a head.
#[derive(Clone, Debug)]
pub struct SavedFields(Vec<Place>);

/// The fields of a head. Keeps its memory from one head to the next, so that a connection's heads cost no allocation.
///
/// Names are compared without regard to case (RFC 9110 section 5.1). Each look-up is O(fields).
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The head's bytes, and after them what was set.
    text: Vec<u8>,
    places: Vec<Place>,
}

impl Fields {
    /// No fields.
    pub const fn new() -> Self {
        Self { text: Vec::new(), places: Vec::new() }
    }

    /// No fields, with memory for some.
    pub(super) fn with_room(bytes: usize, fields: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), places: Vec::with_capacity(fields) }
    }

    /// Removes all fields, and all other text.
    pub fn clear(&mut self) {
        self.text.clear();
        self.places.clear();
    }

    /// Gives back memory beyond `bytes`, once it holds nothing that is needed.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if self.text.capacity() + self.places.capacity() * size_of::<Place>() > bytes {
            *self = Self::new();
        }
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// All fields.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Field<'_>> + Clone {
        self.places.iter().map(|place| self.field(*place))
    }

    fn field(&self, place: Place) -> Field<'_> {
        Field { name: place.name.of(&self.text), value: place.value.of(&self.text), kind: place.kind }
    }

    /// The values of the fields of this name, in their order.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    /// The value of the first field of this name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        // `all` would tie the name to the result.
        let found = self.places.iter().find(|place| place.name.of(&self.text).eq_ignore_ascii_case(name))?;
        Some(found.value.of(&self.text))
    }

    /// The value of the first field of this name. Compares no text.
    pub fn named(&self, name: FieldName) -> Option<&[u8]> {
        self.places.iter().find(|place| place.kind == name).map(|place| place.value.of(&self.text))
    }

    /// Removes the fields for which `keep` is false.
    pub fn retain(&mut self, mut keep: impl FnMut(Field<'_>) -> bool) {
        let Self { text, places } = self;
        places.retain(|place| {
            keep(Field { name: place.name.of(text), value: place.value.of(text), kind: place.kind })
        });
    }

    /// Removes all fields of this name.
    pub fn remove(&mut self, name: &[u8]) {
        self.retain(|field| !field.name.eq_ignore_ascii_case(name));
    }

    /// Adds a field at the end. The name must be a token and the value text (RFC 9110 sections 5.1 and 5.5): a line end in them would
    /// begin another field.
    ///
    /// # Errors
    /// The name or the value is not valid, or there is no room for another field. Nothing has changed then.
    pub fn append(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        if !super::scan::is_token(name) {
            return Err(Fault::Field);
        }
        if !super::scan::is_text(value) {
            return Err(Fault::Control);
        }
        self.append_valid(name, value)
    }

    /// The same for a name and a value that are known to be valid.
    pub(crate) fn append_valid(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        let name = self.add_text(name)?;
        let value = self.add_text(value)?;
        self.add(name, value)
    }

    /// Sets the only field of this name. It takes the place of the first one that there was.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        let first = self.places.iter().position(|place| place.name.of(&self.text).eq_ignore_ascii_case(name));
        let Some(first) = first else { return self.append(name, value) };
        if !super::scan::is_text(value) {
            return Err(Fault::Control);
        }
        self.places[first].value = self.add_text(value)?;
        let mut index = 0;
        self.retain(|field| {
            index += 1;
            index - 1 <= first || !field.name.eq_ignore_ascii_case(name)
        });
        Ok(())
    }

    /// The fields as they are now. What is changed later can be taken back with [`Self::restore`].
    pub fn save(&self) -> SavedFields {
        SavedFields(self.places.clone())
    }

    /// Takes back all changes since `saved`, which must be of this head.
    pub fn restore(&mut self, saved: &SavedFields) {
        // The text is still there: it only grows.
        self.places.clone_from(&saved.0);
    }

    /// Writes the fields as lines, without the empty line at their end.
    pub fn write(&self, out: &mut Vec<u8>) {
        for field in self.iter() {
            out.extend_from_slice(field.name);
            out.extend_from_slice(b": ");
            out.extend_from_slice(field.value);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// All fields, and the places of their values in [`Self::text`].
    pub(crate) fn places(&self) -> impl Iterator<Item = (Field<'_>, std::ops::Range<usize>)> {
        let range = |span: Span| span.start as usize..span.end as usize;
        self.places.iter().map(move |place| (self.field(*place), range(place.value)))
    }

    /// Takes the fields of a head that is complete, from the line at `from` on.
    pub(super) fn read(&mut self, head: &[u8], from: usize) -> Result<(), Fault> {
        self.text.extend_from_slice(head);
        let mut rest = head.get(from..).unwrap_or_default();
        loop {
            let line = line::next(&mut rest);
            if line.is_empty() {
                return Ok(());
            }
            let (name, value) = line::field(line)?;
            if self.places.len() == FIELDS_MAX {
                return Err(Fault::TooLarge);
            }
            self.add(span(head, name)?, span(head, value)?)?;
        }
    }

    /// Returns the place of a part of a head's first line.
    pub(super) fn span_of(&self, head: &[u8], part: &[u8]) -> Result<Span, Fault> {
        span(head, part)
    }

    /// The head's bytes, and what was set.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    pub(super) fn add_text(&mut self, text: &[u8]) -> Result<Span, Fault> {
        let start = u32::try_from(self.text.len()).map_err(|_| Fault::TooLarge)?;
        self.text.extend_from_slice(text);
        Ok(Span { start, end: u32::try_from(self.text.len()).map_err(|_| Fault::TooLarge)? })
    }

    fn add(&mut self, name: Span, value: Span) -> Result<(), Fault> {
        if self.places.len() == FIELDS_MAX + ROOM {
            return Err(Fault::TooLarge);
        }
        let kind = FieldName::of(name.of(&self.text));
        self.places.push(Place { name, value, kind });
        Ok(())
    }
}

/// Returns the place of `part` in `whole`. `part` must be a slice of `whole`.
fn span(whole: &[u8], part: &[u8]) -> Result<Span, Fault> {
    let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    let end = start.wrapping_add(part.len());
    // An empty part at the end of a line is a part all the same.
    debug_assert!(end <= whole.len());
    let number = |at| u32::try_from(at).map_err(|_| Fault::TooLarge);
    Ok(Span { start: number(start)?, end: number(end)? })
}
