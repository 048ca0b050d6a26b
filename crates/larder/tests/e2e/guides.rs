//! Checks that larder accepts everything that the guides contain: the pages for a start, for adoption and for
//! Kubernetes.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toml::Table;

use crate::http::{get, post};
use crate::process::{LARDER, Process};

/// The page with configs, and with tables that compare other proxies with larder.
const ADOPT: &str = "docs/operate/adopt.md";
/// The page with the config of the manifests.
const KUBERNETES: &str = "docs/operate/kubernetes.md";

/// The config to which each row of a comparison is added.
const BASE: &str =
    "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [{ name = \"a\", address = \"127.0.0.1:9\" }]\n";

/// Signals that a switch or a node handles. The tests in `reload` and `node_reload` send them.
const SIGNALS: [&str; 2] = ["SIGHUP", "SIGUSR2"];

/// The pages with a first config of each role.
const START: [&str; 2] = ["docs/start/switch.md", "docs/start/node.md"];

/// Reads a file of the repository.
fn repository_file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// Returns the code blocks of a language in a document, each with its line.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let (mut found, mut open) = (Vec::new(), None::<(usize, String)>);
    for (number, line) in text.lines().enumerate() {
        match &mut open {
            Some(block) if line != "```" => block.1 += &format!("{line}\n"),
            Some(_) => found.extend(open.take()),
            None if line == format!("```{language}") => open = Some((number + 2, String::new())),
            None => {}
        }
    }
    found
}

/// Runs `larder check` on a config. The error is its output.
fn check(config: &str) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guide.toml");
    fs::write(&path, config).unwrap();
    let said = Command::new(LARDER).args(["check", "--no-preflight"]).arg(&path).output().unwrap();
    if said.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&said.stderr).into_owned()) }
}

#[test]
fn every_config_of_the_guides_is_valid() {
    for (page, least) in [(ADOPT, 3), (KUBERNETES, 1), (START[0], 1), (START[1], 1)] {
        let configs = blocks(&repository_file(page), "toml");
        assert!(configs.len() >= least, "{page}: {}", configs.len());
        for (line, config) in configs {
            check(&config).unwrap_or_else(|error| panic!("{page}:{line}: {error}"));
        }
    }
}

/// The guide shows the config of the manifests.
#[test]
fn the_manifests_have_the_config_of_the_guide() {
    let manifests = repository_file("packaging/kubernetes/larder.yaml");
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    let text = repository_file(KUBERNETES);
    let (_, guide) = blocks(&text, "toml").into_iter().find(|(_, text)| text.contains("discover")).unwrap();
    let (_, rest) = manifests.split_once("larder.toml: |\n").unwrap();
    let (inside, _) = rest.split_once("\n---").unwrap();
    assert_eq!(lines(inside), lines(&guide));
}

/// A row of a table that compares another proxy with larder.
struct Row {
    line: usize,
    /// The code spans in larder's column.
    spans: Vec<String>,
}

/// Returns the rows of all tables with a column "larder".
fn rows(text: &str) -> Vec<Row> {
    let (mut found, mut compares) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells[..] {
            ["", _, "larder", ""] => compares = true,
            ["", _, ours, ""] if compares && ours.starts_with("---") => {}
            ["", _, ours, ""] if compares => {
                let spans = ours.split('`').skip(1).step_by(2).map(str::to_owned).collect();
                found.push(Row { line: number + 1, spans });
            }
            _ => {
                assert!(!compares || !line.starts_with('|'), "{ADOPT}:{}: not two cells", number + 1);
                compares = false;
            }
        }
    }
    found
}

/// Collects the alternatives of the schema `node`. References and items of lists are followed.
fn alternatives<'a>(schema: &'a Value, node: &'a Value, found: &mut Vec<&'a Value>) {
    found.push(node);
    if let Some(definition) = node["$ref"].as_str().and_then(|name| schema.pointer(name.strip_prefix('#')?)) {
        alternatives(schema, definition, found);
    }
    for list in ["anyOf", "oneOf", "allOf"] {
        for one in node[list].as_array().into_iter().flatten() {
            alternatives(schema, one, found);
        }
    }
    if node["items"].is_object() {
        alternatives(schema, &node["items"], found);
    }
}

