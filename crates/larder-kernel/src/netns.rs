//! Hosts in network namespaces, for tests, the demo and benchmarks on one machine, without touching its interfaces.
//!
//! A [`Namespace`] is a named network namespace. Code runs in it on a thread of its own that enters only the network
//! namespace, so that mounts (`/sys/fs/bpf`) stay, unlike under `ip netns exec`. [`Topology`] connects several
//! namespaces to a cluster of clients, switches and nodes on a bridge.
//!
//! Names are `ld`, the process id and a count, for example `ld4711-3-node0`. Dropping a namespace removes it with all
//! its interfaces. Those of a killed process are found by its id ([`remove_leftovers`]).
//!
//! Needs `ip` (iproute2) and, for offloads, `ethtool`; `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`.

mod capture;
mod topology;
mod wire;

pub use capture::{Capture, CapturedFrame, FRAME_BYTES_MAX};
pub use topology::{Host, INTERFACE, Offloads, Topology, TopologySpec};
pub use wire::Wire;

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, capabilities, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

/// Directory in which `ip netns` keeps the names.
const NETNS_DIRECTORY: &str = "/run/netns";

/// Distinguishes the namespaces of one process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Reason why a namespace could not be created or used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// This process lacks the rights or a tool for namespaces. A retry does not help.
    #[error("cannot create network namespaces: {0}")]
    Unable(String),
    /// A command failed.
    #[error("`{command}` failed: {said}")]
    Command {
        /// The command.
        command: String,
        /// Its stderr, or its exit status.
        said: String,
    },
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The operation.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program could not be loaded or attached.
    #[error("{doing}: {source}")]
    Bpf {
        /// The operation.
        doing: String,
        /// The library's error.
        source: libbpf_rs::Error,
    },
    /// A number of hosts is out of range.
    #[error("a topology has {what} {min} to {max}, not {asked}")]
    Size {
        /// The kind of host.
        what: &'static str,
        /// Smallest number.
        min: usize,
        /// Largest number.
        max: usize,
        /// The number that was asked for.
        asked: usize,
    },
}

impl NetnsError {
    fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), source }
    }
}

/// The kind of [`NetnsError::Unable`] is [`io::ErrorKind::Unsupported`].
impl From<NetnsError> for io::Error {
    fn from(error: NetnsError) -> Self {
        match error {
            NetnsError::Unable(why) => Self::new(io::ErrorKind::Unsupported, why),
            error => Self::other(error),
        }
    }
}

/// Checks whether this process can create namespaces.
///
/// # Errors
///
/// [`NetnsError::Unable`] states what is missing.
pub fn available() -> Result<(), NetnsError> {
    let sets =
        capabilities(None).map_err(|e| NetnsError::io("reading this thread's capabilities", e.into()))?;
    for (name, needed) in
        [("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN), ("CAP_SYS_ADMIN", CapabilitySet::SYS_ADMIN)]
    {
        if !sets.effective.contains(needed) {
            return Err(NetnsError::Unable(format!("needs {name}")));
        }
    }
    installed("ip", "-V", "iproute2")
}

/// Checks whether a program is installed. `version` is an argument with which it has no effect.
///
/// # Errors
///
/// [`NetnsError::Unable`] names the program and its package.
pub fn installed(program: &str, version: &str, package: &str) -> Result<(), NetnsError> {
    match Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(e) => Err(NetnsError::Unable(format!("needs `{program}` of {package}: {e}"))),
    }
}

/// A network namespace, removed when dropped.
///
/// Processes that still run in it keep its interfaces alive; the code that starts them must end them first.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// `/run/netns/<name>`, kept open for entering.
    file: File,
}

