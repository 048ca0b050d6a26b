//! The stream of cache events, which `GET /.larder/events` returns. Each line is one JSON object:
//!
//! ```text
//! {"snapshot":{"node":"a","run":"5f0..","targets":2},"at_us":10}    first line; targets: approximate number of `held` lines
//! {"held":"<16 hexadecimal digits>","bytes":100}                    a target in the cache, oldest first
//! {"live":true,"at_us":12}                                          end of the `held` lines
//! {"stored":"<16 hexadecimal digits>","bytes":100,"at_us":15}       the target was stored
//! {"evicted":"<16 hexadecimal digits>","at_us":19}                  the target was evicted
//! {"beat":1,"at_us":2000015}                                        heartbeat of an idle stream
//! {"cut":"lagging"}                                                 last line; or "shutdown", or "secret"
//! ```
//! `at_us` is the time of the event in microseconds since the node's start. A reader knows the cache's targets
//! once the stream is live. A reader that is cut must start again. A connection that is silent for longer than
//! a few heartbeats is dead. After a reload that changes `report.secret`, a stream ends with "secret" at its
//! next line or heartbeat.

use crate::body::Stream;
use crate::config::ReportConfig;
use crate::memory::{Memory, ResidencyChange, ResidencyEvent, Subscription};
use crate::settings::CurrentSettings;
use crate::store::StoreError;
use crate::uptime::Uptime;
use bytes::Bytes;
use larder_peers::ClusterSecrets;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Most changes in one piece of the body.
const BATCH: usize = 256;

/// An event stream in progress.
pub(crate) struct EventStream {
    inputs: EventInputs,
    subscription: Subscription,
    /// The accepted secrets at the start of the stream. The reader has proved one of them.
    secrets: Option<ClusterSecrets>,
    beat: Interval,
    beats: u64,
    stage: Stage,
}

/// The inputs of the events.
pub(super) struct EventInputs {
    pub(super) name: Box<str>,
    pub(super) run: u64,
    pub(super) memory: Arc<Memory>,
    pub(super) settings: Arc<CurrentSettings>,
    pub(super) uptime: Uptime,
}

#[derive(Clone, Copy)]
enum Stage {
    /// The stream has sent nothing.
    Opening,
    /// The held targets are being sent; the sequence number of the next one.
    Snapshot(u64),
    /// Changes are sent as they happen.
    Live,
    /// The last line was sent.
    Cut,
}

impl EventStream {
    pub(super) fn new(inputs: EventInputs, subscription: Subscription, report: &ReportConfig) -> Self {
        let mut beat = interval(report.heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick would fire at once.
        beat.reset();
        let secrets = report.secret.clone();
        Self { inputs, subscription, secrets, beat, beats: 0, stage: Stage::Opening }
    }

    fn poll_lines(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut lines = String::new();
        match self.stage {
            Stage::Opening => {
                let EventInputs { name, run, memory, .. } = &self.inputs;
                let (node, targets) = (serde_json::Value::from(&**name), memory.residents());
                let at = self.micros_at(Instant::now());
                let _ = writeln!(
                    lines,
                    r#"{{"snapshot":{{"node":{node},"run":"{run:016x}","targets":{targets}}},"at_us":{at}}}"#
                );
                self.stage = Stage::Snapshot(0);
            }
            Stage::Snapshot(from) => {
                let page = self.inputs.memory.resident_page(from);
                for resident in &page {
                    let _ = writeln!(lines, r#"{{"held":"{}","bytes":{}}}"#, resident.target, resident.bytes);
                }
                self.stage = match page.last() {
                    Some(last) => Stage::Snapshot(last.sequence + 1),
                    None => {
                        let _ =
                            writeln!(lines, r#"{{"live":true,"at_us":{}}}"#, self.micros_at(Instant::now()));
                        Stage::Live
                    }
                };
            }
            Stage::Live => return self.poll_live(cx, lines),
            Stage::Cut => return Poll::Ready(None),
        }
        Poll::Ready(Some(lines.into()))
    }

    fn poll_live(&mut self, cx: &mut Context<'_>, mut lines: String) -> Poll<Option<Bytes>> {
        for _ in 0..BATCH {
            match self.subscription.changes.poll_recv(cx) {
                Poll::Ready(Some(event)) => self.write(&mut lines, event),
                Poll::Ready(None) => {
                    let why = if self.subscription.has_lagged() { "lagging" } else { "shutdown" };
                    let _ = writeln!(lines, r#"{{"cut":"{why}"}}"#);
                    self.stage = Stage::Cut;
                    break;
                }
                Poll::Pending => break,
            }
        }
        if lines.is_empty() {
            if Pin::new(&mut self.beat).poll_tick(cx).is_pending() {
                return Poll::Pending;
            }
            self.beats += 1;
            let _ =
                writeln!(lines, r#"{{"beat":{},"at_us":{}}}"#, self.beats, self.micros_at(Instant::now()));
        } else {
            self.beat.reset();
        }
        if self.inputs.settings.load().report.secret != self.secrets {
            lines = "{\"cut\":\"secret\"}\n".into();
            self.stage = Stage::Cut;
        }
        Poll::Ready(Some(lines.into()))
    }

    fn write(&self, lines: &mut String, ResidencyEvent { change, at }: ResidencyEvent) {
        let at = self.micros_at(at);
        let _ = match change {
            ResidencyChange::Stored(target, bytes) => {
                writeln!(lines, r#"{{"stored":"{target}","bytes":{bytes},"at_us":{at}}}"#)
            }
            ResidencyChange::Evicted(target) => writeln!(lines, r#"{{"evicted":"{target}","at_us":{at}}}"#),
        };
    }

    fn micros_at(&self, at: Instant) -> u128 {
        self.inputs.uptime.elapsed_at(at).as_micros()
    }
}

impl Stream for EventStream {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, StoreError>>> {
        self.poll_lines(cx).map(|lines| lines.map(Ok))
    }

    fn truncation_error(&self) -> StoreError {
        StoreError::Abandoned
    }
}
