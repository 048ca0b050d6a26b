//! The simulated cluster: nodes, a dispatcher and clients in simulated time.
//!
//! The dispatcher, the policies and the caches are those of the live switch and the live node
//! (`larder-core`). Clients ([`source`]), nodes with processors and disks ([`cost`]) and time are simulated.
//!
//! * [`simulate`] runs a [`Workload`] through a [`Scenario`] and returns an [`Outcome`].
//! * [`simulate_with`] takes the caller's own clients: any [`RequestSource`](source::RequestSource).
//! * [`sweep()`] runs many simulations on all cores.
//! * [`churn()`](churn::churn) measures the cost of nodes that join, leave and return, under each policy.
//! * [`faults`] tests the protocols between peers and switches under faults that are drawn from seeds.
//! * [`cooperation`] simulates the cluster without a front-end: the live protocols over modelled networks.
//! * [`prompts`] simulates inference engines behind the policies of chains.
//! * [`bound`] computes an upper bound on throughput and hit ratio that no policy exceeds.
//!
//! The same workload, scenario and seed give the same outcome on every machine and with any number of
//! threads.

pub mod bound;
mod calendar;
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
pub mod prompts;
pub mod replay;
mod scenario;
pub mod source;
mod station;
mod sweep;
pub mod tables;
mod tally;
pub mod text;
mod ward_costs;
mod workload;

pub use cost::Costs;
pub use engine::{RequestOutcome, RunHistory, simulate, simulate_with, simulate_with_history};
pub use error::SimError;
pub use outcome::{Delays, NodeOutcome, Outcome};
pub use scenario::{CacheChoice, NodeChange, Scenario, ScheduledChange, SimNode, SwitchGroup, TableRefresh};
pub use source::Arrivals;
pub use sweep::sweep;
pub use ward_costs::measure_ward_costs;
pub use workload::{Item, Workload};
