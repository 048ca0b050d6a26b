#!/usr/bin/env python3
"""CPU per request of relays, or of what serves files, side by side, on this machine. See README.md."""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

SIZES = {"1KB": 1024, "64KB": 65536, "1MB": 1 << 20}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Clients offer their cipher suites in the order in which browsers and Go do; OpenSSL's own default begins with AES-256.
OPENSSL_CONFIG = """
openssl_conf = init
[init]
ssl_conf = ssl
[ssl]
system_default = tls
[tls]
Ciphersuites = TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write(path, text):
    path.write_text(text)
    return str(path)


def nginx_config(work, body, workers=1):
    return f"""
worker_processes {workers};
daemon off;
pid {work}/nginx.pid;
error_log {work}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fcgi;
    uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
    keepalive_requests 100000000;
    {body}
}}
"""


def backend(work, core, nginx):
    """A static nginx: the cheapest origin at hand."""
    root, home = work / "root", work / "backend"
    root.mkdir()
    home.mkdir()
    for name, size in SIZES.items():
        (root / name).write_bytes(os.urandom(size))
    port = free_port()
    body = f"sendfile on; tcp_nopush on; server {{ listen 127.0.0.1:{port}; root {root}; location = /v1/traces {{ return 200; }} }}"
    config = write(home / "nginx.conf", nginx_config(home, body))
    return Proxy("backend", [nginx, "-c", config, "-e", str(home / "error.log")], port, core)


def certificate(work):
    """A certificate for a day, ECDSA P-256, with its key in one file and beside it."""
    key, crt, both = work / "tls.key", work / "tls.crt", work / "tls.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", crt],
                   check=True, capture_output=True)
    both.write_text(crt.read_text() + key.read_text())
    for file in (key, both):
        file.chmod(0o600)
    return both


def larder(path, work, port, upstream, pem, args):
    listen = f'listen = "127.0.0.1:{port}"'
    tls = f'[switch.tls]\n{listen}\ncertificates = "{pem}"' if pem else ""
    busy = args.work == "full"
    config = write(work / "switch.toml", f"""
[switch]
process.threads = {args.threads}
nodes = ["127.0.0.1:{upstream}"]
{"" if pem else listen}
{f'access_log.file = "{work / "larder.log"}"' if busy else ""}
{'access_log.format = "json"' if busy else ""}
{'sticky = { cookie = "srv" }' if busy else ""}
{'headers.request = { set = { x-real-ip = "{client}" } }' if busy else ""}
{'headers.reply = { set = { x-frame-options = "DENY" }, remove = ["server"] }' if busy else ""}
{f'[switch.traces]{chr(10)}endpoint = "http://127.0.0.1:{upstream}"{chr(10)}ratio = 0.01' if busy else ""}
{tls}
[admin]
listen = "127.0.0.1:{free_port()}"
""")
    return [path, "switch", "--config", config]


def node(path, work, port, upstream, pem, args):
    listen = f'listen = "127.0.0.1:{port}"'
    tls = f'[node.tls]\n{listen}\ncertificates = "{pem}"' if pem else ""
    config = write(work / "node.toml", f"""
[node]
name = "n"
threads = {args.threads}
root = "{work / "root"}"
{"" if pem else listen}
{tls}
[admin]
listen = "127.0.0.1:{free_port()}"
""")
    return [path, "node", "--config", config]


def engine(path, work, port, upstream, pem, args):
    return [path, f"127.0.0.1:{port}", f"127.0.0.1:{upstream}", *([str(pem)] if pem else [])]


def haproxy(path, work, port, upstream, pem, args):
    secure = f" ssl crt {pem} alpn h2,http/1.1" if pem else ""
    busy = args.work == "full"
    # The same fields as in larder's JSON line, as far as HAProxy knows them. Each line is one write to a file.
    fields = ('%{+json}o %(time)Tl %(client)ci %(method)HM %(target)HU %(version)HV %(status)ST %(bytes)B %(node)s %(total_ms)Ta '
              '%(node_ms)Tr %(connect_ms)Tc %(waited_ms)Tw %(state)ts %(agent)[capture.req.hdr(0)] %(referer)[capture.req.hdr(1)] '
              '%(host)[capture.req.hdr(2)] %(active)ac %(retries)rc')
    logs = f"""
    log stdout format raw local0
    log-format '{fields}'""" if busy else ""
    rules = """
    http-request capture req.hdr(user-agent) len 128
    http-request capture req.hdr(referer) len 128
    http-request capture req.hdr(host) len 64
    http-request set-header x-real-ip %[src]
    http-response set-header x-frame-options DENY
    http-response del-header server""" if busy else ""
    sticky, by = ("cookie srv insert indirect nocache", " cookie a") if busy else ("", "")
    config = write(work / "haproxy.cfg", f"""
