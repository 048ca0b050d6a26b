//! Stress test of record and replay: threads drive a recorded dispatcher, and the replay of the record must
//! decide alike.
//!
//! `LARDER_SEED` chooses the inputs. The order of the threads at a lock differs in every run.

use larder_core::dispatch::{Admission, CacheEvent};
use larder_core::nodes::{LoadReport, mix};
use larder_core::read_log::{ReadKind, ReadLogEntry, ReplayFault};
use larder_core::record::{ChangeRecord, DecisionRecord, EndReason, Frame, Header, RecordSink};
use larder_core::{
    Arrival, Bytes, Dispatcher, NodeId, NodeSpec, PolicyKind, Request, Settings, TargetId, Time, Weight,
};
use larder_sim::replay::{FrameError, Replay, ReplayError, Summary};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const THREADS: u64 = 4;

/// A witness that keeps all frames.
#[derive(Clone, Debug, Default)]
struct FrameRecorder(Arc<Mutex<Vec<Frame>>>);

impl RecordSink for FrameRecorder {
    fn record_decision(&self, decided: DecisionRecord) -> bool {
        self.0.lock().expect("not poisoned").push(Frame::Decision(decided));
        true
    }

    fn record_change(&self, changed: ChangeRecord) -> bool {
        self.0.lock().expect("not poisoned").push(Frame::Change(changed));
        true
    }
}

fn seed() -> u64 {
    let seed = std::env::var("LARDER_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    eprintln!("LARDER_SEED={seed}");
    seed
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % n
    }
}

/// A clock that advances by 3 ms with every read.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl Clock {
    fn now(&self) -> Time {
        Time::from_millis(self.0.fetch_add(3, Ordering::Relaxed))
    }
}

/// Sends the requests of one thread: `rounds`, and up to ten times as many until `done`.
fn serve(dispatcher: &Dispatcher, clock: &Clock, mut lots: Rng, rounds: u64, done: &AtomicBool) {
    let (mut held, mut started, mut expired) = (Vec::new(), Vec::new(), Vec::new());
    let mut round = 0;
    while round < rounds || round < 10 * rounds && !done.load(Ordering::Relaxed) {
        round += 1;
        // There are few targets, some of them hot, so that sets grow, shrink and are forgotten.
        let hot = if lots.below(3) == 0 { 4 } else { 300 };
        let request = Request::new(TargetId(mix(lots.below(hot))));
        let request = request.with_class(larder_core::ServiceClass::ALL[lots.below(4) as usize]);
        let request =
            if lots.below(2) == 0 { request } else { request.with_origin(NodeId(lots.below(6) as u16)) };
        if let Arrival::Start(decision) = dispatcher.arrive(clock.now(), request) {
            held.push((decision.node, request));
            // A forwarding plane reuses the decision, even if the node has gone in the meantime.
            if lots.below(5) == 0 && dispatcher.reuse(clock.now(), request, decision.node) {
                held.push((decision.node, request));
            }
        }
        while held.len() > lots.below(60) as usize {
            let (node, request) = held.swap_remove(lots.below(held.len() as u64) as usize);
            if lots.below(10) > 0 {
                dispatcher.finish(clock.now(), node, &mut started);
            } else {
                match dispatcher.retry(clock.now(), node, request) {
                    Ok(decision) => {
                        held.push((
                            decision.node,
                            Request { exclude: request.exclude.with(node), ..request },
                        ));
                    }
                    Err(_) => dispatcher.abandon(clock.now(), &mut started),
                }
            }
            let begun = started.drain(..).filter_map(|started| started.outcome.ok());
            held.extend(begun.map(|decision| (decision.node, request)));
        }
        if lots.below(50) == 0 {
            dispatcher.expire(clock.now(), &mut expired);
        }
    }
    let any = Request::new(TargetId(0));
    while let Some((node, _)) = held.pop() {
        dispatcher.finish(clock.now(), node, &mut started);
        held.extend(started.drain(..).filter_map(|started| started.outcome.ok()).map(|d| (d.node, any)));
    }
}

