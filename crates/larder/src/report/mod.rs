//! Reports to look at: one HTML file without outside resources, light and dark, with every figure also as JSON.

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

/// Colours and letters of the charts; also put into every SVG file that stands alone.
pub const STYLE: &str = include_str!("style.css");

/// Everything else on a report page.
pub const PAGE_STYLE: &str = include_str!("page.css");
