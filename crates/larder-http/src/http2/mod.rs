//! Limits on an HTTP/2 connection of a client, for the switch and for the node.
//!
//! The h2 crate limits concurrent streams, header lists, CONTINUATION frames, empty and small DATA frames, and streams that are reset
//! before they are accepted. It does not limit what stands here:
//!
//! | | limit |
//! |---|---|
//! | streams that the client resets after they were accepted | [`Allowance::resets`]: 500 at once and 33 a second |
//! | PING, SETTINGS, PRIORITY, WINDOW_UPDATE, unknown and empty frames, also while a request is under way | [`FrameLimits`] |
//! | a reply that h2 holds and of which the client takes nothing | [`Pace`] |
//! | a socket that takes no bytes | [`WriteDeadline`] |

mod allowance;
mod frames;
mod pace;

pub use allowance::Allowance;
pub use frames::{Flood, FrameLimits};
pub use pace::{Blocked, Pace, WriteDeadline};
