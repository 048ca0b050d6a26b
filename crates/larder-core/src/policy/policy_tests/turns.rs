//! Helpers for the tests of policies that assign turns.

use super::started;
use crate::dispatch::{Admission, Dispatcher, Request, Settings};
use crate::id::TargetId;
use crate::nodes::NodeSpec;
use crate::policy::PolicyKind;
use crate::time::Time;

pub(in crate::policy) fn dispatcher(policy: PolicyKind, names: &[&str]) -> Dispatcher {
    let settings = Settings { policy, admission: Admission::Unlimited, ..Settings::default() };
    let specs: Vec<NodeSpec> = names.iter().map(|name| NodeSpec::named(*name)).collect();
    Dispatcher::new(settings, &specs).expect("the settings are in range")
}

/// Returns the nodes of the next `count` requests.
pub(in crate::policy) fn send(dispatcher: &Dispatcher, now: Time, count: usize) -> Vec<u16> {
    (0..count).map(|_| started(dispatcher.arrive(now, Request::new(TargetId(7)))).0).collect()
}

/// Returns the number of the next `count` requests that each of two nodes gets.
pub(in crate::policy) fn shares(dispatcher: &Dispatcher, now: Time, count: usize) -> [usize; 2] {
    let nodes = send(dispatcher, now, count);
    [0, 1].map(|node| nodes.iter().filter(|at| **at == node).count())
}
