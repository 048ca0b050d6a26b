//! Configs with old spellings of keys: they serve, the log and `larder check` warn, and `larder check --migrate` rewrites them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::http::get;
use crate::process::{LARDER, Process, until};

const SWITCH: &str = "# A switch.\n[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"127.0.0.1:9\"]\nt_low = 20 # low\n\
                      queue_timeout = \"3s\"\n[switch.hacc]\nlevel = 2\n[admin]\nlisten = \"127.0.0.1:0\"\n";

const WARNINGS: [&str; 3] = [
    "larder.toml:5:1: switch.t_low: old spelling: write switch.policies.lard.t_low",
    "larder.toml:6:1: switch.queue_timeout: old spelling: write switch.admission.queue_timeout",
    "larder.toml:7:9: switch.hacc: old spelling: write switch.policies.hacc",
];

fn larder(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(LARDER).args(arguments).current_dir(folder).output().unwrap()
}

fn write(folder: &Path, text: &str) -> String {
    let path = folder.join("larder.toml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_with_old_spellings_is_warned_of_and_rewritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), SWITCH);
    let checked = larder(folder.path(), &["check", "--no-preflight", "larder.toml"]);
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(checked.status.success(), "{said}");
    let warnings: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("warning: ")).collect();
    assert_eq!(warnings, WARNINGS);
    assert_eq!(said.matches("larder check --migrate").count(), 1, "{said}");

    let effective = |arguments: &[&str]| larder(folder.path(), arguments).stdout;
    let before = effective(&["check", "--effective", "larder.toml"]);
    let printed = larder(folder.path(), &["check", "--migrate", "larder.toml"]);
    assert!(printed.status.success());
    assert_eq!(fs::read_to_string(&path).unwrap(), SWITCH, "it is only printed");

    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let written = larder(folder.path(), &["check", "--migrate", "--write", "larder.toml"]);
    assert_eq!(String::from_utf8(written.stdout).unwrap(), "larder.toml: 3 old spellings replaced\n");
    let now = fs::read(&path).unwrap();
    assert_eq!(now, printed.stdout);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no other file is left");
    let text = String::from_utf8(now).unwrap();
    assert!(text.starts_with("# A switch.\n[switch]\n") && text.contains("t_low = 20 # low\n"), "{text}");

    let again = larder(folder.path(), &["check", "--migrate", "--write", "larder.toml"]);
    assert_eq!(String::from_utf8(again.stdout).unwrap(), "larder.toml: has no old spellings\n");
    let checked = larder(folder.path(), &["check", "--no-preflight", "larder.toml"]);
    assert_eq!(String::from_utf8(checked.stderr).unwrap(), "");
    assert_eq!(effective(&["check", "--effective", "larder.toml"]), before);
}

#[test]
fn an_old_spelling_in_a_comment_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &SWITCH.replace("t_low", "#user = \"www\"\nt_low"));
    let ran = larder(folder.path(), &["check", "--migrate", "larder.toml"]);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{said}");
    assert!(said.starts_with("warning: larder.toml:5: switch.user: old spelling in a comment"), "{said}");
    assert!(said.contains("write switch.process.user"), "{said}");
}

#[test]
fn both_spellings_of_a_key_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &format!("{SWITCH}[switch.policies.lard]\nt_low = 30\n"));
    for arguments in [&["check", "larder.toml"][..], &["check", "--migrate", "--write", "larder.toml"]] {
        let ran = larder(folder.path(), arguments);
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(2), "{said}");
        let wanted = "larder.toml:5:1: switch.t_low: is the old spelling of switch.policies.lard.t_low, which line 12 sets too";
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn roles_serve_and_warn_in_their_logs() {
    let folder = tempfile::tempdir().unwrap();
    let config = write(folder.path(), SWITCH);
    let log = folder.path().join("log");
    let switch = Process::start_with_log(&["switch", "--config", &config], &log);
    assert_eq!(get(switch.admin.unwrap(), "/status").status, 200);
    let logged = |warning: &str| {
        until("it is logged", || fs::read_to_string(&log).ok()?.contains(warning).then_some(()));
    };
    WARNINGS.iter().for_each(|warning| logged(warning));
    assert!(switch.terminate().success());

    fs::write(folder.path().join("a"), "a").unwrap();
    let root = folder.path().display();
    let text = format!("[node]\nlisten = \"127.0.0.1:0\"\nroot = \"{root}\"\nforwarded = \"overwrite\"\n");
    let config = write(folder.path(), &text);
    let node = Process::start_with_log(&["node", "--config", &config], &log);
    assert_eq!(get(node.address, "/a").status, 200);
    logged("larder.toml:4:1: node.forwarded: old spelling: write node.trust.forwarded");
    assert!(node.terminate().success());
}
