//! DBench on loopback: each rule ends the climb, the stable phase ends the run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a panic is a failed test")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Next, Server, reply};
use larder_load::dbench::{DbenchPlan, DbenchReport, Ramp, RuleMetric, Rules, StopReason};
use larder_load::{ConnectionLifetime, PathPrefixes, Script, UserSettings};
use larder_trace::synth::profiles::ProfileKind;

const MS: Duration = Duration::from_millis(1);

/// Two hundred users a second, sub-epochs of 100 ms, 300 ms of stable phase, pauses of 20 ms.
fn plan(server: &Server) -> DbenchPlan {
    let script = Script::hacc(ProfileKind::Baseline, &PathPrefixes::hacc(), 1).unwrap();
    let settings =
        UserSettings { time_scale: 0.01, check_sizes: false, ..UserSettings::new(server.address, "test") };
    let plan = DbenchPlan::new(script, settings);
    assert_eq!((plan.rules, plan.settings.keep), (Rules::static_content(), ConnectionLifetime::Request));
    DbenchPlan {
        ramp: Ramp { first: 2, per_s: 200.0, users_max: 40 },
        epoch: 100 * MS,
        stable: 300 * MS,
        ..plan
    }
}

fn run(plan: DbenchPlan) -> DbenchReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(larder_load::dbench::run(plan, &|_| ())).unwrap()
}

