//! `larder top`: switches and nodes without a front-end, watched in a terminal.
//!
//! ```text
//! admin interfaces --asked once a period--> source: what each says --> picture: rates and rows --> draw
//! ```
//! `source` knows what is said in JSON, `picture` makes figures of two answers one after the other, `draw` draws a picture and
//! `screen` has the keys. `words` says a picture without a terminal.

mod draw;
mod picture;
mod screen;
mod source;
mod words;

pub(crate) use screen::run;
pub(crate) use source::Sources;
pub(crate) use words::words;

use std::time::Duration;

use picture::{Picture, SortBy};
use source::Order;

/// Asks all twice, so that there are rates.
pub(crate) async fn look_twice(mut sources: Sources, between: Duration) -> Picture {
    let before = sources.ask().await;
    tokio::time::sleep(between).await;
    let mut picture = Picture::of(&sources.ask().await, Some(&before));
    picture.sort(SortBy::Name);
    picture
}