/// Disturbs the nodes `times` times: they fail, drain, recover, join, leave, become backups, change weights
/// and report.
fn disturb(dispatcher: &Dispatcher, clock: &Clock, mut lots: Rng, times: u32) {
    let mut started = Vec::new();
    let mut joined = 0_u32;
    for _ in 0..times {
        let node = NodeId(lots.below(10) as u16);
        let now = clock.now();
        match lots.below(13) {
            0 => _ = dispatcher.fail(now, node, &mut started),
            1 => _ = dispatcher.drain(now, node, &mut started),
            2..=5 => _ = dispatcher.recover(now, node, &mut started),
            6 => _ = dispatcher.leave(now, node, &mut started),
            7 | 8 => {
                joined += 1;
                let spec = NodeSpec {
                    cache: Bytes::mib(lots.below(3) * 64),
                    ..NodeSpec::named(format!("j{joined}"))
                };
                drop(dispatcher.join(now, spec, &mut started));
            }
            9 => {
                let weight = Weight::from_milli(500 + lots.below(2_000) as u32).expect("in range");
                dispatcher.reweigh(now, node, weight, &mut started);
            }
            10 => {
                let share = lots.below(1_000) as u16;
                let report = LoadReport {
                    cpu_permille: Some(share),
                    processes: Some(lots.below(50) as u32),
                    service_us: Some(900),
                    ..LoadReport::default()
                };
                dispatcher.report(now, node, report);
            }
            11 => _ = dispatcher.set_backup(now, node, lots.below(2) == 0, &mut started),
            _ => {
                let event = [CacheEvent::Stored, CacheEvent::Evicted][lots.below(2) as usize];
                dispatcher.cache_event(now, node, TargetId(mix(lots.below(300))), event);
            }
        }
        for decision in started.drain(..).filter_map(|started| started.outcome.ok()).collect::<Vec<_>>() {
            // The client is gone at once.
            dispatcher.finish(clock.now(), decision.node, &mut Vec::new());
        }
        for _ in 0..lots.below(4) {
            std::thread::yield_now();
        }
    }
}

fn settings(policy: PolicyKind) -> Settings {
    Settings {
        policy,
        admission: Admission::Fixed(120),
        queue_max: 30,
        queue_timeout: std::time::Duration::from_millis(400),
        t_low: 4,
        t_high: 9,
        replication_decay: std::time::Duration::from_millis(900),
        targets_max: 128,
        shards: 4,
        nodes_max: 80,
        join_targets_per_s: 20,
        join_warm_targets: 30,
        ..Settings::default()
    }
}

/// Records a run of several threads.
fn run(policy: PolicyKind, rounds: u64) -> (Header, Vec<Frame>) {
    let nodes: Vec<NodeSpec> = (0..6)
        .map(|i| NodeSpec { cache: Bytes::mib(64 << (i % 2)), ..NodeSpec::named(format!("n{i}")) })
        .collect();
    let keeper = FrameRecorder::default();
    let dispatcher =
        Dispatcher::with_record_sink(settings(policy), Vec::new(), &nodes, Box::new(keeper.clone()))
            .expect("in range");
    let (clock, done, seed) = (Clock::default(), AtomicBool::new(false), seed());
    std::thread::scope(|scope| {
        let (dispatcher, clock, done) = (&dispatcher, &clock, &done);
        for thread in 1..=THREADS {
            scope.spawn(move || serve(dispatcher, clock, Rng(mix(seed + thread * 77)), rounds, done));
        }
        disturb(dispatcher, clock, Rng(mix(seed)), 150);
        done.store(true, Ordering::Relaxed);
    });
    let frames = std::mem::take(&mut *keeper.0.lock().expect("not poisoned"));
    (Header { settings: settings(policy), routes: Vec::new(), nodes }, frames)
}

/// Records a run without races, which is the same every time.
fn calm(policy: PolicyKind, rounds: u64) -> (Header, Vec<Frame>) {
    let nodes = vec![NodeSpec::named("a"), NodeSpec::named("b"), NodeSpec::named("c")];
    let keeper = FrameRecorder::default();
    let dispatcher =
        Dispatcher::with_record_sink(settings(policy), Vec::new(), &nodes, Box::new(keeper.clone()))
            .expect("in range");
    let clock = Clock::default();
    let done = AtomicBool::new(true);
    serve(&dispatcher, &clock, Rng(7), rounds, &done);
    dispatcher.fail(clock.now(), NodeId(1), &mut Vec::new());
    serve(&dispatcher, &clock, Rng(8), rounds, &done);
    let frames = std::mem::take(&mut *keeper.0.lock().expect("not poisoned"));
    (Header { settings: settings(policy), routes: Vec::new(), nodes }, frames)
}

