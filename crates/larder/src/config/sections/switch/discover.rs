//! `[[switch.discover]]` and its files.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use larder_core::{Bytes, NodeSpec, Weight};
use larder_switch::NodeEntry;

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::sections::switch::nodes::{WEIGHT, groups, host_and_port};
use crate::config::text::{Size, Span, Texts};

keys! {
    /// `[[switch.discover]]`: a source of nodes. Exactly one of `dns`, `srv`, `kubernetes`, `inference_pool` and `file` is
    /// required.
    table DiscoverSection;

    /// Name and port, "name:port". Every address of the name (A, AAAA) is a node, named by address and port.
    dns: Option<String>, example "store.example.com:80";
    /// Name of SRV records. Every target of the best priority is a node, named by host and port. Its weight is the
    /// record's weight over the mean of all.
    srv: Option<String>, example "_http._tcp.store.example.com";
    /// Kubernetes service, "NAMESPACE/SERVICE:PORT". Every ready endpoint is a node, named by its pod. The port is
    /// that of the pods, by name or number. The service account needs get, list and watch of endpointslices in the
    /// namespace.
    kubernetes: Option<String>, example "default/store:http";
    /// InferencePool of Kubernetes, "NAMESPACE/NAME". Every ready pod of its selector is a node at each of its target
    /// ports, named by its pod, and by its port if there are several. The service account needs get, list and watch of
    /// inferencepools and pods in the namespace.
    inference_pool: Option<String>, example "default/llama";
    /// Kubeconfig file for access to the API server from outside the cluster. Unset: the service account of the pod.
    kubeconfig: Option<String>, example "/etc/larder/kubeconfig";
    /// File with `nodes`, written as under [switch]. It is read again when it changes. If it is invalid, nothing
    /// changes.
    file: Option<String>, example "/etc/larder/nodes.toml";
    /// Name servers, "address" or "address:port", for dns and srv. Unset: those of /etc/resolv.conf.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    servers: Texts, example "10.0.0.2:53";
    /// Longest time between two lookups. DNS records that expire earlier are looked up earlier, but at most once per
    /// second. Kubernetes reports changes at once.
    period: Span = Span(std::time::Duration::from_secs(10)), range "100ms to 1h", example "10s";
    /// Time for which a node stays after the source no longer lists it. Health checks watch it meanwhile. Unset: 30s,
    /// and 0s for a file and for a picker.
    hold: Option<Span>, range "0s to 1h", example "30s";
    /// Weight of the nodes. Not for a file.
    weight: f64 = 1.0, range WEIGHT, example 1.0;
    /// Size of the nodes' caches. Not for a file. Unset: unknown.
    cache: Option<Size>, example "8GiB";
    /// Groups of the nodes. Not for a file.
    #[serde(skip_serializing_if = "Texts::is_empty")]
    groups: Texts, example "dynamic";
    /// Whether the nodes are backups, which take requests only while no ordinary node of their group is up. Not for a
    /// file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    backup: bool, example false;
}

/// Kind and place of a source of nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// The addresses of a name, and the port.
    Name(String, u16),
    /// The targets of SRV records.
    Service(String),
    /// The ready endpoints of a Kubernetes service.
    Slices(ServiceSlices),
    /// The ready pods of an InferencePool.
    Pool(PoolRef),
    /// The nodes in a file.
    File(PathBuf),
}

/// A Kubernetes service, and the access to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceSlices {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: ServicePort,
    /// Kubeconfig file; `None` uses the service account of the pod.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// An InferencePool, and the access to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Kubeconfig file; `None` uses the service account of the pod.
    pub(crate) kubeconfig: Option<PathBuf>,
}

/// A port of a service's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServicePort {
    Number(u16),
    Named(String),
}

impl std::fmt::Display for ServicePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Named(name) => name.fmt(f),
        }
    }
}

/// A source of nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Discover {
    pub(crate) place: Place,
    /// Name servers; empty for those of the system.
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) period: Duration,
    pub(crate) hold: Duration,
    pub(crate) weight: Weight,
    pub(crate) cache: Bytes,
    pub(crate) groups: Vec<String>,
    pub(crate) backup: bool,
}

impl Discover {
    /// Creates the entry of a node that the source found.
    pub(crate) fn entry(&self, name: &str, address: String, weight: Weight) -> NodeEntry {
        let spec = NodeSpec { weight, cache: self.cache, backup: self.backup, ..NodeSpec::named(name) };
        NodeEntry { groups: self.groups.clone(), ..NodeEntry::new(spec, address) }
    }
}

