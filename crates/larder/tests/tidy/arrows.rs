//! Permitted dependencies between crates, of the core, and permitted licences.

use crate::none;
use crate::repo::{list, metadata, string};

/// Permitted dependencies between crates. ARCHITECTURE.md has a diagram of them.
const MAY_USE: &[(&str, &[&str])] = &[
    (
        "larder",
        &[
            "larder-config",
            "larder-core",
            "larder-edge",
            "larder-switch",
            "larder-handoff",
            "larder-http",
            "larder-kernel",
            "larder-load",
            "larder-log",
            "larder-node",
            "larder-peers",
            "larder-picker",
            "larder-prompts",
            "larder-sim",
            "larder-spans",
            "larder-trace",
        ],
    ),
    // larder-embed gives the dispatcher to other programs. Interfaces to other languages and servers use it and the core alone.
    ("liblarder", &["larder-core", "larder-embed"]),
    ("larder-embed", &["larder-config", "larder-core"]),
    ("larder-config", &["larder-core"]),
    ("larder-core", &[]),
    ("larder-edge", &["larder-http", "larder-log"]),
    // The tests of these two repeat their records with larder-sim.
    (
        "larder-envoy",
        &[
            "larder-config",
            "larder-core",
            "larder-embed",
            "larder-log",
            "larder-prompts",
            "larder-record",
            "larder-sim",
        ],
    ),
    ("larder-nginx", &["larder-core", "larder-embed", "larder-log", "larder-sim"]),
    (
        "larder-switch",
        &[
            "larder-core",
            "larder-edge",
            "larder-handoff",
            "larder-http",
            "larder-kernel",
            "larder-log",
            "larder-peer-switches",
            "larder-peers",
            "larder-prompts",
            "larder-record",
            "larder-spans",
        ],
    ),
    ("larder-handoff", &["larder-kernel", "larder-log"]),
    ("larder-http", &[]),
    ("larder-kernel", &[]),
    ("larder-load", &["larder-core", "larder-trace"]),
    ("larder-log", &[]),
    (
        "larder-node",
        &[
            "larder-core",
            "larder-edge",
            "larder-handoff",
            "larder-http",
            "larder-kernel",
            "larder-log",
            "larder-peers",
            "larder-spans",
        ],
    ),
    (
        "larder-lab",
        &[
            "larder",
            "larder-core",
            "larder-switch",
            "larder-load",
            "larder-papers",
            "larder-sim",
            "larder-trace",
        ],
    ),
    ("larder-oracle", &["larder-testkit"]),
    ("larder-papers", &["larder-core", "larder-sim", "larder-trace"]),
    ("larder-peer-switches", &["larder-core", "larder-log", "larder-peers"]),
    ("larder-peers", &["larder-handoff", "larder-log"]),
    (
        "larder-picker",
        &[
            "larder-core",
            "larder-edge",
            "larder-embed",
            "larder-log",
            "larder-peer-switches",
            "larder-prompts",
        ],
    ),
    ("larder-prompts", &["larder-core"]),
    ("larder-record", &["larder-core"]),
    ("larder-shaper", &["larder-kernel"]),
    ("larder-sim", &["larder-core", "larder-trace"]),
    ("larder-spans", &["larder-http"]),
    ("larder-testkit", &[]),
    ("larder-trace", &["larder-core", "larder-prompts"]),
    ("xtask", &[]),
];

/// Crates of the laboratory that only tests may use.
const FOR_TESTS: &[&str] = &["larder-shaper", "larder-testkit"];

/// Libraries that the core may link. None of them reads a clock, opens a file or starts a thread.
const CORE_MAY_LINK: &[&str] = &["arc-swap", "hashbrown", "regex", "spin", "thiserror", "xxhash-rust"];

/// Licences that require no more than Apache-2.0 from a distributor of the binary, as cargo spells them.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    // BSD-like, without requirements for a binary.
    "bzip2-1.0.6",
];

/// Crates under a licence that requires more, with the way in which we comply.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "foca",
        "MPL-2.0",
        "asks for its own source alone, which NOTICE says where to find; it is used as published",
    ),
    ("cbindgen", "MPL-2.0", "a tool of a test; no binary contains it"),
];

