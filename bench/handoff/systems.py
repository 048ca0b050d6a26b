"""What stands at the front: larder in its mechanisms, HAProxy, nginx, or nothing; and what stands behind it."""

import json
import os
import pathlib
import re
import time

from lab import FRONT_CPU, PATIENCE_S, VIP, faults, run

SIZES = {"1KB": 1 << 10, "16KB": 1 << 14, "128KB": 1 << 17, "1MB": 1 << 20, "10MB": 10 << 20}
NAMES = 8  # files of a size, so that more than one node has some
CONTROL = 7946


def files(root):
    root.mkdir(exist_ok=True)
    for size, count in SIZES.items():
        for number in range(NAMES):
            (root / f"{size}-{number}").write_bytes(os.urandom(count))
    return root


def paths(size):
    return [f"/{size}-{number}" for number in range(NAMES)]


def nginx_config(home, body, files_max=4096):
    for name in ["body", "proxy", "fastcgi", "uwsgi", "scgi"]:
        (home / name).mkdir(parents=True, exist_ok=True)
    return f"""user root;
worker_processes 1;
daemon off;
pid {home}/pid;
error_log {home}/error.log;
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    keepalive_requests 100000000;
    sendfile on;
    tcp_nopush on;
    {body}
}}
"""


def nginx(lab, host, name, body, **more):
    home = lab.work / name
    home.mkdir(exist_ok=True)
    path = home / "nginx.conf"
    path.write_text(nginx_config(home, body))
    return lab.start(host, name, ["nginx", "-e", home / "error.log", "-c", path], **more)


def key(lab, name):
    path = lab.work / f"{name}.key"
    if not path.exists():
        run(lab.larder, "keys", "new", str(path))
        path.chmod(0o600)
    return path, run(lab.larder, "keys", "show", str(path)).strip()


def node_handoff(lab, host, name):
    path, _ = key(lab, name)
    _, switch = key(lab, "switch")
    return f"""listen = "{host.address}:{CONTROL}"
identity = "{path}"
switches = ["{switch}"]
interface = "{host.device}"
services = ["{VIP}:80"]
"""


def nginx_node(lab, host, name, root):
    """nginx as it is, and an agent beside it."""
    body = f"server {{ listen {host.address}:80 backlog=16384; listen {VIP}:80 backlog=16384; root {root}; }}"
    server = nginx(lab, host, f"{name}-nginx", body)
    lab.await_port(host, host.address, 80, server)
    path = lab.work / f"{name}.toml"
    path.write_text(f'[agent]\nname = "{lab.prefix}-{name}"\n{node_handoff(lab, host, name)}[log]\nlevel = "warn"\n')
    return server, lab.start(host, f"{name}-agent", [lab.larder, "agent", "--config", path, "--ready-line"], ready=True)


def larder_node(lab, host, name, root, cache="1GB", more=""):
    path = lab.work / f"{name}.toml"
    path.write_text(f'[node]\nname = "{lab.prefix}-{name}"\nlisten = "0.0.0.0:80"\nroot = "{root}"\nthreads = 1\n'
                    f'cache.size = "{cache}"\n{more}\n[node.handoff]\n{node_handoff(lab, host, name)}[log]\nlevel = "warn"\n')
    return lab.start(host, name, [lab.larder, "node", "--config", path, "--ready-line"], ready=True)


def switch_config(lab, nodes, mechanism, handoff="", switch=""):
    listed = ", ".join(f'{{ name = "{name}", address = "{host.address}:80", handoff = {{ control = "{host.address}:{CONTROL}", '
                       f'key = "{key(lab, name)[1]}" }} }}' for name, host in nodes)
    return f"""[switch]
listen = ["{VIP}:80"]
nodes = [{listed}]
process.threads = 1
admission.limit = "unlimited"
{switch}
[switch.handoff]
mechanism = "{mechanism}"
name = "{lab.prefix}-s"
interface = "{lab.front.device}"
identity = "{key(lab, 'switch')[0]}"
secret = "{key(lab, 'secret')[0]}"
{handoff}
[switch.timeouts]
drain = "1s"
[admin]
listen = "127.0.0.1:9900"
[log]
level = "warn"
"""


def ask(lab, path):
    return lab.front.run("curl", "-s", "-m", "5", f"http://127.0.0.1:9900{path}", check=False)