impl std::fmt::Display for Discover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.place {
            Place::Name(name, port) => write!(f, "dns {name}:{port}"),
            Place::Service(name) => write!(f, "srv {name}"),
            Place::Slices(ServiceSlices { namespace, name, port, .. }) => {
                write!(f, "kubernetes {namespace}/{name}:{port}")
            }
            Place::Pool(PoolRef { namespace, name, .. }) => write!(f, "inference_pool {namespace}/{name}"),
            Place::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

/// Largest size of a DNS name (RFC 1035, section 2.3.4).
const NAME_MAX: usize = 253;

/// Time for which a switch holds a node that its source no longer lists.
pub(crate) const HOLD_OF_SWITCH: Duration = Duration::from_secs(30);

/// Validates all entries of the list `section`, such as `switch.discover`. `hold` is the default.
pub(crate) fn sources(
    section: &str,
    raw: &[DiscoverSection],
    hold: Duration,
) -> Result<Vec<Discover>, Fault> {
    let all = raw.iter().enumerate();
    all.map(|(i, raw)| discover(&format!("{section}[{i}]"), raw, hold)).collect()
}

fn discover(at: &str, raw: &DiscoverSection, hold: Duration) -> Result<Discover, Fault> {
    let DiscoverSection { dns, srv, kubernetes, inference_pool, file, .. } = raw;
    let given = [dns, srv, kubernetes, inference_pool, file];
    if given.into_iter().filter(|given| given.is_some()).count() != 1 {
        let what = "needs exactly one of dns, srv, kubernetes, inference_pool and file";
        return Err(
            Fault::new(at, what)
                .hint("write one of dns = \"NAME:PORT\", srv = \"NAME\", kubernetes = \"NAMESPACE/SERVICE:PORT\", inference_pool = \"NAMESPACE/NAME\", file = \"PATH\"")
        );
    }
    if kubernetes.is_none() && inference_pool.is_none() && raw.kubeconfig.is_some() {
        let what = "is only for kubernetes and inference_pool";
        return Err(
            Fault::new(format!("{at}.kubeconfig"), what).hint("leave it out, or name a service or pool")
        );
    }
    let place = place(at, raw)?;
    let from_file = matches!(place, Place::File(_));
    if from_file {
        for (key, given) in [
            ("servers", !raw.servers.0.is_empty()),
            ("cache", raw.cache.is_some()),
            ("groups", !raw.groups.0.is_empty()),
            ("backup", raw.backup),
        ] {
            if given {
                let what = "is not for a file";
                return Err(
                    Fault::new(format!("{at}.{key}"), what).hint("write it in the file, at each node")
                );
            }
        }
    }
    let hold = raw.hold.map_or(if from_file { Duration::ZERO } else { hold }, |span| span.0);
    Ok(Discover {
        place,
        servers: raw
            .servers
            .0
            .iter()
            .map(|text| server(&format!("{at}.servers"), text))
            .collect::<Result<_, _>>()?,
        period: raw.period.0,
        hold,
        weight: Weight::from_f64(raw.weight).ok_or_else(|| {
            Fault::new(format!("{at}.weight"), format!("{} is out of range", raw.weight)).hint(WEIGHT)
        })?,
        cache: raw.cache.map_or(Bytes::ZERO, |size| size.0),
        groups: groups(&format!("{at}.groups"), &raw.groups.0)?,
        backup: raw.backup,
    })
}

fn place(at: &str, raw: &DiscoverSection) -> Result<Place, Fault> {
    if let Some(text) = &raw.dns {
        let key = format!("{at}.dns");
        let (host, port) = host_and_port(text)
            .map_err(|what| Fault::new(&key, format!("'{text}' {what}")).hint("write \"NAME:PORT\""))?;
        if host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            let what = format!("'{text}' is an IP address, which needs no lookup");
            return Err(Fault::new(key, what).hint("put it into nodes"));
        }
        return Ok(Place::Name(name(&key, host)?, port));
    }
    if let Some(text) = &raw.srv {
        return Ok(Place::Service(name(&format!("{at}.srv"), text)?));
    }
    if let Some(text) = &raw.kubernetes {
        with_kubernetes(&format!("{at}.kubernetes"))?;
        return slices(at, text, raw.kubeconfig.as_deref()).map(Place::Slices);
    }
    if let Some(text) = &raw.inference_pool {
        with_kubernetes(&format!("{at}.inference_pool"))?;
        return pool(at, text, raw.kubeconfig.as_deref()).map(Place::Pool);
    }
    let path = raw.file.as_deref().unwrap_or_default();
    if path.is_empty() {
        return Err(Fault::new(format!("{at}.file"), "empty").hint("write file = \"/etc/larder/nodes.toml\""));
    }
    Ok(Place::File(path.into()))
}

