"""Hosts in network namespaces, processes pinned to processors, and what they cost. Used by run.py, rates.py, lard.py.

Processor 1 does the front-end's work and nothing else of ours: its processes, and the kernel thread that takes the packets of
its interface (threaded NAPI). Processor 0 does all the rest: client, nodes, the bridge between them. So "processor 1, wall
time less idle time" is the front-end's whole cost, interrupts and all; what other programs of this machine do there is
measured too and shown as `foreign`.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VIP, PREFIX = "10.9.0.100", "10.9.0."
FRONT_CPU, OTHER_CPU = 1, 0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PATIENCE_S = 20
PRIORITY = -18


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(*command, check=True, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def prefer(pid, nice):
    """Where the kernel shares processors by session, a process's own priority says nothing to those of other sessions."""
    with contextlib.suppress(OSError):
        pathlib.Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def clear(cpu):
    """Moves whatever may run elsewhere off a processor, threads of the kernel too, so that what it does is the front-end's.
    Returns where they were allowed to run."""
    moved = {}
    for task in pathlib.Path("/proc").glob("[0-9]*/task/[0-9]*"):
        # Threads that belong to this processor refuse; others end meanwhile.
        with contextlib.suppress(OSError):
            pid, cpus = int(task.name), os.sched_getaffinity(int(task.name))
            if cpu in cpus and len(cpus) > 1:
                os.sched_setaffinity(pid, cpus - {cpu})
                moved[pid] = cpus
    return moved


GOVERNOR = pathlib.Path("/sys/devices/system/cpu/cpuidle/current_governor")
HALT_POLL = pathlib.Path("/sys/module/haltpoll/parameters")
# How idle processors of a virtual machine wait for work, where cpuidle's haltpoll has them (Documentation/virt/
# guest-halt-polling.rst): to wake one that has halted is an exit to the hypervisor, microseconds a packet. `haltpoll` is with the
# governor's default parameters, `poll` with looking for work for long, `machine` as this one is set.
IDLE = {
    "machine": {},
    "haltpoll": {"guest_halt_poll_ns": 200_000, "guest_halt_poll_grow_start": 50_000, "guest_halt_poll_grow": 2,
                 "guest_halt_poll_shrink": 2, "guest_halt_poll_allow_shrink": "Y"},
    "poll": {"guest_halt_poll_ns": 2_000_000, "guest_halt_poll_grow_start": 2_000_000, "guest_halt_poll_allow_shrink": "N"},
}


@contextlib.contextmanager
def idling(how):
    """Idle processors wait for work in this way meanwhile; what they poll counts as idle."""
    wanted = IDLE[how]
    if wanted and (not GOVERNOR.exists() or GOVERNOR.read_text().strip() != "haltpoll"):
        sys.exit(f"--idle {how}: needs cpuidle's governor haltpoll")
    before = {name: (HALT_POLL / name).read_text() for name in wanted}
    try:
        for name, value in wanted.items():
            (HALT_POLL / name).write_text(str(value))
        yield
    finally:
        for name, value in before.items():
            (HALT_POLL / name).write_text(value)


def idle_as_found():
    """How idle processors wait, for whoever reads the figures."""
    try:
        governor = GOVERNOR.read_text().strip()
    except OSError:
        return "no cpuidle"
    if governor != "haltpoll":
        return governor
    return f"haltpoll, up to {int((HALT_POLL / 'guest_halt_poll_ns').read_text()) // 1000} us"


class Host:
    """A network namespace with one interface to the hub. The interface's name is unique on this machine."""

    def __init__(self, lab, role, number):
        self.name = f"{lab.prefix}-{role}"
        self.device = f"{role}{lab.number}"
        self.port = f"p-{role}"
        self.address = f"{PREFIX}{number}"
        self.mac = f"02:00:00:09:00:{number:02x}"
        run("ip", "netns", "add", self.name)

    def command(self, *command, cpu=OTHER_CPU):
        # Not `ip netns exec`: it mounts a /sys of its own, without the file system that keeps BPF programs.
        return ["nsenter", f"--net=/run/netns/{self.name}", "taskset", "-c", str(cpu), *map(str, command)]

    def run(self, *command, check=True):
        return run(*self.command(*command), check=check)

    def ip(self, *args):
        return run("ip", "-n", self.name, *args)

    def sysctl(self, *settings):
        self.run("sysctl", "-qw", *settings)

    def sys(self, script):
        return run("ip", "netns", "exec", self.name, "sh", "-c", script)