/// Returns the schema of a key; `None` if there is no such key.
fn described<'a>(schema: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(schema, |node, part| {
        let mut found = Vec::new();
        alternatives(schema, node, &mut found);
        found.into_iter().find_map(|one| one["properties"].get(part))
    })
}

/// The code spans in larder's column of a row, by kind.
struct RowContents {
    /// Configs of the row, one for each alternative value.
    configs: Vec<Table>,
    /// Requests to the admin interface: method and path.
    requests: Vec<(String, String)>,
    /// Subcommands of `larder`.
    commands: Vec<String>,
}

/// Parses the spans of a row. `[a.b]` names the table of the following keys in the row; the default is
/// `[switch]`. The error names a span that is neither a config key nor another feature of larder.
fn read(schema: &Value, spans: &[String]) -> Result<RowContents, String> {
    let mut uses = RowContents { configs: Vec::new(), requests: Vec::new(), commands: Vec::new() };
    let (mut table, mut is_list) = (vec!["switch".to_owned()], false);
    let mut assigned = None;
    let mut config: Table = BASE.parse().unwrap();
    let exists = |path: &[String]| {
        let error = || format!("the config has no key '{}'", path.join("."));
        described(schema, path).map(|_| ()).ok_or_else(error)
    };
    for span in spans {
        if let Some(name) = span.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_list = name.starts_with('[');
            table = name.trim_matches(['[', ']']).split('.').map(str::to_owned).collect();
            exists(&table)?;
        } else if let Some((path, value)) = assignment(span, &table, assigned.as_ref()) {
            exists(&path)?;
            if assigned.as_ref() == Some(&path) {
                uses.configs.push(config.clone());
            }
            let value =
                format!("v = {value}").parse::<Table>().map_err(|error| format!("{span}: {error}"))?;
            insert(&mut config, &path, is_list.then_some(table.len()), value["v"].clone());
            assigned = Some(path);
        } else if let Some(command) = span.strip_prefix("larder ") {
            uses.commands.push(command.to_owned());
        } else if let Some((method, path)) = request(span) {
            uses.requests.push((method.to_owned(), path.to_owned()));
        } else if !SIGNALS.contains(&span.as_str()) {
            exists(&joined(&table, span))?;
        }
    }
    if assigned.is_some() {
        uses.configs.push(config);
    }
    Ok(uses)
}

/// Parses a span that sets a key: `key = value`, another value of the previous key, or an entry of `nodes`.
fn assignment(span: &str, table: &[String], before: Option<&Vec<String>>) -> Option<(Vec<String>, String)> {
    if span.starts_with('{') {
        return Some((joined(table, "nodes"), format!("[{span}]")));
    }
    match (span.split_once(" = "), before) {
        (Some((key, value)), _) => Some((joined(table, key), value.to_owned())),
        (None, Some(path)) if span.starts_with('"') => Some((path.clone(), span.to_owned())),
        _ => None,
    }
}

/// Appends a key, which may contain dots, to the path of a table.
fn joined(table: &[String], key: &str) -> Vec<String> {
    table.iter().cloned().chain(key.split('.').map(str::to_owned)).collect()
}

/// Parses a span that is a request to the admin interface.
fn request(span: &str) -> Option<(&str, &str)> {
    let (method, path) = span.split_once(' ').unwrap_or(("GET", span));
    (["GET", "POST"].contains(&method) && path.starts_with('/')).then_some((method, path))
}

/// Inserts a value into a config. The table of the first `list` parts of the path is an entry of a list.
fn insert(config: &mut Table, path: &[String], list: Option<usize>, value: toml::Value) {
    let (last, tables) = path.split_last().unwrap();
    let mut here = config;
    for (at, part) in tables.iter().enumerate() {
        let entry = here.entry(part.clone());
        here = if list == Some(at + 1) {
            let entries = entry.or_insert_with(|| toml::Value::Array(vec![Table::new().into()]));
            entries.as_array_mut().unwrap()[0].as_table_mut().unwrap()
        } else {
            entry.or_insert_with(|| Table::new().into()).as_table_mut().unwrap()
        };
    }
    here.insert(last.clone(), value);
}

