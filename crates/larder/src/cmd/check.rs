//! `larder check`: validates a config and prints its meaning.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use larder_core::PolicyKind;
use larder_core::rules::ClassRules;
use larder_edge::TlsConfig;
use larder_node::StoreConfig;
use larder_picker::PickerTls;
use larder_switch::{AdmissionLimit, DirectReply, Edits, Route, SwitchConfig};

use crate::acme::AcmeRole;
use crate::config::{
    self, AdminListen, AgentRole, Config, HandoffRole, NodeRole, PeersRole, PickerRole, Size, Span,
    SwitchRole, SwitchesRole, WardRole, Written,
};
use crate::outcome::usage;
use crate::preflight::{self, Purpose, Severity};

/// Check a config file and whether this machine meets its requirements.
///
/// Every error names the file, the line, the key and the remedy. If the file is invalid, the exit code is 2. Then
/// the check examines what a start needs of this machine: names that resolve, addresses that can be bound, files,
/// secrets and rights. If something is missing, the exit code is 1. Run the check as the user that starts larder.
/// If the file is valid, its settings are printed to stdout; warnings and notes go to stderr.
///
/// The options --schema, --defaults and --policies print references instead.
///
/// For example: larder check larder.toml
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The config file.
    #[arg(required_unless_present_any = ["schema", "defaults", "policies"])]
    file: Option<PathBuf>,
    /// Print the JSON Schema of the config file, for editors.
    #[arg(long, conflicts_with_all = ["file", "defaults", "effective"])]
    schema: bool,
    /// Print a config file with every key, its meaning and its default.
    #[arg(long, conflicts_with_all = ["file", "effective"])]
    defaults: bool,
    /// Print every policy with a short description.
    #[arg(long, conflicts_with_all = ["file", "schema", "defaults", "effective"])]
    policies: bool,
    /// Print the effective config as TOML instead of a summary. This machine is not examined.
    #[arg(long)]
    effective: bool,
    /// Print the file with the current spellings of renamed keys. Comments and order are kept.
    #[arg(long, requires = "file", conflicts_with_all = ["schema", "defaults", "policies", "effective", "no_preflight"])]
    migrate: bool,
    /// With --migrate: rewrite the file instead of printing it.
    #[arg(long, requires = "migrate")]
    write: bool,
    /// Check the file only, not this machine: no names, addresses, files, secrets or rights. For CI.
    #[arg(long, conflicts_with_all = ["schema", "defaults", "policies"])]
    no_preflight: bool,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if args.schema {
        serde_json::to_writer_pretty(&mut out, &config::schema())?;
        writeln!(out)?;
    } else if args.defaults {
        out.write_all(config::defaults()?.as_bytes())?;
    } else if args.policies {
        for policy in PolicyKind::ALL {
            writeln!(out, "{:<12} {}", policy.name(), policy.summary())?;
        }
    } else if args.migrate {
        migrate(args.file.as_deref().ok_or_else(|| usage("name a config file"))?, args.write, &mut out)?;
    } else {
        let path = args.file.as_deref().ok_or_else(|| usage("name a config file"))?;
        let alone = args.no_preflight || args.effective;
        let read = Written::read(path);
        let written = if alone {
            read.map_err(|error| error.clone().without_machine().unwrap_or(error))
        } else {
            read
        }?;
        let config = if alone { written.validate_alone()? } else { Some(written.validate()?) };
        if let Some(config) = &config {
            warn(&written, config, alone)?;
        }
        if args.effective {
            out.write_all(toml::to_string(&written.raw)?.as_bytes())?;
        } else {
            if let Some(config) = &config {
                write_summary(config, &mut out)?;
            }
            writeln!(out, "{}: ok", path.display())?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Prints a config file with the new spellings, or writes it in place.
fn migrate(path: &Path, in_place: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let old = config::text_of(path)?;
    let (text, moved) = config::migrate(&path.display().to_string(), &old)?;
    for key in config::in_comments(&old) {
        writeln!(
            io::stderr(),
            "warning: {}:{}: {}: old spelling in a comment, which is not rewritten; the key may have moved to another table: write {}",
            path.display(),
            key.line,
            key.old,
            key.new
        )?;
    }
    if !in_place {
        return Ok(out.write_all(text.as_bytes())?);
    }
    if moved == 0 {
        return Ok(writeln!(out, "{}: has no old spellings", path.display())?);
    }
    replace(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(writeln!(out, "{}: {moved} old spellings replaced", path.display())?)
}

/// Replaces a file's contents at once: a reader sees the old ones or the new ones.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = path.canonicalize()?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(text.as_bytes())?;
    let (old, file) = (std::fs::metadata(&path)?, new.as_file());
    // Only root may keep another owner, and only a member of the group may keep it; a new file may have both already.
    let kept = std::os::unix::fs::fchown(file, Some(old.uid()), Some(old.gid()));
    let now = file.metadata()?;
    if (old.uid(), old.gid()) != (now.uid(), now.gid()) {
        let reason = kept.err().map_or_else(|| "no reason given".to_owned(), |error| error.to_string());
        let (owner, group) = (old.uid(), old.gid());
        let what = format!("cannot keep owner {owner} and group {group}: {reason}; run this command as root");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    new.as_file().set_permissions(old.permissions())?;
    new.as_file().sync_all()?;
    new.persist(&path)?;
    // Otherwise the old file may be back after a crash.
    std::fs::File::open(folder)?.sync_all()
}

/// Writes warnings and notes to stderr. If `alone` is true, this machine is not checked.
///
/// # Errors
/// Returns an error if this machine does not meet a requirement.
fn warn(written: &Written, config: &Config, alone: bool) -> anyhow::Result<()> {
    for warning in written.warnings(config) {
        writeln!(io::stderr(), "warning: {warning}")?;
    }
    if alone {
        return Ok(());
    }
    let found = preflight::findings(written, config, Purpose::Check);
    for (severity, finding) in found.iter().filter(|(severity, _)| *severity != Severity::Error) {
        writeln!(io::stderr(), "{}: {finding}", severity.name())?;
    }
    Ok(preflight::refuse(found)?)
}

fn write_summary(config: &Config, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(role) = &config.switch {
        switch_summary(role, out)?;
    }
    if let Some(role) = &config.node {
        node_summary(role, out)?;
    }
    if let Some(AgentRole { name, handoff }) = &config.agent {
        writeln!(out, "agent {name}:")?;
        handoff_summary(handoff, out)?;
    }
    if let Some(role) = &config.picker {
        picker_summary(role, out)?;
    }
    let has_no_role = config.switch.is_none() && config.node.is_none() && config.agent.is_none();
    if has_no_role && config.picker.is_none() {
        writeln!(out, "the file has no section [switch], [node], [agent] or [picker], so it starts nothing")?;
    }
    let admin = match config.admin {
        AdminListen::Unset if config.switch.is_some() => "127.0.0.1:9900 (the default)".to_owned(),
        AdminListen::Unset => "off (the default)".to_owned(),
        AdminListen::Off => "off".to_owned(),
        AdminListen::At(address) => address.to_string(),
    };
    writeln!(out, "admin interface: {admin}; log level {}", config.log)?;
    Ok(())
}

fn picker_summary(role: &PickerRole, out: &mut impl Write) -> anyhow::Result<()> {
    let PickerRole { listen, picker, nodes, discover, peers } = role;
    let tls = match &picker.tls {
        PickerTls::Off => "without TLS".to_owned(),
        PickerTls::SelfSigned => "with a self-signed certificate".to_owned(),
        PickerTls::Files(_) => "with TLS".to_owned(),
    };
    writeln!(out, "picker on {listen}, {tls}: policy {}, key {}", picker.settings.policy, picker.key)?;
    writeln!(out, "  {} endpoints in the file, {} fallbacks", nodes.len(), picker.fallbacks)?;
    for source in discover {
        writeln!(out, "  endpoints from {source}")?;
    }
    if let PickerTls::Files(tls) = &picker.tls {
        certificates(Some(tls), out)?;
    }
    if let Some(peers) = peers {
        writeln!(out, "  peers on {}, named {}", peers.listen, peers.name)?;
    }
    Ok(())
}

fn certificate_end(seconds: i64) -> std::time::SystemTime {
    // Later dates cannot be formatted, so they are shown as the last valid date.
    const LAST_S: u64 = 253_402_300_799;
    std::time::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0).min(LAST_S))
}

fn format_listen(clear: &[SocketAddr], tls: Option<&TlsConfig>) -> String {
    let secure = tls.iter().flat_map(|tls| &tls.listen).map(|address| format!("{address} (TLS)"));
    let all: Vec<String> = clear.iter().map(ToString::to_string).chain(secure).collect();
    all.join(" and ")
}

fn certificates(tls: Option<&TlsConfig>, out: &mut impl Write) -> anyhow::Result<()> {
    let Some(tls) = tls else { return Ok(()) };
    for certificate in tls.check()? {
        let ends = httpdate::fmt_http_date(certificate_end(certificate.not_after));
        let mut names: Vec<&str> = certificate.names.iter().map(String::as_str).collect();
        if certificate.default {
            names.push("all other hosts");
        }
        let names = if names.is_empty() { "no host".to_owned() } else { names.join(", ") };
        writeln!(out, "  certificate {}: valid until {ends}, for {names}", certificate.file)?;
    }
    Ok(())
}

fn switch_summary(role: &SwitchRole, out: &mut impl Write) -> anyhow::Result<()> {
    let (switch, settings) = (&role.switch, &role.switch.settings);
    let listen = format_listen(&switch.listen, switch.tls.as_ref());
    writeln!(out, "switch: listens on {listen}, policy {}", settings.policy)?;
    certificates(switch.tls.as_ref(), out)?;
    if let Some(AcmeRole { store, directory, .. }) = &role.acme {
        let (hosts, folder) = (store.hosts.join(" and "), store.folder.display());
        writeln!(out, "  certificates for {hosts} from {directory}, kept in {folder}")?;
    }
    writeln!(
        out,
        "  T_low {}, T_high {}, replication decays after {}, {} targets remembered",
        settings.t_low,
        settings.t_high,
        Span(settings.replication_decay),
        settings.targets_max
    )?;
    write_admission(switch, out)?;
    writeln!(out, "  key {}", switch.key)?;
    let edits = default_edits(switch);
    if !edits.is_empty() {
        writeln!(out, "  edits: {}", edits.join(", "))?;
    }
    classes(&switch.classes, "  ", out)?;
    for peer in &switch.nodes {
        let (name, weight) = (&peer.spec.name, peer.spec.weight);
        let at = if *name == peer.address { String::new() } else { format!(" at {}", peer.address) };
        let cache = match peer.spec.cache {
            larder_core::Bytes::ZERO => "unknown".to_owned(),
            known => Size(known).to_string(),
        };
        let groups = match peer.groups.as_slice() {
            [] => String::new(),
            groups => format!(", in {}", groups.join(" and ")),
        };
        let backup = if peer.spec.backup { ", backup" } else { "" };
        writeln!(out, "  node {name}{at}: weight {weight}, cache {cache}{groups}{backup}")?;
    }
    if let Some(SwitchesRole { name, listen, advertise, seeds, .. }) = &role.beside {
        let known = format_address(*listen, *advertise);
        writeln!(out, "  other switches: this is {name}, listens on {known}, seeds {}", format_seeds(seeds))?;
    }
    switch.routes.iter().try_for_each(|route| route_summary(route, out))?;
    role.wards.iter().try_for_each(|ward| ward_summary(ward, out))
}

/// Formats the listen address for peers, and the advertised address if it differs.
fn format_address(listen: SocketAddr, advertise: Option<SocketAddr>) -> String {
    match advertise.filter(|advertised| *advertised != listen) {
        Some(advertised) => format!("{listen} (advertised as {advertised})"),
        None => listen.to_string(),
    }
}

fn format_seeds(seeds: &[larder_peers::Seed]) -> String {
    match seeds {
        [] => "none: other switches name this switch".to_owned(),
        seeds => seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn route_summary(route: &Route, out: &mut impl Write) -> anyhow::Result<()> {
    let mut takes: Vec<String> = route.matchers.iter().map(ToString::to_string).collect();
    let percent = |share: u32| f64::from(share) / 1000.0;
    takes.extend(route.share_of.iter().map(|of| format!("{} % of route {}", percent(of.share), of.route)));
    takes.extend(
        route.mirror_of.iter().map(|of| format!("copies of {} % of route {}", percent(of.share), of.route)),
    );
    let group = route.group.as_deref().map_or("all nodes".to_owned(), |group| format!("group {group}"));
    writeln!(out, "  route {}: {}", route.name, takes.join(" or "))?;
    writeln!(out, "    policy {}, {group}", route.settings.policy)?;
    if let Some(key) = &route.key {
        writeln!(out, "    key {key}")?;
    }
    let edits = route_edits(&route.edits);
    if !edits.is_empty() {
        writeln!(out, "    edits: {}", edits.join(", "))?;
    }
    route.classes.as_ref().map_or(Ok(()), |rules| classes(rules, "    ", out))
}

/// Returns the config keys of edits that the default route makes. Other routes inherit them.
fn default_edits(switch: &SwitchConfig) -> Vec<&'static str> {
    enabled(&[
        ("headers.request", !switch.request_fields.is_empty()),
        ("headers.reply", !switch.reply_fields.is_empty()),
        ("headers.request_id", switch.request_id.is_some()),
        ("sticky", switch.sticky.is_some()),
        ("compress", switch.compress.is_some()),
        ("hedge", switch.hedge.is_some()),
    ])
    .collect()
}

fn enabled<'a>(all: &'a [(&'static str, bool)]) -> impl Iterator<Item = &'static str> + 'a {
    all.iter().filter(|(_, enabled)| *enabled).map(|(word, _)| *word)
}

/// Returns the config keys of edits that a route makes.
fn route_edits(edits: &Edits) -> Vec<&'static str> {
    let all = [
        ("headers.request", !edits.request_fields.is_empty()),
        ("headers.reply", !edits.reply_fields.is_empty()),
        ("rewrite", edits.rewrite.is_some()),
        ("sticky", edits.sticky.is_some()),
        ("compress", edits.compress.is_some()),
        ("hedge", edits.hedge.is_some()),
    ];
    let answer = edits.answer.iter().map(DirectReply::name);
    answer.chain(enabled(&all)).collect()
}

fn classes(rules: &ClassRules, indent: &str, out: &mut impl Write) -> anyhow::Result<()> {
    for (matcher, class) in rules.rules() {
        writeln!(out, "{indent}class {class}: {matcher}")?;
    }
    Ok(())
}

fn ward_summary(ward: &WardRole, out: &mut impl Write) -> anyhow::Result<()> {
    let table = ward.table.as_ref().map_or("none".to_owned(), |table| table.path.display().to_string());
    let refresh = ward.refresh.as_ref().map_or("never".to_owned(), |refresh| {
        format!("every {} from its own traffic, {} a node", Span(refresh.every), Size(refresh.memory))
    });
    writeln!(out, "  routing table of route {}: {table}, rebuilt {refresh}", ward.route)?;
    Ok(())
}

fn node_summary(role: &NodeRole, out: &mut impl Write) -> anyhow::Result<()> {
    let NodeRole { listen, node, .. } = role;
    let content = match &node.store {
        StoreConfig::Directory { root, bypass_page_cache } => {
            let past = if *bypass_page_cache { ", without the page cache" } else { "" };
            format!("the directory {}{past}", root.display())
        }
        StoreConfig::Origin(origin) => format!("the origin {}", origin.url),
        StoreConfig::Model(model) => {
            format!(
                "a modelled store of {} ({} disks, {} times 1998 speed)",
                model.manifest.display(),
                model.disk.disks,
                model.disk.speed
            )
        }
    };
    let (name, cache) = (&node.name, &node.cache);
    let listen = format_listen(listen.as_slice(), node.tls.as_ref());
    writeln!(
        out,
        "node {name}: listens on {listen}, {} of cache ({}), content from {content}",
        Size(cache.bytes),
        cache.kind
    )?;
    certificates(node.tls.as_ref(), out)?;
    if let Some(PeersRole { listen, advertise, seeds, policy, .. }) = &role.peers {
        let known = format_address(*listen, *advertise);
        writeln!(
            out,
            "  peers: listens on {known}, policy {}, seeds {}",
            policy.name(),
            format_seeds(seeds)
        )?;
    }
    if let Some(handoff) = role.peers.as_ref().and_then(|peers| peers.handoff.as_ref()) {
        let services: Vec<String> = handoff.services.iter().map(ToString::to_string).collect();
        let (min, services) = (Size(handoff.min), services.join(" and "));
        writeln!(
            out,
            "  hands off connections to peers for replies of {min} and more; clients connect to {services}"
        )?;
    }
    role.handoff.as_ref().map_or(Ok(()), |handoff| handoff_summary(handoff, out))
}

fn handoff_summary(role: &HandoffRole, out: &mut impl Write) -> anyhow::Result<()> {
    let services: Vec<String> = role.services.iter().map(ToString::to_string).collect();
    let how = if role.repair { "by cookie or repair" } else { "by cookie" };
    writeln!(
        out,
        "  accepts handed-off connections to {} on {} {how}",
        services.join(" and "),
        role.interface
    )?;
    let switches = match role.switches.len() {
        1 => "1 switch".to_owned(),
        many => format!("{many} switches"),
    };
    writeln!(out, "  {switches} may connect to {}", role.listen)?;
    Ok(())
}

/// Writes the admission limits. The dispatcher is built for them, which validates the settings as the switch
/// does.
fn write_admission(switch: &SwitchConfig, out: &mut impl Write) -> anyhow::Result<()> {
    let settings = &switch.settings;
    for AdmissionLimit { group, requests } in switch.admission_limits()? {
        let at = group.map_or_else(String::new, |group| format!(" to group {group}"));
        match requests {
            Some(requests) => writeln!(
                out,
                "  admits {requests} concurrent requests{at}; {} more wait up to {}",
                settings.queue_max,
                Span(settings.queue_timeout)
            )?,
            None => writeln!(out, "  admits any number of concurrent requests{at}")?,
        }
    }
    writeln!(
        out,
        "  long-lived requests do not count against this limit: at most {} per node",
        settings.long_lived_max
    )?;
    Ok(())
}