impl Namespace {
    /// Creates a namespace called `ld<pid>-<count>-<label>` with its loopback interface up.
    ///
    /// # Errors
    ///
    /// [`NetnsError::Unable`] without the rights; else the error of `ip`.
    pub fn new(label: &str) -> Result<Self, NetnsError> {
        available()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ld{}-{count}-{label}", std::process::id());
        ip(&["netns", "add", &name])?;
        let path = Path::new(NETNS_DIRECTORY).join(&name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) => {
                // Nothing owns the namespace yet that would remove it.
                let _ = ip(&["netns", "del", &name]);
                return Err(NetnsError::io(format!("opening {}", path.display()), e));
            }
        };
        let namespace = Self { name, file };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Returns its name, as `ip -n` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its file, for tools that take a path.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIRECTORY).join(&self.name)
    }

    /// Moves the calling thread into the namespace permanently. For threads of a runtime; otherwise use [`Self::run`].
    ///
    /// # Errors
    ///
    /// If the system rejects the call.
    pub fn enter(&self) -> io::Result<()> {
        enter(&self.file)
    }

    /// Runs `f` in the namespace, on a thread of its own, and waits for it. Sockets and processes that `f` creates
    /// belong to the namespace and may leave the closure. A panic of `f` continues in the caller.
    ///
    /// # Errors
    ///
    /// If the namespace cannot be entered.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
        let ran = thread::scope(|scope| {
            scope.spawn(|| self.enter().map_err(|e| self.not_entered(e)).map(|()| f())).join()
        });
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Starts `f` on a thread in the namespace.
    ///
    /// # Errors
    ///
    /// If the namespace cannot be entered or the thread cannot be started.
    pub fn thread<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<NamespaceThread<T>, NetnsError> {
        let file = self.file.try_clone().map_err(|e| self.not_entered(e))?;
        let (tell, entered) = mpsc::sync_channel(1);
        let body = move || {
            let inside = enter(&file);
            let went_in = inside.is_ok();
            // The caller waits for this.
            let _ = tell.send(inside);
            went_in.then(f)
        };
        let builder = thread::Builder::new().name(self.name.clone());
        let handle = builder.spawn(body).map_err(|e| NetnsError::io("starting a thread", e))?;
        match entered.recv() {
            Ok(Ok(())) => Ok(NamespaceThread(handle)),
            Ok(Err(e)) => Err(self.not_entered(e)),
            Err(_) => Err(self.not_entered(io::Error::other("its thread ended"))),
        }
    }

    /// Starts a program in the namespace.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, NetnsError> {
        let started = self.run(|| command.spawn())?;
        started.map_err(|e| NetnsError::io(format!("starting {command:?} in {}", self.name), e))
    }

    /// Runs a program in the namespace to its end.
    ///
    /// # Errors
    ///
    /// If it cannot be started. The caller checks its exit status.
    pub fn output(&self, command: &mut Command) -> Result<Output, NetnsError> {
        let ended = self.run(|| command.output())?;
        ended.map_err(|e| NetnsError::io(format!("running {command:?} in {}", self.name), e))
    }

    /// Runs `ip -batch` in the namespace: one command per line, without the leading `ip`.
    ///
    /// # Errors
    ///
    /// The error of `ip` about the first line that failed.
    pub fn ip(&self, lines: &str) -> Result<(), NetnsError> {
        batch(&["-n", &self.name], lines)
    }

    /// Sets offloads of an interface: words as for `ethtool -K <interface>`.
    ///
    /// # Errors
    ///
    /// If `ethtool` is missing or fails.
    pub fn offloads(&self, interface: &str, words: &[&str]) -> Result<(), NetnsError> {
        let mut command = Command::new("ethtool");
        command.arg("-K").arg(interface).args(words);
        let output = self.output(&mut command)?;
        succeeded(&format!("{command:?} in {}", self.name), &output)
    }

    /// Sets a sysctl, given its dotted name.
    ///
    /// # Errors
    ///
    /// If it does not exist, or the kernel rejects the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), NetnsError> {
        let path = sysctl_path(name);
        // `/proc/sys/net` shows the namespace of the thread that opens it.
        self.run(|| fs::write(path, value))?
            .map_err(|e| NetnsError::io(format!("setting {name}={value} in {}", self.name), e))
    }

    /// Reads a sysctl, given its dotted name.
    ///
    /// # Errors
    ///
    /// If it does not exist.
    pub fn read_sysctl(&self, name: &str) -> Result<String, NetnsError> {
        let path = sysctl_path(name);
        let value = self.run(|| fs::read_to_string(path))?;
        value
            .map(|v| v.trim().to_owned())
            .map_err(|e| NetnsError::io(format!("reading {name} in {}", self.name), e))
    }

    /// Returns the number of an interface.
    ///
    /// # Errors
    ///
    /// If it does not exist.
    pub fn ifindex(&self, interface: &str) -> Result<u32, NetnsError> {
        let found = self.run(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
            rustix::net::netdevice::name_to_index(&socket, interface).map_err(io::Error::from)
        })?;
        found.map_err(|e| NetnsError::io(format!("looking for {interface} in {}", self.name), e))
    }

    fn not_entered(&self, source: io::Error) -> NetnsError {
        NetnsError::io(format!("entering {}", self.name), source)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = ip(&["netns", "del", &self.name]) {
            tracing::warn!(%error, "network namespace: not removed");
        }
    }
}

