//! `larder trace routes`: converts a routing table for other proxies.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use larder_core::policy::table::Place;
use larder_trace::Limits;
use larder_trace::ward::{RoutesHeader, for_each_route};

use crate::outcome::usage;
use crate::report::counted;

/// Bytes of a map entry in nginx besides its key: two pointers, rounded up to the cache line.
const NGINX_ENTRY_BYTES: usize = 32;
const CACHE_LINE_BYTES: usize = 64;
/// Longest target that both proxies accept. HAProxy's buffer and a bucket of nginx's hash limit it. Longer
/// targets are left out.
const TARGET_BYTES_MAX: usize = 2_048;

/// Convert WARD's routing table to a config for HAProxy or nginx.
///
/// The config sends each target of the partition to its owner, with the other nodes as backup. The core and all
/// other targets go to any node by least connections. Load balancing by owner, replication and refresh from traffic
/// are not converted.
///
/// For example: larder trace routes table.txt --to haproxy --nodes a=10.0.0.1:80,b=10.0.0.2:80 --output
/// /etc/haproxy
#[derive(Debug, Args)]
pub(super) struct RoutesArgs {
    /// Routing table, as written by `larder trace ward --output`.
    file: PathBuf,
    /// Target proxy.
    #[arg(long, value_enum)]
    to: Proxy,
    /// Address of each node, by its name in the table or its number from 0.
    #[arg(long, value_name = "NAME=HOST:PORT,..", value_delimiter = ',', required = true)]
    nodes: Vec<String>,
    /// Address for clients.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "*:80")]
    listen: String,
    /// Directory for larder.cfg (or larder.conf) and larder.map; the config refers to this path.
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Proxy {
    /// HAProxy 2.4 and later: a map file, a frontend and backends.
    Haproxy,
    /// nginx 1.11 and later, to be included in `http`: a map, upstreams and a server.
    Nginx,
}

pub(super) fn run(args: &RoutesArgs) -> anyhow::Result<()> {
    let folder = fs::canonicalize(&args.output)
        .with_context(|| format!("cannot write to directory {}", args.output.display()))?;
    let mut map = MapFile::new(args.to);
    let header = for_each_route(&args.file, &Limits::default(), |place, name| map.row(place, name))?;
    let nodes = resolve_nodes(&header, &args.nodes)?;
    let (config_name, config) = match args.to {
        Proxy::Haproxy => ("larder.cfg", haproxy(&header, &nodes, &args.listen, &folder)),
        Proxy::Nginx => ("larder.conf", nginx(&header, &nodes, &args.listen, &folder, &map)),
    };
    // The map is written first, so that a new config never lacks its map.
    write(&folder.join("larder.map"), map.text.as_bytes())?;
    write(&folder.join(config_name), config?.as_bytes())?;
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{} and larder.map in {}: {} with an owner, {}; the core of {} and all else by least connections",
        config_name,
        folder.display(),
        counted(map.rows, "target"),
        counted(header.nodes, "node"),
        header.core_targets,
    )?;
    if map.left_out > 0 {
        writeln!(io::stderr(), "{} targets are omitted: {}", map.left_out, args.to.exclusion_reason())?;
    }
    Ok(())
}

impl Proxy {
    const fn exclusion_reason(self) -> &'static str {
        match self {
            Self::Haproxy => {
                "they are longer than 2048 bytes, or begin with \"#\", which is a comment in a map"
            }
            Self::Nginx => "they are longer than 2048 bytes",
        }
    }
}

/// Writes a temporary file and renames it.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let temporary = path.with_extension("partial");
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// The map from targets to backends.
struct MapFile {
    to: Proxy,
    text: String,
    rows: u64,
    left_out: u64,
    longest: usize,
}

impl MapFile {
    const fn new(to: Proxy) -> Self {
        Self { to, text: String::new(), rows: 0, left_out: 0, longest: 0 }
    }

    fn row(&mut self, place: Place, name: &str) {
        let Place::Node(node) = place else { return };
        if name.len() > TARGET_BYTES_MAX || (self.to == Proxy::Haproxy && name.starts_with('#')) {
            self.left_out += 1;
            return;
        }
        self.rows += 1;
        self.longest = self.longest.max(name.len());
        // Writing to a `String` cannot fail.
        let _ = match self.to {
            Proxy::Haproxy => writeln!(self.text, "{name} larder_{node}"),
            Proxy::Nginx => writeln!(self.text, "{} larder_{node};", quote_key(name)),
        };
    }
}

