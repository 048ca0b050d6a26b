//! The arguments of calls: pointers of the host become references, slices and texts, or an error.
//!
//! An [`Argument`] is a pointer with the name that an error gives it. A call reads all its arguments in one step, before it does
//! anything.

#![expect(unsafe_code, reason = "pointers of the host are read and written")]

use crate::fault::{Fault, LARDER_ERROR_BUFFER, LARDER_ERROR_POINTER, LARDER_ERROR_TEXT};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// An argument that a call can read.
pub(crate) trait Argument {
    /// The argument, checked.
    type Value;

    /// Checks the argument and returns its value.
    ///
    /// # Safety
    /// A pointer is null, or it is valid for its type and length until the call of the host returns, and no other thread writes to
    /// its memory.
    unsafe fn read(self) -> Result<Self::Value, Fault>;
}

macro_rules! tuples {
    ($($($name:ident)+;)+) => {
        $(impl<$($name: Argument),+> Argument for ($($name,)+) {
            type Value = ($($name::Value,)+);

            unsafe fn read(self) -> Result<Self::Value, Fault> {
                #[expect(non_snake_case, reason = "one name for an argument and its type")]
                let ($($name,)+) = self;
                Ok(($({
                    // SAFETY: the caller's promise holds for each argument.
                    unsafe { $name.read()? }
                },)+))
            }
        })+
    };
}

tuples! {
    A B;
    A B C;
    A B C D;
}

/// A pointer to a structure that a call reads.
pub(crate) struct Input<'a, T>(&'static str, *const T, PhantomData<&'a T>);

pub(crate) const fn input<'a, T>(name: &'static str, pointer: *const T) -> Input<'a, T> {
    Input(name, pointer, PhantomData)
}

impl<'a, T> Argument for Input<'a, T> {
    type Value = &'a T;

    unsafe fn read(self) -> Result<&'a T, Fault> {
        check(self.0, self.1)?;
        // SAFETY: the pointer is aligned and not null, and valid by the caller's promise.
        Ok(unsafe { &*self.1 })
    }
}

/// A pointer to a structure that a call reads if the pointer is not null.
pub(crate) struct Optional<'a, T>(Input<'a, T>);

pub(crate) const fn optional<'a, T>(name: &'static str, pointer: *const T) -> Optional<'a, T> {
    Optional(input(name, pointer))
}

impl<'a, T> Argument for Optional<'a, T> {
    type Value = Option<&'a T>;

    unsafe fn read(self) -> Result<Option<&'a T>, Fault> {
        if self.0.1.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.read() }.map(Some)
    }
}

/// A pointer to several values, and their number.
pub(crate) struct Several<'a, T>(&'static str, *const T, usize, PhantomData<&'a T>);

pub(crate) const fn several<'a, T>(name: &'static str, pointer: *const T, count: usize) -> Several<'a, T> {
    Several(name, pointer, count, PhantomData)
}

impl<'a, T> Argument for Several<'a, T> {
    type Value = &'a [T];

    unsafe fn read(self) -> Result<&'a [T], Fault> {
        let Self(name, pointer, count, _) = self;
        if count == 0 {
            return Ok(&[]);
        }
        check(name, pointer)?;
        if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Fault::range(format!("{name}: a length of {count} exceeds the address space")));
        }
        // SAFETY: the pointer is aligned and not null, and valid for the length by the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
    }
}

/// A text.
pub(crate) struct Text<'a>(Several<'a, u8>);

pub(crate) const fn text<'a>(name: &'static str, pointer: *const std::ffi::c_char, len: usize) -> Text<'a> {
    Text(several(name, pointer.cast(), len))
}

impl<'a> Argument for Text<'a> {
    type Value = &'a str;

    unsafe fn read(self) -> Result<&'a str, Fault> {
        let name = self.0.0;
        // SAFETY: the caller's promise is the same.
        let bytes = unsafe { self.0.read() }?;
        std::str::from_utf8(bytes)
            .map_err(|error| Fault::new(LARDER_ERROR_TEXT, format!("{name} is not UTF-8: {error}")))
    }
}

