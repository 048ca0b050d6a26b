//! ward-analysis: a choice of the targets that every node serves, and of an owner for the others.
//!
//! The method is from Cherkasova and Karlsson, *Scalable Web Server Cluster Design with Workload-Aware
//! Request Distribution Strategy WARD* (HPL-2001-2 R.1, July 2001), section 2.
//!
//! The input is a log, the number of nodes, their memory and two prices (a handoff, a byte from disk). The
//! result has a small *core* of the most frequent targets, which every node serves itself. The next targets
//! form the *partition*, each with an owner. The receiving node serves all other targets.
//!
//! ```text
//! log -> Frequencies -> ward_analysis -> Analysis -> RoutesHeader -> a file that nodes load
//!          requests       search         classes     names
//!          sizes          partition      balance     places
//! ```
//!
//! [`Stability`] measures how well the table of one day serves the next day (section 3.4).

mod analysis;
mod costs;
mod frequency;
mod partition;
mod reach;
mod reassign;
mod routes;
#[cfg(test)]
mod routes_tests;
mod search;
mod stability;
mod text;

pub use analysis::{
    Analysis, CURVE_POINTS_MAX, Class, CoreChoice, CoreSizePoint, Overheads, WARD_NODES_MAX, WardError,
    for_each_core_size, ward_analysis, ward_analysis_after,
};
pub use costs::WardCosts;
pub use frequency::{Frequencies, Frequency};
pub use partition::{Balance, OwnerTotals};
pub use reach::nodes_reached;
pub use reassign::LOAD_TOLERANCE;
pub use routes::{
    RoutesError, RoutesHeader, RoutesProblem, for_each_route, read_routes, read_routes_from, save_routes,
    write_routes,
};
pub use search::{Overhead, Split, TargetTotals, WardCluster};
pub use stability::{DailyNewTargets, Stability};