/// Refuses sources in Kubernetes in a build without support for them.
fn with_kubernetes(key: &str) -> Result<(), Fault> {
    if cfg!(feature = "kubernetes") {
        return Ok(());
    }
    let what = "this build of larder has no support for Kubernetes";
    let hint = "build it with the feature kubernetes, as cargo build --release -p larder does";
    Err(Fault::new(key, what).hint(hint))
}

/// Whether the text is a name of Kubernetes of at most `max` bytes (RFC 1123 label).
fn label(label: &str, max: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=max).contains(&label.len())
        && label.bytes().all(plain)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

fn kubeconfig(at: &str, given: Option<&str>) -> Result<Option<PathBuf>, Fault> {
    if given == Some("") {
        return Err(Fault::new(format!("{at}.kubeconfig"), "empty").hint("leave it out within the cluster"));
    }
    Ok(given.map(PathBuf::from))
}

fn pool(at: &str, text: &str, given: Option<&str>) -> Result<PoolRef, Fault> {
    // A pool's name may have dots (RFC 1123 subdomain).
    let subdomain = |name: &str| name.len() <= NAME_MAX && name.split('.').all(|part| label(part, NAME_MAX));
    let named = text.split_once('/').filter(|(namespace, name)| label(namespace, 63) && subdomain(name));
    let Some((namespace, name)) = named else {
        let what = format!("'{}' names no InferencePool", text.escape_debug());
        return Err(Fault::new(format!("{at}.inference_pool"), what)
            .hint("write \"NAMESPACE/NAME\" with the names of Kubernetes, such as \"default/llama\""));
    };
    Ok(PoolRef { namespace: namespace.to_owned(), name: name.to_owned(), kubeconfig: kubeconfig(at, given)? })
}

fn slices(at: &str, text: &str, given: Option<&str>) -> Result<ServiceSlices, Fault> {
    let wrong = || {
        let what = format!("'{}' names no port of a service", text.escape_debug());
        Fault::new(format!("{at}.kubernetes"), what).hint(
            "write \"NAMESPACE/SERVICE:PORT\" with the names of Kubernetes, such as \"default/store:http\"",
        )
    };
    let (namespace, rest) = text.split_once('/').ok_or_else(wrong)?;
    let (service, port) = rest.split_once(':').ok_or_else(wrong)?;
    let port = match port.parse::<u16>() {
        Ok(0) => return Err(wrong()),
        Ok(number) => ServicePort::Number(number),
        Err(_) if label(port, 15) && port.bytes().any(|byte| byte.is_ascii_lowercase()) => {
            ServicePort::Named(port.to_owned())
        }
        Err(_) => return Err(wrong()),
    };
    if !label(namespace, 63) || !label(service, 63) {
        return Err(wrong());
    }
    let kubeconfig = kubeconfig(at, given)?;
    Ok(ServiceSlices { namespace: namespace.to_owned(), name: service.to_owned(), port, kubeconfig })
}

fn name(key: &str, text: &str) -> Result<String, Fault> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let bare = text.strip_suffix('.').unwrap_or(text);
    if bare.len() <= NAME_MAX && bare.split('.').all(label) {
        return Ok(text.to_owned());
    }
    let what = format!("'{}' is no DNS name", text.escape_debug());
    Err(Fault::new(key, what).hint("labels of 1 to 63 letters, digits, '-' and '_', with dots between them"))
}

fn server(key: &str, text: &str) -> Result<SocketAddr, Fault> {
    let address = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
    address.or_else(|_| text.parse()).map_err(|_| {
        Fault::new(key, format!("'{text}' is no address")).hint("write \"10.0.0.2\" or \"10.0.0.2:53\"")
    })
}

