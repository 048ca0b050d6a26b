//! Log lines of a role between its start and its ready state. The form is `subject: event`, with facts in
//! fields.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use crate::process::LARDER;

/// Returns the messages that a role logs at its start. The role ends at once, because its stdin is closed.
fn messages(arguments: &[&str]) -> Vec<String> {
    let ran = Command::new(LARDER)
        .args(arguments)
        .args(["--admin", "127.0.0.1:0", "--exit-with-stdin"])
        .env_remove("LARDER_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{said}");
    let message = |line: &str| {
        let (_, rest) = line.split_once(" INFO ").or_else(|| line.split_once(" WARN "))?;
        rest.split_once(": ").map(|(_, message)| message.to_owned())
    };
    said.lines().map(|line| message(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

fn check(messages: &[String], expected: &[&str]) {
    let ready = messages
        .iter()
        .position(|message| message.contains(": ready listen=") || message.contains(": ready name="));
    let ready = ready.unwrap_or_else(|| panic!("{messages:#?}"));
    for message in &messages[..=ready] {
        let text = message.split_once('=').map_or(message.as_str(), |(text, _)| text);
        assert!(text.contains(": "), "{message}");
    }
    for part in expected {
        assert!(messages.iter().any(|message| message.starts_with(part)), "{part}: {messages:#?}");
    }
}

#[test]
fn every_line_of_a_start_is_a_subject_and_an_event() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let node = ["node", "--name", "a", "--root", root, "--listen", "127.0.0.1:0", "--cache", "256MiB"];
    check(
        &messages(&node),
        &[
            "admin interface: listening address=127.0.0.1:",
            &format!("store: ready kind=directory root={root} reads=page-cache"),
            "processor: ready kind=real cores=",
            "memory cache: ready size=256MiB",
            "node: ready name=a listen=[127.0.0.1:",
        ],
    );
    let switch = ["switch", "--listen", "127.0.0.1:0", "--node", "127.0.0.1:9"];
    check(&messages(&switch), &["admin interface: listening address=", "switch: ready listen=[127.0.0.1:"]);

    let key = folder.path().join("node.key");
    let made = Command::new(LARDER).args(["keys", "new"]).arg(&key).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let config = folder.path().join("agent.toml");
    let text = format!(
        "[agent]\nname = \"a\"\nlisten = \"127.0.0.1:0\"\nidentity = \"{}\"\ninterface = \"lo\"\nservices = [\"127.0.0.1:8080\"]\n\
         switches = [\"kFd2gU/QgvwneWINXCrWXOn0QfyMgwesamqSDKw2kx0=\"]\n",
        key.display()
    );
    fs::write(&config, text).unwrap();
    let agent = ["agent", "--config", config.to_str().unwrap()];
    check(&messages(&agent), &["agent: listening address=127.0.0.1:", "agent: ready name=\"a\""]);
}
