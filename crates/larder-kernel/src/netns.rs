//! Hosts of our own in network namespaces: for tests, the demo and benchmarks, on one machine and without touching its
//! interfaces.
//!
//! A [`Namespace`] is a named network namespace; code runs in it on a thread of its own that enters only the network
//! namespace, so that mounts (`/sys/fs/bpf`) stay as they are, unlike under `ip netns exec`. [`Topology`] wires
//! several of them to a cluster: clients, front-ends, nodes, a bridge between them.
//!
//! Names begin with `ld`, the process's number and a count, as `ld4711-3-node0`. Dropping removes the namespace and with
//! it all interfaces in it; what a killed process left behind is found by its number ([`remove_leftovers`]).
//!
//! Needs `ip` (iproute2) and, for offloads, `ethtool`; `CAP_NET_ADMIN` and `CAP_SYS_ADMIN`.

mod capture;
mod skip;
mod topology;
mod wire;

pub use capture::{Capture, Captured, FRAME_BYTES_MAX};
pub use skip::{or_skip, root_or_skip, skip};
pub use topology::{Host, INTERFACE, Offloads, Topology, TopologySpec};
pub use wire::{TcpFrame, Wire, set_tcp_checksum};

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

/// Where `ip netns` keeps the names.
const NAMES: &str = "/run/netns";

/// Distinguishes the namespaces of one process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Why a namespace could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum NetnsError {
    /// This process may not make namespaces, or lacks a tool for it. A retry does not help.
    #[error("network namespaces cannot be made here: {0}")]
    Unable(String),
    /// A command failed.
    #[error("`{command}` failed: {said}")]
    Command {
        /// What was run.
        command: String,
        /// What it wrote to stderr, or how it ended.
        said: String,
    },
    /// The system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program could not be loaded or attached.
    #[error("{doing}: {source}")]
    Bpf {
        /// What was tried.
        doing: String,
        /// What the library said.
        source: libbpf_rs::Error,
    },
    /// More hosts were asked for than there are addresses.
    #[error("a topology has {what} {min} to {max}, not {asked}")]
    Size {
        /// Of what.
        what: &'static str,
        /// At least.
        min: usize,
        /// At most.
        max: usize,
        /// Asked for.
        asked: usize,
    },
}

impl NetnsError {
    fn io(doing: impl Into<String>, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), source }
    }
}

/// Whether this process can make namespaces.
///
/// # Errors
/// [`NetnsError::Unable`] says what is missing.
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

/// Whether a program can be run; `version` is an argument with which it does nothing much.
///
/// # Errors
/// [`NetnsError::Unable`] names it and its package.
pub fn installed(program: &str, version: &str, package: &str) -> Result<(), NetnsError> {
    match Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => Ok(()),
        Err(e) => Err(NetnsError::Unable(format!("needs `{program}` of {package}: {e}"))),
    }
}

/// A network namespace of our own, removed on drop.
///
/// Processes that still run in it keep its interfaces alive; whoever starts some ends them first.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    /// Open for as long as we may enter: `/run/netns/<name>`.
    file: File,
}

impl Namespace {
    /// Makes a namespace called `ld<pid>-<count>-<label>` with its loopback interface up.
    ///
    /// # Errors
    /// [`NetnsError::Unable`] without the rights; else what `ip` said.
    pub fn new(label: &str) -> Result<Self, NetnsError> {
        available()?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ld{}-{count}-{label}", std::process::id());
        ip(&["netns", "add", &name])?;
        let path = Path::new(NAMES).join(&name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) => {
                // Nobody owns it yet who would remove it.
                let _ = ip(&["netns", "del", &name]);
                return Err(NetnsError::io(format!("opening {}", path.display()), e));
            }
        };
        let namespace = Self { name, file };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    /// Its name, as `ip -n` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file, for tools that take a path.
    pub fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.name)
    }

    /// Moves the calling thread into the namespace, for good. For threads of a runtime; else use [`Self::run`].
    ///
    /// # Errors
    /// If the system refuses.
    pub fn enter(&self) -> io::Result<()> {
        enter(&self.file)
    }

    /// Runs `f` in the namespace, on a thread of its own, and waits for it. Sockets and processes that `f` makes
    /// belong to the namespace and may leave the closure. A panic of `f` goes on in the caller.
    ///
    /// # Errors
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
    /// If the namespace cannot be entered or no thread made.
    pub fn thread<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<NamespaceThread<T>, NetnsError> {
        let file = self.file.try_clone().map_err(|e| self.not_entered(e))?;
        let (tell, entered) = mpsc::sync_channel(1);
        let body = move || {
            let inside = enter(&file);
            let went_in = inside.is_ok();
            // The caller waits for this word.
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
    /// If it cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, NetnsError> {
        let started = self.run(|| command.spawn())?;
        started.map_err(|e| NetnsError::io(format!("starting {command:?} in {}", self.name), e))
    }

    /// Runs a program in the namespace to its end.
    ///
    /// # Errors
    /// If it cannot be started; how it ends is the caller's to judge.
    pub fn output(&self, command: &mut Command) -> Result<Output, NetnsError> {
        let ended = self.run(|| command.output())?;
        ended.map_err(|e| NetnsError::io(format!("running {command:?} in {}", self.name), e))
    }

    /// Gives the lines to `ip -batch` in the namespace: one command a line, without the leading `ip`.
    ///
    /// # Errors
    /// What `ip` said about the first line that failed.
    pub fn ip(&self, lines: &str) -> Result<(), NetnsError> {
        batch(&["-n", &self.name], lines)
    }

    /// Sets offloads of an interface: words as for `ethtool -K <interface>`.
    ///
    /// # Errors
    /// If `ethtool` is missing or refuses.
    pub fn offloads(&self, interface: &str, words: &[&str]) -> Result<(), NetnsError> {
        let mut command = Command::new("ethtool");
        command.arg("-K").arg(interface).args(words);
        let output = self.output(&mut command)?;
        succeeded(&format!("{command:?} in {}", self.name), &output)
    }

    /// Writes a sysctl, by its name with dots.
    ///
    /// # Errors
    /// If there is none of that name, or the kernel refuses the value.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<(), NetnsError> {
        let path = sysctl_path(name);
        // `/proc/sys/net` shows the namespace of the thread that opens it.
        self.run(|| fs::write(path, value))?
            .map_err(|e| NetnsError::io(format!("setting {name}={value} in {}", self.name), e))
    }

    /// Reads a sysctl, by its name with dots.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn read_sysctl(&self, name: &str) -> Result<String, NetnsError> {
        let path = sysctl_path(name);
        let value = self.run(|| fs::read_to_string(path))?;
        value
            .map(|v| v.trim().to_owned())
            .map_err(|e| NetnsError::io(format!("reading {name} in {}", self.name), e))
    }

    /// The number of an interface.
    ///
    /// # Errors
    /// If there is none of that name.
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
        if let Err(e) = ip(&["netns", "del", &self.name]) {
            tracing::warn!("{e}");
        }
    }
}

