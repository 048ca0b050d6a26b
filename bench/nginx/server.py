"""nginx as a process: its config for a policy, its start, its counters and its end."""

import contextlib
import http.client
import os
import pathlib
import socket
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "envoy"))
from proxy import TICKS_PER_S, Failure, Page, end  # noqa: E402

MODULE = "libngx_http_larder_module.so"
START_S = 20
# nginx's own methods, by the names of the bench.
OWN = {"hash_consistent": "hash $request_uri consistent;", "hash": "hash $request_uri;", "least_conn": "least_conn;",
       "round_robin": "", "random_two": "random two;"}
CONFIG = """
daemon off;
worker_processes {workers};
worker_rlimit_nofile 65536;
pid {folder}/pid;
error_log {folder}/log warn;
{user}
events {{ worker_connections 8192; }}
http {{
    log_format bench '$status $upstream_addr';
    access_log {folder}/access bench buffer=64k flush=1s;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000;
    upstream tier {{
        {method}
        {servers}
        keepalive 256;
        keepalive_requests 1000000;
        zone tier 1m;
    }}
    server {{
        listen 127.0.0.1:{requests} reuseport;
        location / {{
            proxy_pass http://tier;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_read_timeout 60s;
        }}
    }}
    server {{ listen 127.0.0.1:{status}; location / {{ {page} }} }}
}}
"""


def is_larder(policy):
    return policy not in OWN


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nginx:
    """A running nginx with one policy."""

    def __init__(self, args, folder, policy, hosts):
        self.folder, self.policy = pathlib.Path(folder), policy
        self.folder.mkdir()
        self.ports = {"requests": free_port(), "status": free_port()}
        method = f"larder policy={policy} key=$request_uri {args.settings};" if is_larder(policy) else OWN[policy]
        text = CONFIG.format(
            workers=args.workers, folder=self.folder, method=method, **self.ports,
            user="user root;" if os.geteuid() == 0 else "",
            servers="\n        ".join(f"server {host}:{port} max_fails=0;" for host, port in hosts),
            page="larder_status;" if is_larder(policy) else "return 200;")
        if is_larder(policy):
            text = f"load_module {args.module}/{MODULE};" + text
        config = self.folder / "nginx.conf"
        config.write_text(text)
        command = [args.nginx, "-e", self.folder / "log", "-p", self.folder, "-c", config]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self):
        deadline = time.monotonic() + START_S
        while True:
            if self.process.poll() is not None:
                raise Failure(f"nginx with the policy {self.policy} ended at its start:\n{self.log()}")
            if time.monotonic() > deadline:
                raise Failure(f"nginx with the policy {self.policy} is not ready after {START_S} s:\n{self.log()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                with contextlib.closing(self.page()) as page:
                    if page.read("/status")[0] == 200:
                        return
            time.sleep(0.05)

    def page(self):
        return Page(f"127.0.0.1:{self.ports['status']}")

    def log(self):
        file = self.folder / "log"
        return file.read_text(errors="replace")[-3000:].strip() if file.exists() else ""

    def url(self):
        return f"http://127.0.0.1:{self.ports['requests']}"

    def active(self, nodes):
        """Returns the number of requests in progress at each node, by its port. nginx has no such figure for its own methods."""
        return nodes.in_flight()

    def counters(self):
        """Returns the attempts beyond the first of each request, from the access log."""
        time.sleep(1.5)  # The log is flushed each second.
        with open(self.folder / "access", encoding="utf-8", errors="replace") as lines:
            return {"upstream_rq_retry": sum(line.count(",") + line.count(" : ") for line in lines)}

    def larder(self):
        """Returns the targets that larder knows and its active requests; None with a method of nginx."""
        if not is_larder(self.policy):
            return None
        with contextlib.closing(self.page()) as page:
            status = page.json("/status")["upstreams"][0]
        return {"targets": status["targets"], "active": sum(node["load"] for node in status["nodes"]),
                "fallback": status["fallback"], "resets": status["resets"], "decisions": status["decisions"]}

    def workers(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(child) for child in children.split()]

    def cpu_s(self):
        """Returns the CPU time of all workers (utime and stime)."""
        ticks = 0
        for worker in self.workers():
            # The name of the command may contain spaces. The fields after its closing parenthesis do not.
            fields = pathlib.Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_PER_S

    def stop(self):
        end(self.process)
