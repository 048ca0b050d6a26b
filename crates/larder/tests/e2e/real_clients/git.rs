//! git as a client over smart HTTP: clone, push and fetch, with `git http-backend` as a CGI program of
//! Apache.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use larder_testkit::needs_tool;
use tempfile::TempDir;

use super::{Chain, Server, client, noise, run};
use crate::peers::free_port;

const MODULES: [&str; 5] = ["mpm_event", "authz_core", "alias", "env", "cgid"];
/// Exceeds `http.postBuffer` (1 MiB), so that a push is sent in chunks.
const LARGE: usize = 3_000_000;

/// Repositories served by `git http-backend`. Everyone may push to them.
struct Hosting {
    /// Declared before the folder, so that the server ends before its files are removed.
    _apache: Server,
    _folder: TempDir,
    address: SocketAddr,
}

impl Hosting {
    fn start(git: &Git, apache: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The worker processes may run as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let repository = folder.path().join("r.git");
        git.run(
            folder.path(),
            &["init", "--quiet", "--bare", "--shared=0777", "--initial-branch=main", "r.git"],
        );
        git.run(&repository, &["config", "http.receivepack", "true"]);
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config = folder.path().join("apache.conf");
        fs::write(&config, configuration(folder.path(), &git.backend(), address)).unwrap();
        let server = Server::start(Command::new(apache).arg("-f").arg(&config).arg("-DFOREGROUND"), address);
        Self { _apache: server, _folder: folder, address }
    }
}

fn configuration(home: &Path, backend: &Path, address: SocketAddr) -> String {
    let module = |name: &&str| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n");
    let modules: String = MODULES.iter().map(module).collect();
    let user = if rustix::process::geteuid().is_root() { "User www-data\nGroup www-data\n" } else { "" };
    let (at, backend) = (home.display(), backend.display());
    format!(
        "{modules}{user}ServerRoot {at}\nServerName localhost\nDefaultRuntimeDir {at}\nPidFile {at}/pid\n\
         ErrorLog {at}/error.log\nScriptSock {at}/cgi\nListen {address}\n\
         SetEnv GIT_PROJECT_ROOT {at}\nSetEnv GIT_HTTP_EXPORT_ALL\nSetEnv GIT_CONFIG_COUNT 1\n\
         SetEnv GIT_CONFIG_KEY_0 safe.directory\nSetEnv GIT_CONFIG_VALUE_0 *\n\
         ScriptAlias /git/ {backend}/\n<Directory />\n    Require all granted\n</Directory>\n"
    )
}

/// The git program, run without the settings of the machine and its user.
struct Git(PathBuf);

impl Git {
    fn run(&self, folder: &Path, words: &[&str]) -> String {
        let mut command = client(&self.0);
        command.arg("-C").arg(folder).args(words);
        command
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0");
        for role in ["AUTHOR", "COMMITTER"] {
            command
                .env(format!("GIT_{role}_NAME"), "test")
                .env(format!("GIT_{role}_EMAIL"), "test@example.org");
        }
        run(&mut command).0
    }

    /// Returns the path of git's CGI program.
    fn backend(&self) -> PathBuf {
        Path::new(self.run(Path::new("/"), &["--exec-path"]).trim()).join("git-http-backend")
    }

    /// Clones, commits files, pushes, and gets the files by another clone and by a fetch.
    fn round_trip(&self, url: &str, seed: u64) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        self.run(folder.path(), &["clone", "--quiet", url, "before"]);
        self.run(folder.path(), &["clone", "--quiet", url, "ours"]);
        fs::write(at("ours").join("large"), noise(seed, LARGE)).unwrap();
        for number in 0..100 {
            fs::write(at("ours").join(format!("small-{number}")), format!("{seed} {number}\n")).unwrap();
        }
        self.run(&at("ours"), &["add", "."]);
        self.run(&at("ours"), &["commit", "--quiet", "--message", "files"]);
        self.run(&at("ours"), &["push", "--quiet", "origin", "HEAD:refs/heads/main"]);
        let pushed = self.run(&at("ours"), &["rev-parse", "HEAD"]);
        self.run(folder.path(), &["clone", "--quiet", "--branch", "main", url, "after"]);
        self.run(&at("before"), &["fetch", "--quiet", "origin", "main"]);
        assert_eq!(self.run(&at("after"), &["rev-parse", "HEAD"]), pushed);
        assert_eq!(self.run(&at("before"), &["rev-parse", "FETCH_HEAD"]), pushed);
        self.run(&at("after"), &["fsck", "--full", "--strict"]);
        assert!(fs::read(at("after").join("large")).unwrap() == noise(seed, LARGE), "other bytes");
    }
}

#[test]
fn git_clones_pushes_and_fetches_through_switch_and_node() {
    let Some(git) = needs_tool("git", "git") else { return };
    let Some(apache) = needs_tool("apache2", "apache2-bin") else { return };
    let git = Git(git);
    let hosting = Hosting::start(&git, &apache);
    let chain = Chain::before_server(&format!("\"{}\"", hosting.address));
    git.round_trip(&format!("{}/git/r.git", chain.plain_url()), 3);

    // With a cache between, content that a push has changed must not be served stale.
    let hosting = Hosting::start(&git, &apache);
    let chain = Chain::before_node(&format!("[node.origin]\nurl = \"http://{}\"", hosting.address));
    git.round_trip(&format!("{}/git/r.git", chain.plain_url()), 4);
}