fn bytes((header, frames): &(Header, Vec<Frame>), end: EndReason) -> Vec<u8> {
    let mut bytes = header.encode().expect("it can be recorded");
    for frame in frames.iter().chain([&Frame::End(end, frames.len() as u64)]) {
        bytes.extend(frame.encode().expect("short enough"));
    }
    bytes
}

/// Replays a record and returns both logs.
fn replayed(record: &[u8]) -> Result<(String, String, Summary), ReplayError> {
    let mut replay = Replay::open(record)?;
    let (mut live, mut again) = (String::new(), String::new());
    for row in &mut replay {
        let row = row?;
        live += &row.live;
        again += &row.replayed;
    }
    Ok((live, again, replay.summary().clone()))
}

#[test]
fn concurrent_decisions_are_replayed_exactly() {
    for policy in PolicyKind::ALL {
        let run = run(policy, 1_000);
        let (live, again, summary) =
            replayed(&bytes(&run, EndReason::Complete)).unwrap_or_else(|error| panic!("{policy}: {error}"));
        assert!(live == again, "{policy}: the logs differ in {} lines", summary.differing);
        assert_eq!((summary.differing, summary.left_out), (0, 0), "{policy}");
        assert_eq!(
            summary.decisions + summary.changes,
            run.1.len() as u64,
            "{policy}: a line for each frame"
        );
        assert_eq!(live.lines().count(), run.1.len(), "{policy}");
        assert!(summary.decisions >= 1_000 * THREADS && summary.changes >= 40, "{policy}: {summary:?}");
    }
}

/// Checks that the log made from the frames alone equals the live log of a switch.
#[test]
fn the_live_log_matches_the_frames() {
    use larder_core::record::{first_visit, write_change_line, write_decision_line};
    let run = run(PolicyKind::LardR, 500);
    let mut text = String::new();
    for frame in &run.1 {
        match frame {
            Frame::Decision(d) => {
                write_decision_line(
                    &mut text,
                    d.generation,
                    first_visit(&d.read_log),
                    d.at,
                    d.request.target,
                    d.outcome,
                );
            }
            Frame::Change(c) => write_change_line(&mut text, c.generation, c.at, &c.change, c.node),
            Frame::End(..) => {}
        }
    }
    assert_eq!(replayed(&bytes(&run, EndReason::Complete)).expect("replays").1, text);
}

#[test]
fn another_threshold_changes_decisions() {
    let record = bytes(&calm(PolicyKind::LardR, 2_000), EndReason::Complete);
    assert_eq!(
        Replay::open(&record[..])
            .expect("a record")
            .filter(|row| !matches!(row, Ok(row) if row.agrees()))
            .count(),
        0
    );
    let altered = Replay::open_with(&record[..], |settings| settings.t_high = 14).expect("a record");
    let differs = altered.into_iter().find(|row| !matches!(row, Ok(row) if row.agrees()));
    assert!(differs.is_some(), "T_high = 14 instead of 9 must show");
}

#[test]
fn a_wrong_load_is_detected() {
    let mut run = calm(PolicyKind::LeastConn, 300);
    let Some(Frame::Decision(decided)) = run.1.get_mut(100) else { panic!("a decision") };
    let Arrival::Start(decision) = decided.outcome else { panic!("it started: {decided:?}") };
    // The chosen node seems busy. Slots are read from the turn on.
    for entry in &mut decided.read_log {
        if let ReadLogEntry::Read(ReadKind::Turn, turn) = entry {
            *turn = 0;
        }
    }
    let loads =
        decided.read_log.iter_mut().filter(|entry| matches!(entry, ReadLogEntry::Read(ReadKind::Load, _)));
    let load = loads.into_iter().nth(decision.node.index()).expect("all loads were read");
    *load = ReadLogEntry::Read(ReadKind::Load, 90);
    let (live, again, summary) = replayed(&bytes(&run, EndReason::Complete)).expect("it can be replayed");
    assert!(live != again && summary.differing >= 1);
}

#[test]
fn a_forged_outcome_is_detected() {
    let mut run = calm(PolicyKind::Hash, 300);
    let Some(Frame::Decision(decided)) = run.1.get_mut(5) else { panic!("a decision") };
    let Arrival::Start(decision) = &mut decided.outcome else { panic!("it started") };
    decision.node = NodeId(decision.node.0 + 1);
    let (_, _, summary) = replayed(&bytes(&run, EndReason::Complete)).expect("it can be replayed");
    assert_eq!(summary.differing, 1);
}

