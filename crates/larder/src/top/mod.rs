//! `larder top`: shows switches and nodes without a switch in a terminal.
//!
//! ```text
//! admin interfaces --polled every period--> source: reports --> overview: rates and rows --> draw
//! ```
//! `source` polls the admin interfaces and parses their JSON. `overview` computes figures from two successive
//! polls. `draw` draws an overview, `screen` handles the keys, and `text` formats an overview without a
//! terminal.

mod draw;
mod overview;
mod screen;
mod source;
mod text;

pub(crate) use screen::run;
pub(crate) use source::Sources;
pub(crate) use text::overview_text;

use std::time::Duration;

use overview::{Overview, SortBy};
use source::Action;

/// Polls all sources twice, so that rates can be computed.
pub(crate) async fn poll_twice(mut sources: Sources, between: Duration) -> Overview {
    let before = sources.poll().await;
    tokio::time::sleep(between).await;
    let mut overview = Overview::new(&sources.poll().await, Some(&before));
    overview.sort(SortBy::Name);
    overview
}