global
    nbthread {args.threads}
    maxconn 4096
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    http-reuse always
    option forwardfor
frontend in
    bind 127.0.0.1:{port}{secure}{logs}{rules}
    default_backend out
backend out
    {sticky}
    server a 127.0.0.1:{upstream}{by}
""")
    return [path, "-db", "-f", config]


def nginx_secure(pem):
    """What listen takes, and the lines beside it."""
    if pem is None:
        return "", ""
    files = f"ssl_certificate {pem.with_suffix('.crt')}; ssl_certificate_key {pem.with_suffix('.key')};"
    return " ssl http2", f"{files} ssl_session_tickets on; http2_max_concurrent_streams 128;"


def nginx_files(path, work, port, upstream, pem, args):
    """The same files from the page cache."""
    home = work / "nginx-files"
    home.mkdir()
    secure, lines = nginx_secure(pem)
    body = f"sendfile on; tcp_nopush on; server {{ listen 127.0.0.1:{port}{secure}; {lines} root {work / 'root'}; }}"
    config = write(home / "nginx.conf", nginx_config(home, body, args.threads))
    return [path, "-c", config, "-e", str(home / "error.log")]


def nginx_proxy(path, work, port, upstream, pem, args):
    home = work / "nginx"
    home.mkdir()
    secure, lines = nginx_secure(pem)
    body = f"""
    upstream out {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port}{secure};
        {lines}
        location / {{
            proxy_pass http://out;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_max_temp_file_size 0;
        }}
    }}"""
    config = write(home / "nginx.conf", nginx_config(home, body, args.threads))
    return [path, "-c", config, "-e", str(home / "error.log")]


def envoy(path, work, port, upstream, pem, args):
    secure = f"""
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: ["h2", "http/1.1"]
            tls_certificates:
            - certificate_chain: {{ filename: "{pem.with_suffix('.crt')}" }}
              private_key: {{ filename: "{pem.with_suffix('.key')}" }}""" if pem else ""
    address = "socket_address: {{ address: 127.0.0.1, port_value: {} }}"
    config = write(work / "envoy.yaml", f"""
static_resources:
  listeners:
  - address: {{ {address.format(port)} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          use_remote_address: true
          generate_request_id: false
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: out }} }}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}{secure}
  clusters:
  - name: out
    connect_timeout: 2s
    load_assignment:
      cluster_name: out
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ {address.format(upstream)} }} }} }}] }}]
""")
    return [path, "-c", config, "--concurrency", str(args.threads), "-l", "error", "--disable-hot-restart"]


MAKERS = {"larder": larder, "engine": engine, "haproxy": haproxy, "nginx": nginx_proxy, "envoy": envoy,
          "larder-node": node, "nginx-files": nginx_files}
# What has the files itself, and no backend.
STORES = ["larder-node", "nginx-files"]


class Proxy:
    """A process in a group of its own, on some cores."""

    def __init__(self, name, command, port, core, stdout=subprocess.DEVNULL):
        self.name, self.port = name, port
        self.process = subprocess.Popen(["taskset", "-c", str(core), *command], start_new_session=True,
                                        stdout=stdout, stderr=subprocess.PIPE)
        os.set_blocking(self.process.stderr.fileno(), False)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    talk = (self.process.stderr.read() or b"").decode(errors="replace")
                    self.stop()
                    sys.exit(f"{name} does not listen on port {port}:\n{talk}")
                time.sleep(0.05)

    def pids(self):
        """The process and its children: nginx serves from a worker process."""
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [self.process.pid, *map(int, children)]

    def cpu_s(self):
        total = 0
        for pid in self.pids():
            # The command's name may hold spaces; what follows its closing parenthesis does not.
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_S

    def rss_bytes(self):
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in self.pids())

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def url(proxy, size_name, args):
    return f"{'http' if args.clients == 'clear' else 'https'}://127.0.0.1:{proxy.port}/{size_name}"


def check(proxy, args):
    """Each proxy must answer, and with the whole body."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for name, size in SIZES.items():
        with urllib.request.urlopen(url(proxy, name, args), timeout=10, context=context) as reply:
            got = len(reply.read())
        if got != size:
            sys.exit(f"{proxy.name} answers {name} with {got} bytes")


