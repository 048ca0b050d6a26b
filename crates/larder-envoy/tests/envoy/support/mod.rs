//! A real Envoy with the module, and nodes behind it.

pub(crate) mod config;

use larder_testkit::proxy as client;
use larder_testkit::{eventually, free_port, skip};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// The versions of Envoy that the module supports.
pub(crate) const VERSIONS: [&str; 3] = ["1.38.3", "1.39.3", "1.40.0"];
/// The latest of them.
pub(crate) const LATEST: &str = VERSIONS[2];

/// Returns Envoy of a version, which `scripts/setup.sh test` installs. Otherwise the test is skipped.
pub(crate) fn program(version: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from);
    let tools =
        std::env::var_os("LARDER_TOOLS").map_or_else(|| home.join(".cache/larder/bin"), PathBuf::from);
    let program = tools.join(format!("envoy-{version}"));
    if program.exists() {
        return Some(program);
    }
    skip(&format!("needs {} (scripts/setup.sh test installs it)", program.display()));
    None
}

/// Returns the folder with the module, built once for all tests.
pub(crate) fn module() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| larder_testkit::build_library("larder-envoy", "liblarder_envoy.so", "dev"))
}

/// A running Envoy.
pub(crate) struct Envoy {
    child: Child,
    pub(crate) folder: TempDir,
    /// The address of the listener for requests.
    pub(crate) port: u16,
    /// The address of Envoy's own admin interface.
    admin: u16,
    /// The address of the module's admin filter.
    pub(crate) larder: u16,
}

/// Ports of an Envoy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) requests: u16,
    pub(crate) admin: u16,
    pub(crate) larder: u16,
}

impl Ports {
    pub(crate) fn free() -> Self {
        Self { requests: free_port(), admin: free_port(), larder: free_port() }
    }
}

/// Returns the command that runs Envoy with a config, which is YAML or JSON.
pub(crate) fn command(program: &Path, folder: &Path, config: &impl ToString) -> Command {
    // JSON is YAML too.
    let file = folder.join("envoy.yaml");
    std::fs::write(&file, config.to_string()).expect("the config is written");
    let mut command = Command::new(program);
    command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", module());
    command.args(["--log-level", "warning", "--component-log-level", "dynamic_modules:info"]);
    // Envoy writes logs every 10 s otherwise.
    command.args(["--file-flush-interval-msec", "20", "--config-path"]).arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

impl Envoy {
    /// Starts Envoy and waits until it takes requests. `config` makes the config from the ports and the folder.
    pub(crate) fn start(
        program: &Path,
        workers: u32,
        config: impl FnOnce(Ports, &Path) -> serde_json::Value,
    ) -> Self {
        let folder = TempDir::new().expect("a folder");
        let ports = Ports::free();
        let config = config(ports, folder.path());
        let mut command = command(program, folder.path(), &config);
        command.args(["--disable-hot-restart", "--concurrency", &workers.to_string()]);
        Self::run(&mut command, folder, ports)
    }

    /// Runs a command and waits until Envoy takes requests.
    pub(crate) fn run(command: &mut Command, folder: TempDir, ports: Ports) -> Self {
        let child = command.arg("--log-path").arg(folder.path().join("log")).spawn().expect("Envoy starts");
        let Ports { requests: port, admin, larder } = ports;
        let mut envoy = Self { child, folder, port, admin, larder };
        let path = envoy.folder.path().to_owned();
        eventually(std::fmt::from_fn(|f| write!(f, "Envoy is ready: {}", read(&path, "log"))), || {
            let ended = envoy.child.try_wait().expect("a state");
            assert!(ended.is_none(), "Envoy has ended: {}", read(&path, "log"));
            client::get(admin, "/ready").ok().filter(|reply| reply.status == 200)
        });
        envoy
    }

    /// Waits until Envoy's log has a text.
    pub(crate) fn wait_for_log(&self, text: &str) {
        let log = || read(self.folder.path(), "log");
        eventually(std::fmt::from_fn(|f| write!(f, "'{text}' in {}", log())), || {
            log().contains(text).then_some(())
        });
    }

    /// Returns the lines of the access log.
    pub(crate) fn access_log(&self) -> Vec<String> {
        read(self.folder.path(), "access.log").lines().map(str::to_owned).collect()
    }

    /// Returns the value of a counter or gauge of Envoy whose name ends with `name`; 0 if there is none yet.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let page = client::get(self.admin, "/stats").expect("the page of metrics").text();
        let ends = |line: &&str| line.split_once(": ").is_some_and(|(known, _)| known.ends_with(name));
        page.lines().find(ends).and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
    }

    /// Returns a page of the module's admin filter.
    pub(crate) fn larder_page(&self, path: &str) -> serde_json::Value {
        let reply = client::get(self.larder, path).expect("a reply");
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    /// Returns the node table of the only cluster.
    pub(crate) fn nodes(&self) -> Vec<serde_json::Value> {
        let status = self.larder_page("/status");
        status["clusters"][0]["nodes"].as_array().cloned().unwrap_or_default()
    }

    /// Returns whether the process is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a state").is_none()
    }

    /// Ends the process in good order.
    pub(crate) fn end(&mut self) {
        let reply = client::post(self.admin, "/quitquitquit").expect("a reply");
        assert_eq!(reply.status, 200);
        self.wait();
    }

    /// Waits until the process has ended.
    pub(crate) fn wait(&mut self) {
        eventually("Envoy ends", || self.child.try_wait().expect("a state"));
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn read(folder: &Path, name: &str) -> String {
    let bytes = std::fs::read(folder.join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
