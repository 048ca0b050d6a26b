//! The gRPC services of a picker: external processing, and health.
//!
//! A stream of the gateway is answered by [`Answers`], which polls the gateway's messages and its [`Exchange`]. No task and no queue is
//! between them: a gateway that reads slowly is read slowly.

use crate::counters::RequestOutcome;
use crate::exchange::{AnswerQueue, Exchange, Flow, ProtocolError};
use crate::picker::Picker;
use crate::proto::{PROCESS, ProcessingRequest, ProcessingResponse};
use futures_util::Stream;
use http::{Request, Response};
use std::convert::Infallible;
use std::future::Ready;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::HealthService;
use tonic_prost::ProstCodec;
use tower_service::Service as _;

/// The path of the health service, with its methods below it.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// The services of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    pub(crate) picker: Arc<Picker>,
    pub(crate) health: HealthServer<HealthService>,
}

impl Services {
    /// Answers a call.
    pub(crate) async fn call(
        mut self,
        request: Request<hyper::body::Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path();
        if path == PROCESS {
            let limit = self.picker.config.limits.message_bytes;
            let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(limit);
            return Ok(grpc.streaming(Process(self.picker), request).await);
        }
        if path.starts_with(HEALTH) {
            return self.health.call(request).await;
        }
        Ok(Status::unimplemented(format!("there is no method {}", path.escape_debug())).into_http())
    }
}

/// The method of external processing.
#[derive(Debug)]
struct Process(Arc<Picker>);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = Answers;
    type Future = Ready<Result<tonic::Response<Answers>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let answers = StreamSlot::take(&self.0).map(|slot| {
            let exchange = Exchange::new(Arc::clone(&self.0));
            tonic::Response::new(Answers {
                messages: request.into_inner(),
                exchange,
                waiting: AnswerQueue::new(),
                is_over: false,
                body_deadline: None,
                slot,
            })
        });
        std::future::ready(answers.ok_or_else(|| {
            self.0.counters.streams_refused.fetch_add(1, Relaxed);
            Status::resource_exhausted("the picker is at its limit of streams: raise picker.limits.streams")
        }))
    }
}

/// A stream among those that are open.
#[derive(Debug)]
struct StreamSlot(Arc<Picker>);

impl StreamSlot {
    /// Takes a slot; `None` if there is none.
    fn take(picker: &Arc<Picker>) -> Option<Self> {
        let most = picker.config.limits.streams as u64;
        let slot = Self(Arc::clone(picker));
        (picker.counters.streams.fetch_add(1, Relaxed) < most).then_some(slot)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.counters.streams.fetch_sub(1, Relaxed);
    }
}

/// The answers to the messages of a stream.
pub(crate) struct Answers {
    messages: Streaming<ProcessingRequest>,
    exchange: Exchange,
    /// The answers that were not sent yet.
    waiting: AnswerQueue,
    is_over: bool,
    /// The end of the time for the body that is awaited.
    body_deadline: Option<Pin<Box<Sleep>>>,
    slot: StreamSlot,
}

impl Answers {
    /// Returns whether the time for the awaited body is over. If not, the task is woken at its end.
    fn is_body_late(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(time_max) = self.exchange.body_time_max() else {
            self.body_deadline = None;
            return false;
        };
        let deadline = self.body_deadline.get_or_insert_with(|| Box::pin(sleep(time_max)));
        deadline.as_mut().poll(cx).is_ready()
    }

    /// Ends the request, because the stream has ended.
    fn close(&mut self, error: Option<&Status>) {
        self.is_over = true;
        let is_too_large = error.is_some_and(|status| status.code() == Code::OutOfRange);
        let outcome = if is_too_large { RequestOutcome::TooLarge } else { self.exchange.outcome_at_close() };
        self.exchange.end(self.slot.0.clock(), outcome);
    }

    fn refuse(&mut self, error: ProtocolError) -> Status {
        larder_log::limited_warn!(%error, "gateway: stream refused");
        self.is_over = true;
        self.exchange.end(self.slot.0.clock(), RequestOutcome::Invalid);
        match error {
            ProtocolError::GrpcBodies => Status::unimplemented(error.to_string()),
            _ => Status::invalid_argument(error.to_string()),
        }
    }
}

impl Stream for Answers {
    type Item = Result<ProcessingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(answer) = this.waiting.pop_front() {
                return Poll::Ready(Some(Ok(answer)));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
            this.exchange.release_body();
            // The deadline comes first: a body whose pieces never cease must not pass it.
            if this.is_body_late(cx) {
                this.exchange.refuse_late_body(&mut this.waiting);
                this.is_over = true;
                continue;
            }
            match ready!(Pin::new(&mut this.messages).poll_next(cx)) {
                None => this.close(None),
                Some(Err(status)) => {
                    this.close(Some(&status));
                    return Poll::Ready(Some(Err(status)));
                }
                Some(Ok(message)) => {
                    match this.exchange.handle(this.slot.0.clock(), message, &mut this.waiting) {
                        Ok(flow) => this.is_over = flow == Flow::Ends,
                        Err(error) => return Poll::Ready(Some(Err(this.refuse(error)))),
                    }
                }
            }
        }
    }
}
