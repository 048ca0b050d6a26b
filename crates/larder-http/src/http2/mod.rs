//! Limits on the HTTP/2 connection of a client, for the switch and for the node.
//!
//! The h2 crate limits concurrent streams, header lists, CONTINUATION frames, empty and small DATA frames,
//! and streams that are reset before they are accepted. This module adds:
//!
//! | subject | limit |
//! |---|---|
//! | streams that the client resets after they were accepted | [`TokenBucket::resets`]: 500 in one burst, 33 per second in the long run |
//! | PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown and empty frames, also during a request | [`FrameLimits`] |
//! | a socket that accepts no bytes | [`WriteDeadline`] |

mod frames;
mod progress;
mod token_bucket;

pub use frames::{Flood, FrameLimits};
pub use progress::{SocketProgress, WriteDeadline};
pub use token_bucket::TokenBucket;