/// A pointer to which a call writes its result.
pub(crate) struct Output<T>(&'static str, *mut T);

pub(crate) const fn output<T>(name: &'static str, pointer: *mut T) -> Output<T> {
    Output(name, pointer)
}

impl<T> Argument for Output<T> {
    type Value = Place<T>;

    unsafe fn read(self) -> Result<Place<T>, Fault> {
        check(self.0, self.1)?;
        NonNull::new(self.1).map(Place).ok_or_else(|| null(self.0))
    }
}

/// A pointer to which a call writes a result if the pointer is not null.
pub(crate) struct OptionalOutput<T>(Output<T>);

pub(crate) const fn optional_output<T>(name: &'static str, pointer: *mut T) -> OptionalOutput<T> {
    OptionalOutput(output(name, pointer))
}

impl<T> Argument for OptionalOutput<T> {
    type Value = Option<Place<T>>;

    unsafe fn read(self) -> Result<Option<Place<T>>, Fault> {
        if self.0.1.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.0.read() }.map(Some)
    }
}

/// Memory of the host for one value.
pub(crate) struct Place<T>(NonNull<T>);

impl<T> Place<T> {
    /// Writes the value.
    pub(crate) fn set(&mut self, value: T) {
        // SAFETY: the place comes from an argument whose pointer is valid until the call of the host returns.
        unsafe { self.0.write(value) }
    }
}

impl<T: Copy> Place<T> {
    /// Returns the value that the host has stored here.
    pub(crate) fn get(&self) -> T {
        // SAFETY: as for writing; the host has initialized the memory, as the documentation of the calls demands.
        unsafe { self.0.read() }
    }
}

/// A buffer to which a call writes bytes, and a pointer for the size that they need, which may be null.
pub(crate) struct Buffer(*mut u8, usize, *mut usize);

pub(crate) const fn buffer<T>(pointer: *mut T, size: usize, needed: *mut usize) -> Buffer {
    Buffer(pointer.cast(), size, needed)
}

impl Argument for Buffer {
    type Value = Room;

    unsafe fn read(self) -> Result<Room, Fault> {
        let Self(pointer, size, needed) = self;
        if pointer.is_null() && size > 0 {
            return Err(null("buffer"));
        }
        if !needed.is_null() {
            check("needed", needed)?;
        }
        Ok(Room { pointer, size, needed })
    }
}

/// Memory of the host for bytes.
pub(crate) struct Room {
    pointer: *mut u8,
    size: usize,
    needed: *mut usize,
}

impl Room {
    /// Writes the bytes if there is room for all of them, and always the needed size. A buffer of size 0 asks for the size alone.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if !self.needed.is_null() {
            // SAFETY: the pointer is aligned and not null, and valid until the call of the host returns.
            unsafe { self.needed.write(bytes.len()) };
        }
        if self.size == 0 {
            return Ok(());
        }
        if bytes.len() > self.size {
            let what = format!("the buffer has {} bytes, and {} are needed", self.size, bytes.len());
            return Err(Fault::new(LARDER_ERROR_BUFFER, what));
        }
        // SAFETY: the buffer has room for these bytes, and memory of the host does not overlap with ours.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer, bytes.len()) };
        Ok(())
    }

    /// Writes a text with a final 0.
    pub(crate) fn fill_text(&mut self, text: &str) -> Result<(), Fault> {
        let mut bytes = Vec::with_capacity(text.len() + 1);
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
        self.fill(&bytes)
    }
}

fn check<T>(name: &str, pointer: *const T) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(null(name));
    }
    if !pointer.is_aligned() {
        return Err(Fault::new(LARDER_ERROR_POINTER, format!("{name} is misaligned")));
    }
    Ok(())
}

fn null(name: &str) -> Fault {
    Fault::new(LARDER_ERROR_POINTER, format!("{name} is null"))
}