class Process:
    """A process in a group of its own; its stderr goes to a file."""

    def __init__(self, host, name, command, log, cpu=OTHER_CPU, ready=False, env=None):
        self.host, self.name, self.log = host, name, log
        with open(log, "w") as stderr:
            self.process = subprocess.Popen(host.command(*command, cpu=cpu), start_new_session=True, stderr=stderr,
                                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if ready else subprocess.DEVNULL,
                                            env=env)
        prefer(self.process.pid, PRIORITY)
        if ready:
            line = self.process.stdout.readline().decode(errors="replace")
            if not line.startswith("{"):
                self.stop()
                raise RuntimeError(f"{name} did not start: {line}{pathlib.Path(log).read_text()[-2000:]}")

    def pids(self):
        try:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            children = []
        return [self.process.pid, *map(int, children)]

    def rss_bytes(self):
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in self.pids())

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(8)
            except subprocess.TimeoutExpired:
                pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Lab:
    """Client, front-end, nodes and a hub; removed at the end, also after a failure."""

    def __init__(self, nodes, larder, wire="nic", work=None, idle="machine"):
        if os.geteuid() != 0:
            sys.exit("network namespaces, pinned kernel threads and BPF need root")
        self.number = os.getpid() % 100000
        self.prefix = f"lb{os.getpid()}"
        self.larder, self.wire = str(pathlib.Path(larder).resolve()), wire
        self.processes, self.hosts, self.pinned = [], [], None
        self.stack = contextlib.ExitStack()
        directory = work or self.stack.enter_context(tempfile.TemporaryDirectory(prefix="handoff-bench-"))
        self.work = pathlib.Path(directory)
        self.work.chmod(0o755)
        os.umask(0o022)
        self.affinity = os.sched_getaffinity(0)
        if len(self.affinity) < 2:
            sys.exit("needs two processors: one for the front-end, one for the rest")
        # An end by signal is one in order, too.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))
        self.moved = clear(FRONT_CPU)
        os.sched_setaffinity(0, {OTHER_CPU})
        # Before whatever else this machine does; what we start inherits it.
        self.nice = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
        prefer("self", PRIORITY)
        self.saved = {name: self.get_sysctl(name) for name in
                      ["net.ipv4.tcp_allowed_congestion_control", "net.core.netdev_max_backlog"]}
        try:
            self.stack.enter_context(idling(idle))
            self.idle = idle_as_found()
            self.build(nodes)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @staticmethod
    def get_sysctl(name):
        return pathlib.Path("/proc/sys", name.replace(".", "/")).read_text().strip()

    def build(self, nodes):
        allowed = set(self.saved["net.ipv4.tcp_allowed_congestion_control"].split())
        run("sysctl", "-qw", f"net.ipv4.tcp_allowed_congestion_control={' '.join(sorted(allowed | {'cubic', 'reno'}))}")
        run("sysctl", "-qw", "net.core.netdev_max_backlog=20000")
        self.hub = f"{self.prefix}-hub"
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        run("ip", "-n", self.hub, "link", "set", "br0", "up")
        self.client, self.front = self.host("c", 2), self.host("f", 3)
        self.nodes = [self.host(f"n{i}", 11 + i) for i in range(nodes)]
        for a in self.hosts:
            for b in self.hosts:
                if a is not b:
                    a.ip("neigh", "replace", b.address, "lladdr", b.mac, "dev", a.device, "nud", "permanent")
        self.client.ip("neigh", "replace", VIP, "lladdr", self.front.mac, "dev", self.client.device, "nud", "permanent")
        self.front.ip("addr", "add", f"{VIP}/32", "dev", self.front.device)
        for node in self.nodes:
            node.sysctl("net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2")
            node.ip("addr", "add", f"{VIP}/32", "dev", "lo")
        self.pin()

    def host(self, role, number):
        host = Host(self, role, number)
        self.hosts.append(host)
        run("ip", "link", "add", "name", host.device, "netns", host.name, "type", "veth", "peer", "name", host.port,
            "netns", self.hub)
        host.ip("link", "set", host.device, "address", host.mac)
        run("ip", "-n", self.hub, "link", "set", host.port, "master", "br0", "up")
        host.ip("link", "set", "lo", "up")
        host.ip("link", "set", host.device, "up")
        host.ip("addr", "add", f"{host.address}/24", "dev", host.device)
        host.sysctl("net.ipv4.tcp_congestion_control=cubic", "net.ipv4.ip_local_port_range=1024 65535",
                    "net.core.somaxconn=16384", "net.ipv4.tcp_max_syn_backlog=16384", "net.ipv4.tcp_tw_reuse=1")
        host.run("sysctl", "-qw", "net.ipv4.tcp_tw_reuse_delay=1", check=False)
        host.run("ethtool", "-K", host.device, "gro", "on")
        # XDP does not complete checksums that the sender has left to its interface.
        if role == "c":
            host.run("ethtool", "-K", host.device, "tx", "off")
        if self.wire == "nic":
            # Packets of MTU size on the wire, as a network card puts them there; the front-end's own card still segments.
            if role != "f":
                host.run("ethtool", "-K", host.device, "tso", "off", "gso", "off")
            self.at_hub("ethtool", "-K", host.port, "gro", "off", "tso", "off", "gso", "off")
        else:
            self.at_hub("ethtool", "-K", host.port, "gro", "on")
            self.at_hub("sh", "-c", f"echo 1 > /sys/class/net/{host.port}/threaded")
        host.sys(f"echo 1 > /sys/class/net/{host.device}/threaded")
        # Whatever takes packets without a thread of its own does so on the other processor.
        steer = "for queue in /sys/class/net/{}/queues/rx-*; do echo {} > $queue/rps_cpus; done"
        host.sys(steer.format(host.device, 0 if role == "f" else 1 << OTHER_CPU))
        self.at_hub("sh", "-c", steer.format(host.port, 1 << OTHER_CPU))
        for where, device in [(host.name, host.device), (self.hub, host.port)]:
            run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "pfifo", "limit", "20000")
        return host

    def at_hub(self, *command):
        return run("ip", "netns", "exec", self.hub, *command)

    def from_outside(self, *command):
        """The command at the hub, on the clients' processor, when they leave it."""
        return ["nsenter", f"--net=/run/netns/{self.hub}", "taskset", "-c", str(OTHER_CPU), "chrt", "--idle", "0", *map(str, command)]

    def far_xdp(self, on):
        """XDP_TX on a veth is delivered only to a far end that has an XDP program too."""
        link = ["ip", "-n", self.hub, "link", "set", "dev", self.front.port]
        if on:
            run(*link, "xdpdrv", "obj", str(ROOT / "crates/larder-kernel/bpf/prebuilt/pass.bpf.o"), "sec", "xdp")
            self.at_hub("sh", "-c", f"echo 1 > /sys/class/net/{self.front.port}/threaded")
        else:
            run(*link, "xdpdrv", "off")

    def swallow(self, mac):
        """Frames of the front-end's for this address end at the hub: they would go back where they came from."""
        run("bridge", "-n", self.hub, "fdb", "replace", mac, "dev", self.front.port, "master", "static")

    def napi_threads(self):
        """Threads that take packets, by interface."""
        threads = {}
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    found = re.match(r"napi/(\S+)-\d+$", (folder / "comm").read_text().strip())
                    if found:
                        threads.setdefault(found[1], []).append(int(folder.name))
        return threads

    def pin(self):
        """Interfaces make new threads when a program is attached; so after every start of a front-end."""
        ours = {host.device for host in self.hosts}
        for device, pids in self.napi_threads().items():
            if device in ours or device.startswith("p-"):
                for pid in pids:
                    with contextlib.suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, pid, PRIORITY)
                        os.sched_setaffinity(pid, {FRONT_CPU if device == self.front.device else OTHER_CPU})

    def start(self, host, name, command, **more):
        process = Process(host, name, command, self.work / f"{name}.log", **more)
        self.processes.append(process)
        return process

    def stop(self, process):
        process.stop()
        if process in self.processes:
            self.processes.remove(process)

    def await_port(self, host, address, port, process):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and process.process.poll() is None:
            if f"{address}:{port} " in host.run("ss", "-Hltn", f"sport = :{port}") + " ":
                return
            time.sleep(0.05)
        raise RuntimeError(f"{process.name} does not listen on {address}:{port}: {process.log.read_text()[-1500:]}")

    def forget(self):
        """Takes away what our switches have left in the kernel for their next start."""
        for base in ["/sys/fs/bpf/larder", "/run/larder/bpf", "/run/larder/bpf/larder", "/run/larder/bpf/larder-guard",
                     "/sys/fs/bpf/larder-guard"]:
            for left in pathlib.Path(base).glob(f"{self.prefix}-*"):
                shutil.rmtree(left, ignore_errors=True)

    def close(self):
        try:
            self.take_down()
        finally:
            self.stack.close()

    def take_down(self):
        for process in reversed(self.processes):
            process.stop()
        self.processes = []
        self.forget()
        for name in [*(host.name for host in self.hosts), getattr(self, "hub", None)]:
            if name:
                run("ip", "netns", "del", name, check=False)
        for name, value in self.saved.items():
            run("sysctl", "-qw", f"{name}={value}", check=False)
        for pid, cpus in self.moved.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(pid, cpus)
        os.sched_setaffinity(0, self.affinity)
        os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        prefer("self", 0)


