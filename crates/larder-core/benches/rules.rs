//! The cost of evaluating rules over a request's head: `cargo bench -p larder-core --bench rules`.
//!
//! It measures the nanoseconds for finding a route, for finding a class and for a key's hash, with the given number
//! of rules and a request that the last of them matches, which is the worst case. Every number is the median of
//! several rounds.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock, prints, and may stop on its own mistakes"
)]

use larder_core::ServiceClass;
use larder_core::id::RouteId;
use larder_core::rules::{ClassRules, Head, KeyTemplate, Matcher, RouteRules};
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: usize = 9;
const OPERATIONS: u32 = 100_000;

fn main() {
    let headers = vec![
        ("Host", "www.example.com"),
        ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"),
        ("Accept", "text/html,application/xhtml+xml"),
        ("Cookie", "lang=en; sid=0123456789abcdef"),
    ];
    let target = b"/notes/db.nsf/byDate/7f3a?OpenDocument&Start=30&Count=15";
    let head = Head::new(b"GET", b"www.example.com", target, &headers);
    println!("{:<44} {:>6} {:>10}", "what", "rules", "ns");
    for rules in [1, 8, 64, 512] {
        let hosts =
            route_rules(rules, |n| Matcher::new().host(&format!("h{n}.example.com")), "*.example.com");
        report("route, by host", rules, || hosts.find(black_box(&head)));
        let paths =
            class_rules(rules, |n| Matcher::new().path(&format!("/section{n}/*.nsf*")), "/notes/*.nsf*");
        report("class, by path with two stars", rules, || paths.classify(black_box(&head)));
    }
    for template in [
        KeyTemplate::DEFAULT,
        "{host}{path:3}?{query:#1}",
        "{path}?{query:Start,Count}",
        "{host}{path}|{cookie:sid}",
    ] {
        let template: KeyTemplate = template.parse().unwrap();
        report(&format!("key {template}"), 0, || template.id(black_box(&head)));
    }
}

type Rule = Result<Matcher, larder_core::rules::RuleError>;

fn route_rules(count: usize, rule: impl Fn(usize) -> Rule, last: &str) -> RouteRules {
    let last = Matcher::new().host(last).unwrap();
    let rules = (1..count).map(|n| rule(n).unwrap()).chain([last]);
    RouteRules::new(rules.map(|rule| (rule, RouteId(1))).collect()).unwrap()
}

fn class_rules(count: usize, rule: impl Fn(usize) -> Rule, last: &str) -> ClassRules {
    let last = Matcher::new().path(last).unwrap();
    let rules = (1..count).map(|n| rule(n).unwrap()).chain([last]);
    ClassRules::new(rules.map(|rule| (rule, ServiceClass::Db)).collect()).unwrap()
}

fn report<T>(what: &str, rules: usize, mut operation: impl FnMut() -> T) {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..OPERATIONS {
                black_box(operation());
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(OPERATIONS)
        })
        .collect();
    rounds.sort_unstable_by(f64::total_cmp);
    println!("{what:<44} {rules:>6} {:>10.1}", rounds[ROUNDS / 2]);
}
