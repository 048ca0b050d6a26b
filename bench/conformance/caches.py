"""The caches that cache_tests.py compares, each configured as a shared cache before one origin.

The configurations follow those that the suite publishes for these caches (its directory docker/). A reply without a lifetime
of its own is not kept for a default time, because such a default fails the suite's first test and with it every test that
depends on it. A cache that can serve stale replies while the origin fails does so where one option asks for it: four required
tests are about the replies that must not be served then.
"""

import os
import pwd

from servers import free_port, write


def user_for_workers():
    """The user whose rights the workers take; None if this process is not root and they keep its own."""
    if os.geteuid() != 0:
        return None
    return next(name for name in ("www-data", "nobody") if name in {entry.pw_name for entry in pwd.getpwall()})


def open_directory(path):
    """A directory that the workers may write to, whoever they are."""
    path.mkdir()
    path.chmod(0o777)
    return path


def node(program, work, port, _http2_port, origin):
    config = write(work / "node.toml", f"""
[node]
name = "n"
listen = "127.0.0.1:{port}"
threads = 1
[node.origin]
url = "http://127.0.0.1:{origin}"
stale_if_error = "1h"
[admin]
listen = "127.0.0.1:{free_port()}"
""")
    return [program, "node", "--config", config]


def varnish(program, work, port, _http2_port, origin):
    vcl = write(work / "default.vcl", f"""
vcl 4.1;
backend default {{ .host = "127.0.0.1"; .port = "{origin}"; }}
""")
    return [program, "-F", "-n", str(work / "varnish"), "-f", vcl, "-a", f"127.0.0.1:{port}", "-T", "none", "-s", "malloc,64M",
            "-p", "default_ttl=0", "-p", "default_grace=0", "-p", "default_keep=3600"]


def nginx(program, work, port, _http2_port, origin):
    home = open_directory(work / "nginx")
    user = user_for_workers()
    config = write(home / "nginx.conf", f"""
{f"user {user};" if user else ""}
worker_processes 1;
daemon off;
pid {home}/nginx.pid;
error_log {home}/error.log crit;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fcgi;
    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    proxy_cache_path {home}/cache levels=1:2 keys_zone=cache:8m max_size=1000m inactive=600m use_temp_path=off;
    upstream out {{ server 127.0.0.1:{origin} max_fails=0; keepalive 16; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://out;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_cache cache;
            proxy_cache_revalidate on;
            proxy_cache_use_stale error timeout;
        }}
    }}
}}
""")
    return [program, "-c", config, "-e", str(home / "error.log")]


APACHE_MODULES = ["mpm_event", "authz_core", "proxy", "proxy_http", "cache", "cache_disk"]


def apache(program, work, port, _http2_port, origin):
    home = open_directory(work / "apache")
    user = user_for_workers()
    modules = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so" for name in APACHE_MODULES)
    config = write(home / "apache.conf", f"""
{modules}
ServerRoot {home}
ServerName 127.0.0.1
DefaultRuntimeDir {home}
PidFile {home}/apache.pid
ErrorLog {home}/error.log
{f"User {user}" if user else ""}
Listen 127.0.0.1:{port}
<VirtualHost 127.0.0.1:{port}>
    ProxyPass "/" "http://127.0.0.1:{origin}/"
    CacheRoot {open_directory(home / "cache")}
    CacheEnable disk /
    CacheDirLevels 5
    CacheDirLength 3
    CacheDefaultExpire 0
    CacheIgnoreNoLastMod On
    CacheStoreExpired On
    CacheHeader On
    CacheDetailHeader On
</VirtualHost>
""")
    return [program, "-f", config, "-DFOREGROUND"]


def squid(program, work, port, _http2_port, origin):
    home = open_directory(work / "squid")
    config = write(home / "squid.conf", f"""
http_port 127.0.0.1:{port} accel defaultsite=localhost no-vhost
cache_peer 127.0.0.1 parent {origin} 0 no-query no-digest originserver default name=origin
cache_peer_access origin allow all
http_access allow all
icp_port 0
pid_filename {home}/squid.pid
coredump_dir {home}
access_log none
cache_log {home}/cache.log
cache_store_log none
netdb_filename none
visible_hostname localhost
shutdown_lifetime 1 second
""")
    # The name of the service names its shared memory, which squids of one machine would share otherwise.
    return [program, "-N", "-n", f"cache{port}", "-f", config]


MAKERS = {"node": node, "varnish": varnish, "nginx": nginx, "apache": apache, "squid": squid}
NAMES = {"node": "larder node", "varnish": "Varnish", "nginx": "nginx", "apache": "Apache", "squid": "Squid"}
PROGRAMS = {"varnish": "varnishd", "nginx": "nginx", "apache": "apache2", "squid": "squid"}
VERSION_OPTIONS = {"node": "--version", "varnish": "-V", "nginx": "-v", "apache": "-v", "squid": "-v"}