/// A thread that runs in a namespace.
#[derive(Debug)]
pub struct NamespaceThread<T>(JoinHandle<Option<T>>);

impl<T> NamespaceThread<T> {
    /// Waits for its end. A panic of the thread continues in the caller.
    pub fn join(self) -> T {
        match self.0.join() {
            Ok(value) => value.expect("the thread is handed out only if it has entered"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Connects two namespaces by a veth pair: `(namespace, interface)` twice. Both ends are down.
///
/// # Errors
///
/// The error of `ip`.
pub fn veth(one: (&Namespace, &str), other: (&Namespace, &str)) -> Result<(), NetnsError> {
    let line = format!(
        "link add name {} netns {} type veth peer name {} netns {}",
        one.1,
        one.0.name(),
        other.1,
        other.0.name()
    );
    batch(&[], &line)
}

/// Returns the namespaces of processes that are gone.
pub fn leftovers() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NETNS_DIRECTORY) else { return Vec::new() };
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| owner(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()))
        .collect();
    names.sort();
    names
}

/// Removes [`leftovers`] and ends the processes in them. Returns their number. Use it only if no processes of others
/// are hidden from this one: a process in another PID namespace looks dead from here.
///
/// # Errors
///
/// The error of `ip` about the first that could not be removed.
pub fn remove_leftovers() -> Result<usize, NetnsError> {
    let names = leftovers();
    for name in &names {
        end_processes(name)?;
        ip(&["netns", "del", name])?;
    }
    Ok(names.len())
}

/// Kills the processes in a namespace, which keep its interfaces alive.
fn end_processes(name: &str) -> Result<(), NetnsError> {
    let mut command = Command::new("ip");
    command.args(["netns", "pids", name]);
    let output = command.output().map_err(|e| NetnsError::io(format!("running {command:?}"), e))?;
    succeeded(&format!("ip netns pids {name}"), &output)?;
    for pid in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some(pid) = pid.trim().parse().ok().and_then(Pid::from_raw) {
            // It may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    Ok(())
}

/// Returns the process id in a namespace's name, if it is one of ours.
fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix("ld")?.split_once('-')?;
    let (count, _label) = rest.split_once('-')?;
    count.parse::<u32>().ok()?;
    pid.parse().ok()
}

fn sysctl_path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name.replace('.', "/"))
}

