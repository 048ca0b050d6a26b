"""Envoy as a process: its config for a policy, its start, its counters and its end."""

import contextlib
import http.client
import json
import os
import pathlib
import subprocess
import time

TYPES = "type.googleapis.com/envoy"
MODULE = "liblarder_envoy.so"
START_S, END_S = 60, 10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Policies of Envoy that choose the host by the hash of the path, with the name of their typed config.
HASHING = {"ring_hash": "RingHash", "maglev": "Maglev"}
OTHERS = {"least_request": "LeastRequest", "round_robin": "RoundRobin", "random": "Random"}


class Failure(Exception):
    """The bench cannot go on. The text says why."""


FILTER = "+filter"


def name_of(policy):
    return policy.removesuffix(FILTER).partition(":")[0]


def factor_of(policy):
    """Returns the hash_balance_factor of a policy; empty without one."""
    return policy.removesuffix(FILTER).partition(":")[2]


def is_larder(policy):
    return name_of(policy) not in HASHING | OTHERS


def is_bounded(policy):
    """Whether a policy is hashing with bounded loads, such as `ring_hash:125`."""
    return not is_larder(policy) and factor_of(policy) != ""


def has_filter(policy):
    """Whether the attempts pass the filter of the module. With `ring_hash+filter`, the filter has nothing to do."""
    return is_larder(policy) or policy.endswith(FILTER)


def check_policy(policy):
    factor = factor_of(policy)
    if ":" in policy and (name_of(policy) not in HASHING or not factor.isdigit() or int(factor) < 100):
        raise Failure(f"policy {policy}: write {' or '.join(HASHING)} with a hash_balance_factor of at least 100, such as "
                      "ring_hash:125")
    if is_larder(policy) and policy.endswith(FILTER):
        raise Failure(f"policy {policy}: policies of larder always have the filter; remove {FILTER}")


def named(name, kind, **fields):
    return {"name": name, "typed_config": {"@type": f"{TYPES}.{kind}", **fields}}


def address(host, port):
    return {"socket_address": {"address": host, "port_value": port}}


def module_filter(name):
    kind = "extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter"
    return named(name, kind, dynamic_module_config={"name": "larder_envoy"}, filter_name=name)


def load_balancing(policy, settings, ring_size):
    if is_larder(policy):
        kind = "extensions.load_balancing_policies.dynamic_modules.v3.DynamicModulesLoadBalancerConfig"
        value = {"@type": "type.googleapis.com/google.protobuf.Struct", "value": {**settings, "policy": policy}}
        config = named("envoy.load_balancing_policies.dynamic_modules", kind, dynamic_module_config={"name": "larder_envoy"},
                       lb_policy_name="larder", lb_policy_config=value)
    else:
        name, factor = name_of(policy), factor_of(policy)
        fields = {"minimum_ring_size": ring_size} if name == "ring_hash" else {}
        if factor:
            fields["consistent_hashing_lb_config"] = {"hash_balance_factor": int(factor)}
        kind = f"extensions.load_balancing_policies.{name}.v3.{(HASHING | OTHERS)[name]}"
        config = named(f"envoy.load_balancing_policies.{name}", kind, **fields)
    return {"policies": [{"typed_extension_config": config}]}


def cluster(policy, hosts, settings, ring_size):
    members = [{"endpoint": {"address": address(*host)}} for host in hosts]
    limits = dict.fromkeys(["max_connections", "max_pending_requests", "max_requests", "max_retries"], 1_000_000)
    protocol = {"@type": f"{TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http_protocol_options": {}}}
    if has_filter(policy):
        codec = named("envoy.filters.http.upstream_codec", "extensions.filters.http.upstream_codec.v3.UpstreamCodec")
        protocol["http_filters"] = [module_filter("larder"), codec]
    return {
        "name": "tier", "type": "STATIC", "connect_timeout": "2s", "circuit_breakers": {"thresholds": [limits]},
        "load_balancing_policy": load_balancing(policy, settings, ring_size),
        "load_assignment": {"cluster_name": "tier", "endpoints": [{"lb_endpoints": members}]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol},
    }


def listener(name, filters, routes):
    router = named("envoy.filters.http.router", "extensions.filters.http.router.v3.Router")
    manager = named("envoy.filters.network.http_connection_manager",
                    "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", stat_prefix=name,
                    http_filters=[*filters, router], route_config={"virtual_hosts": routes})
    return {"name": name, "address": address("127.0.0.1", 0), "filter_chains": [{"filters": [manager]}]}


