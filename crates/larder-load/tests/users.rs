//! Simulated users on loopback: pages, the window, arrivals and departures.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a panic is a failed test")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Next, Server, reply};
use larder_load::{
    ConnectionLifetime, PathPrefixes, Script, UserPlan, UserProgress, UserSettings, Users, UsersReport,
    UsersWarning,
};
use larder_trace::synth::draw::{InverseGaussian, Pareto};
use larder_trace::synth::mix::{Mix, MixRecipe};
use larder_trace::synth::sessions::{SessionRecipe, Site};

const MS: Duration = Duration::from_millis(1);

/// Pages with three to four objects, and pauses of 2 ms.
fn recipe(sessions_per_s: f64, span_s: f64) -> SessionRecipe {
    SessionRecipe {
        sessions_per_s,
        span_s,
        documents: 200,
        pages: InverseGaussian { mu: 3.0, lambda: 1e6 },
        objects: Pareto { shape: 100.0, scale: 3.0, most: 4.0 },
        think_s: Pareto { shape: 1.4, scale: 0.002, most: 0.003 },
        ..SessionRecipe::cap01(Site::PublishingStatic)
    }
}

fn sessions(recipe: &SessionRecipe) -> Script {
    Script::sessions(recipe, &PathPrefixes::default(), 1).unwrap()
}

/// A server that replies with bodies of the script's sizes.
fn server(script: &Script) -> Server {
    let sizes: BTreeMap<String, u64> =
        script.resources().iter().map(|resource| (resource.path.clone(), resource.bytes)).collect();
    Server::start(move |request, stream| match sizes.get(request.target) {
        Some(bytes) => reply(stream, "200 OK", "", &vec![b'x'; *bytes as usize]),
        None => reply(stream, "404 Not Found", "", b""),
    })
}

fn plan(script: Script, server: &Server, users: Users) -> UserPlan {
    let settings =
        UserSettings { timeout: Duration::from_secs(20), ..UserSettings::new(server.address, "test") };
    UserPlan { script, settings, users, warmup: Duration::ZERO, duration: 500 * MS }
}

fn run(plan: UserPlan) -> UsersReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(larder_load::users::run(plan, &|_| ())).unwrap()
}

#[test]
fn open_sessions_arrive_at_their_times_and_fetch_all_their_pages() {
    let script = sessions(&recipe(40.0, 0.4));
    let server = server(&script);
    let plan = plan(script.clone(), &server, Users::Open { at_once_max: 100 });
    let report = run(UserPlan { duration: 5_000 * MS, ..plan });
    assert_eq!(report.visits, script.visits().len() as u64);
    let pages: usize = script.visits().iter().map(|visit| script.pages(visit).len()).sum();
    assert_eq!((report.pages.ok, report.pages.failed, report.abandoned), (pages as u64, 0, 0));
    assert_eq!(report.requests.ok, script.requests());
    // The window ended when no user was left, long before its planned end.
    assert!(report.window_s < 4.0 && report.hits_per_s > script.requests() as f64 / 4.0);
    // The same objects as in the script, in any order.
    let mut wanted: Vec<&str> = script
        .visits()
        .iter()
        .flat_map(|visit| script.pages(visit))
        .flat_map(|page| script.objects(page))
        .map(|object| &*script.resources()[*object as usize].path)
        .collect();
    let mut request = server.targets();
    wanted.sort_unstable();
    request.sort_unstable();
    assert_eq!(request, wanted);
    // Each connection serves one page, and a page with more than one embedded object uses two.
    assert!(report.requests.connections.opened <= 2 * pages as u64);
    assert!(report.requests.connections.opened >= pages as u64);
    assert!(report.warnings.iter().any(|warning| matches!(warning, UsersWarning::VisitsRanOut { .. })));
    let class = &report.pages_by_class[0];
    assert_eq!((report.pages_by_class.len(), &*class.class, class.ok), (1, "n", pages as u64));
}

