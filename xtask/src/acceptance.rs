//! Long runs that show more than the gate does. Before a release all of them pass (`docs/reference/release.md`).

use crate::arguments::{Arguments, with_defaults};
use crate::failure::{Failure, Result};
use crate::process::{cargo, command, command_with, replace, run as run_command};
use crate::toolchain::{set_up, target_directory};
use crate::{audit, interface, lab, static_binary};

/// A run that can be started by its name.
struct Acceptance {
    name: &'static str,
    /// Arguments as the list shows them.
    arguments: &'static str,
    summary: &'static str,
    /// The time that it takes on two cores.
    takes: &'static str,
    run: fn(Arguments) -> Result<()>,
}

impl Acceptance {
    fn usage(&self) -> String {
        [self.name, self.arguments].join(" ").trim_end().to_owned()
    }
}

const ALL: &[Acceptance] = &[
    Acceptance {
        name: "audit",
        arguments: "",
        summary: "licences, sources and known vulnerabilities of all dependencies (cargo-deny, cargo-audit)",
        takes: "1 minute",
        run: |arguments| arguments.finish().and_then(|()| audit::audit()),
    },
    Acceptance {
        name: "semver",
        arguments: "[--baseline REVISION]",
        summary: "public interfaces of larder-core and larder-embed against the last release (cargo-semver-checks)",
        takes: "3 minutes",
        run: interface::semver,
    },
    Acceptance {
        name: "static",
        arguments: "",
        summary: "one binary without shared libraries; prints its path",
        takes: "10 minutes",
        run: run_static,
    },
    Acceptance {
        name: "cache-tests",
        arguments: "DIRECTORY [--markdown FILE] [--only CACHES]",
        summary: "http-tests/cache-tests, of which DIRECTORY is a copy, with the node, Varnish, nginx, Apache and Squid",
        takes: "2 minutes",
        run: cache_tests,
    },
    Acceptance {
        name: "handoff-long",
        arguments: "",
        summary: "170,000 connections through handoff in network namespaces, every byte verified (root)",
        takes: "5 minutes",
        run: |arguments| handoff(&["long::"], arguments),
    },
    Acceptance {
        name: "handoff-trouble",
        arguments: "",
        summary: "nodes that stop, die and lose each other under load, and the demo's costs (root, a quiet machine)",
        takes: "8 minutes",
        run: |arguments| {
            handoff(&["equals::", "handover_trouble::", "expired::", "faults::", "demo::"], arguments)
        },
    },
    Acceptance {
        name: "oracle",
        arguments: "[--cases N] [--seed N] [--topology LIST]",
        summary: "random requests to the node, peers and the switch, judged by a model of RFC 9111; 1,000,000 cases",
        takes: "5 minutes",
        run: oracle,
    },
    Acceptance {
        name: "faults-long",
        arguments: "[--seeds N] [--first N]",
        summary: "the protocols between peers in 20,000 simulated worlds each where everything goes wrong",
        takes: "10 minutes",
        run: faults,
    },
    Acceptance {
        name: "hostile",
        arguments: "[--seconds N] [--slow N]",
        summary: "hostile clients of every kind beside ordinary ones (root, for the open files)",
        takes: "1 hour",
        run: hostile,
    },
    Acceptance {
        name: "lab",
        arguments: "[LOG]...",
        summary: "the papers' experiments live on this machine, every policy on every workload, into target/lab",
        takes: "1 hour",
        run: |arguments| lab::run_all(&arguments.positionals()?),
    },
];

/// Runs `cargo xtask acceptance`.
pub(crate) fn run(mut arguments: Arguments) -> Result<()> {
    if arguments.is_empty() {
        print!("{}", list());
        return Ok(());
    }
    let name = arguments.positional("NAME")?;
    let Some(acceptance) = ALL.iter().find(|known| known.name == name) else {
        return Err(Failure::Usage(format!("there is no run '{name}'; without a name they are listed")));
    };
    (acceptance.run)(arguments).map_err(|failure| match failure {
        Failure::Usage(problem) => Failure::Usage(format!("{problem}: {}", acceptance.usage())),
        other => other,
    })
}

fn list() -> String {
    let mut text = "usage: cargo xtask acceptance NAME [ARGUMENT]...\n".to_owned();
    for acceptance in ALL {
        let Acceptance { summary, takes, .. } = acceptance;
        text += &format!("\n  {}\n      {summary}; {takes}\n", acceptance.usage());
    }
    text
}

fn run_static(arguments: Arguments) -> Result<()> {
    arguments.finish()?;
    println!("{}", static_binary::build()?.display());
    Ok(())
}

/// Runs the long tests of handoff that these filters name.
fn handoff(filters: &[&str], arguments: Arguments) -> Result<()> {
    set_up("test")?;
    let mut test = cargo(["test", "--release", "--locked", "-p", "larder", "--test", "handoff", "--"]);
    test.args(["--ignored", "--nocapture", "--test-threads", "1"]).args(filters).args(arguments.rest());
    Err(replace(&mut test))
}

fn faults(arguments: Arguments) -> Result<()> {
    build(&["larder"])?;
    let arguments = with_defaults(&[("--seeds", "20000")], arguments.rest());
    Err(replace(command(built("larder")).args(["sim", "faults"]).args(arguments)))
}

fn oracle(arguments: Arguments) -> Result<()> {
    build(&["larder", "larder-oracle"])?;
    let defaults = [("--cases", "1000000"), ("--seed", "1"), ("--json", "target/oracle.json")];
    Err(replace(command(built("larder-oracle")).args(with_defaults(&defaults, arguments.rest()))))
}

fn hostile(arguments: Arguments) -> Result<()> {
    build(&["larder"])?;
    let larder = built("larder");
    let defaults =
        [("--larder", &*larder), ("--seconds", "3600"), ("--slow", "20000"), ("--urls", "10000000")];
    python("bench/hostile/run.py", &with_defaults(&defaults, arguments.rest()))
}

fn cache_tests(mut arguments: Arguments) -> Result<()> {
    let suite = arguments.path("DIRECTORY")?;
    build(&["larder"])?;
    let larder = built("larder");
    let mut all = with_defaults(&[("--larder", &*larder)], arguments.rest());
    all.insert(0, suite.display().to_string());
    python("bench/conformance/cache_tests.py", &all)
}

/// Builds the packages in release mode.
fn build(packages: &[&str]) -> Result<()> {
    set_up("test")?;
    let packages = packages.iter().flat_map(|package| ["-p", package]);
    run_command(cargo(["build", "--release", "--locked"]).args(packages))
}

/// The path of a program that [`build`] has made.
fn built(program: &str) -> String {
    target_directory().join("release").join(program).display().to_string()
}

fn python(script: &str, arguments: &[String]) -> Result<()> {
    Err(replace(command_with("python3", [script]).args(arguments)))
}
