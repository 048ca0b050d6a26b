//! Release artifacts: the package, its units, and the root of a container.

use std::process::{Command, Stdio};

use crate::process::LARDER;
use larder_testkit::{needs_root, needs_tool};

/// Returns the command `cargo xtask package KIND` for the binary under test.
fn package(kind: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["xtask", "package", kind, LARDER]);
    command
}

/// Runs a command that must succeed, and returns its output.
fn output_of(command: &mut Command) -> String {
    let ran = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{command:?}: {}\n{error}", ran.status);
    String::from_utf8(ran.stdout).unwrap() + &error
}

#[test]
fn the_package_has_what_it_needs_and_its_units_are_right() {
    if needs_tool("dpkg-deb", "dpkg").is_none() || needs_tool("strip", "binutils").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (deb, root) = (folder.path().join("larder.deb"), folder.path().join("root"));
    output_of(package("deb").arg(&deb).env("LARDER_DEB", "-Znone"));
    let control = output_of(Command::new("dpkg-deb").arg("-I").arg(&deb));
    for line in ["Package: larder", &format!("Version: {}", env!("CARGO_PKG_VERSION")), "Depends: libc6 (>= "]
    {
        assert!(control.contains(line), "{control}");
    }
    output_of(Command::new("dpkg-deb").arg("-x").args([&deb, &root]));
    for file in [
        "usr/bin/larder",
        "usr/share/man/man1/larder.1.gz",
        "usr/share/man/man1/larder-sim-replay.1.gz",
        "usr/share/doc/larder/examples/larder.toml",
        "usr/share/doc/larder/copyright",
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
    let page = root.join("usr/share/man/man1/larder-switch.1.gz");
    assert!(output_of(Command::new("gzip").arg("-dc").arg(page)).contains("\\-\\-listen"));
    let bash = std::fs::read_to_string(root.join("usr/share/bash-completion/completions/larder")).unwrap();
    assert!(bash.contains("larder__subcmd__switch") || bash.contains("larder__switch"), "{}", &bash[..200]);
    if needs_tool("systemd-analyze", "systemd").is_some() {
        for unit in ["larder-switch.service", "larder-node.service"] {
            let unit = root.join("lib/systemd/system").join(unit);
            // The unit is checked against the files of the package.
            let text = std::fs::read_to_string(&unit).unwrap();
            assert!(text.contains("\nExecReload=/bin/sh -c 'kill -HUP $MAINPID'\n"), "{unit:?}");
            let here = text.replace("/usr/bin/larder", &root.join("usr/bin/larder").display().to_string());
            std::fs::write(&unit, here.replace("man:larder", "man:true")).unwrap();
            let told = output_of(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
            let told: Vec<&str> = told.lines().filter(|line| line.contains("larder-")).collect();
            assert!(told.is_empty(), "{told:?}");
        }
    }
}

#[test]
fn the_root_of_a_container_runs_by_itself() {
    if !needs_root("chroot") || needs_tool("strip", "binutils").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    output_of(package("root").arg(folder.path()));
    let inside = |arguments: &[&str]| {
        output_of(Command::new("chroot").arg(folder.path()).arg("/usr/bin/larder").args(arguments))
    };
    assert_eq!(inside(&["version"]).trim(), format!("larder {}", env!("CARGO_PKG_VERSION")));
    std::fs::write(
        folder.path().join("etc/larder/larder.toml"),
        "[switch]\nlisten = \"127.0.0.1:0\"\nnodes = [\"10.0.0.1:80\"]\n[admin]\nlisten = \"off\"\n",
    )
    .unwrap();
    assert!(inside(&["check", "/etc/larder/larder.toml"]).ends_with("larder.toml: ok\n"));
}