#[test]
fn embedded_objects_follow_the_base_object_over_a_limited_number_of_connections() {
    // The base object takes 60 ms, each embedded object 30 ms: two rounds of two over two connections.
    let recipe = SessionRecipe {
        pages: InverseGaussian { mu: 1.0, lambda: 1e6 },
        objects: Pareto { shape: 100.0, scale: 4.9, most: 5.0 },
        // No user reaches a second page.
        think_s: Pareto { shape: 1.4, scale: 3_000.0, most: 4_000.0 },
        ..recipe(100.0, 0.05)
    };
    let made = sessions(&recipe);
    let first: Vec<u32> = made.objects(&made.pages(&made.visits()[0])[0]).to_vec();
    assert_eq!(first.len(), 5);
    let events = Arc::new(Mutex::new(Vec::new()));
    let (notes, base) = (Arc::clone(&events), made.resources()[first[0] as usize].path.clone());
    let server = Server::start(move |request, stream| {
        let is_base = request.target == base && request.nth == 0;
        notes.lock().unwrap().push((std::time::Instant::now(), true));
        larder_testkit::take_time(if is_base { 60 * MS } else { 30 * MS });
        notes.lock().unwrap().push((std::time::Instant::now(), false));
        reply(stream, "200 OK", "", b"x")
    });
    let mut plan = plan(made, &server, Users::Closed { clients: 1 });
    plan.settings.check_sizes = false;
    plan.duration = Duration::from_secs(3_600);
    let (stop, runtime) = (
        plan.settings.stop.clone(),
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
    );
    let page_stats = |progress: UserProgress| {
        if progress.finished == 5 {
            stop.stop();
        }
    };
    let report = runtime.block_on(larder_load::users::run(plan, &page_stats)).unwrap();
    assert_eq!((report.pages.ok, report.requests.ok), (1, 5));
    assert_eq!(server.notes.busy_max.load(std::sync::atomic::Ordering::SeqCst), 2);
    assert_eq!(report.requests.connections.opened, 2);
    // The page's latency is 60 + 2 x 30 ms; no request's latency includes the wait for another.
    assert!(report.pages.latency.min_us >= 120_000.0, "{}", report.pages.latency.min_us);
    assert!(report.requests.latency.min_us < 60_000.0);
    // No embedded object is requested before the base object is complete.
    let events = events.lock().unwrap();
    assert!(!events[1].1);
}

#[test]
fn a_fixed_number_of_users_is_never_exceeded_and_repeats_visits() {
    let script = Script::mix(
        &MixRecipe {
            pages: 5,
            think_s: Pareto { shape: 1.4, scale: 0.000_1, most: 0.000_2 },
            documents: 50,
            ..MixRecipe::cap01(Mix::Intensive)
        },
        &PathPrefixes::default(),
        3,
    )
    .unwrap();
    let server = server(&script);
    let mut plan = plan(script, &server, Users::Closed { clients: 4 });
    plan.settings.keep = ConnectionLifetime::Request;
    plan.settings.parallel = 1;
    plan.settings.threads = 2;
    plan.warmup = 100 * MS;
    let report = run(plan);
    assert!(report.visits > 5, "{} visits of a script of 5", report.visits);
    assert_eq!(report.users_max, 4);
    // One connection for each request: as many in the window as hits, except for those across its ends.
    assert_eq!(report.requests.connections.opened, report.requests.finished);
    assert!((report.connections_per_s - report.hits_per_s).abs() <= 8.0 / report.window_s);
    assert!(report.connections_per_s > 0.0 && report.connect.samples > 0);
    assert!((report.window_s - 0.4).abs() < 0.06, "{}", report.window_s);
    assert!(report.requests.warmup > 0);
    let classes: Vec<&str> = report.requests_by_class.iter().map(|row| &*row.class).collect();
    assert!(classes.contains(&"n"), "{classes:?}");
    let of_classes: u64 = report.requests_by_class.iter().map(|row| row.ok).sum();
    assert_eq!(of_classes, report.requests.ok);
}

