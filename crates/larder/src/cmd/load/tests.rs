//! The arguments, up to the plan.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    load: LoadArgs,
}

fn plan(arguments: &str) -> anyhow::Result<Plan> {
    Line::try_parse_from(std::iter::once("load").chain(arguments.split(' ')))?.load.plan()
}

#[test]
fn a_url_alone_is_a_closed_loop_of_which_a_third_warms_up() {
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
fn what_cannot_be_meant_is_refused() {
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
