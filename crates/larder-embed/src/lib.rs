//! The dispatcher for programs that embed it.
//!
//! A program creates an [`Embedded`] dispatcher from the policy part of `larder.toml`. For each request it calls
//! [`Embedded::decide`], sends the request to the chosen node, and calls [`Embedded::done`]. The program keeps its own sockets, health
//! checks and queues.
//!
//! ```
//! use larder_core::{Reason, TargetId, Time};
//! use larder_embed::{Embedded, EmbeddedConfig, Feedback, Outcome, RequestFacts};
//! use std::time::Duration;
//!
//! let config: EmbeddedConfig = "policy = \"lard-r\"\nnodes = [\"10.0.0.1:80\", \"10.0.0.2:80\"]\n".parse()?;
//! let dispatcher = Embedded::new(config)?;
//!
//! let request = RequestFacts::new(TargetId::of(b"www.example.org/logo.png"));
//! let Outcome::Start(first) = dispatcher.decide(Time::ZERO, &request)? else { unreachable!() };
//! // ... send the request to the node `first.node`, and the reply to the client ...
//! let feedback = Feedback { elapsed: Duration::from_millis(5), bytes: 1_200, status: 200, ..Feedback::default() };
//! dispatcher.done(Time::from_millis(5), &first, Some(&feedback))?;
//!
//! let Outcome::Start(second) = dispatcher.decide(Time::from_millis(9), &request)? else { unreachable!() };
//! assert_eq!((second.node, second.reason), (first.node, Reason::Local));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | call |
//! |---|---|
//! | choose a node, end or retry a request | [`Embedded::decide`], [`Embedded::done`], [`Embedded::retry`], [`Embedded::become_long_lived`] |
//! | use a node that the program has chosen | [`Embedded::start_at`] |
//! | add and change nodes | [`Embedded::add`], [`Embedded::find`], [`Embedded::set_state`], [`Embedded::set_weight`], [`Embedded::set_backup`] |
//! | pass signals and a routing table | [`Embedded::report`], [`Embedded::cache_event`], [`Embedded::set_table`] |
//! | look inside | [`Embedded::explain`], [`Embedded::status`], [`Embedded::dispatcher`] |
//! | keep the learned state | [`Embedded::save`], [`Embedded::load`], [`state_file::StateFile`] |
//!
//! All calls may run in several threads at once. A wrong argument is an [`EmbedError`] and changes nothing. All times of a dispatcher
//! come from one monotonic clock. [`Embedded::decide`] and [`Embedded::done`] allocate no memory for known targets. Exceptions are the
//! first requests after a change of membership, and a fifth server of one target.
//!
//! `liblarder` is this crate with a C interface. `docs/reference/liblarder.md` lists the keys of the config, and the limits.

mod embedded;
mod error;
pub mod state_file;
mod types;
mod weights;

#[cfg(test)]
mod tests;

pub use embedded::Embedded;
pub use error::EmbedError;
pub use larder_config::{ConfigError, EmbeddedConfig, NAME_BYTES_MAX, extra_input};
pub use types::{Decision, EXCLUDE_MAX, Feedback, NodeHandle, Outcome, Refusal, RequestFacts, STATUS_MAX};
pub use weights::relative_weight;
