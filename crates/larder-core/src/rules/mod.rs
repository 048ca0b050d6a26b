//! What a request's text says: its route, its service class, its target.
//!
//! Pure functions over the bytes of a request's head ([`Head`]). A shell asks three questions of each request:
//!
//! ```text
//! RouteRules::find(head)      -> RouteId       which route, and so which policy, which nodes
//! ClassRules::classify(head)  -> ServiceClass  what it costs beside sending bytes (CAP, WWW 2001, section 3)
//! KeyTemplate::id(head)       -> TargetId      what counts as the same target (HACC, NT 1999, section 5.1)
//! ```
//! The first two are lists of rules of which the first that holds decides; each rule is a [`Matcher`].
//!
//! # What is compared
//! Bytes as they came. Nothing is percent-decoded, no dot segment is removed, no field is unfolded: `/%61` is not
//! `/a`. What an origin may treat as different is different here, at worst at the price of some locality, and there
//! is no second reading of a request that could differ from the origin's. So rules say where a request goes, and
//! never what it may do: **a route is no access control**. Case counts, except in hosts (RFC 9110 section 4.2.3),
//! field names (section 5.1) and extensions.
//!
//! # Cost
//! [`RouteRules::find`], [`ClassRules::classify`] and [`KeyTemplate::id`] allocate nothing. A rule costs time linear
//! in the text it looks at, whatever the pattern ([`Glob`], or a regular expression, which has scratch space for each thread); a list costs the sum of the rules up to the first that
//! holds. `cargo bench -p larder-core --bench rules` measures them.
//!
//! # Limits
//! [`RULES_MAX`] rules in a list, [`ALTERNATIVES_MAX`] alternatives of a kind in a rule, [`PATTERN_BYTES_MAX`] bytes
//! in a pattern, [`TEMPLATE_BYTES_MAX`] bytes in a template; beyond them building fails with a [`RuleError`]. Of a
//! request, a key takes at most [`CAPTURE_BYTES_MAX`] bytes of a field or cookie and looks at the first
//! [`ITEMS_MAX`] parameters or cookies; what lies beyond is as if it were not there.

mod class;
mod error;
mod glob;
mod head;
mod key;
mod key_text;
mod matcher;
mod path;
mod route;

pub use class::ClassRules;
pub use error::{Everything, Fault, Part, RuleError};
pub use glob::Glob;
pub use head::{Head, Headers};
pub use key::KeyTemplate;
pub use matcher::Matcher;
pub use route::RouteRules;

/// Rules in one list.
pub const RULES_MAX: usize = 1_024;
/// Alternatives of one kind in one rule.
pub const ALTERNATIVES_MAX: usize = 256;
/// Bytes of one pattern: a host, a path, an extension, a field's name or value, a method.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Bytes of a key template.
pub const TEMPLATE_BYTES_MAX: usize = 1_024;
/// Query parameters that one `{query:..}` may name.
pub const PARAMETERS_MAX: usize = 16;
/// Bytes of a field or a cookie that enter a key.
pub const CAPTURE_BYTES_MAX: usize = 4_096;
/// Query parameters, or cookies, that are looked at.
pub const ITEMS_MAX: usize = 1_024;
