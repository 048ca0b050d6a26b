//! Comparison of the simulator with live clusters.
//!
//! [`calibration`] measures the CPU time of a request on this machine for node, switch and client. [`comparison`] runs the same
//! requests live (with the demo's code) and simulated, and compares the results.

pub(crate) mod calibration;
mod linear_fit;
pub(crate) use linear_fit::LinearFit;
pub(crate) mod comparison;
pub(crate) mod text;
