//! The circumstances of an input: the time, the plane and the list of outputs.

use super::output::{LogEvent, Output};
use super::parts::{EdgeTypes, FlowLookup};
use crate::time::Time;
use alloc::vec::Vec;

/// The circumstances of an input: the time, the plane and the list of outputs.
pub(super) struct Context<'c, T: EdgeTypes> {
    pub(super) now: Time,
    pub(super) view: &'c dyn FlowLookup<T::Key>,
    pub(super) out: &'c mut Vec<Output<T>>,
}

impl<T: EdgeTypes> Context<'_, T> {
    pub(super) fn note(&mut self, note: LogEvent<T::Key>) {
        self.out.push(Output::Note(note));
    }
}
