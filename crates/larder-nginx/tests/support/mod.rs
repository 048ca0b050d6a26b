//! A real nginx with the module.

use larder_testkit::proxy::{Node, get};
use larder_testkit::{eventually, free_port, needs_tool, skip};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Returns nginx, which `scripts/setup.sh test` installs. Otherwise the test is skipped.
pub(crate) fn program() -> Option<PathBuf> {
    if !cfg!(has_nginx) {
        skip("needs nginx's headers (the Debian package nginx-dev) for the module");
        return None;
    }
    needs_tool("nginx", "nginx")
}

/// Returns the module, built once for all tests.
pub(crate) fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        let file = "libngx_http_larder_module.so";
        larder_testkit::build_library("larder-nginx", file, "dev").join(file)
    })
}

/// The config of an nginx.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) workers: u32,
    /// Lines at the beginning.
    pub(crate) head: String,
    /// The block `upstream`.
    pub(crate) upstream: String,
    /// The user of the workers, if the tests run as root.
    pub(crate) user: &'static str,
    port: u16,
    status: u16,
}

impl Config {
    /// Returns a config with this directive `larder`, and these lines after it in the block.
    pub(crate) fn new(larder: &str, lines: &[String]) -> Self {
        let mut config = Self {
            workers: 4,
            head: String::new(),
            upstream: String::new(),
            user: "root",
            port: free_port(),
            status: free_port(),
        };
        config.set_upstream(larder, lines);
        config.head = format!("load_module {};", module().display());
        config
    }

    /// Changes the block.
    pub(crate) fn set_upstream(&mut self, larder: &str, lines: &[String]) {
        self.upstream = format!("upstream tier {{\n    {larder}\n    {}\n}}", lines.join("\n    "));
    }

    fn text(&self, folder: &Path) -> String {
        let Self { workers, head, upstream, user, port, status } = self;
        let folder = folder.display();
        format!(
            r#"{head}
user {user};
daemon off;
worker_processes {workers};
pid {folder}/pid;
error_log {folder}/error.log notice;
events {{ worker_connections 512; }}
http {{
    log_format larder '$status $upstream_addr $larder_reason $larder_node $request_uri';
    access_log {folder}/access.log larder;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{upstream}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://tier;
            proxy_http_version 1.1;
            proxy_set_header Connection $http_connection;
            proxy_set_header Upgrade $http_upgrade;
        }}
    }}
    server {{
        listen 127.0.0.1:{status};
        access_log off;
        location / {{ larder_status; }}
    }}
}}
"#
        )
    }
}

/// Returns lines of a block with these servers, and what most tests want beside them.
pub(crate) fn servers(nodes: &[Node], parameters: &str) -> Vec<String> {
    let line = |node: &Node| format!("server 127.0.0.1:{} {parameters};", node.port);
    let more = ["keepalive 8;".to_owned(), "zone tier 1m;".to_owned()];
    nodes.iter().map(line).chain(more).collect()
}

/// A running nginx.
pub(crate) struct Nginx {
    child: Child,
    program: PathBuf,
    pub(crate) folder: TempDir,
    pub(crate) port: u16,
    status: u16,
}

impl Nginx {
    /// Starts nginx and waits until it takes requests.
    pub(crate) fn start(program: &Path, config: &Config) -> Self {
        Self::start_with(program, config, &[])
    }

    /// As [`Nginx::start`], with variables of the environment.
    pub(crate) fn start_with(program: &Path, config: &Config, environment: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let mut command = command(program, folder.path(), config);
        command.envs(environment.iter().copied());
        let child = command.spawn().expect("nginx starts");
        let (port, status) = (config.port, config.status);
        let mut nginx = Self { child, program: program.to_owned(), folder, port, status };
        nginx.wait_until_ready();
        nginx
    }

    fn wait_until_ready(&mut self) {
        let log = || fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default();
        let (child, status) = (&mut self.child, self.status);
        eventually(std::fmt::from_fn(|f| write!(f, "nginx is ready: {}", log())), || {
            let ended = child.try_wait().expect("a state");
            assert!(ended.is_none(), "nginx has ended: {}", log());
            get(status, "/status").ok().filter(|reply| reply.status == 200)
        });
    }

    /// Reads a changed config, and waits until the old workers have gone.
    pub(crate) fn reload(&self, config: &Config) {
        let before = self.workers();
        self.signal_reload(config);
        eventually("the old workers end", || {
            let now = self.workers();
            (!now.is_empty() && !now.iter().any(|worker| before.contains(worker))).then_some(())
        });
    }

    /// Runs `nginx -s reload` with a changed config.
    pub(crate) fn signal_reload(&self, config: &Config) {
        let output = command(&self.program, self.folder.path(), config)
            .args(["-s", "reload"])
            .stderr(Stdio::piped())
            .output()
            .expect("nginx runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the ids of the workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
    }

    /// Waits until the error log has a text.
    pub(crate) fn wait_for_log(&self, text: &str) {
        eventually(std::fmt::from_fn(|f| write!(f, "'{text}' in {}", self.log())), || {
            self.log().contains(text).then_some(())
        });
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }

    /// Returns the lines of the access log.
    pub(crate) fn access_log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns a page of the module.
    pub(crate) fn page(&self, path: &str) -> Value {
        let reply = get(self.status, path).expect("a reply");
        serde_json::from_slice(&reply.body).expect("JSON")
    }

    /// Returns the status of the only upstream.
    pub(crate) fn upstream(&self) -> Value {
        self.page("/status")["upstreams"][0].clone()
    }

    /// Returns the node table of the only upstream.
    pub(crate) fn nodes(&self) -> Vec<Value> {
        self.upstream()["nodes"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until the node at a port has a state.
    pub(crate) fn wait_for_state(&self, port: u16, state: &str) {
        let name = format!("127.0.0.1:{port}");
        eventually(std::fmt::from_fn(|f| write!(f, "{name} is {state}: {:?}", self.nodes())), || {
            self.nodes().iter().any(|node| node["name"] == name && node["state"] == state).then_some(())
        });
    }

    /// Waits until no node has requests in progress.
    pub(crate) fn wait_until_idle(&self) {
        let load = || self.nodes().iter().filter_map(|node| node["load"].as_u64()).sum::<u64>();
        eventually(std::fmt::from_fn(|f| write!(f, "every request has ended: {:?}", self.nodes())), || {
            (load() == 0).then_some(())
        });
    }

    /// Returns whether the process is still running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a state").is_none()
    }

    /// Ends the process in good order.
    pub(crate) fn end(&mut self, config: &Config) {
        let mut stop = command(&self.program, self.folder.path(), config);
        assert!(stop.args(["-s", "quit"]).status().expect("nginx runs").success());
        eventually("nginx ends", || self.child.try_wait().expect("a state"));
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master ends its workers, which would outlive it if it were killed.
        if self.is_running() {
            let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        }
        let _ = self.child.wait();
    }
}

fn command(program: &Path, folder: &Path, config: &Config) -> Command {
    let file = folder.join("nginx.conf");
    fs::write(&file, config.text(folder)).expect("the config is written");
    let mut command = Command::new(program);
    command.arg("-e").arg(folder.join("error.log")).arg("-p").arg(folder).arg("-c").arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Checks a config with `nginx -t`.
pub(crate) fn check(program: &Path, folder: &Path, config: &Config) -> Output {
    let mut command = command(program, folder, config);
    command.arg("-t").stderr(Stdio::piped()).output().expect("nginx runs")
}
