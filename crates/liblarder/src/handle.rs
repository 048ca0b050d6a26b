//! The dispatcher behind the pointer of a host.

use larder_embed::Embedded;

/// A dispatcher of a host.
#[derive(Debug)]
pub struct Handle(pub(crate) Embedded);
