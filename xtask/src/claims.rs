//! `cargo xtask claims`: lists the claims of the documentation, writes their page and documents, and runs their commands.

mod marks;
mod page;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;

use crate::arguments::{Arguments, absolute};
use crate::failure::{Failure, Result};
use crate::files::{list as entries, read_text, write};
use crate::process::{command_with, read, run as run_command};
use crate::toolchain::root;
use marks::Marks;
use record::{Area, Claim};

/// Runs `cargo xtask claims`.
pub(crate) fn run(mut arguments: Arguments) -> Result<()> {
    let areas = record::read(root()).map_err(Failure::Check)?;
    check(&areas)?;
    match &*arguments.positional("list, page, run or where")? {
        "list" => arguments.finish().map(|()| print!("{}", list(&areas))),
        "page" => {
            let is_check = arguments.flag("--check");
            arguments.finish()?;
            write_page(&areas, is_check)
        }
        "run" => {
            let id = arguments.positional("ID")?;
            run_claim(find(&areas, &id)?, &options(arguments.rest())?)
        }
        "where" => {
            arguments.finish()?;
            write_documents()?;
            write_page(&record::read(root()).map_err(Failure::Check)?, false)
        }
        other => Err(Failure::Usage(format!("there is no '{other}'; there are list, page, run and where"))),
    }
}

/// Fails if a record is incomplete, or a value exceeds its bound.
fn check(areas: &[Area]) -> Result<()> {
    let claims = areas.iter().flat_map(|area| &area.claims);
    let faults: Vec<String> = claims
        .flat_map(|claim| claim.faults().into_iter().map(move |fault| format!("'{}' {fault}", claim.id)))
        .collect();
    if faults.is_empty() { Ok(()) } else { Err(Failure::Check(format!("claims/: {}", faults.join("\n")))) }
}

fn list(areas: &[Area]) -> String {
    let mut text = String::new();
    for area in areas {
        text += &format!("{}\n", area.title);
        for claim in &area.claims {
            text += &format!("  {:22}  {}\n", claim.id, claim.statement);
        }
    }
    text
}

fn write_page(areas: &[Area], is_check: bool) -> Result<()> {
    let (path, text) = (root().join(page::PATH), page::page(areas));
    if !is_check {
        return write(path, text);
    }
    if read_text(path)? == text {
        return Ok(());
    }
    Err(Failure::Check(format!("{} differs from claims/; run `cargo xtask claims page`", page::PATH)))
}

/// Writes into each record the documents that have its mark.
fn write_documents() -> Result<()> {
    let paths =
        read(&mut command_with("git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.md"]))?;
    let mut marks = Marks::new();
    for path in paths.lines().filter(|path| *path != page::PATH) {
        // A deleted document is listed until its deletion is committed.
        if root().join(path).is_file() {
            marks::collect(path, &read_text(root().join(path))?, &mut marks);
        }
    }
    for path in entries(root().join("claims"))? {
        let text = read_text(&path)?;
        write(&path, marks::with_documents(&text, &marks))?;
    }
    Ok(())
}

fn find<'a>(areas: &'a [Area], id: &str) -> Result<&'a Claim> {
    let found = areas.iter().flat_map(|area| &area.claims).find(|claim| claim.id == id);
    found.ok_or_else(|| {
        Failure::Usage(format!("there is no claim '{id}'; `cargo xtask claims list` lists them"))
    })
}

/// Reads options `--name VALUE` and `--name=VALUE` as values of parameters `NAME`.
fn options(given: Vec<String>) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    let mut given = given.into_iter();
    while let Some(option) = given.next() {
        let Some(name) = option.strip_prefix("--") else {
            return Err(Failure::Usage(format!("unexpected argument '{option}'")));
        };
        let (name, value) = match name.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => (name, given.next().ok_or_else(|| Failure::Usage(format!("--{name} needs a value")))?),
        };
        // Commands run in the root of the repository, and this process may run elsewhere.
        let value = if Path::new(&value).exists() { absolute(&value)?.display().to_string() } else { value };
        values.insert(name.to_uppercase().replace('-', "_"), value);
    }
    Ok(values)
}

