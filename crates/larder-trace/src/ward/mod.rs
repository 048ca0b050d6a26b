//! ward-analysis: which targets every node should serve, and which node should own the others.
//!
//! Cherkasova and Karlsson, *Scalable Web Server Cluster Design with Workload-Aware Request Distribution Strategy WARD*
//! (HPL-2001-2 R.1, July 2001), section 2. From a log, the number of nodes, their memory and two prices (a handoff, a
//! byte from disk) comes a small *core* of the most frequent targets that every node serves itself, and a *partition*
//! of those behind them, each with an owner. What is left is served where it arrives.
//!
//! ```text
//! log -> Frequencies -> ward_analysis -> Analysis -> Routes -> a file that nodes load
//!          how often        search         classes     names
//!          how large       partition       balance     places
//! ```
//!
//! [`Stability`] says how well yesterday's table serves today (section 3.4).

mod analysis;
mod costs;
mod frequency;
mod partition;
mod reach;
mod routes;
#[cfg(test)]
mod routes_tests;
mod search;
mod stability;
mod stay;
mod text;

pub use analysis::{
    Analysis, CURVE_POINTS_MAX, Class, CoreChoice, CurvePoint, Overheads, WARD_NODES_MAX, WardError,
    each_core_size, ward_analysis, ward_analysis_after,
};
pub use costs::WardCosts;
pub use frequency::{Frequencies, Frequency};
pub use partition::{Balance, Holding};
pub use reach::nodes_reached;
pub use routes::{
    RoutesError, RoutesHeader, RoutesProblem, each_route, read_routes, read_routes_from, save_routes,
    write_routes,
};
pub use search::{Overhead, Split, Tally, WardCluster};
pub use stability::{DayNew, Stability};
pub use stay::KEEP_OVER;
