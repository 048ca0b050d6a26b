//! The closed loop: each client sends its next request when the previous one has finished.

use std::rc::Rc;

use super::sender::{RequestSender, SenderContext};

/// Runs `clients` clients on this thread until no request is left.
pub(crate) async fn drive(context: &Rc<SenderContext>, clients: u32) {
    let mut tasks = Vec::with_capacity(clients as usize);
    for _ in 0..clients {
        let context = Rc::clone(context);
        tasks.push(tokio::task::spawn_local(async move {
            let mut sender = RequestSender::new(&context.shared.job.plan);
            while let Some(request) = context.shared.next_now(context.shared.now()) {
                sender.send(&context, request).await;
            }
        }));
    }
    super::join_all(tasks).await;
}
