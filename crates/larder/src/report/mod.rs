//! Report pages: one HTML file without external resources, with a light and a dark theme, and with all
//! figures also as JSON.

mod axis;
mod charts;
mod demo;
mod lines;
mod marks;
mod peers;
pub(crate) mod plan;
mod plot;
mod svg;

pub(crate) use demo::{chart, page};
pub use larder_sim::text::{counted, number, rate};
pub(crate) use peers::{chart as peers_chart, page as peers_page};
pub use plot::plot;
pub use svg::{Svg, escape};

/// Style sheet of the charts. A standalone SVG file contains a copy.
pub const STYLE: &str = include_str!("style.css");

/// Style sheet of the rest of a report page.
pub const PAGE_STYLE: &str = include_str!("page.css");
