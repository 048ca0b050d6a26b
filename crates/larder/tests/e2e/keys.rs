//! The parts of `larder keys` and `larder agent` that need no privileges.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::process::LARDER;

fn larder(folder: &Path, args: &[&str]) -> Output {
    Command::new(LARDER).args(args).current_dir(folder).stdin(Stdio::null()).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_key_is_created_once_with_private_mode_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.key");
    let made = larder(folder.path(), &["keys", "new", "node.key"]);
    assert_eq!(made.status.code(), Some(0), "{}", stdout(&made));
    let public = String::from_utf8(made.stdout).unwrap();
    assert_eq!(public.len(), 45, "44 characters and a line's end: {public:?}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_ne!(fs::read_to_string(&file).unwrap(), public, "the secret is another");
    let shown = larder(folder.path(), &["keys", "show", "node.key"]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), public);

    let again = larder(folder.path(), &["keys", "new", "node.key"]);
    assert_eq!((again.status.code(), again.stdout.len()), (Some(1), 0));
    assert!(stdout(&again).contains("node.key"), "{}", stdout(&again));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let open = larder(folder.path(), &["keys", "show", "node.key"]);
    assert_eq!(open.status.code(), Some(1));
    assert!(stdout(&open).contains("chmod 600 node.key"), "{}", stdout(&open));
}

#[test]
fn an_agent_names_missing_requirements() {
    let folder = tempfile::tempdir().unwrap();
    let none = larder(folder.path(), &["agent"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(stdout(&none).contains("[agent]"), "{}", stdout(&none));
    let key = larder(folder.path(), &["keys", "new", "switch.key"]);
    let key = String::from_utf8(key.stdout).unwrap();
    let config = format!(
        "[agent]\nlisten = \"127.0.0.1:0\"\nidentity = \"node.key\"\nswitches = \"{}\"\ninterface = \"none-0\"\n\
         services = \"192.0.2.1:80\"\n",
        key.trim()
    );
    fs::write(folder.path().join("agent.toml"), config).unwrap();
    let keyless = larder(folder.path(), &["agent", "--config", "agent.toml"]);
    assert_eq!(keyless.status.code(), Some(1));
    let lacks = "agent.toml:3:1: agent.identity: node.key does not exist\n  hint: ";
    assert_eq!(stdout(&keyless).matches(lacks).count(), 1, "{}", stdout(&keyless));
    larder(folder.path(), &["keys", "new", "node.key"]);
    let without = larder(folder.path(), &["agent", "--config", "agent.toml"]);
    assert_eq!(without.status.code(), Some(1));
    assert!(stdout(&without).contains("interface none-0"), "{}", stdout(&without));
}
