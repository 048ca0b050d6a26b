//! What the guides say is what larder takes.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::process::LARDER;

const GUIDES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides.md");

/// Blocks of a language in a document, each with its line.
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

#[test]
fn every_config_of_the_guides_is_a_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(GUIDES).unwrap();
    let configs = blocks(&text, "toml");
    assert!(configs.len() >= 4, "{}", configs.len());
    for (line, config) in configs {
        let path = folder.path().join("guide.toml");
        fs::write(&path, &config).unwrap();
        let said = Command::new(LARDER).args(["check", "--no-preflight"]).arg(&path).output().unwrap();
        assert!(said.status.success(), "guides.md:{line}: {}", String::from_utf8_lossy(&said.stderr));
    }
}

/// The config that the guide shows is the one of the manifests.
#[test]
fn the_manifests_have_the_config_of_the_guide() {
    let manifests = Path::new(GUIDES).parent().unwrap().join("../packaging/kubernetes/larder.yaml");
    let manifests = fs::read_to_string(manifests).unwrap();
    let lines = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    };
    let text = fs::read_to_string(GUIDES).unwrap();
    let (_, guide) = blocks(&text, "toml").into_iter().find(|(_, text)| text.contains("discover")).unwrap();
    let (_, rest) = manifests.split_once("larder.toml: |\n").unwrap();
    let (inside, _) = rest.split_once("\n---").unwrap();
    assert_eq!(lines(inside), lines(&guide));
}
