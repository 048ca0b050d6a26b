//! Real servers in a namespace: nginx and Apache with a config in a temporary directory.

use larder_testkit::within;
use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use larder_kernel::netns::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time limit for a server's start and end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running server, ended on drop.
pub struct Origin {
    child: Child,
    folder: TempDir,
}

impl Origin {
    /// Starts nginx on these addresses of the namespace, with the files under `root`.
    pub fn nginx(namespace: &Namespace, addresses: &[SocketAddr], root: &Path) -> Self {
        Self::nginx_tls(namespace, addresses, root, None)
    }

    /// Starts nginx with TLS on the addresses with port 443, by the certificate and key in `cert`.
    pub fn nginx_tls(
        namespace: &Namespace,
        addresses: &[SocketAddr],
        root: &Path,
        cert: Option<&Path>,
    ) -> Self {
        let listen = addresses.iter().fold(String::new(), |mut text, address| {
            let tls = if address.port() == 443 { " ssl" } else { "" };
            let _ = writeln!(text, "listen {address}{tls} backlog=16384;");
            text
        });
        let tls = cert.map_or(String::new(), |path| {
            format!("ssl_certificate {0}; ssl_certificate_key {0};", path.display())
        });
        Self::start(namespace, addresses, |folder| {
            let at = folder.display();
            let config = format!(
                "user root;\nworker_processes 1;\ndaemon off;\npid {at}/pid;\nerror_log {at}/error.log;\n\
                 events {{ worker_connections 8192; }}\n\
                 http {{ access_log {at}/access.log; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n\
                 client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;\n\
                 uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\n\
                 server {{ {listen} {tls} root {}; dav_methods PUT; client_max_body_size 20m;
                 reset_timedout_connection on; location = /reset {{ return 444; }} }} }}\n",
                root.display()
            );
            let path = write(folder, "nginx.conf", &config);
            let mut command = Command::new("nginx");
            command.arg("-e").arg(folder.join("error.log")).arg("-c").arg(path);
            command
        })
    }

    /// Starts Apache on these addresses of the namespace, with the files under `root`.
    pub fn apache(namespace: &Namespace, addresses: &[SocketAddr], root: &Path) -> Self {
        let listen = addresses.iter().fold(String::new(), |mut text, address| {
            let _ = writeln!(text, "Listen {address}");
            text
        });
        Self::start(namespace, addresses, |folder| {
            let (at, root) = (folder.display(), root.display());
            let config = format!(
                "ServerRoot {at}\nServerName origin\n{listen}ListenBacklog 16384\n\
                 LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so\n\
                 LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so\n\
                 User www-data\nGroup www-data\nPidFile {at}/pid\nErrorLog {at}/error.log\n\
                 DefaultRuntimeDir {at}\nMutex pthread\nDocumentRoot {root}\n\
                 StartServers 1\nThreadsPerChild 64\nMaxRequestWorkers 256\nServerLimit 4\n\
                 KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 15\n\
                 LogFormat \"%h %s %b %U\" short\nCustomLog {at}/access.log short\n\
                 <Directory {root}>\nRequire all granted\n</Directory>\n"
            );
            let path = write(folder, "apache.conf", &config);
            let mut command = Command::new("apache2");
            command.arg("-f").arg(path).arg("-DFOREGROUND");
            command
        })
    }

    fn start(
        namespace: &Namespace,
        addresses: &[SocketAddr],
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = namespace.spawn(&mut command).unwrap();
        let mut origin = Self { child, folder };
        for address in addresses {
            let ready = namespace.run(|| origin.wait_for(*address)).unwrap();
            assert!(ready, "no server on {address}: {}", origin.errors());
        }
        origin
    }

    /// Waits until the server accepts connections. Returns `false` after the time limit.
    fn wait_for(&mut self, address: SocketAddr) -> bool {
        let mut answers = false;
        within(PATIENCE, || {
            answers = TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
            answers || !matches!(self.child.try_wait(), Ok(None))
        });
        answers
    }

    /// Returns its error log.
    pub fn errors(&self) -> String {
        fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default()
    }

    /// Returns the path of its access log: one line per request, the client's address first.
    pub fn access_log(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // The master process ends its workers.
            let _ = kill_process(pid, Signal::TERM);
        }
        within(PATIENCE, || !matches!(self.child.try_wait(), Ok(None)));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}
