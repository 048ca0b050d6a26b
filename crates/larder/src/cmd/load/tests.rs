//! Tests of the arguments of `larder load`.

use clap::Parser;
use larder_load::ConnectionLifetime;

use super::*;

#[derive(Debug, Parser)]
struct LoadCommandLine {
    #[command(flatten)]
    load: LoadArgs,
}

fn plan(arguments: &str) -> anyhow::Result<Plan> {
    LoadCommandLine::try_parse_from(std::iter::once("load").chain(arguments.split(' ')))?.load.plan()
}

#[test]
fn a_url_alone_is_a_closed_loop_with_a_third_of_warm_up() {
    let plan = plan("http://127.0.0.1:8080/a?b=c").unwrap();
    assert_eq!(plan.address, SocketAddr::from(([127, 0, 0, 1], 8080)));
    assert_eq!(plan.host, "127.0.0.1:8080");
    assert_eq!(*plan.targets, ["/a?b=c"]);
    assert_eq!((plan.requests, plan.warmup_requests), (Some(10_000), 3_333));
    assert!(matches!(plan.arrivals, Arrivals::Closed { clients: 64 }));
}

#[test]
fn the_load_model_and_its_limits_follow_the_arguments() {
    let open =
        plan("http://[::1] --rate 500 --duration 30s --host example.org -H A:b --head --nodes 4").unwrap();
    assert!(matches!(open.arrivals, Arrivals::OpenConstant { rate: 500.0 }));
    assert_eq!((open.requests, open.duration), (None, Some(Duration::from_secs(30))));
    assert_eq!((open.warmup_requests, open.warmup_time), (0, Duration::from_secs(10)));
    assert_eq!((&*open.host, &*open.headers), ("example.org", &[("A".to_owned(), "b".to_owned())][..]));
    assert_eq!((open.method, open.nodes_expected, open.address.port()), (Method::Head, Some(4), 80));
    let closed = plan("http://127.0.0.1 --closed 7 -n 100 --warmup 10 --no-keep-alive").unwrap();
    assert_eq!((closed.connections(), closed.requests, closed.warmup_requests), (7, Some(100), 10));
    assert_eq!(closed.reuse, Reuse::PerRequest);
}

#[test]
fn contradictory_arguments_are_refused() {
    for arguments in [
        "https://127.0.0.1/",
        "/path/only",
        "http://user@127.0.0.1/",
        "http://127.0.0.1 --closed 1 --rate 1",
        "http://127.0.0.1 --open-trace",
        "http://127.0.0.1 --speedup 2",
        "http://127.0.0.1 --check-sizes",
        "http://127.0.0.1 -H nocolon",
        "http://127.0.0.1 --warmup 150%",
        "http://127.0.0.1 -n 0",
    ] {
        assert!(plan(arguments).is_err(), "{arguments}");
    }
}

#[derive(Debug, Parser)]
struct UsersCommandLine<A: Args> {
    #[command(flatten)]
    load: A,
}

fn users<A: Args>(arguments: &str) -> anyhow::Result<A> {
    let words = arguments.split(' ').filter(|word| !word.is_empty());
    Ok(UsersCommandLine::<A>::try_parse_from(std::iter::once("load").chain(words))?.load)
}

#[test]
fn a_command_or_a_url_is_accepted() {
    let parsed = |arguments: &str| {
        LoadCommandLine::try_parse_from(std::iter::once("load").chain(arguments.split(' ')))
            .map(|line| line.load)
    };
    assert!(parsed("http://127.0.0.1 --closed 3").unwrap().command.is_none());
    assert!(matches!(parsed("mix http://127.0.0.1").unwrap().command, Some(LoadCommand::Mix(_))));
    assert!(matches!(parsed("manifest --hacc fas").unwrap().command, Some(LoadCommand::Manifest(_))));
    assert!(parsed("--closed 3 mix http://127.0.0.1").is_err());
    assert!(parsed("mix").is_err());
}

