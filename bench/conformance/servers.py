"""The servers under test, each before an origin of its own. Everything as it comes: no option that makes one stricter or laxer."""

import os
import signal
import socket
import subprocess
import time


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write(path, text):
    path.write_text(text)
    return str(path)


def certificate(work):
    """A certificate for a day, and its key, in one file."""
    both, key, crt = work / "tls.pem", work / "key.pem", work / "crt.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
                    "-subj", "/CN=localhost", "-keyout", key, "-out", crt], check=True, capture_output=True)
    both.touch(mode=0o600)
    both.write_text(crt.read_text() + key.read_text())
    return both


def larder(program, work, port, http2_port, origin, secure=None):
    tls = f"""
[switch.tls]
listen = "127.0.0.1:{secure[0]}"
certificates = "{secure[1]}"
""" if secure else ""
    config = write(work / "switch.toml", f"""
[switch]
listen = ["127.0.0.1:{port}", "127.0.0.1:{http2_port}"]
h2c = true
process.threads = 1
nodes = ["127.0.0.1:{origin}"]
{tls}
[admin]
listen = "127.0.0.1:{free_port()}"
""")
    return [program, "switch", "--config", config, "--one-process"]


def node(program, work, port, http2_port, origin, secure=None):
    tls = f"""
[node.tls]
listen = "127.0.0.1:{secure[0]}"
certificates = "{secure[1]}"
""" if secure else ""
    config = write(work / "node.toml", f"""
[node]
name = "n"
listen = "127.0.0.1:{port}"
threads = 1
[node.origin]
url = "http://127.0.0.1:{origin}"
{tls}
[admin]
listen = "127.0.0.1:{free_port()}"
""")
    return [program, "node", "--config", config]


def haproxy(program, work, port, http2_port, origin):
    config = write(work / "haproxy.cfg", f"""
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    timeout http-request 60s
    option forwardfor
frontend in
    bind 127.0.0.1:{port}
    bind 127.0.0.1:{http2_port} proto h2
    default_backend out
backend out
    server a 127.0.0.1:{origin}
""")
    return [program, "-db", "-f", config]


def nginx(program, work, port, http2_port, origin):
    home = work / "nginx"
    home.mkdir()
    config = write(home / "nginx.conf", f"""
worker_processes 1;
daemon off;
pid {home}/nginx.pid;
error_log {home}/error.log crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fcgi;
    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    upstream out {{ server 127.0.0.1:{origin} max_fails=0; keepalive 16; }}
    server {{
        listen 127.0.0.1:{port};
        listen 127.0.0.1:{http2_port} http2;
        location / {{
            proxy_pass http://out;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }}
    }}
}}
""")
    return [program, "-c", config, "-e", str(home / "error.log")]


def envoy(program, work, port, http2_port, origin):
    address = "socket_address: {{ address: 127.0.0.1, port_value: {} }}"

    def listener(number):
        return f"""
  - address: {{ {address.format(number)} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          use_remote_address: true
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: out }} }}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}"""

    config = write(work / "envoy.yaml", f"""
static_resources:
  listeners: {listener(port)} {listener(http2_port)}
  clusters:
  - name: out
    connect_timeout: 2s
    load_assignment:
      cluster_name: out
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ {address.format(origin)} }} }} }}] }}]
""")
    return [program, "-c", config, "--concurrency", "1", "-l", "error", "--disable-hot-restart"]


MAKERS = {"larder": larder, "node": node, "haproxy": haproxy, "nginx": nginx, "envoy": envoy}


class Server:
    """A process in a group of its own."""

    def __init__(self, name, program, work, origin, secure=None, makers=MAKERS):
        """`secure`: a port for TLS and the certificate, for larder's switch and node. `makers`: the configurations."""
        work.mkdir()
        self.name, self.port, self.http2_port = name, free_port(), free_port()
        more = [secure] if secure else []
        command = makers[name](program, work, self.port, self.http2_port, origin, *more)
        self.talk = open(work / "talk", "wb")
        self.process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=self.talk,
                                        stderr=self.talk)
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    self.stop()
                    raise RuntimeError(f"{name} does not listen:\n{(work / 'talk').read_text(errors='replace')}")
                time.sleep(0.05)

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
