//! Frequent mistakes in configs: `larder check` names the place, the cause and the remedy of each.
//!
//! The mistakes are in `tests/mistakes.toml`. `bench/checks/run.py` also gives them to the checks of other
//! programs.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use larder_testkit::write_secret;
use rcgen::{CertificateParams, KeyPair};

use crate::process::LARDER;

const MISTAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mistakes.toml");
const COMPARE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/understand/compare.md");

/// Creates the certificates that the mistakes need.
fn prepare(folder: &Path) {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(["right.test".to_owned()]).unwrap();
    let right = params.self_signed(&key).unwrap().pem();
    (params.not_before, params.not_after) =
        (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2020, 2, 1));
    let expired = params.self_signed(&key).unwrap().pem();
    write_secret(&folder.join("mixed.pem"), &(right + &other.serialize_pem()));
    write_secret(&folder.join("expired.pem"), &(expired + &key.serialize_pem()));
}

fn mistakes() -> Vec<toml::Table> {
    let text: toml::Table = fs::read_to_string(MISTAKES).unwrap().parse().unwrap();
    let all = text["mistake"].as_array().unwrap();
    all.iter().map(|mistake| mistake.as_table().unwrap().clone()).collect()
}

#[test]
fn each_mistake_is_named_with_its_place_cause_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (dir, taken) =
        (folder.path().display().to_string(), taken.local_addr().map(|at| (taken, at)).unwrap());
    let put = |text: &str| text.replace("DIR", &dir).replace("TAKEN", &taken.1.to_string());
    let (all, mut wrong) = (mistakes(), Vec::new());
    assert_eq!(all.len(), 20);
    for mistake in &all {
        let config = put(mistake["config"]["larder"].as_str().unwrap());
        // The default address of the admin interface may be in use by another test.
        let config = format!("{config}[admin]\nlisten = \"off\"\n");
        fs::write(folder.path().join("larder.toml"), config).unwrap();
        let ran =
            Command::new(LARDER).args(["check", "larder.toml"]).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8(ran.stderr).unwrap();
        for part in ["place", "cause", "remedy"] {
            let text = put(mistake["larder"][part].as_str().unwrap());
            let text = if part == "place" { format!("larder.toml{text}") } else { text };
            if !said.contains(&text) {
                wrong.push(format!("{}: the {part} '{text}' is not in\n{said}", mistake["title"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The table of docs/understand/compare.md has a row for each mistake, in their order.
#[test]
fn the_comparison_has_every_mistake() {
    let text = fs::read_to_string(COMPARE).unwrap();
    let rows = text.lines().filter(|line| line.contains("`mistakes::each_mistake_is_named"));
    let rows: Vec<&str> = rows.map(|row| row.split('|').nth(1).unwrap().trim()).collect();
    let titles: Vec<String> =
        mistakes().iter().map(|mistake| mistake["title"].as_str().unwrap().to_owned()).collect();
    assert_eq!(rows, titles);
}

/// Returns the first code block of a language in the comparison.
fn block(text: &str, language: &str) -> String {
    let (_, rest) = text.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_compared_config_is_valid_and_the_shortest() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(COMPARE).unwrap();
    let (own, caddy, haproxy) = (block(&text, "toml"), block(&text, "caddyfile"), block(&text, "haproxy"));
    let lines = |text: &str| text.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines(&own) <= lines(&caddy) && lines(&own) <= lines(&haproxy));
    let file = folder.path().join("larder.toml");
    fs::write(&file, own).unwrap();
    let ran = Command::new(LARDER).args(["check", "--no-preflight"]).arg(&file).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.stderr.is_empty(), "{}", String::from_utf8_lossy(&ran.stderr));
}
