//! The circumstances of an input.

use super::output::{Note, Output};
use super::parts::{Parts, View};
use crate::time::Time;

/// The circumstances of an input.
pub(super) struct Context<'c, T: Parts> {
    pub(super) now: Time,
    pub(super) view: &'c dyn View<T::Key>,
    pub(super) out: &'c mut Vec<Output<T>>,
}

impl<T: Parts> Context<'_, T> {
    pub(super) fn say(&mut self, note: Note<T::Key>) {
        self.out.push(Output::Note(note));
    }
}