#[test]
fn visits_above_the_limit_wait_and_the_wait_counts() {
    // One user at a time and 20 ms for each reply: twenty sessions that arrive at once form a queue.
    let recipe = SessionRecipe {
        pages: InverseGaussian { mu: 1.0, lambda: 1e6 },
        objects: Pareto { shape: 100.0, scale: 1.0, most: 1.1 },
        ..recipe(2_000.0, 0.01)
    };
    let script = sessions(&recipe);
    let visits = script.visits().len() as u64;
    assert!(visits > 5);
    let server = Server::start(|_, stream| {
        larder_testkit::take_time(20 * MS);
        reply(stream, "200 OK", "", b"x")
    });
    let mut plan = plan(script, &server, Users::Open { at_once_max: 1 });
    plan.settings.check_sizes = false;
    plan.duration = 5_000 * MS;
    let report = run(plan);
    assert_eq!((report.pages.ok, report.users_max), (visits, 1));
    assert!(report.waits >= visits - 1);
    // The last one waited for all others: 20 ms each, less the 10 ms in which they arrived.
    assert!(report.pages.latency.max_us >= (visits * 20 - 10) as f64 * 990.0);
    let warned = |kind: fn(&UsersWarning) -> bool| report.warnings.iter().any(kind);
    assert!(warned(|warning| matches!(warning, UsersWarning::VisitsWaited { .. })));
    assert!(warned(|warning| matches!(warning, UsersWarning::PagesLate { .. })));
}

#[test]
fn visits_that_never_start_are_counted_and_warned_of() {
    // The only allowed user is delayed beyond the end of the run.
    let script = sessions(&recipe(200.0, 0.2));
    let visits = script.visits().len() as u64;
    let server = Server::start(|_, stream| {
        larder_testkit::take_time(600 * MS);
        reply(stream, "200 OK", "", b"x")
    });
    let mut plan = plan(script, &server, Users::Open { at_once_max: 1 });
    plan.settings.check_sizes = false;
    plan.duration = 300 * MS;
    let report = run(plan);
    assert_eq!((report.visits, report.missed), (1, visits - 1));
    let waited =
        |warning: &UsersWarning| matches!(warning, UsersWarning::VisitsWaited { missed, .. } if *missed > 0);
    assert!(report.warnings.iter().any(waited));
}

#[test]
fn a_user_leaves_when_a_base_object_fails_but_not_when_an_embedded_object_fails() {
    let script = sessions(&recipe(40.0, 0.2));
    for part in ["/page/", "/object/"] {
        let server = Server::start(move |request, stream| {
            let status = if request.target.contains(part) { "500 Oops" } else { "200 OK" };
            reply(stream, status, "", b"x")
        });
        let mut plan = plan(script.clone(), &server, Users::Open { at_once_max: 100 });
        plan.settings.check_sizes = false;
        plan.duration = 5_000 * MS;
        let report = run(plan);
        let pages = script.visits().iter().map(|visit| script.pages(visit).len() as u64).sum::<u64>();
        let visits = script.visits().len() as u64;
        assert_eq!(report.pages.ok, 0);
        let (failed, abandoned) = if part == "/page/" { (visits, visits) } else { (pages, 0) };
        assert_eq!((report.pages.failed, report.abandoned), (failed, abandoned), "{part}");
        assert!(report.is_doubtful());
    }
}

#[test]
fn wrong_sizes_are_faults_of_documents_only() {
    let recipe = MixRecipe {
        pages: 50,
        think_s: Pareto { shape: 1.4, scale: 0.000_1, most: 0.000_2 },
        ..MixRecipe::cap01(Mix::Light)
    };
    let script = Script::mix(&recipe, &PathPrefixes::default(), 1).unwrap();
    let server = Server::start(|_, stream| reply(stream, "200 OK", "", b"not as long as it should be"));
    let report = run(plan(script, &server, Users::Closed { clients: 2 }));
    let programs = server.targets().iter().filter(|target| target.starts_with("/cgi/")).count() as u64;
    // The last page may have finished after the window.
    assert!(programs > 0 && report.requests.ok <= programs && report.requests.ok > 0);
    assert_eq!(report.requests.faults.keys().map(|fault| fault.name()).collect::<Vec<_>>(), ["wrong_size"]);
}