def bootstrap(policy, hosts, settings, ring_size):
    previous = named("envoy.retry_host_predicates.previous_hosts",
                     "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate")
    retry = {"retry_on": "connect-failure,refused-stream,reset", "num_retries": 3, "retry_host_predicate": [previous],
             "host_selection_retry_max_attempts": 3}
    route = {"cluster": "tier", "timeout": "60s", "retry_policy": retry}
    if name_of(policy) in HASHING:
        route["hash_policy"] = [{"header": {"header_name": ":path"}}]
    routes = [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
    listeners = [listener("requests", [], routes)]
    if is_larder(policy):
        listeners.append(listener("larder", [module_filter("larder_admin")], []))
    clusters = [cluster(policy, hosts, settings, ring_size)]
    return {"admin": {"address": address("127.0.0.1", 0)}, "static_resources": {"listeners": listeners, "clusters": clusters}}


class Page:
    """A kept connection to an admin interface."""

    def __init__(self, where):
        self.connection = http.client.HTTPConnection(where, timeout=10)

    def read(self, path):
        try:
            self.connection.request("GET", path)
            reply = self.connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise

    def json(self, path):
        return json.loads(self.read(path)[1])

    def close(self):
        self.connection.close()


class Envoy:
    """A running Envoy with one policy."""

    def __init__(self, args, folder, policy, hosts, workers, ring_size, core=None):
        self.folder, self.policy = pathlib.Path(folder), policy
        self.folder.mkdir()
        config, admin = self.folder / "envoy.json", self.folder / "admin"
        config.write_text(json.dumps(bootstrap(policy, hosts, args.settings, ring_size)))
        command = [args.envoy, "--config-path", config, "--concurrency", str(workers), "--disable-hot-restart", "--log-level",
                   "warn", "--log-path", self.folder / "log", "--admin-address-path", admin]
        environment = {**os.environ, "ENVOY_DYNAMIC_MODULES_SEARCH_PATH": str(args.module or "")}
        pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
        with open(self.folder / "stderr", "wb") as stderr:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=stderr, preexec_fn=pin)
        try:
            self.wait_until_ready(admin)
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, admin):
        deadline = time.monotonic() + START_S
        while True:
            if self.process.poll() is not None:
                raise Failure(f"Envoy with the policy {self.policy} ended at its start:\n{self.log()}")
            if time.monotonic() > deadline:
                raise Failure(f"Envoy with the policy {self.policy} is not ready after {START_S} s:\n{self.log()}")
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError, KeyError):
                self.admin = Page(admin.read_text().strip())
                listening = self.admin.json("/listeners?format=json")["listener_statuses"]
                self.ports = {each["name"]: each["local_address"]["socket_address"]["port_value"] for each in listening}
                if "requests" in self.ports and self.admin.read("/ready")[0] == 200:
                    return
            time.sleep(0.05)

    def log(self):
        files = [self.folder / "stderr", self.folder / "log"]
        return "\n".join(file.read_text(errors="replace")[-3000:] for file in files if file.exists()).strip()

    def url(self):
        return f"http://127.0.0.1:{self.ports['requests']}"

    def active(self, _nodes):
        """Returns the number of active requests of each host, by its port."""
        hosts = self.admin.json("/clusters?format=json")["cluster_statuses"][0].get("host_statuses", [])
        def value(host):
            return next((int(stat.get("value", 0)) for stat in host["stats"] if stat["name"] == "rq_active"), 0)
        return {host["address"]["socket_address"]["port_value"]: value(host) for host in hosts}

    def counters(self):
        """Returns the counters of Envoy that show hidden failures."""
        stats = self.admin.json("/stats?format=json&filter=cluster.tier.upstream_")["stats"]
        wanted = ["upstream_rq_retry", "upstream_rq_pending_overflow", "upstream_cx_total", "upstream_rq_timeout"]
        values = {stat["name"].rpartition(".")[2]: stat["value"] for stat in stats if "value" in stat}
        return {name: values.get(name, 0) for name in wanted}

    def larder(self):
        """Returns the targets that larder knows and its active requests; None with a policy of Envoy."""
        if "larder" not in self.ports:
            return None
        page = Page(f"127.0.0.1:{self.ports['larder']}")
        try:
            status = page.json("/status")["clusters"][0]
        finally:
            page.close()
        return {"targets": status.get("targets"), "active": sum(node.get("load", 0) for node in status.get("nodes", []))}

    def cpu_s(self):
        """Returns the CPU time of all threads (utime and stime)."""
        # The name of the command may contain spaces. The fields after its closing parenthesis do not.
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def stop(self):
        end(self.process)


def end(process):
    """Ends a process: with SIGTERM, and with SIGKILL if it does not end in time."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
