//! The node's side of handoff.
