//! The processes of a run, each in the namespace of its host. They end before the hosts are removed. A
//! process that takes too long is killed.
//!
//! Each process has its own process group, so that an interrupt from the terminal reaches only this process,
//! which then ends the others in order. The stdin of larder processes is a pipe from this process, so that
//! they end if this process is killed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use larder_kernel::guard::Guard;
use larder_kernel::netns::Namespace;
use larder_kernel::plane::Plane;
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for a process to serve.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait for a process to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(4);
/// Poll interval of waits.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest reply that is read from an admin interface, bytes.
const REPLY_BYTES_MAX: u64 = 4 << 20;
/// Address of the switch's admin interface in its namespace.
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9900);

/// BPF programs that a process may leave in the kernel, by name. Open connections continue to use them.
#[derive(Clone, Debug)]
pub(super) enum KernelLeftover {
    /// A switch's forwarding plane.
    Plane(String),
    /// The programs of a node or an agent.
    Guard(String),
}

impl KernelLeftover {
    fn remove(&self) -> anyhow::Result<()> {
        match self {
            Self::Plane(name) => Ok(Plane::clean(name)?),
            Self::Guard(name) => Ok(Guard::clean(name)?),
        }
    }
}

/// A process on its host. On drop it is ended, and its programs are removed from the kernel.
pub(super) struct Process<'t> {
    host: &'t Namespace,
    child: Child,
    name: String,
    leftover: Option<KernelLeftover>,
}

impl<'t> Process<'t> {
    /// Starts this executable in a role with a config, and waits until it serves.
    pub(super) fn start_role(
        namespace: &'t Namespace,
        role: &str,
        config: &Path,
        leftover: KernelLeftover,
    ) -> anyhow::Result<Self> {
        let name = format!("larder {role}");
        let executable = std::env::current_exe().context("cannot find the path of larder itself")?;
        let mut command = Command::new(executable);
        command.args([
            role,
            "--threads",
            "1",
            "--ready-line",
            "--exit-with-stdin",
            "--log",
            "error",
            "--config",
        ]);
        if role == "agent" {
            // An agent has no option for threads.
            command = Command::new(command.get_program());
            command.args([role, "--ready-line", "--exit-with-stdin", "--log", "error", "--config"]);
        }
        command.arg(config).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = Self::spawn(namespace, &mut command, name)?;
        process.leftover = Some(leftover);
        let stdout = process.child.stdout.take().context("a process without stdout")?;
        process.await_line(BufReader::new(stdout))?;
        Ok(process)
    }

    /// Starts nginx, and waits until it serves.
    pub(super) fn start_nginx(
        namespace: &'t Namespace,
        listen: &[SocketAddr],
        root: &Path,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let (at, files) = (folder.display(), root.display());
        let listen_lines: String = listen.iter().map(|a| format!("listen {a} backlog=4096; ")).collect();
        // Workers of another user could not read our directory, so nginx keeps running as root.
        let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
        let text = format!(
            "{user}worker_processes 1;\ndaemon off;\npid {at}/pid;\nerror_log {at}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n\
             client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;\n\
             uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
             server {{ {listen_lines} root {files}; }} }}\n",
        );
        let config = folder.join("nginx.conf");
        fs::write(&config, text).with_context(|| config.display().to_string())?;
        let mut command = Command::new("nginx");
        command.arg("-e").arg(folder.join("error.log")).arg("-c").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = Self::spawn(namespace, &mut command, "nginx".to_owned())?;
        let until = Instant::now() + READY_TIMEOUT;
        while !namespace.run(|| listen.iter().all(|address| TcpStream::connect(address).is_ok()))? {
            if Instant::now() > until || !process.runs() {
                let log = fs::read_to_string(folder.join("error.log")).unwrap_or_default();
                bail!("nginx does not serve: {}", log.lines().last().unwrap_or("no message"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(process)
    }

    fn spawn(namespace: &'t Namespace, command: &mut Command, name: String) -> anyhow::Result<Self> {
        command.process_group(0);
        let child = namespace.spawn(command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self { host: namespace, child, name, leftover: None })
    }

    /// Waits for the ready line.
    fn await_line(&mut self, mut stdout: impl BufRead + Send + 'static) -> anyhow::Result<()> {
        let (sender, received) = std::sync::mpsc::sync_channel(1);
        let reader = move || {
            let mut line = String::new();
            // The receiver is gone after a timeout.
            let _ = sender.send(stdout.read_line(&mut line).map(|_| line));
            // The pipe is read to its end, so that the process never writes to a closed pipe.
            let _ = std::io::copy(&mut stdout, &mut std::io::sink());
        };
        std::thread::Builder::new()
            .name("ready".to_owned())
            .spawn(reader)
            .context("cannot start a thread")?;
        match received.recv_timeout(READY_TIMEOUT) {
            Ok(Ok(line)) if line.starts_with('{') => Ok(()),
            Ok(_) => bail!("{} ended instead of serving; see its message above", self.name),
            Err(_) => bail!("{} did not start within {} s", self.name, READY_TIMEOUT.as_secs()),
        }
    }

    fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The process may have ended already.
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + END_TIMEOUT;
        while self.runs() && Instant::now() < until {
            std::thread::sleep(POLL_INTERVAL);
        }
        if self.runs() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let Some(leftover) = &self.leftover else { return };
        let removed = self.host.run(|| leftover.remove());
        if let Err(error) = removed.map_err(anyhow::Error::from).flatten() {
            tracing::warn!(error = format!("{error:#}"), left = ?leftover, "kernel programs: left in the kernel");
        }
    }
}

/// Sends a GET request to the switch's admin interface.
pub(super) fn query_admin(front: &Namespace, path: &str) -> anyhow::Result<String> {
    let query = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(ADMIN)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.take(REPLY_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    front.run(query)?.with_context(|| format!("the switch does not answer {path}"))
}

/// Waits until this number of nodes have a control channel.
pub(super) fn await_channels(front: &Namespace, nodes: usize) -> anyhow::Result<()> {
    let until = Instant::now() + READY_TIMEOUT;
    loop {
        let up = query_admin(front, "/nodes")?.matches("\"channel\": \"up\"").count();
        if up >= nodes {
            return Ok(());
        }
        if Instant::now() > until {
            bail!("{up} of {nodes} nodes' control channels are up");
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