def by_h2load(proxy, size_name, args):
    """The command, and what is read from its talk: requests, whether some failed, the 99th percentile in us."""
    command = ["h2load", "-t1", f"-c{args.connections}", f"-m{args.streams}", f"-D{args.seconds}", url(proxy, size_name, args)]

    def read(output):
        done = re.search(r"requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored", output)
        return int(done[1]), (int(done[2]) or int(done[3])) and done[0], None
    return command, read


def by_openssl(proxy, size_name, args):
    """One connection after the other, each with a whole handshake and no request."""
    command = ["openssl", "s_time", "-connect", f"127.0.0.1:{proxy.port}", "-new", "-time", str(args.seconds)]

    def read(output):
        return int(re.search(r"(\d+) connections in \d+ real seconds", output)[1]), None, None
    return command, read


def by_wrk(proxy, size_name, args):
    command = [args.wrk, "-t1", f"-c{args.connections}", f"-d{args.seconds}s", "--latency", url(proxy, size_name, args)]

    def read(output):
        p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", output)
        bad = re.search(r"Non-2xx.*|Socket errors.*", output)
        return int(re.search(r"(\d+) requests in", output)[1]), bad and bad[0], float(p99[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[p99[2]]
    return command, read


def measure(proxy, size_name, args):
    command, read = {"h2": by_h2load, "handshakes": by_openssl}.get(args.clients, by_wrk)(proxy, size_name, args)
    command = ["taskset", "-c", str(args.load_core), *command]
    environment = {**os.environ, "OPENSSL_CONF": args.openssl_config}
    before, began = proxy.cpu_s(), time.monotonic()
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    cpu_s, wall_s = proxy.cpu_s() - before, time.monotonic() - began
    requests, bad, p99 = read(output)
    if bad:
        print(f"warning: {proxy.name} {size_name}: {bad}", file=sys.stderr)
    return {
        "cpu_us_per_request": cpu_s * 1e6 / requests,
        "requests_per_s": requests / args.seconds,
        "latency_us_p99": p99,
        "core_busy": cpu_s / wall_s,
        "requests": requests,
        "errors": bool(bad),
    }


def check_logs(work, served):
    """A proxy that lost lines of its log would have cost less."""
    files = {"larder": work / "larder.log", "haproxy": work / "haproxy.stdout"}
    time.sleep(1)  # larder writes within 10 ms
    for name, requests in served.items():
        with open(files[name], "rb") as file:
            lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
        if lines < requests:
            sys.exit(f"{name} served {requests} requests and logged {lines}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--larder", default="target/release/larder")
    parser.add_argument("--engine", default="target/release/examples/relay", help="the example of larder-http")
    parser.add_argument("--haproxy", default=shutil.which("haproxy") or "/usr/sbin/haproxy")
    parser.add_argument("--nginx", default=shutil.which("nginx") or "/usr/sbin/nginx")
    parser.add_argument("--envoy", default=shutil.which("envoy"))
    parser.add_argument("--wrk", default="wrk")
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--stores", action="store_true", help="what has the files itself, instead of relays: " + ", ".join(STORES))
    parser.add_argument("--clients", choices=["clear", "tls", "h2", "handshakes"], default="clear",
                        help="HTTP/1.1, HTTP/1.1 over TLS, HTTP/2 over TLS, or handshakes of TLS alone")
    parser.add_argument("--work", choices=["plain", "full"], default="plain",
                        help="full, of larder and HAProxy: a JSON line in the access log for each request, three header rules, sticky "
                             "sessions by cookie, and, larder alone, spans for 1 %% of the requests")
    parser.add_argument("--threads", type=int, default=1, help="of each proxy; with 2, give --proxy-core 0,1")
    parser.add_argument("--streams", type=int, default=8, help="requests under way on a connection of HTTP/2")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--proxy-core", default="0", help="one core, or several with commas")
    parser.add_argument("--load-core", default="1", help="for wrk and the backend")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()

    paths = {"larder": args.larder, "engine": args.engine, "haproxy": args.haproxy, "nginx": args.nginx,
             "envoy": args.envoy, "larder-node": args.larder, "nginx-files": args.nginx}
    able = ["larder", "haproxy"] if args.work == "full" else [name for name in MAKERS if (name in STORES) == args.stores]
    wanted = args.only.split(",") if args.only else able
    if unknown := [name for name in wanted if name not in MAKERS]:
        parser.error(f"--only: unknown program {', '.join(unknown)} (known: {', '.join(MAKERS)})")
    if unable := [name for name in wanted if name not in able and args.work == "full"]:
        parser.error(f"--work full is not configured for {', '.join(unable)}")
    proxies, results, served = [], {}, {}
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as directory:
        work = pathlib.Path(directory)
        work.chmod(0o755)
        if os.geteuid() == 0:
            # nginx's worker is another user and must be able to read the files.
            os.umask(0o022)
        origin = backend(work, args.load_core, args.nginx)
        pem = None if args.clients == "clear" else certificate(work)
        args.openssl_config = write(work / "openssl.cnf", OPENSSL_CONFIG)
        try:
            for name in wanted:
                if not paths[name] or not os.access(paths[name], os.X_OK):
                    print(f"skipped: {name} (no program at {paths[name]})", file=sys.stderr)
                    continue
                port = free_port()
                command = MAKERS[name](paths[name], work, port, origin.port, pem, args)
                with open(work / f"{name}.stdout", "wb") as stdout:
                    proxy = Proxy(name, command, port, args.proxy_core, stdout)
                proxies.append(proxy)
                check(proxy, args)
            # Rounds are interleaved, so that whatever else the machine does meets all alike.
            for size in ["1KB"] if args.clients == "handshakes" else args.sizes.split(","):
                for round_number in range(args.rounds + 1):
                    for proxy in proxies:
                        result = measure(proxy, size, args)
                        served[proxy.name] = served.get(proxy.name, 0) + result["requests"]
                        if round_number > 0:  # the first warms up
                            results.setdefault((size, proxy.name), []).append(result)
            memory = {proxy.name: proxy.rss_bytes() for proxy in proxies}
            if args.work == "full":
                check_logs(work, served)
        finally:
            for proxy in [*proxies, origin]:
                proxy.stop()

    report = []
    for (size, name), runs in results.items():
        row = {"size": size, "proxy": name}
        for key in ["cpu_us_per_request", "requests_per_s", "latency_us_p99", "core_busy"]:
            row[key] = None if runs[0][key] is None else statistics.median(run[key] for run in runs)
        row["cpu_us_min"] = min(run["cpu_us_per_request"] for run in runs)
        row["cpu_us_max"] = max(run["cpu_us_per_request"] for run in runs)
        row["rss_bytes"] = memory[name]
        row["runs_with_errors"] = sum(run["errors"] for run in runs)
        report.append(row)
    haproxy_us = {row["size"]: row["cpu_us_per_request"] for row in report if row["proxy"] == "haproxy"}
    print(f"{'size':5} {'proxy':13} {'CPU us/req':>10} {'min-max':>15} {'of HAProxy':>10} {'req/s':>8} {'p99 us':>8} {'busy':>5}")
    for row in report:
        row["of_haproxy"] = row["cpu_us_per_request"] / haproxy_us[row["size"]] if row["size"] in haproxy_us else None
        versus = f"{row['of_haproxy']:.2f}" if row["of_haproxy"] else "-"
        spread = f"{row['cpu_us_min']:.1f}-{row['cpu_us_max']:.1f}"
        print(f"{row['size']:5} {row['proxy']:13} {row['cpu_us_per_request']:10.1f} {spread:>15} {versus:>10} "
              f"{row['requests_per_s']:8.0f} {'-' if row['latency_us_p99'] is None else round(row['latency_us_p99']):>8} {row['core_busy']:5.2f}")
    if args.json:
        setup = {key: getattr(args, key) for key in ["clients", "work", "threads", "streams", "connections", "seconds", "rounds", "proxy_core", "load_core"]}
        pathlib.Path(args.json).write_text(json.dumps({"setup": setup, "results": report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
