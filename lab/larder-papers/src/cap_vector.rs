//! Figure 2 of the CAP paper: seven requests to two servers, dispatched by the real dispatcher.
//!
//! Server A has a CB and a DCB request, server B an N and a DB request. Then N, CB, CB, DB, DCB, N and DB
//! arrive. RR starts at A. LARD is assumed to have DB and CB assigned to A, N and DCB to B; its targets are
//! the classes here.

use core::time::Duration;

use larder_core::class::ServiceClass;
use larder_core::dispatch::{Admission, Arrival, Dispatcher, ExcludedNodes, Request, Settings};
use larder_core::nodes::{LoadReport, NodeSpec};
use larder_core::policy::PolicyKind;
use larder_core::{NodeId, TargetId, Time};

use super::PaperError;
use super::builtin::{Builtin, Plan};
use super::report::Sample;
use super::traces::Traces;

use ServiceClass::{Cb, Db, Dcb, N};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

/// The sequence of arrivals.
const ARRIVALS: [ServiceClass; 7] = [N, Cb, Cb, Db, Dcb, N, Db];

/// The line, the policy, and the paper's placement of the arrivals.
const PUBLISHED: [(&str, PolicyKind, [NodeId; 7]); 3] = [
    ("CAP", PolicyKind::Cap, [A, B, A, A, B, B, B]),
    ("RR", PolicyKind::Rr, [A, B, A, B, A, B, A]),
    ("LARD", PolicyKind::LardUtil, [B, A, A, A, B, B, A]),
];

/// `cap-vector`: the placement of the requests.
///
/// Lines: `CAP`, `RR`, `LARD`. x: the arrival, 1 to 7. Metrics: `server` (1 is A, 2 is B), `as_published` (1
/// or 0).
#[derive(Debug)]
pub(super) struct Vector;

#[derive(Debug)]
struct VectorPlan;

impl Builtin for Vector {
    fn name(&self) -> &'static str {
        "cap-vector"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        if table.is_empty() { Ok(Box::new(VectorPlan)) } else { Err("there are no parameters".to_owned()) }
    }
}

impl Plan for VectorPlan {
    fn lines(&self) -> Vec<String> {
        PUBLISHED.map(|(name, ..)| name.to_owned()).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["server", "as_published"]
    }

    fn jobs(&self) -> usize {
        PUBLISHED.len()
    }

    fn key(&self, job: usize) -> String {
        PUBLISHED[job].0.to_owned()
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (name, policy, published) = PUBLISHED[job];
        let settings = Settings { policy, admission: Admission::Unlimited, ..Settings::default() };
        let servers = [NodeSpec::named("a"), NodeSpec::named("b")];
        let dispatcher = Dispatcher::new(settings, &servers).map_err(larder_sim::SimError::from)?;
        match policy {
            PolicyKind::Cap => prepare_cap(&dispatcher)?,
            PolicyKind::LardUtil => prepare_lard(&dispatcher)?,
            _ => {}
        }
        let decide = |(at, class): (usize, ServiceClass)| {
            let node = start(&dispatcher, request(class))?;
            let values = [
                ("server", f64::from(node.0 + 1)),
                ("as_published", f64::from(u8::from(node == published[at]))),
            ];
            Ok(Sample::new(name, (at + 1) as f64, values))
        };
        ARRIVALS.into_iter().enumerate().map(decide).collect()
    }
}

/// Sends CB and DCB to A, and N and DB to B. The pointers of N and DB then stand at A, the others at B.
fn prepare_cap(dispatcher: &Dispatcher) -> Result<(), PaperError> {
    for (class, exclude) in [(Cb, B), (Dcb, B), (N, A), (Db, A)] {
        start(dispatcher, Request { exclude: ExcludedNodes::NONE.with(exclude), ..request(class) })?;
    }
    Ok(())
}

/// Assigns each class to the server that is idle when the class first arrives. Afterwards both servers are
/// idle.
fn prepare_lard(dispatcher: &Dispatcher) -> Result<(), PaperError> {
    let report = |a: u16, b: u16| {
        for (node, cpu_permille) in [(A, a), (B, b)] {
            let report = LoadReport { cpu_permille: Some(cpu_permille), ..LoadReport::default() };
            dispatcher.report(Time::ZERO, node, report);
        }
    };
    for (loads, classes) in [((0, 500), [Db, Cb]), ((500, 0), [N, Dcb])] {
        report(loads.0, loads.1);
        for class in classes {
            let node = start(dispatcher, request(class))?;
            dispatcher.finish(Time::ZERO, node, &mut Vec::new());
        }
    }
    report(0, 0);
    Ok(())
}

fn request(class: ServiceClass) -> Request {
    Request::new(TargetId::of(class.name().as_bytes())).with_class(class)
}

fn start(dispatcher: &Dispatcher, request: Request) -> Result<NodeId, PaperError> {
    match dispatcher.arrive(Time::ZERO + Duration::from_millis(1), request) {
        Arrival::Start(decision) => Ok(decision.node),
        other => Err(PaperError::Builtin(format!("a request was not started: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn figure_2_comes_out_exactly() {
        for job in 0..VectorPlan.jobs() {
            let samples = VectorPlan.run(job, &Traces::new(Path::new("/"))).expect("servers take requests");
            assert_eq!(samples.len(), 7);
            assert!(samples.iter().all(|sample| sample.values["as_published"] == 1.0), "{samples:?}");
        }
    }

    #[test]
    fn the_final_states_are_the_papers() {
        // The states are (N, DB, CB, DCB) at A and at B, including the first requests.
        let finals =
            [([1, 1, 2, 1], [2, 2, 1, 1]), ([1, 1, 2, 2], [2, 2, 1, 0]), ([0, 2, 3, 1], [3, 1, 0, 1])];
        for ((name, _, published), (at_a, at_b)) in PUBLISHED.into_iter().zip(finals) {
            let (mut a, mut b) = ([0, 0, 1, 1], [1, 1, 0, 0]);
            for (node, class) in published.into_iter().zip(ARRIVALS) {
                let state = if node == A { &mut a } else { &mut b };
                state[class.index()] += 1;
            }
            assert_eq!((a, b), (at_a, at_b), "{name}");
        }
    }
}
