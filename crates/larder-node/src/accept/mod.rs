//! Accepts connections and serves each of them until it ends.
//!
//! ```text
//! Server -> Thread (one for each core) -> Connections -> larder_http::relay -> Requests -> crate::service
//! ```

mod connection;
mod handoffs;
mod incoming;
mod phase;
mod requests;
mod server;
mod thread;

pub use handoffs::IncomingHandoffs;
pub use server::DrainReport;

pub(crate) use server::{ServeError, Server};