/// Quotes a key of nginx's map, so that it is not read as a pattern or a keyword and cannot end the string.
fn quote_key(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    text.push('"');
    // A key without a leading slash could be read as `~`, `default` or `include`. A backslash prevents that.
    if !name.starts_with('/') {
        text.push_str("\\\\");
    }
    for letter in name.chars() {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
    text
}

/// A node in the proxy's config.
struct ProxyNode {
    name: String,
    address: String,
}

/// Returns the nodes of the table with their addresses.
fn resolve_nodes(header: &RoutesHeader, given: &[String]) -> anyhow::Result<Vec<ProxyNode>> {
    let mut addresses = BTreeMap::new();
    for one in given {
        let (name, address) = one
            .split_once('=')
            .filter(|(name, address)| !name.is_empty() && is_address(address))
            .ok_or_else(|| {
                usage(format!("--nodes: \"{one}\" should be NAME=HOST:PORT, such as a=10.0.0.1:80"))
            })?;
        if addresses.insert(name, address).is_some() {
            return Err(usage(format!("--nodes: {name} is given twice")));
        }
    }
    let names: Vec<String> = if header.names.is_empty() {
        (0..header.nodes).map(|number| number.to_string()).collect()
    } else {
        header.names.clone()
    };
    let mut nodes = Vec::new();
    for name in names {
        let Some(address) = addresses.remove(name.as_str()) else {
            return Err(usage(format!(
                "--nodes: node {name} of the table has no address: add {name}=HOST:PORT"
            )));
        };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte)) {
            return Err(usage(format!(
                "node {name}: HAProxy and nginx allow only letters, digits, \"-\", \"_\", \".\" and \":\" in names"
            )));
        }
        nodes.push(ProxyNode { name, address: address.to_owned() });
    }
    match addresses.into_keys().next() {
        Some(name) => Err(usage(format!("--nodes: the table has no node {name}"))),
        None => Ok(nodes),
    }
}

/// Whether a text is a host and a port without characters that have a meaning in a config.
fn is_address(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte);
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && host.bytes().all(allowed) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

/// Returns the map's path, if it needs no quotes in a config.
fn map_path(folder: &Path) -> anyhow::Result<String> {
    let text = folder.join("larder.map").to_string_lossy().into_owned();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    if text.bytes().all(plain) {
        Ok(text)
    } else {
        Err(usage(format!(
            "--output: {text}: a path in the config may have only letters, digits and \"/._-+\""
        )))
    }
}

fn header_comment(header: &RoutesHeader) -> String {
    format!(
        "# WARD's routing table of {}: {} requests, {} targets of the core, {} of the partition.\n# Written by `larder trace routes`; \
         written anew with each table, not edited.\n",
        header.log.escape_default(),
        header.log_requests,
        header.core_targets,
        header.partition_targets
    )
}

fn haproxy(
    header: &RoutesHeader,
    nodes: &[ProxyNode],
    listen: &str,
    folder: &Path,
) -> anyhow::Result<String> {
    let map = map_path(folder)?;
    let mut text = header_comment(header);
    let _ = write!(
        text,
        "\ndefaults larder\n    mode http\n    option httplog\n    option redispatch\n    retries 2\n    timeout connect 2s\n    \
         timeout client 30s\n    timeout server 30s\n\nfrontend larder from larder\n    bind {listen}\n    \
         use_backend %[pathq,map({map},larder_any)]\n\nbackend larder_any from larder\n    balance leastconn\n"
    );
    for node in nodes {
        let _ = writeln!(text, "    server {} {} check", node.name, node.address);
    }
    for (number, owner) in nodes.iter().enumerate() {
        let _ = write!(
            text,
            "\nbackend larder_{number} from larder\n    option allbackups\n    server {} {} check\n",
            owner.name, owner.address
        );
        for other in nodes.iter().filter(|other| other.name != owner.name) {
            let _ = writeln!(text, "    server {} {} check backup", other.name, other.address);
        }
    }
    Ok(text)
}

fn nginx(
    header: &RoutesHeader,
    nodes: &[ProxyNode],
    listen: &str,
    folder: &Path,
    map: &MapFile,
) -> anyhow::Result<String> {
    let file = map_path(folder)?;
    let bucket = (map.longest + NGINX_ENTRY_BYTES).next_multiple_of(CACHE_LINE_BYTES);
    let slots = (map.rows * 2).next_power_of_two().max(2_048);
    let mut text = header_comment(header);
    let _ = write!(
        text,
        "\nmap_hash_bucket_size {bucket};\nmap_hash_max_size {slots};\n\nmap $request_uri $larder_upstream {{\n    \
         default larder_any;\n    include {file};\n}}\n\nupstream larder_any {{\n    least_conn;\n"
    );
    for node in nodes {
        let _ = writeln!(text, "    server {};  # {}", node.address, node.name);
    }
    text.push_str("    keepalive 64;\n}\n");
    for (number, owner) in nodes.iter().enumerate() {
        let _ =
            write!(text, "\nupstream larder_{number} {{\n    server {};  # {}\n", owner.address, owner.name);
        for other in nodes.iter().filter(|other| other.name != owner.name) {
            let _ = writeln!(text, "    server {} backup;", other.address);
        }
        text.push_str("    keepalive 64;\n}\n");
    }
    let _ = write!(
        text,
        "\nserver {{\n    listen {listen};\n    location / {{\n        proxy_pass http://$larder_upstream;\n        \
         proxy_http_version 1.1;\n        proxy_set_header Connection \"\";\n        proxy_set_header Host $http_host;\n    }}\n}}\n"
    );
    Ok(text)
}
