//! The dispatcher as an endpoint picker: a gateway such as Envoy asks it over gRPC which endpoint serves a request.
//!
//! The protocol is Envoy's external processing, as Gateway API Inference Extension uses it (proposal 004, version 1.0). A gateway opens a
//! stream for each request (`service`). The `exchange` of a stream receives the parts of the request and of its response, and answers
//! each. The answer to the request's headers contains the endpoint. [`Picker`] holds the dispatcher and the endpoints of all streams.
//!
//! When the stream ends for any reason, the load of its request is given back once.

mod config;
mod counters;
mod endpoints;
mod exchange;
mod health;
mod picker;
mod prompt;
mod proto;
mod server;
mod service;
mod subset;

#[cfg(test)]
mod tests;

pub use config::{FALLBACKS_MAX, PickerConfig, PickerLimits, PickerTls};
pub use counters::METRICS;
pub use larder_embed::EmbedError;
pub use larder_peer_switches::{SwitchesConfig, SwitchesStatus};
pub use picker::{Picker, PickerError};
pub use server::{Drained, PickerServer};
