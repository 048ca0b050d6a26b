//! Accepts connections and serves each of them until it ends.
//!
//! ```text
//! Server -> Thread (one for each core) -> Connections -> larder_http::relay -> Requests -> crate::service
//! ```

mod arrived;
mod connection;
mod handed;
mod phase;
mod requests;
mod server;
mod thread;

pub use handed::Handed;
pub use server::Drained;

pub(crate) use server::{ServeError, Server};