/// A thread that runs in a namespace.
#[derive(Debug)]
pub struct NamespaceThread<T>(JoinHandle<Option<T>>);

impl<T> NamespaceThread<T> {
    /// Waits for its end. A panic of the thread goes on in the caller.
    pub fn join(self) -> T {
        match self.0.join() {
            Ok(value) => value.expect("the thread is handed out only if it has entered"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

/// Joins two namespaces by a veth pair: `(namespace, interface)` twice. Both ends are down.
///
/// # Errors
/// What `ip` said.
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

/// Namespaces that processes of this library left behind: those whose process is gone.
pub fn leftovers() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMES) else { return Vec::new() };
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| owner(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()))
        .collect();
    names.sort();
    names
}

/// Removes [`leftovers`], and ends the processes in them; gives how many. Only where nobody else's processes are hidden
/// from this one: a process in another PID namespace looks dead from here.
///
/// # Errors
/// What `ip` said about the first that could not be removed.
pub fn remove_leftovers() -> Result<usize, NetnsError> {
    let names = leftovers();
    for name in &names {
        end_processes(name)?;
        ip(&["netns", "del", name])?;
    }
    Ok(names.len())
}

/// Kills what runs in a namespace: while something does, its interfaces stay.
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

/// Whose a namespace is, if its name is one of ours.
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
        // A pipe that closes early means that `ip` has failed, and it says why.
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
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn names_tell_their_owner() {
        assert_eq!(owner("ld4711-3-node0"), Some(4711));
        for foreign in ["lc", "ld", "ldx-1-a", "ld12", "ld12-a", "ld12-x-a", "cluster"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_namespace_is_apart_and_removed() {
        let Some(namespace) = or_skip(Namespace::new("apart")) else { return };
        let listener = namespace.run(|| TcpListener::bind("127.0.0.1:0")).expect("entered").expect("bound");
        let address = listener.local_addr().expect("an address");
        assert!(TcpStream::connect(address).is_err(), "the host's loopback is another");
        let inside = namespace.thread(move || TcpStream::connect(address).is_ok()).expect("entered");
        assert!(inside.join());
        let path = namespace.path();
        assert!(path.exists());
        drop(namespace);
        assert!(!path.exists());
    }

    #[test]
    fn a_panic_inside_is_the_callers_and_removes() {
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
    fn a_failing_command_says_what_failed() {
        let Some(namespace) = or_skip(Namespace::new("fails")) else { return };
        let e = namespace.ip("link set nothing up").expect_err("there is no such interface");
        assert!(e.to_string().contains("nothing"), "{e}");
        let e = namespace.sysctl("net.ipv4.no_such_thing", "1").expect_err("there is no such sysctl");
        assert!(e.to_string().contains("no_such_thing"), "{e}");
        assert!(namespace.ifindex("nothing").is_err());
    }

    /// A namespace named for a process that has ended is a leftover.
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
        // It is inside once it is what it was to become.
        let comm = format!("/proc/{}/comm", sleeper.id());
        larder_testkit::eventually("the process is inside", || {
            std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep").then_some(())
        });
        let found = leftovers();
        // Other processes' tests may leave some meanwhile, so not all that there are.
        end_processes(&name).expect("ended");
        let ended = sleeper.wait().expect("waited");
        ip(&["netns", "del", &name]).expect("removed");
        assert!(!ended.success(), "it slept on");
        assert!(found.contains(&name), "{found:?}");
        assert!(!found.contains(&own.name().to_owned()), "{found:?}");
    }
}
