//! A gateway without clients and endpoints, for `bench/picker/run.py`: it asks pickers and ends requests at once.
//!
//! ```text
//! gateway rate  SECONDS STREAMS HEADER_BYTES ADDRESS...   requests as fast as the pickers answer
//! gateway play  SECONDS STREAMS KEYS MEMORY ADDRESS...    Zipf-like requests; endpoints remember MEMORY keys each
//! gateway place KEYS ADDRESS                              the endpoint of every key
//! ```
//!
//! Pickers listen without TLS. Requests go to the pickers in turn; a picker that fails is left out for a second. `play` prints a line of
//! JSON each second. A request fails if no picker names an endpoint.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a measuring program: a fault ends it")]

#[path = "../src/proto.rs"]
#[allow(dead_code, reason = "a gateway reads a part of the messages")]
mod proto;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use proto::{Answer, HeaderMap, HeaderValue, HttpHeaders, Phase, ProcessingRequest, ProcessingResponse};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Time for which a picker that has failed is left out.
const LEFT_OUT: Duration = Duration::from_secs(1);
/// Connections to a picker.
const CONNECTIONS: usize = 2;

/// The pickers, and the times until which they are left out.
struct Pickers {
    channels: Vec<Vec<Channel>>,
    left_out: Vec<AtomicU64>,
    start: Instant,
    turn: AtomicUsize,
}

impl Pickers {
    fn new(addresses: &[String]) -> Self {
        let channel = |address: &String| {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
            endpoint.connect_timeout(Duration::from_secs(1)).tcp_nodelay(true).connect_lazy()
        };
        Self {
            channels: addresses
                .iter()
                .map(|address| (0..CONNECTIONS).map(|_| channel(address)).collect())
                .collect(),
            left_out: addresses.iter().map(|_| AtomicU64::new(0)).collect(),
            start: Instant::now(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Sends a request and its response; returns the endpoint. Tries each picker once.
    async fn ask(&self, key: &str, padding: &str) -> Option<String> {
        for _ in 0..self.channels.len() {
            let turn = self.turn.fetch_add(1, Relaxed);
            let picker = turn % self.channels.len();
            let now = u64::try_from(self.start.elapsed().as_millis()).unwrap();
            if self.left_out[picker].load(Relaxed) > now {
                continue;
            }
            let channel = &self.channels[picker][turn / self.channels.len() % CONNECTIONS];
            match exchange(channel, key, padding).await {
                Ok(endpoint) => return endpoint,
                Err(_) => {
                    let until = now + u64::try_from(LEFT_OUT.as_millis()).unwrap();
                    self.left_out[picker].store(until, Relaxed);
                }
            }
        }
        None
    }
}

/// Exchanges the messages of one request. `None`: the picker refuses the request.
async fn exchange(channel: &Channel, key: &str, padding: &str) -> Result<Option<String>, tonic::Status> {
    let (messages, received) = mpsc::channel(2);
    let outgoing =
        stream::unfold(received, |mut received| async move { Some((received.recv().await?, received)) });
    let path = format!("/{key}");
    let fields =
        [(":method", "GET"), (":authority", "www.example.org"), (":path", &path), ("x-padding", padding)];
    messages.send(message(Phase::RequestHeaders(headers(&fields)))).await.ok();
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<ProcessingRequest, ProcessingResponse>::default();
    let process = proto::PROCESS.parse().unwrap();
    let mut answers =
        client.streaming(tonic::Request::new(outgoing.boxed()), process, codec).await?.into_inner();
    let Some(first) = answers.message().await? else { return Ok(None) };
    let Some(Answer::RequestHeaders(part)) = first.answer else { return Ok(None) };
    let mutation = part.response.and_then(|common| common.header_mutation).unwrap_or_default();
    let endpoint = mutation.set_headers.first().and_then(|option| option.header.as_ref());
    let endpoint = endpoint.map(|header| String::from_utf8_lossy(&header.raw_value).into_owned());
    messages.send(message(Phase::ResponseHeaders(headers(&[(":status", "200")])))).await.ok();
    answers.message().await?;
    drop(messages);
    // The end of the stream.
    answers.message().await?;
    Ok(endpoint)
}

fn message(phase: Phase) -> ProcessingRequest {
    ProcessingRequest { phase: Some(phase), ..ProcessingRequest::default() }
}

fn headers(fields: &[(&str, &str)]) -> HttpHeaders {
    let field = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
        ..HeaderValue::default()
    };
    HttpHeaders {
        headers: Some(HeaderMap { headers: fields.iter().map(field).collect() }),
        end_of_stream: true,
    }
}

/// A small generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a rank from 0 to `n` - 1, with frequencies that fall like 1/rank.
    fn zipf(&mut self, n: u64) -> u64 {
        let share = self.next() as f64 / u64::MAX as f64;
        ((n as f64).powf(share) as u64 - 1).min(n - 1)
    }
}

/// The memory of an endpoint: the keys that it has served last.
#[derive(Default)]
struct Memory {
    at: HashMap<String, u64>,
    order: BTreeMap<u64, String>,
    clock: u64,
}

impl Memory {
    /// Whether the key is in memory. It is afterwards.
    fn touch(&mut self, key: &str, most: usize) -> bool {
        self.clock += 1;
        let before = self.at.insert(key.to_owned(), self.clock);
        before.iter().for_each(|at| _ = self.order.remove(at));
        self.order.insert(self.clock, key.to_owned());
        if self.at.len() > most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.at.remove(&oldest);
        }
        before.is_some()
    }
}