#[test]
fn without_trouble_users_climb_to_the_most_allowed_and_stay() {
    let server = Server::plain("x");
    let report = run(plan(&server));
    assert_eq!((report.stopped, report.users), (StopReason::UsersMax, 40));
    let stable = report.stable.as_ref().unwrap();
    // Ticks of 50 ms end the phase.
    assert!((0.299..0.5).contains(&stable.length_s), "{}", stable.length_s);
    assert!(stable.completed > 0 && stable.failed == 0);
    assert!((stable.requests_per_minute / stable.requests_per_s - 60.0).abs() < 1e-9);
    // 40 users need 190 ms at 200 a second.
    assert!(report.climb_s >= 0.19);
    let users: Vec<u64> = report.epochs.iter().map(|epoch| epoch.users).collect();
    assert!(users.is_sorted() && users.last() == Some(&40), "{users:?}");
    // Requests that finished before the end of the run are in a sub-epoch; requests in flight at the end are not.
    let completed: u64 = report.epochs.iter().map(|epoch| epoch.completed).sum();
    assert!(completed <= report.requests.finished && completed + 40 >= report.requests.finished);
    // A connection a request, and how long it took.
    assert_eq!(report.requests.connections.opened, report.requests.finished);
    assert!(report.epochs.iter().any(|epoch| epoch.connect_ms_max > 0.0));
    let text = report.render();
    for part in ["baseline, 500 profiles", "40 after", "the most users allowed", "a minute", "latency ms"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[test]
fn the_first_failures_end_the_climb() {
    let served = AtomicU64::new(0);
    let server = Server::start(move |_, stream| {
        let failing = served.fetch_add(1, Ordering::SeqCst) >= 30;
        reply(stream, if failing { "503 Busy" } else { "200 OK" }, "", b"x")
    });
    let mut plan = plan(&server);
    plan.ramp = Ramp { first: 2, per_s: 20.0, users_max: 1_000 };
    let report = run(plan);
    assert!(matches!(report.stopped, StopReason::Failures { failed } if failed > 0), "{:?}", report.stopped);
    assert!(report.users < 1_000);
    let stable = report.stable.unwrap();
    assert!(stable.failed > 0 && stable.completed == 0);
    assert!(report.epochs.iter().map(|epoch| epoch.failed).sum::<u64>() > 0);
}

#[test]
fn a_mean_above_the_limit_ends_the_climb() {
    // A reply takes 3 ms for each request in flight, so more users wait longer.
    let busy = std::sync::Arc::new(AtomicU64::new(0));
    let server = Server::start(move |_, stream| {
        let others = busy.fetch_add(1, Ordering::SeqCst);
        larder_testkit::take_time(MS * 3 * (others as u32 + 1));
        busy.fetch_sub(1, Ordering::SeqCst);
        reply(stream, "200 OK", "", b"x")
    });
    let mut plan = plan(&server);
    plan.ramp = Ramp { first: 1, per_s: 40.0, users_max: 1_000 };
    plan.rules = Rules {
        metric: RuleMetric::FirstByte,
        mean_max: 20 * MS,
        single_max: Duration::from_secs(60),
        ..Rules::dynamic_content()
    };
    let report = run(plan);
    match report.stopped {
        StopReason::Mean { s, limit_s } => assert!(s > 0.02 && (limit_s - 0.02).abs() < 1e-9),
        other => panic!("{other:?}"),
    }
    assert!(report.users > 1 && report.users < 1_000);
    assert!(report.render().contains("mean time to the first byte"));
}

#[test]
fn a_single_value_above_the_limit_ends_the_climb() {
    let served = AtomicU64::new(0);
    let server = Server::start(move |_, stream| {
        if served.fetch_add(1, Ordering::SeqCst) == 20 {
            larder_testkit::take_time(200 * MS);
        }
        reply(stream, "200 OK", "", b"x")
    });
    let mut plan = plan(&server);
    plan.ramp = Ramp { first: 2, per_s: 10.0, users_max: 1_000 };
    plan.rules = Rules {
        metric: RuleMetric::FirstByte,
        mean_max: Duration::from_secs(60),
        single_max: 150 * MS,
        ..Rules::dynamic_content()
    };
    let report = run(plan);
    assert!(matches!(report.stopped, StopReason::Maximum { s, .. } if s > 0.15), "{:?}", report.stopped);
}

#[test]
fn refused_connections_are_failures() {
    // A server that accepts connections and resets them.
    let server = Server::start(|_, _| Next::Reset);
    let report = run(plan(&server));
    assert!(matches!(report.stopped, StopReason::Failures { .. }));
    assert_eq!(report.stable.unwrap().completed, 0);
}

#[test]
fn an_interrupt_ends_the_run_with_a_report() {
    let server = Server::plain("x");
    let mut plan = plan(&server);
    plan.stable = Duration::from_secs(900);
    let stop = plan.settings.stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let progress = |progress: larder_load::UserProgress| {
        if progress.finished > 10 {
            stop.stop();
        }
    };
    let report = runtime.block_on(larder_load::dbench::run(plan, &progress)).unwrap();
    assert_eq!(report.stopped, StopReason::Interrupted);
    let back: DbenchReport = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(back, report);
}

#[test]
fn plans_of_unlimited_length_are_refused() {
    let server = Server::plain("x");
    let refused = |plan: DbenchPlan| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(larder_load::dbench::run(plan, &|_| ())).unwrap_err().to_string()
    };
    let ramp = |ramp: Ramp| DbenchPlan { ramp, ..plan(&server) };
    let usual = plan(&server).ramp;
    for (plan, part) in [
        (ramp(Ramp { first: 41, ..usual }), "users at the start"),
        (ramp(Ramp { per_s: 0.0, ..usual }), "ramp of 0"),
        (ramp(Ramp { per_s: 1e-6, ..usual }), "sub-epochs"),
        (DbenchPlan { epoch: MS, ..plan(&server) }, "sub-epoch in hundredths"),
        (DbenchPlan { stable: Duration::ZERO, ..plan(&server) }, "stable phase"),
        (
            DbenchPlan {
                rules: Rules { mean_max: Duration::ZERO, ..Rules::static_content() },
                ..plan(&server)
            },
            "mean",
        ),
    ] {
        let error = refused(plan);
        assert!(error.contains(part), "{error}");
    }
    assert!(server.targets().is_empty());
}