/// Banned crates with the reason.
const BANNED: &[(&str, &str)] = &[
    ("openssl", "TLS is rustls, which builds everywhere"),
    ("openssl-sys", "TLS is rustls, which builds everywhere"),
    ("native-tls", "TLS is rustls, which builds everywhere"),
];

/// A dependency between two crates of the workspace.
type CrateDependency = (String, String);

fn forbidden_dependencies(crates: &[String], arrows: &[CrateDependency]) -> Vec<String> {
    let mut problems = Vec::new();
    for name in crates {
        if !MAY_USE.iter().any(|(known, _)| known == name) {
            problems.push(format!("{name} is not on the map: a new crate needs its place in MAY_USE"));
        }
    }
    for (from, to) in arrows {
        let allowed = MAY_USE.iter().any(|(known, may)| known == from && may.contains(&to.as_str()));
        if !allowed {
            problems.push(format!("{from} must not use {to}"));
        }
    }
    problems
}

/// Reports whether the expression permits a licence of the list. `OR` (or `/`) is a choice; `AND` requires
/// both.
fn is_permitted_licence(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    let demanded: Vec<&str> = plain.split(" AND ").collect();
    // Parentheses can be ignored: "(A OR B) AND C" is read as two requirements with a choice each.
    demanded.iter().all(|part| part.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn crates_use_only_permitted_crates() {
    let metadata = metadata(false);
    let packages = list(&metadata, "packages");
    let crates: Vec<String> = packages.iter().map(|package| string(package, "name").to_owned()).collect();
    let mut arrows = Vec::new();
    for package in packages {
        for dependency in list(package, "dependencies") {
            let to = string(dependency, "name").to_owned();
            // Dependencies of tests count too, so a test that needs another crate belongs a level higher.
            // Only the crates of FOR_TESTS are open to the tests of every crate.
            let for_tests = dependency["kind"] == "dev" && FOR_TESTS.contains(&to.as_str());
            if crates.contains(&to) && !for_tests {
                arrows.push((string(package, "name").to_owned(), to));
            }
        }
    }
    assert!(arrows.len() >= 8, "cargo metadata shows only {} arrows", arrows.len());
    none(&forbidden_dependencies(&crates, &arrows));
}

#[test]
fn the_core_links_only_permitted_libraries() {
    let metadata = metadata(false);
    let packages = list(&metadata, "packages");
    let core =
        packages.iter().find(|package| string(package, "name") == "larder-core").expect("the core exists");
    let linked = list(core, "dependencies").iter().filter(|dependency| dependency["kind"].is_null());
    let names = linked.map(|dependency| string(dependency, "name"));
    let strangers = names.filter(|name| !CORE_MAY_LINK.contains(name));
    none(&strangers.map(|name| format!("larder-core must not link {name}")).collect::<Vec<_>>());
}

#[test]
fn every_dependency_may_be_linked() {
    let metadata = metadata(true);
    let mut problems = Vec::new();
    for package in list(&metadata, "packages") {
        let (name, licence) = (string(package, "name"), string(package, "license"));
        let excepted = EXCEPTIONS.iter().any(|(known, its, _)| *known == name && *its == licence);
        if !is_permitted_licence(licence) && !excepted {
            problems.push(format!("{name}: licence '{licence}' is not on the list"));
        }
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| *banned == name) {
            problems.push(format!("{name} is banned: {why}"));
        }
    }
    none(&problems);
}

#[test]
fn a_forbidden_arrow_is_noticed() {
    let crates = ["larder-core".to_owned(), "larder-extra".to_owned()];
    let arrows = [
        ("larder-core".to_owned(), "larder-trace".to_owned()),
        ("larder-switch".to_owned(), "larder-node".to_owned()),
        ("larder".to_owned(), "larder-switch".to_owned()),
    ];
    let problems = forbidden_dependencies(&crates, &arrows);
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].contains("larder-extra"));
    assert!(problems[2].contains("larder-switch must not use larder-node"));
}

#[test]
fn licence_expressions_are_understood() {
    for fine in ["MIT", "MIT/Apache-2.0", "GPL-2.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_permitted_licence(fine), "{fine}");
    }
    for not in ["", "GPL-3.0-only", "MIT AND GPL-2.0", "(MIT OR Apache-2.0) AND OpenSSL"] {
        assert!(!is_permitted_licence(not), "{not}");
    }
}
