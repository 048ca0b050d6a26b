//! A modelled inference server: the simulator's engine in real time, behind OpenAI's API.
//!
//! Iterations take the time that the model says. Replies are streams of two events: the first token, and the end with the usage.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use futures_util::StreamExt as _;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use larder_core::cache::Block;
use larder_prompts::{Prompt, error_body, is_completion};
use larder_sim::prompts::{Engine, EngineEvent, EngineModel, EngineRequest};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

type Body = BoxBody<Bytes, Infallible>;

/// Events of a request, for its connection.
#[derive(Clone, Copy, Debug)]
enum Progress {
    Started(u64),
    FirstToken,
    Finished,
    Refused,
}

/// A request for the engine.
#[derive(Debug)]
struct Job {
    blocks: Vec<Block>,
    tokens: u64,
    output: u32,
    progress: mpsc::UnboundedSender<Progress>,
}

/// The fields of a completion that the engine reads besides the prompt.
#[derive(Deserialize)]
struct Options {
    #[serde(default = "one")]
    max_tokens: u32,
}

const fn one() -> u32 {
    1
}

/// Starts a server on loopback. It ends when `tasks` is dropped.
///
/// # Errors
/// No port can be bound.
pub(super) async fn start(model: EngineModel, tasks: &mut JoinSet<()>) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot bind a port of a server")?;
    let address = listener.local_addr().context("cannot read the port of a server")?;
    let (jobs, inbox) = mpsc::unbounded_channel();
    tasks.spawn(compute(model, inbox));
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((tcp, _)) = listener.accept().await {
            let jobs = jobs.clone();
            let serve = service_fn(move |request| answer(request, jobs.clone()));
            connections.spawn(async move {
                // A connection that breaks ends its request; the client counts it.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(tcp), serve)
                    .await;
            });
            while connections.try_join_next().is_some() {}
        }
    });
    Ok(address)
}

/// Lets iterations pass, each at the time at which it ends.
async fn compute(model: EngineModel, mut inbox: mpsc::UnboundedReceiver<Job>) {
    let mut engine: Engine<Vec<Block>> = Engine::new(model);
    let mut clients = HashMap::new();
    let (mut number, mut events, mut end) = (0, Vec::new(), Instant::now());
    let mut add = |engine: &mut Engine<Vec<Block>>, clients: &mut HashMap<_, _>, job: Job| {
        number += 1;
        clients.insert(number, job.progress);
        engine.add(EngineRequest { number, blocks: job.blocks, prompt: job.tokens, output: job.output });
    };
    loop {
        while let Ok(job) = inbox.try_recv() {
            add(&mut engine, &mut clients, job);
        }
        let iteration = engine.begin(&mut events);
        pass_on(&mut clients, &mut events);
        match iteration {
            Some(ns) => {
                end += Duration::from_nanos(ns);
                sleep_until(end).await;
                engine.end(&mut events);
                pass_on(&mut clients, &mut events);
            }
            None => {
                let Some(job) = inbox.recv().await else { return };
                add(&mut engine, &mut clients, job);
                end = Instant::now();
            }
        }
    }
}

/// Passes events on to the clients. Those of a client that has left are dropped.
fn pass_on(clients: &mut HashMap<usize, mpsc::UnboundedSender<Progress>>, events: &mut Vec<EngineEvent>) {
    for event in events.drain(..) {
        let (number, progress, is_last) = match event {
            EngineEvent::Started { number, cached } => (number, Progress::Started(cached), false),
            EngineEvent::FirstToken { number } => (number, Progress::FirstToken, false),
            EngineEvent::Finished { number } => (number, Progress::Finished, true),
            EngineEvent::Refused { number } => (number, Progress::Refused, true),
        };
        if let Some(client) = clients.get(&number) {
            let _ = client.send(progress);
        }
        if is_last {
            clients.remove(&number);
        }
    }
}

async fn answer(
    request: Request<Incoming>,
    jobs: mpsc::UnboundedSender<Job>,
) -> Result<Response<Body>, Infallible> {
    if !is_completion(request.uri().path().as_bytes()) {
        return Ok(reply(StatusCode::OK, String::new()));
    }
    let refuse = |message: String| reply(StatusCode::BAD_REQUEST, error_body(400, "invalid", &message));
    let content = match request.into_body().collect().await {
        Ok(content) => content.to_bytes(),
        Err(error) => return Ok(refuse(error.to_string())),
    };
    let prompt = match Prompt::parse(&content) {
        Ok(prompt) => prompt,
        Err(error) => return Ok(refuse(error.to_string())),
    };
    let output = serde_json::from_slice::<Options>(&content).map_or(1, |options| options.max_tokens.max(1));
    let blocks = prompt.blocks();
    let tokens = blocks.iter().map(|block| block.size()).sum();
    let (progress, events) = mpsc::unbounded_channel();
    let job = Job { blocks, tokens, output, progress };
    if jobs.send(job).is_err() {
        return Ok(reply(StatusCode::SERVICE_UNAVAILABLE, String::new()));
    }
    Ok(stream(tokens, events))
}

fn reply(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Full::from(text).boxed());
    *response.status_mut() = status;
    response
}

/// Returns the reply as a stream of events.
fn stream(tokens: u64, events: mpsc::UnboundedReceiver<Progress>) -> Response<Body> {
    let next = move |(mut events, cached, is_over): (mpsc::UnboundedReceiver<Progress>, u64, bool)| async move {
        if is_over {
            return None;
        }
        let (event, is_over) = match events.recv().await? {
            // The cached tokens are part of the last event.
            Progress::Started(cached) => return Some((None, (events, cached, false))),
            Progress::FirstToken => (json!({ "choices": [{ "delta": { "content": "a" } }] }), false),
            Progress::Finished => {
                let details = json!({ "cached_tokens": cached });
                let usage = json!({ "prompt_tokens": tokens, "prompt_tokens_details": details });
                (json!({ "choices": [], "usage": usage }), true)
            }
            Progress::Refused => (json!({ "error": { "message": "the prompt is too long" } }), true),
        };
        let end = if is_over { "data: [DONE]\n\n" } else { "" };
        let text = format!("data: {event}\n\n{end}");
        Some((Some(Ok(Frame::data(Bytes::from(text)))), (events, cached, is_over)))
    };
    let frames = futures_util::stream::unfold((events, 0, false), next);
    let frames = frames.filter_map(|frame| async move { frame });
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(Box::pin(frames))));
    let kind = http::HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}