/// Validates one source, for tests.
#[cfg(test)]
pub(crate) fn discover_of(text: &str) -> Option<Discover> {
    discover("switch.discover[0]", &toml::from_str(text).ok()?, HOLD_OF_SWITCH).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::source::Source;

    fn parsed(text: &str) -> Result<Discover, Fault> {
        discover("switch.discover[0]", &toml::from_str(text).unwrap(), HOLD_OF_SWITCH)
    }

    #[test]
    fn a_source_is_one_of_five() {
        let dns = parsed(
            "dns = \"store.example.com:8080\"\ngroups = \"a\"\nservers = [\"::1\", \"10.0.0.2:5353\"]",
        )
        .unwrap();
        assert_eq!(dns.to_string(), "dns store.example.com:8080");
        assert_eq!(dns.servers, ["[::1]:53".parse().unwrap(), "10.0.0.2:5353".parse().unwrap()]);
        assert_eq!((dns.hold, dns.groups), (HOLD_OF_SWITCH, vec!["a".to_owned()]));
        assert_eq!(parsed("srv = \"_http._tcp.store.\"").unwrap().to_string(), "srv _http._tcp.store.");
        let slices = parsed("kubernetes = \"default/store:http\"\nkubeconfig = \"/k\"").unwrap();
        assert_eq!(slices.to_string(), "kubernetes default/store:http");
        assert_eq!(
            (slices.hold, &slices.place),
            (
                HOLD_OF_SWITCH,
                &Place::Slices(ServiceSlices {
                    namespace: "default".to_owned(),
                    name: "store".to_owned(),
                    port: ServicePort::Named("http".to_owned()),
                    kubeconfig: Some("/k".into()),
                })
            )
        );
        assert_eq!(parsed("kubernetes = \"a/b:80\"").unwrap().to_string(), "kubernetes a/b:80");
        let pool = parsed("inference_pool = \"default/llama.v1\"").unwrap();
        assert_eq!(
            (pool.to_string().as_str(), pool.hold),
            ("inference_pool default/llama.v1", HOLD_OF_SWITCH)
        );
        let file = parsed("file = \"/nodes.toml\"").unwrap();
        assert_eq!((file.to_string(), file.hold), ("file /nodes.toml".to_owned(), Duration::ZERO));
        assert_eq!(parsed("file = \"/n\"\nhold = \"5s\"").unwrap().hold, Duration::from_secs(5));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, complaint) in [
            ("period = \"1s\"", "switch.discover[0]: needs exactly one"),
            ("dns = \"a:1\"\nsrv = \"b\"", "switch.discover[0]: needs exactly one"),
            ("dns = \"a\"", "switch.discover[0].dns: 'a' "),
            ("dns = \"10.0.0.1:80\"", "is an IP address"),
            ("dns = \"[::1]:80\"", "is an IP address"),
            ("dns = \"a..b:80\"", "is no DNS name"),
            ("srv = \"a b\"", "is no DNS name"),
            ("srv = \"a\"\nservers = \"ns1\"", "switch.discover[0].servers: 'ns1' is no address"),
            ("srv = \"a\"\nweight = 0.0", "switch.discover[0].weight: 0 is out of range"),
            ("srv = \"a\"\ngroups = \"a b\"", "switch.discover[0].groups"),
            ("kubernetes = \"store:80\"", "switch.discover[0].kubernetes: 'store:80' names no port"),
            ("kubernetes = \"a/b\"", "names no port"),
            ("kubernetes = \"a/b:0\"", "names no port"),
            ("kubernetes = \"a/b:70000\"", "names no port"),
            ("kubernetes = \"a/B:80\"", "names no port"),
            ("kubernetes = \"a/b:80\"\nkubeconfig = \"\"", "switch.discover[0].kubeconfig: empty"),
            (
                "srv = \"a\"\nkubeconfig = \"k\"",
                "switch.discover[0].kubeconfig: is only for kubernetes and inference_pool",
            ),
            (
                "inference_pool = \"llama\"",
                "switch.discover[0].inference_pool: 'llama' names no InferencePool",
            ),
            ("inference_pool = \"a/B\"", "names no InferencePool"),
            ("inference_pool = \"a/b\"\nkubernetes = \"a/b:80\"", "needs exactly one"),
            ("file = \"\"", "switch.discover[0].file: empty"),
            ("file = \"n\"\ngroups = \"a\"", "switch.discover[0].groups: is not for a file"),
            ("file = \"n\"\nbackup = true", "switch.discover[0].backup: is not for a file"),
        ] {
            let fault = parsed(text).expect_err(text);
            let error = Source::new("f", text).locate(fault).to_string();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }
}
