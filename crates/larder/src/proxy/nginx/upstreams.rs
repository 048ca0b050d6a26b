//! The upstreams of a config, the servers of an upstream, and the locations that use it.

use super::syntax::Directive;
use crate::proxy::field::{KeyError, names, shown};

/// Directives that send the requests of a location to an upstream.
const PASSES: [&str; 5] = ["proxy_pass", "grpc_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass"];

/// The upstreams of a config for HTTP.
pub(super) struct Upstreams<'c> {
    all: Vec<&'c Directive>,
    /// Whether the file includes others that are not in it.
    includes: bool,
}

impl<'c> Upstreams<'c> {
    /// Finds the upstreams. Those of TCP streams do not count.
    pub(super) fn find(config: &'c [Directive]) -> Self {
        let mut found = Self { all: Vec::new(), includes: false };
        found.add(config);
        found
    }

    fn add(&mut self, block: &'c [Directive]) {
        for directive in block {
            match directive.name.as_str() {
                "upstream" => self.all.push(directive),
                "include" => self.includes |= !is_of_types(directive),
                // Blocks for other protocols, and blocks whose lines are no directives.
                "stream" | "mail" | "map" | "geo" | "types" | "split_clients" => {}
                _ => self.add(&directive.block),
            }
        }
    }

    /// Returns the upstream with a name, or the only upstream.
    pub(super) fn choose(&self, name: Option<&str>) -> Result<&'c Directive, KeyError> {
        let names = || names(self.all.iter().map(|upstream| upstream.first().unwrap_or_default()));
        let choose_one = "choose one of them with --cluster NAME";
        let (problem, remedy) = match (name, &self.all[..]) {
            (_, []) if self.includes => (
                "the file includes others and has no upstream itself".to_owned(),
                "give the output of `nginx -T`",
            ),
            (_, []) => ("the file has no upstream for HTTP".to_owned(), "give the output of `nginx -T`"),
            (None, [only]) => return Ok(only),
            (None, all) => (format!("there are {} upstreams: {}", all.len(), names()), choose_one),
            (Some(name), all) => match all.iter().find(|upstream| upstream.first() == Some(name)) {
                Some(upstream) => return Ok(upstream),
                None => (format!("there is no upstream '{}', only: {}", shown(name), names()), choose_one),
            },
        };
        Err(KeyError::new("upstream", problem, remedy))
    }

    /// Returns a warning if the log may have requests of other upstreams.
    pub(super) fn warning(&self) -> Option<String> {
        (self.all.len() > 1).then(|| {
            "nginx has other upstreams too, and the plan takes all requests of the log as those of this upstream. Give a \
             log of this upstream only."
                .to_owned()
        })
    }
}

/// Returns whether an included file is one of the files of each nginx that have no upstreams.
fn is_of_types(include: &Directive) -> bool {
    let file = include.first().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    ["mime.types", "fastcgi_params", "fastcgi.conf", "uwsgi_params", "scgi_params", "proxy_params"]
        .contains(&file)
}

/// The servers of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Servers {
    /// The servers that share the requests.
    pub(super) count: u32,
    /// The reason why the file does not list the servers.
    pub(super) unlisted: Option<String>,
    /// Whether a server is a name, so that it may have several addresses.
    pub(super) are_names: bool,
    pub(super) backup: u32,
    pub(super) down: u32,
    pub(super) slow_start: bool,
    /// The least and the largest weight.
    pub(super) weights: Option<(u32, u32)>,
}

impl Servers {
    /// Counts the servers of an upstream.
    pub(super) fn read(upstream: &Directive) -> Result<Self, KeyError> {
        let mut servers = Self::default();
        for server in upstream.block.iter().filter(|directive| directive.name == "server") {
            servers.add(server)?;
        }
        if servers.count == 0 {
            let has_state = upstream.block.iter().any(|directive| directive.name == "state");
            servers.unlisted = Some(
                match (has_state, servers.backup + servers.down) {
                    (true, _) => "the servers are in another file (`state`)",
                    (false, 0) => "the upstream lists no servers",
                    (false, _) => "all servers of the upstream are `backup` or `down`",
                }
                .to_owned(),
            );
        }
        Ok(servers)
    }

    fn add(&mut self, server: &Directive) -> Result<(), KeyError> {
        let address = server.first().ok_or_else(|| server.error("there is no address", "add it"))?;
        let weight = match server.value("weight").map(str::parse::<u32>) {
            None => 1,
            Some(Ok(weight @ 1..)) => weight,
            Some(_) => return Err(server.error("weight is not a number from 1", "write digits only")),
        };
        if server.has("down") {
            self.down += 1;
        } else if server.has("backup") {
            self.backup += 1;
        } else {
            self.count += 1;
            self.are_names |= is_name(address);
            self.slow_start |= server.value("slow_start").is_some();
            let (least, most) = self.weights.unwrap_or((weight, weight));
            self.weights = Some((least.min(weight), most.max(weight)));
        }
        Ok(())
    }

    /// Returns the weights if they differ.
    pub(super) fn different_weights(&self) -> Option<(u32, u32)> {
        self.weights.filter(|(least, most)| least != most)
    }
}

/// Returns whether the address of a server is a name.
fn is_name(address: &str) -> bool {
    if address.starts_with("unix:") || address.starts_with('[') {
        return false;
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.parse::<std::net::Ipv4Addr>().is_err()
}

/// Returns whether a location that sends requests to the upstream keeps replies in nginx's own cache.
pub(super) fn is_cached(config: &[Directive], upstream: &str) -> bool {
    is_cached_below(config, upstream, false)
}

/// `inherited` is whether the blocks around this one have a cache.
fn is_cached_below(block: &[Directive], upstream: &str, inherited: bool) -> bool {
    let own = block.iter().rfind(|directive| {
        directive
            .name
            .strip_suffix("_cache")
            .is_some_and(|kind| PASSES.iter().any(|pass| pass.starts_with(kind)))
    });
    let has_cache = own.map_or(inherited, |directive| directive.first() != Some("off"));
    block.iter().any(|directive| {
        has_cache && passes_to(directive, upstream) || is_cached_below(&directive.block, upstream, has_cache)
    })
}

/// Returns whether a directive sends requests to an upstream.
fn passes_to(directive: &Directive, upstream: &str) -> bool {
    if !PASSES.contains(&directive.name.as_str()) {
        return false;
    }
    let url = directive.first().unwrap_or_default();
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next() == Some(upstream)
}
