//! The parts of HTTP that a node implements itself: paths, ranges, preconditions, cacheability, `Cache-Status`.
//! All of them are pure.

pub(crate) mod cache_control;
pub(crate) mod cache_status;
pub(crate) mod condition;
pub(crate) mod content_type;
pub(crate) mod fields;
pub(crate) mod freshness;
pub(crate) mod hop;
pub(crate) mod path;
pub(crate) mod range;
pub(crate) mod structured;