/// Returns the replay's error after the frames have been spoilt.
fn cause(policy: PolicyKind, spoil: impl FnOnce(&mut Vec<Frame>)) -> String {
    let mut run = calm(policy, 300);
    spoil(&mut run.1);
    replayed(&bytes(&run, EndReason::Complete)).expect_err("it is spoilt").to_string()
}

fn tape(frames: &mut [Frame], at: usize) -> &mut Vec<ReadLogEntry> {
    let Frame::Decision(decided) = &mut frames[at] else { unreachable!("frame {at} is a decision") };
    &mut decided.read_log
}

#[test]
fn errors_name_the_record() {
    let text = cause(PolicyKind::LardR, |frames| tape(frames, 10).truncate(1));
    assert!(text.starts_with("record 11: the tape runs short"), "{text}");
    let text =
        cause(PolicyKind::LardR, |frames| tape(frames, 10).push(ReadLogEntry::Read(ReadKind::Load, 0)));
    assert!(text.starts_with("record 11: ") && text.contains("nothing reads"), "{text}");
    let text =
        cause(PolicyKind::Wrr, |frames| tape(frames, 10)[1] = ReadLogEntry::Read(ReadKind::Minimum, 0));
    assert!(
        text.starts_with("record 11: ") && text.contains("where a count of outstanding requests is read"),
        "{text}"
    );
    let text = cause(PolicyKind::Rr, |frames| drop(frames.remove(10)));
    assert!(text.contains("missing record: turn never reaches position "), "{text}");
    let text = cause(PolicyKind::Rr, |frames| {
        let twin = frames[10].clone();
        frames.insert(0, twin.clone());
        frames.insert(0, twin);
    });
    assert!(text.starts_with("record 2: duplicate of record 1: position "), "{text}");
    let text = cause(PolicyKind::Hash, |frames| {
        if let Frame::Decision(decided) = &mut frames[10] {
            decided.generation = 9;
        }
    });
    assert_eq!(text, "record 11: it is of generation 9 where 0 is due");
}

#[test]
fn cut_records_and_foreign_bytes_end_in_errors() {
    let record = bytes(&calm(PolicyKind::Lard, 20), EndReason::Complete);
    assert!(replayed(&record).is_ok());
    for cut in 0..record.len() {
        assert!(replayed(&record[..cut]).is_err(), "cut at {cut}");
    }
    let longer = [&record[..], b"x"].concat();
    assert!(matches!(replayed(&longer), Err(ReplayError::Frame { cause: FrameError::AfterEnd, .. })));
    let other = [&record[..8], &[1], &record[9..]].concat();
    let error = replayed(&other).expect_err("another version").to_string();
    let read = larder_core::record::VERSION;
    assert_eq!(error, format!("the record is of version 1, this release reads version {read}"));
    assert!(matches!(replayed(b"GET / HTTP/1.1\r\n"), Err(ReplayError::Magic)));
}

/// Flips every bit of a record. The replay must give an error or a log, but never panic.
#[test]
fn a_flipped_bit_never_panics() {
    let record = bytes(&calm(PolicyKind::LardR, 30), EndReason::Complete);
    for at in 9..record.len() {
        for bit in 0..8 {
            let mut spoilt = record.clone();
            spoilt[at] ^= 1 << bit;
            let _ = replayed(&spoilt);
        }
    }
}

#[test]
fn an_overrun_record_is_replayed_up_to_its_torn_end() {
    let mut run = calm(PolicyKind::Rr, 300);
    let length = run.1.len();
    // The writer had no room for this frame, and other frames in progress followed it.
    run.1.remove(length - 5);
    let (live, again, summary) = replayed(&bytes(&run, EndReason::Overrun)).expect("it can be replayed");
    assert_eq!((live.lines().count(), summary.left_out), (length - 5, 4));
    assert!(live == again && summary.end == Some("overrun"));
    let complete = replayed(&bytes(&run, EndReason::Complete)).expect_err("a gap");
    assert!(
        complete
            .to_string()
            .starts_with(&format!("record {}: missing record: turn never reaches position ", length - 4)),
        "{complete}"
    );
}

#[test]
fn tape_faults_name_the_entry() {
    let fault = ReplayFault::Kind { at: 2, found: ReadLogEntry::Read(ReadKind::Load, 3), wanted: "turn" };
    assert_eq!(fault.to_string(), "entry 2 of the tape is Read(Load, 3) where a turn is read");
}
