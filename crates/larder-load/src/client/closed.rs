//! The closed loop: each client sends its next request when the last one is answered.

use std::rc::Rc;

use super::sender::{Bench, Sender};

/// Runs `clients` clients on this thread until no request is left.
pub(crate) async fn drive(bench: &Rc<Bench>, clients: u32) {
    let mut running = Vec::with_capacity(clients as usize);
    for _ in 0..clients {
        let bench = Rc::clone(bench);
        running.push(tokio::task::spawn_local(async move {
            let mut sender = Sender::new(&bench.shared.job.plan);
            while let Some(claim) = bench.shared.claim_now(bench.shared.now()) {
                sender.perform(&bench, claim).await;
            }
        }));
    }
    super::join_all(running).await;
}
