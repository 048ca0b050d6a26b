//! The control channel between front-ends and nodes.