fn enter(file: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

fn ip(args: &[&str]) -> Result<(), NetnsError> {
    let mut command = Command::new("ip");
    command.args(args);
    let output = command.output().map_err(|e| NetnsError::io(format!("running {command:?}"), e))?;
    succeeded(&format!("ip {}", args.join(" ")), &output)
}

fn batch(options: &[&str], lines: &str) -> Result<(), NetnsError> {
    let doing = format!("ip {} -batch", options.join(" "));
    let io_error = |e| NetnsError::io(format!("running {doing}"), e);
    let mut child = Command::new("ip")
        .args(options)
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(io_error)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If `ip` fails, it closes the pipe early and reports the error.
        let _ = stdin.write_all(lines.as_bytes()).and_then(|()| stdin.write_all(b"\n"));
    }
    let output = child.wait_with_output().map_err(io_error)?;
    succeeded(&format!("{doing} <<< {lines:?}"), &output)
}

fn succeeded(command: &str, output: &Output) -> Result<(), NetnsError> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let said = if said.is_empty() { output.status.to_string() } else { said };
    Err(NetnsError::Command { command: command.to_owned(), said })
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_testkit::or_skip;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn owner_is_parsed_from_the_name() {
        assert_eq!(owner("ld4711-3-node0"), Some(4711));
        for foreign in ["lc", "ld", "ldx-1-a", "ld12", "ld12-a", "ld12-x-a", "cluster"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn namespace_is_isolated_and_removed() {
        let Some(namespace) = or_skip(Namespace::new("apart")) else { return };
        let listener = namespace.run(|| TcpListener::bind("127.0.0.1:0")).expect("entered").expect("bound");
        let address = listener.local_addr().expect("an address");
        // On the host, another listener may have the port.
        listener.set_nonblocking(true).expect("a socket of ours");
        drop(TcpStream::connect(address));
        let arrived = listener.accept().map_err(|error| error.kind());
        assert!(matches!(arrived, Err(ErrorKind::WouldBlock)), "the host's loopback is another: {arrived:?}");
        let inside = namespace.thread(move || TcpStream::connect(address).is_ok()).expect("entered");
        assert!(inside.join());
        let path = namespace.path();
        assert!(path.exists());
        drop(namespace);
        assert!(!path.exists());
    }

    #[test]
    fn panic_inside_propagates_and_removes_the_namespace() {
        let Some(namespace) = or_skip(Namespace::new("panic")) else { return };
        let path = namespace.path();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let owned = namespace;
            owned.run(|| panic!("inside")).expect("entered");
        }));
        assert!(ended.is_err());
        assert!(!path.exists());
    }

    #[test]
    fn failed_command_is_described() {
        let Some(namespace) = or_skip(Namespace::new("fails")) else { return };
        let e = namespace.ip("link set nothing up").expect_err("there is no such interface");
        assert!(e.to_string().contains("nothing"), "{e}");
        let e = namespace.sysctl("net.ipv4.no_such_thing", "1").expect_err("there is no such sysctl");
        assert!(e.to_string().contains("no_such_thing"), "{e}");
        assert!(namespace.ifindex("nothing").is_err());
    }

    /// A namespace of a process that has ended is a leftover.
    #[test]
    fn leftovers_are_found_by_their_process() {
        if or_skip(available()).is_none() {
            return;
        }
        let mut child = Command::new("true").spawn().expect("`true` runs");
        let pid = child.id();
        child.wait().expect("it ends");
        let name = format!("ld{pid}-0-left");
        ip(&["netns", "add", &name]).expect("made");
        let own = Namespace::new("kept").expect("made");
        let mut inside = Command::new("ip");
        let mut sleeper = inside.args(["netns", "exec", &name, "sleep", "60"]).spawn().expect("started");
        // The process is inside once it has executed its program.
        let comm = format!("/proc/{}/comm", sleeper.id());
        larder_testkit::eventually("the process is inside", || {
            std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep").then_some(())
        });
        let found = leftovers();
        // Tests of other processes may leave namespaces meanwhile, so only this one is removed.
        end_processes(&name).expect("ended");
        let ended = sleeper.wait().expect("waited");
        ip(&["netns", "del", &name]).expect("removed");
        assert!(!ended.success(), "it slept on");
        assert!(found.contains(&name), "{found:?}");
        assert!(!found.contains(&own.name().to_owned()), "{found:?}");
    }
}