/// Returns all statements about larder in the rows of a document that are wrong.
fn wrong_statements(text: &str) -> Vec<String> {
    let schema = Command::new(LARDER).args(["check", "--schema"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&schema.stdout).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("switch.toml");
    fs::write(&path, BASE).unwrap();
    let switch = Process::start(&["switch", "--config", path.to_str().unwrap()]);
    let admin = switch.admin.unwrap();
    let mut problems = Vec::new();
    for Row { line, spans } in rows(text) {
        let mut problem = |what: String| problems.push(format!("{ADOPT}:{line}: {what}"));
        let uses = match read(&schema, &spans) {
            Ok(uses) => uses,
            Err(error) => {
                problem(error);
                continue;
            }
        };
        for config in uses.configs {
            if let Err(error) = check(&config.to_string()) {
                problem(error);
            }
        }
        for (method, target) in uses.requests {
            let reply = if method == "POST" { post(admin, &target) } else { get(admin, &target) };
            // A reload is refused with 409, because a switch under test has no master process.
            if [404, 405].contains(&reply.status) {
                problem(format!("{method} {target} of the admin interface gives {}", reply.status));
            }
        }
        for command in uses.commands {
            let said = Command::new(LARDER).args(command.split(' ')).arg("--help").output().unwrap();
            if !said.status.success() {
                problem(format!("there is no command 'larder {command}'"));
            }
        }
    }
    problems
}

#[test]
fn every_row_of_the_guides_names_an_existing_feature() {
    let text = repository_file(ADOPT);
    let found = rows(&text);
    assert!(found.len() >= 40, "only {} rows", found.len());
    let bare: Vec<usize> = found.iter().filter(|row| row.spans.is_empty()).map(|row| row.line).collect();
    assert!(bare.len() <= 1, "rows that name nothing of larder: {bare:?}");
    let problems = wrong_statements(&text);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn wrong_statements_of_a_guide_are_detected() {
    let row = |ours: &str| format!("| other | larder |\n|---|---|\n| `x` | {ours} |\n");
    for ours in [
        "`[switch.health.outliers]` `consecutive`",
        "`health.retry_after`",
        "`policy = \"hash\"`, `\"maglev\"`",
        "`[[switch.routes]]` `name = \"x\"`, `path = [\"/x/*\"]`, `group`",
        "`POST /nodes/a/drain`, `SIGHUP`, `larder check`",
    ] {
        assert_eq!(wrong_statements(&row(ours)), Vec::<String>::new(), "{ours}");
    }
    for (ours, part) in [
        ("`[switch.health]` `consecutive_5xx`", "no key 'switch.health.consecutive_5xx'"),
        ("`health.passive_fal`", "no key 'switch.health.passive_fal'"),
        ("`[switch.health.outlier]` `consecutive`", "no key 'switch.health.outlier'"),
        ("`[[switch.routes]]` `paths = [\"/x/*\"]`", "no key 'switch.routes.paths'"),
        ("`policy = \"hash\"`, `\"ring\"`", "ring"),
        ("`{ name = \"a\", address = \"10.0.0.1:80\", share = 2.0 }`", "share"),
        ("`[switch.policies.bounded]` `factor = 0.1`", "factor"),
        ("`[[switch.routes]]` `path = [\"/x/*\"]`", "switch.routes[0].name"),
        ("`GET /nodes/a/drain`", "GET /nodes/a/drain of the admin interface gives 405"),
        ("`GET /nothing`", "GET /nothing of the admin interface gives 404"),
        ("`SIGTRAP`", "no key 'switch.SIGTRAP'"),
        ("`larder validate`", "no command 'larder validate'"),
    ] {
        let problems = wrong_statements(&row(ours));
        assert!(problems.len() == 1 && problems[0].contains(part), "{ours}: {problems:?}");
    }
}
