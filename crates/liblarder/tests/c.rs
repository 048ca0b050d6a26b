//! C programs use the library through its header.

mod support;

use larder_testkit::{needs_tool, skip};
use std::path::Path;
use std::process::{Command, Output};
use support::{Link, compile, library};
use tempfile::TempDir;

const SANITIZERS: &str = "-fsanitize=address,undefined";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(program: &Path) -> Output {
    let output = Command::new(program).output().expect("the program runs");
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    output
}

fn build(cc: &Path, source: impl AsRef<Path>, program: &Path, flags: &[&str], link: Link) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let output = compile(cc, &source, program, flags, &library("dev"), link);
    assert!(output.status.success(), "{}: {}", source.display(), text(&output.stderr));
}

/// Checks the table that the example prints: four nodes, and none has far more than its share.
fn check_shares(output: &Output) {
    let printed = text(&output.stdout);
    let shares =
        printed.lines().filter_map(|line| line.split_once("share=")?.1.split('%').next()?.parse().ok());
    let shares: Vec<f64> = shares.collect();
    assert_eq!(shares.len(), 4, "{printed}");
    assert!(shares.iter().all(|share| (10.0..40.0).contains(share)), "{printed}");
    assert!(printed.contains("\"reason\":\"local\""), "{printed}");
}

#[test]
fn example_runs_with_the_shared_library() {
    let Some(cc) = needs_tool("cc", "gcc") else { return };
    let folder = TempDir::new().expect("a folder");
    let program = folder.path().join("ring");
    build(&cc, "examples/ring.c", &program, &["-O1"], Link::Shared);
    check_shares(&run(&program));
}

/// The reference has a fragment, which stands in a function here.
#[test]
fn fragment_of_the_reference_runs() {
    let Some(cc) = needs_tool("cc", "gcc") else { return };
    let folder = TempDir::new().expect("a folder");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/liblarder.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let fragment = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a fragment");
    let (include, body) = fragment.split_once("\n\n").expect("an include, and code");
    let end = "larder_destroy(dispatcher);\nreturn decision.node == LARDER_NO_NODE;";
    let begin = "uint64_t now_ns = 1, elapsed = 1, size = 1;";
    let program = format!("{include}\nint main(void) {{\n{begin}\n{body}\n{end}\n}}\n");
    let source = folder.path().join("fragment.c");
    std::fs::write(&source, program).expect("the folder can be written");
    build(&cc, &source, &folder.path().join("fragment"), &[], Link::Shared);
    run(&folder.path().join("fragment"));
}

/// Returns whether the compiler can link and run a program with the sanitizers.
fn has_sanitizers(cc: &Path, folder: &Path) -> bool {
    let (source, program) = (folder.join("empty.c"), folder.join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("the folder can be written");
    let built = Command::new(cc).arg(SANITIZERS).arg(&source).arg("-o").arg(&program).output();
    built.is_ok_and(|output| output.status.success())
        && Command::new(&program).output().is_ok_and(|output| output.status.success())
}

#[test]
fn programs_run_with_sanitizers() {
    let Some(cc) = needs_tool("cc", "gcc") else { return };
    let folder = TempDir::new().expect("a folder");
    if !has_sanitizers(&cc, folder.path()) {
        skip("needs a C compiler with -fsanitize=address,undefined (apt-get install gcc)");
        return;
    }
    let flags = ["-g", "-O1", SANITIZERS, "-fno-sanitize-recover=all"];
    let (ring, misuse) = (folder.path().join("ring"), folder.path().join("misuse"));
    build(&cc, "examples/ring.c", &ring, &flags, Link::Static);
    check_shares(&run(&ring));
    build(&cc, "tests/misuse.c", &misuse, &flags, Link::Static);
    run(&misuse);
}

#[test]
fn header_is_valid_in_cpp() {
    let Some(cpp) = needs_tool("g++", "g++") else { return };
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/larder.h");
    let output = Command::new(cpp)
        .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"])
        .arg(header)
        .output();
    let output = output.expect("the compiler runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
}