#[test]
fn a_stop_ends_pauses() {
    let patient = SessionRecipe {
        think_s: Pareto { shape: 1.4, scale: 3_000.0, most: 4_000.0 },
        ..recipe(1_000.0, 0.02)
    };
    let script = sessions(&patient);
    let server = server(&script);
    let mut plan = plan(script, &server, Users::Closed { clients: 3 });
    plan.duration = Duration::from_secs(3_600);
    let stop = plan.settings.stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let page_stats = |progress: UserProgress| {
        if progress.finished >= 3 {
            stop.stop();
        }
    };
    let begun = std::time::Instant::now();
    let report = runtime.block_on(larder_load::users::run(plan, &page_stats)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(report.pages.ok >= 1 && report.is_doubtful());
    assert!(report.window_s < 30.0);
}

#[test]
fn pauses_are_scaled() {
    let count = |time_scale: f64| {
        let script = sessions(&SessionRecipe {
            think_s: Pareto { shape: 1.4, scale: 0.1, most: 0.100_1 },
            objects: Pareto { shape: 100.0, scale: 1.0, most: 1.1 },
            ..recipe(1_000.0, 0.05)
        });
        let server = server(&script);
        let mut plan = plan(script, &server, Users::Closed { clients: 1 });
        plan.settings.time_scale = time_scale;
        run(plan).pages.ok
    };
    // 500 ms: no more than six pages 100 ms apart, and many more 1 ms apart.
    assert!(count(1.0) <= 6);
    assert!(count(0.01) > 20);
}

#[test]
fn invalid_plans_are_refused_and_nothing_is_sent() {
    let script = sessions(&recipe(40.0, 0.2));
    let server = Server::start(|_, _| Next::Close);
    let good = || plan(script.clone(), &server, Users::Closed { clients: 1 });
    let refused = |plan: UserPlan| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(larder_load::users::run(plan, &|_| ())).unwrap_err().to_string()
    };
    let settings = |settings: UserSettings| UserPlan { settings, ..good() };
    let usual = good().settings;
    for (plan, part) in [
        (UserPlan { users: Users::Closed { clients: 0 }, ..good() }, "users"),
        (UserPlan { warmup: 500 * MS, ..good() }, "after the warm-up"),
        (UserPlan { duration: Duration::ZERO, ..good() }, "duration"),
        (settings(UserSettings { parallel: 65, ..usual.clone() }), "connections of a user"),
        (settings(UserSettings { threads: 0, ..usual.clone() }), "threads"),
        (settings(UserSettings { time_scale: f64::NAN, ..usual.clone() }), "time scale"),
        (settings(UserSettings { timeout: Duration::ZERO, ..usual.clone() }), "timeout"),
        (settings(UserSettings { host: "a\r\nb".into(), ..usual }), "Host"),
    ] {
        let error = refused(plan);
        assert!(error.contains(part), "{error}");
    }
    assert!(server.targets().is_empty());
}

#[test]
fn a_sweep_is_a_run_for_each_number_of_clients() {
    let recipe = MixRecipe {
        pages: 50,
        think_s: Pareto { shape: 1.4, scale: 0.001, most: 0.002 },
        ..MixRecipe::cap01(Mix::Static)
    };
    let script = Script::mix(&recipe, &PathPrefixes::default(), 1).unwrap();
    let server = server(&script);
    let plan = UserPlan { duration: 200 * MS, ..plan(script, &server, Users::Closed { clients: 1 }) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let swept = runtime
        .block_on(larder_load::users::sweep(&plan, &[1, 3], &|clients, _| assert!(clients <= 3)))
        .unwrap();
    let clients: Vec<_> = swept.runs.iter().map(|run| (run.setup.clients, run.users_max)).collect();
    assert_eq!(clients, [(Some(1), 1), (Some(3), 3)]);
    let text = swept.render();
    assert!(
        text.contains("conn/s") && text.lines().filter(|line| !line.starts_with("warning")).count() == 5,
        "{text}"
    );
    let back: larder_load::users::SweepReport =
        serde_json::from_str(&serde_json::to_string(&swept).unwrap()).unwrap();
    assert_eq!(back, swept);
    assert!(runtime.block_on(larder_load::users::sweep(&plan, &[], &|_, _| ())).is_err());
}