/// Latencies by microseconds, in steps of an eighth of a power of two.
fn bucket(us: u64) -> usize {
    let power = us.max(1).ilog2();
    (power as usize) * 8 + ((us.max(1) << 3 >> power) as usize & 7)
}

fn bucket_us(at: usize) -> u64 {
    (8 + (at as u64 & 7)) << (at / 8) >> 3
}

async fn rate(seconds: u64, streams: usize, bytes: usize, addresses: &[String]) {
    let (pickers, padding) = (Arc::new(Pickers::new(addresses)), Arc::<str>::from("x".repeat(bytes)));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut tasks = Vec::new();
    for number in 0..streams {
        let (pickers, padding) = (Arc::clone(&pickers), Arc::clone(&padding));
        tasks.push(tokio::spawn(async move {
            let (mut random, mut latencies, mut failed) = (Random(number as u64), vec![0_u64; 512], 0_u64);
            while Instant::now() < end {
                let key = (random.next() % 100_000).to_string();
                let start = Instant::now();
                match pickers.ask(&key, &padding).await {
                    Some(_) => {
                        latencies[bucket(u64::try_from(start.elapsed().as_micros()).unwrap()).min(511)] += 1;
                    }
                    None => failed += 1,
                }
            }
            (latencies, failed)
        }));
    }
    let (mut latencies, mut failed) = (vec![0_u64; 512], 0);
    for task in tasks {
        let (own, own_failed) = task.await.unwrap();
        latencies.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        failed += own_failed;
    }
    let count: u64 = latencies.iter().sum();
    let at = |share: f64| {
        let mut left = (count as f64 * share) as u64;
        let found = latencies.iter().position(|&n| {
            let here = left < n;
            left = left.saturating_sub(n);
            here
        });
        bucket_us(found.unwrap_or(0))
    };
    let figures = serde_json::json!({
        "requests": count, "failed": failed, "requests_per_s": count as f64 / seconds as f64,
        "p50_us": at(0.5), "p99_us": at(0.99),
    });
    println!("{figures}");
}

/// Counts of a second.
#[derive(Default)]
struct Second {
    requests: AtomicU64,
    hits: AtomicU64,
    failed: AtomicU64,
}

async fn play(seconds: u64, streams: usize, keys: u64, memory: usize, addresses: &[String]) {
    let pickers = Arc::new(Pickers::new(addresses));
    let memories: Arc<Mutex<HashMap<String, Memory>>> = Arc::default();
    let second = Arc::new(Second::default());
    for number in 0..streams {
        let (pickers, memories, second) = (Arc::clone(&pickers), Arc::clone(&memories), Arc::clone(&second));
        tokio::spawn(async move {
            let mut random = Random(number as u64);
            loop {
                let key = random.zipf(keys).to_string();
                match pickers.ask(&key, "").await {
                    Some(endpoint) => {
                        let hit = memories.lock().unwrap().entry(endpoint).or_default().touch(&key, memory);
                        second.hits.fetch_add(u64::from(hit), Relaxed);
                        second.requests.fetch_add(1, Relaxed);
                    }
                    None => _ = second.failed.fetch_add(1, Relaxed),
                }
            }
        });
    }
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    for number in 1..=seconds {
        ticks.tick().await;
        let take = |count: &AtomicU64| count.swap(0, Relaxed);
        let (requests, hits, failed) = (take(&second.requests), take(&second.hits), take(&second.failed));
        println!(
            "{}",
            serde_json::json!({ "second": number, "requests": requests, "hits": hits, "failed": failed })
        );
    }
}

async fn place(keys: u64, addresses: &[String]) {
    let pickers = Arc::new(Pickers::new(addresses));
    let places = stream::iter(0..keys)
        .map(|key| {
            let pickers = Arc::clone(&pickers);
            async move { pickers.ask(&key.to_string(), "").await }
        })
        .buffered(16)
        .collect::<Vec<_>>()
        .await;
    println!("{}", serde_json::json!(places));
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments[at].parse::<u64>().unwrap();
    let size = |at: usize| usize::try_from(number(at)).unwrap();
    match arguments.first().map(String::as_str) {
        Some("rate") => rate(number(1), size(2), size(3), &arguments[4..]).await,
        Some("play") => play(number(1), size(2), number(3), size(4), &arguments[5..]).await,
        Some("place") => place(number(1), &arguments[2..]).await,
        _ => panic!("rate, play or place: see the head of the file"),
    }
}