/// Runs the commands of a claim, and prints each of them first.
fn run_claim(claim: &Claim, values: &BTreeMap<String, String>) -> Result<()> {
    let commands = filled(claim, values)?;
    let built = root().join("target/release");
    for program in ["larder", "larder-lab"] {
        let paths = [program.to_owned(), format!("target/release/{program}")];
        let is_used =
            commands.iter().flat_map(|line| words(line)).any(|word| paths.iter().any(|it| it == word));
        if is_used && !built.join(program).is_file() {
            let remedy = format!("run `cargo build --release --locked -p {program}` first");
            return Err(Failure::Missing(format!("target/release/{program} is missing; {remedy}")));
        }
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(std::iter::once(built).chain(env::split_paths(&path)))
        .map_err(|error| Failure::Check(format!("cannot extend PATH: {error}")))?;
    for line in &commands {
        println!("$ {line}");
        run_command(command_with("sh", ["-c", line]).env("PATH", &path))?;
    }
    println!("\nRecorded for {} on {}:", claim.id, claim.date);
    for value in &claim.values {
        println!("  {}: {}", value.name, page::result(value));
    }
    Ok(())
}

/// Returns the commands of a claim with the values of their parameters.
fn filled(claim: &Claim, values: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let words_of_all = claim.commands.iter().flat_map(|command| words(command));
    let parameters: BTreeSet<&str> = words_of_all.filter(|word| is_parameter(word)).collect();
    let option = |name: &str| format!("--{}", name.to_lowercase().replace('_', "-"));
    if let Some(unknown) = values.keys().find(|name| !parameters.contains(name.as_str())) {
        return Err(Failure::Usage(format!("'{}' has no parameter {}", claim.id, option(unknown))));
    }
    let missing: Vec<String> = parameters
        .iter()
        .filter(|name| !values.contains_key(**name))
        .map(|name| format!("{} VALUE", option(name)))
        .collect();
    if !missing.is_empty() {
        return Err(Failure::Usage(format!("'{}' needs {}", claim.id, missing.join(" and "))));
    }
    let fill = |word: &str| match values.get(word) {
        Some(value) if is_parameter(word) => quoted(value),
        _ => word.to_owned(),
    };
    let line = |command: &String| words(command).map(fill).collect::<Vec<_>>().join(" ");
    Ok(claim.commands.iter().map(line).collect())
}

/// Splits a command at blanks.
fn words(command: &str) -> impl Iterator<Item = &str> {
    command.split(' ')
}

/// Reports whether a word of a command stands for a value that the user gives, such as `HAPROXY`.
fn is_parameter(word: &str) -> bool {
    word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Returns a value as a word of a shell.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:=@%".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"
        area = "A"
        order = 1
        [[claim]]
        id = "a"
        claim = "It is fast."
        where = ["docs/a.md", "README.md"]
        commands = ["bench.py --haproxy HAPROXY --size 1KB", "X=1 larder plan EPA_LOG"]
        date = 2026-01-02
        values = [
          { name = "p50 and p99", value = [1, 2345.5], unit = "us", at_most = 3000 },
          { name = "rest", range = [0.5, 1] },
        ]
    "#;

    fn area() -> Area {
        record::parse("a.toml", RECORD).unwrap()
    }

    fn values(line: &str) -> Result<BTreeMap<String, String>> {
        options(line.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn parameters_are_filled_and_missing_or_unknown_ones_are_refused() {
        let area = area();
        let claim = find(std::slice::from_ref(&area), "a").unwrap();
        let fill = |line: &str| filled(claim, &values(line)?);
        let commands = fill("--haproxy /no/ha --epa-log=it's").unwrap();
        assert_eq!(commands, ["bench.py --haproxy /no/ha --size 1KB", r"X=1 larder plan 'it'\''s'"]);
        let message = |result: Result<Vec<String>>| result.unwrap_err().to_string();
        assert_eq!(message(fill("--haproxy h")), "'a' needs --epa-log VALUE");
        assert_eq!(message(fill("--haproxy h --epa-log e --x y")), "'a' has no parameter --x");
        assert_eq!(values("--haproxy").unwrap_err().to_string(), "--haproxy needs a value");
        assert!(find(std::slice::from_ref(&area), "b").is_err());
    }

    #[test]
    fn the_page_shows_bounds_ranges_and_links() {
        let page = page::page(&[area()]);
        assert!(page.contains("p50 and p99: 1; 2,345.5 us (at most 3,000)<br>rest: 0.5 to 1 |"), "{page}");
        assert!(page.contains("[docs/a.md](../a.md), [README.md](../../README.md)"), "{page}");
    }

    #[test]
    fn faults_of_records_are_found() {
        assert_eq!(area().claims[0].faults(), Vec::<String>::new());
        for (from, to, fault) in [
            ("at_most = 3000", "at_most = 3", "p50 and p99: exceeds its bound"),
            ("range = [0.5, 1]", "note = 'n'", "rest: has neither value nor range"),
            ("It is fast.", "It is. It was.", "is not one sentence"),
        ] {
            let area = record::parse("a.toml", &RECORD.replace(from, to)).unwrap();
            assert_eq!(area.claims[0].faults(), [fault]);
        }
        assert!(record::parse("a.toml", &RECORD.replace("unit", "units")).is_err());
    }

    #[test]
    fn the_page_in_the_repository_is_current() {
        write_page(&record::read(root()).unwrap(), true).unwrap();
    }
}
