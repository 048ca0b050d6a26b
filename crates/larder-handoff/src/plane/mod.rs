//! The forwarding plane of a front-end.