#[test]
fn sessions_are_open_unless_a_number_of_clients_is_given() {
    let plan = |arguments| users::<super::users::SessionsArgs>(arguments)?.plan();
    let open = plan("http://127.0.0.1:81 --site commerce-b --rate 20 --duration 6s --users-max 9").unwrap();
    assert_eq!(open.users, larder_load::Users::Open { at_once_max: 9 });
    assert_eq!((open.warmup, open.duration), (Duration::from_secs(2), Duration::from_secs(6)));
    assert_eq!(
        (open.settings.keep, open.settings.parallel, open.script.name()),
        (ConnectionLifetime::Page, 2, "commerce-b")
    );
    assert!(open.script.span() < open.duration && open.script.visits().len() > 60);
    let closed = plan("http://127.0.0.1 --clients 7 --duration 2s --keep visit --time-scale 0.1").unwrap();
    assert_eq!(closed.users, larder_load::Users::Closed { clients: 7 });
    assert_eq!((closed.settings.keep, closed.settings.time_scale), (ConnectionLifetime::Visit, 0.1));
    for (arguments, part) in [
        ("http://127.0.0.1 --site shop", "--site 'shop'"),
        ("http://127.0.0.1/index.html", "--path"),
        ("http://127.0.0.1 --duration 5s --warmup 5s", "--warmup"),
        ("http://127.0.0.1 --time-scale 1001", "--time-scale"),
        ("http://127.0.0.1 --path gpu=/x", "cpu=/cgi/cpu"),
        ("http://127.0.0.1 --path cpu=x", "prefix of cpu"),
        ("http://127.0.0.1 --rate 0 --duration 1s", "sessions per second"),
        ("http://127.0.0.1 --documents 3", "number of documents"),
        ("http://127.0.0.1 --keep tab", "a request, a page or a visit"),
        ("http://127.0.0.1 --rate 3 --clients 3", "cannot be used with"),
    ] {
        let error = plan(arguments).unwrap_err().to_string();
        assert!(error.contains(part), "{arguments}: {error}");
    }
}

#[test]
fn a_mix_sweeps_over_numbers_of_clients() {
    let arguments =
        "http://127.0.0.1 --mix light --clients 40,80 --programs 3 --path light=/bin --shares pages";
    let args = users::<super::users::MixArgs>(arguments).unwrap();
    let plan = args.plan().unwrap();
    assert_eq!(
        (plan.users, plan.settings.keep),
        (larder_load::Users::Closed { clients: 40 }, ConnectionLifetime::Request)
    );
    assert!(plan.script.resources().iter().any(|resource| resource.path == "/bin/2"));
    for (arguments, part) in [
        ("http://127.0.0.1 --mix heavy", "static, light or intensive"),
        ("http://127.0.0.1 --clients 0", "at least 1"),
        ("http://127.0.0.1 --programs 0", "number of programs"),
    ] {
        let error = users::<super::users::MixArgs>(arguments).unwrap().plan().unwrap_err().to_string();
        assert!(error.contains(part), "{arguments}: {error}");
    }
}

#[test]
fn dbench_judges_static_and_dynamic_sites_by_the_papers_limits() {
    use larder_load::dbench::{RuleMetric, Rules};
    let plan = |arguments| users::<super::dbench::DbenchArgs>(arguments)?.plan();
    let fixed =
        plan("http://127.0.0.1 --hacc fas --ramp 2.5 --users-max 90 --stable 10s --epoch 1s").unwrap();
    assert_eq!((fixed.rules, fixed.ramp.users_max, fixed.ramp.per_s), (Rules::static_content(), 90, 2.5));
    assert_eq!((fixed.settings.keep, fixed.settings.parallel), (ConnectionLifetime::Request, 1));
    assert_eq!((fixed.epoch, fixed.stable), (Duration::from_secs(1), Duration::from_secs(10)));
    let asp = plan("http://127.0.0.1 --hacc asp --judge first-byte --mean-max 200ms").unwrap();
    let mean_max = Duration::from_millis(200);
    assert_eq!(asp.rules, Rules { metric: RuleMetric::FirstByte, mean_max, ..Rules::dynamic_content() });
    for (arguments, part) in [
        ("http://127.0.0.1 --hacc lotus", "baseline, fas, domino or asp"),
        ("http://127.0.0.1 --ramp 0", "--ramp"),
        ("http://127.0.0.1 --judge last-byte", "first-byte"),
        ("http://127.0.0.1 --log /none --hacc fas", "cannot be used with"),
    ] {
        let error = format!("{:#}", plan(arguments).unwrap_err());
        assert!(error.contains(part), "{arguments}: {error}");
    }
}