def metric(lab, name, **labels):
    total = 0.0
    for line in ask(lab, "/metrics").splitlines():
        if line.startswith(name) and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def larder(lab, nodes, mechanism, handoff="", switch=""):
    path = lab.work / "switch.toml"
    path.write_text(switch_config(lab, nodes, mechanism, handoff, switch))
    if mechanism in ("cookie", "repair", "auto"):
        lab.far_xdp(True)
    process = lab.start(lab.front, "switch", [lab.larder, "switch", "--config", path, "--ready-line"], ready=True, cpu=FRONT_CPU)
    until = time.monotonic() + PATIENCE_S
    while mechanism in ("cookie", "repair", "auto") and ask(lab, "/nodes").count('"channel": "up"') < len(nodes):
        if time.monotonic() > until:
            raise RuntimeError(f"the nodes' channels are not up: {ask(lab, '/nodes')}\n{process.log.read_text()[-2000:]}")
        time.sleep(0.05)
    return process


def haproxy(lab, nodes, splice):
    path = lab.work / "haproxy.cfg"
    servers = "\n".join(f"    server {name} {host.address}:80 pool-max-conn 1024" for name, host in nodes)
    path.write_text(f"""global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
    option forwardfor
    {'option splice-auto' if splice else ''}
frontend in
    bind {VIP}:80 backlog 16384
    default_backend out
backend out
    balance roundrobin
{servers}
""")
    process = lab.start(lab.front, "haproxy", ["haproxy", "-db", "-f", path], cpu=FRONT_CPU)
    lab.await_port(lab.front, VIP, 80, process)
    return process


def nginx_proxy(lab, nodes):
    servers = " ".join(f"server {host.address}:80;" for _, host in nodes)
    body = f"""upstream out {{ {servers} keepalive 1024; keepalive_requests 100000000; }}
    server {{
        listen {VIP}:80 backlog=16384;
        location / {{
            proxy_pass http://out;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_max_temp_file_size 0;
        }}
    }}"""
    process = nginx(lab, lab.front, "front-nginx", body, cpu=FRONT_CPU)
    lab.await_port(lab.front, VIP, 80, process)
    return process


class System:
    """Something at the front, started for a while."""

    ALL = ["direct", "cookie", "cookie-slow", "repair", "relay", "splice", "haproxy", "haproxy-splice", "nginx", "direct-larder",
           "relay-larder"]

    def __init__(self, lab, name, plain, own):
        """`plain`, `own`: (name, host) of the nodes that run nginx, and of those that run larder."""
        self.lab, self.name = lab, name
        self.nodes = own if name in ("repair", "direct-larder", "relay-larder") else plain
        # A connection stays with its node, as with every mechanism here that moves it: no rule may send it back to the relay.
        stay = "locality_lost_max = 1.0\n"
        self.process = {
            "direct": lambda: None,
            "direct-larder": lambda: None,
            "cookie": lambda: larder(lab, self.nodes, "cookie", stay),
            "cookie-slow": lambda: larder(lab, self.nodes, "cookie", stay + "fast = false\n"),
            "repair": lambda: larder(lab, self.nodes, "repair", stay + 'repair_min = "0B"\n'),
            "relay": lambda: larder(lab, self.nodes, "relay"),
            "relay-larder": lambda: larder(lab, self.nodes, "relay"),
            "splice": lambda: larder(lab, self.nodes, "splice"),
            "haproxy": lambda: haproxy(lab, self.nodes, False),
            "haproxy-splice": lambda: haproxy(lab, self.nodes, True),
            "nginx": lambda: nginx_proxy(lab, self.nodes),
        }[name]()
        time.sleep(0.3)
        lab.pin()

    @property
    def address(self):
        return self.nodes[0][1].address if self.name.startswith("direct") else VIP

    def processes(self):
        return [self.process] if self.process else []

    def delivered(self):
        """How larder delivered connections, by mechanism and reason; to see that a table shows what it says."""
        found = {}
        if self.process and self.process.name == "switch":
            for line in ask(self.lab, "/metrics").splitlines():
                match = re.match(r'larder_switch_deliveries_total\{(.*)\} (\d+)', line)
                if match and match[2] != "0":
                    found[match[1].replace('"', "")] = int(match[2])
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            self.lab.stop(self.process)
        self.lab.forget()
        self.lab.far_xdp(False)
