//! Rules over a request's head, which determine its route, its service class and its target.
//!
//! The rules are pure functions over the bytes of a request's head ([`Head`]). A caller evaluates three of them for each request:
//!
//! ```text
//! RouteRules::find(head)      -> RouteId       the route, which determines the policy and the nodes
//! ClassRules::classify(head)  -> ServiceClass  the costs other than sending bytes (CAP, WWW 2001, section 3)
//! KeyTemplate::id(head)       -> TargetId      the target (HACC, NT 1999, section 5.1)
//! ```
//!
//! The first two are lists of rules of which the first match decides; each rule is a [`Matcher`].
//!
//! # Example
//! ```
//! use larder_core::rules::{ClassRules, Head, KeyTemplate, Matcher, RouteRules};
//! use larder_core::{Request, RouteId, ServiceClass};
//!
//! let key: KeyTemplate = "{host}{path}{query:page}".parse()?;
//! let routes = RouteRules::new(vec![(Matcher::new().path("/media/*")?, RouteId(1))])?;
//! let classes = ClassRules::new(vec![(Matcher::new().extension("php")?, ServiceClass::Db)])?;
//!
//! let headers = vec![("Accept-Language", "de")];
//! let head = Head::new(b"GET", b"www.example.org", b"/media/list.php?page=2&session=7", &headers);
//! let request =
//!     Request::new(key.id(&head)).with_route(routes.find(&head)).with_class(classes.classify(&head));
//! assert_eq!((request.route, request.class), (RouteId(1), ServiceClass::Db));
//!
//! let mut text = Vec::new();
//! key.render(&head, &mut text);
//! assert_eq!(text, b"www.example.org/media/list.phppage=2");
//! # Ok::<(), larder_core::rules::RuleError>(())
//! ```
//!
//! # Comparison
//! Bytes are compared as sent. Nothing is percent-decoded, no dot segment is removed, no field is unfolded: `/%61` is not `/a`. If
//! an origin may distinguish two requests, they are different here, which costs at most some locality. There is no second
//! interpretation of a request that could differ from the origin's. Rules therefore determine where a request goes, and never what
//! it may do: **a route is no access control**. Case matters, except in hosts (RFC 9110 section 4.2.3), field names (section 5.1)
//! and extensions.
//!
//! # Cost
//! [`RouteRules::find`], [`ClassRules::classify`] and [`KeyTemplate::id`] allocate nothing. A rule takes time linear in the text it
//! examines, for every pattern ([`Glob`], or a regular expression, which has scratch space for each thread). A list takes the sum
//! of the rules up to the first match. `cargo bench -p larder-core --bench rules` measures them.
//!
//! # Limits
//! A list has at most [`RULES_MAX`] rules, a rule [`ALTERNATIVES_MAX`] alternatives of a kind, a pattern [`PATTERN_BYTES_MAX`]
//! bytes, and a template [`TEMPLATE_BYTES_MAX`] bytes. Above these limits construction fails with a [`RuleError`]. A key uses at
//! most [`CAPTURE_BYTES_MAX`] bytes of a field or cookie, and examines the first [`ITEMS_MAX`] parameters or cookies; the rest of
//! the request is ignored.

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
pub use error::{RuleCoverage, RuleError, RuleTextKind, TextFault};
pub use glob::Glob;
pub use head::{Head, Headers};
pub use key::KeyTemplate;
pub use matcher::Matcher;
pub use route::RouteRules;

/// The largest number of rules in one list.
pub const RULES_MAX: usize = 1_024;
/// The largest number of alternatives of one kind in one rule.
pub const ALTERNATIVES_MAX: usize = 256;
/// The largest size of one pattern in bytes: a host, a path, an extension, a field's name or value, a method.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// The largest size of a key template in bytes.
pub const TEMPLATE_BYTES_MAX: usize = 1_024;
/// The largest number of query parameters in one `{query:..}`.
pub const PARAMETERS_MAX: usize = 16;
/// The largest number of bytes of a field or a cookie in a key.
pub const CAPTURE_BYTES_MAX: usize = 4_096;
/// The largest number of query parameters, or cookies, that are examined.
pub const ITEMS_MAX: usize = 1_024;