# -- cost


def runtime_ns(pids):
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
    return total


class Meter:
    """CPU time between two looks."""

    def __init__(self, lab, processes):
        self.lab, self.pids = lab, [pid for process in processes for pid in process.pids()]
        self.napi = self.lab.napi_threads().get(lab.front.device, [])
        self.softirq = [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()
                        and self.comm(p) == f"ksoftirqd/{FRONT_CPU}"]

    @staticmethod
    def comm(folder):
        try:
            return (folder / "comm").read_text().strip()
        except OSError:
            return ""

    def look(self):
        idle = {}
        for line in pathlib.Path("/proc/stat").read_text().splitlines():
            if re.match(r"cpu\d", line):
                fields = line.split()
                idle[int(fields[0][3:])] = (int(fields[4]) + int(fields[5])) * TICK_S
        return {"t": time.monotonic(), "idle": idle, "process": runtime_ns(self.pids) / 1e9,
                "napi": runtime_ns(self.napi) / 1e9, "softirq": runtime_ns(self.softirq) / 1e9}

    @staticmethod
    def between(a, b, requests):
        wall = b["t"] - a["t"]
        busy = {cpu: max(0.0, wall - (b["idle"][cpu] - a["idle"][cpu])) for cpu in b["idle"]}
        named = {key: b[key] - a[key] for key in ["process", "napi", "softirq"]}
        per = 1e6 / max(1, requests)
        front = busy[FRONT_CPU]
        return {
            "front_us": front * per,
            "total_us": sum(busy.values()) * per,
            "front_process_us": named["process"] * per,
            "front_napi_us": named["napi"] * per,
            "front_named_us": sum(named.values()) * per,
            "foreign_us": (front - sum(named.values())) * per,
            "front_busy": front / wall,
            "other_busy": busy[OTHER_CPU] / wall,
        }


def build_load(work):
    """The client, compiled for this machine."""
    target = pathlib.Path(work) / "load"
    run(os.environ.get("CC", "cc"), "-O2", "-Wall", "-o", str(target), str(HERE / "load.c"))
    return target


def load(lab, program, address, port, connections, seconds, keep, paths, rate=0, turn=False, cpu=OTHER_CPU):
    command = lab.client.command(program, address, port, connections, seconds, "keep" if keep else "close", rate,
                                 "turn" if turn else "each", *paths, cpu=cpu)
    return json.loads(run(*command, timeout=seconds + 30))


def faults(result):
    return sum(result[key] for key in ["refused", "reset", "cut", "status", "stalled"])


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def machine():
    version = lambda *c: (run(*c, check=False) or "").strip().splitlines()[:1]
    return {"kernel": os.uname().release, "processors": os.cpu_count(), "idle_by_default": idle_as_found(),
            "haproxy": version("haproxy", "-v"),
            "model": next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")}
