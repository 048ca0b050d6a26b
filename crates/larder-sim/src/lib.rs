//! The simulated cluster: many nodes, one dispatcher, no clock but its own.
//!
//! The dispatcher, the policies and the caches are those of the live switch and the live node (`larder-core`); what is
//! simulated is what they act upon: clients ([`source`]), nodes with processors and disks ([`cost`]), and time.
//!
//! * [`Workload`] and [`Scenario`] go into [`simulate`], an [`Outcome`] comes out;
//! * [`simulate_with`] takes clients of a caller's own: any [`Source`](source::Source);
//! * [`sweep()`] runs many of them on all cores;
//! * [`churn()`](churn::churn) says what nodes that come and go cost under each policy;
//! * [`faults`] is the test of the protocol between peers: all that can go wrong between them, from seeds;
//! * [`cooperation`] is the cluster without a front-end: the live nodes' protocol on modelled networks;
//! * [`ceiling`] says what no policy can exceed.
//!
//! The same workload, scenario and seed give the same outcome on every machine and on any number of threads.

mod calendar;
pub mod ceiling;
pub mod churn;
pub mod cooperation;
pub mod cost;
mod engine;
mod error;
pub mod faults;
pub mod figure;
mod gms;
mod memory;
pub mod outcome;
pub mod plan;
pub mod press;
mod prices;
pub mod replay;
mod scenario;
pub mod source;
mod station;
mod sweep;
pub mod tables;
mod tally;
pub mod text;
mod workload;

pub use cost::Costs;
pub use engine::{Seen, Watched, simulate, simulate_watched, simulate_with};
pub use error::SimError;
pub use outcome::{Delays, NodeOutcome, Outcome};
pub use prices::prices;
pub use scenario::{CacheChoice, Happening, Planned, Refresh, Scenario, SideBySide, SimNode};
pub use source::Arrivals;
pub use sweep::sweep;
pub use workload::{Item, Workload};
