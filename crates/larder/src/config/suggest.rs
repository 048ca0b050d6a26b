//! Suggestions for unknown names: similar known names, and larder's names for those of HAProxy, nginx and Envoy.

/// Largest number of edits from a misspelt name to a suggested one: this percentage of its letters, and at least 1.
const EDITS_PERCENT: usize = 40;
/// Largest number of names that a hint lists.
pub(super) const LISTED_MAX: usize = 12;
/// Largest number of names that a hint lists in addition to a similar name.
const SHORT_LIST: usize = 6;
/// Largest number of names that a hint suggests.
const SUGGESTED_MAX: usize = 3;
/// Names of other programs, and the remedy.
const FOREIGN: &[(&[&str], &str)] = &[
    (
        &["backend", "backends", "upstream", "upstreams", "server", "servers", "clusters"],
        "larder calls these nodes: write nodes = [\"10.0.0.1:80\", \"10.0.0.2:80\"] under [switch]",
    ),
    (
        &["frontend", "frontends", "listeners", "listen_addr", "bind"],
        "write listen = \"0.0.0.0:80\" under [switch], and listen under [switch.tls] for TLS",
    ),
    (
        &["balance", "lb_policy", "load_balancing"],
        "write policy = \"lard-r\" under [switch]; `larder check --policies` lists all",
    ),
    (&["roundrobin", "round_robin", "round-robin"], "write \"rr\""),
    (&["leastconn", "least_conn", "least_request", "least_conns"], "write \"least-conn\""),
    (
        &["ring_hash", "ring-hash", "uri", "consistent"],
        "write \"bounded\": a hash ring with a bound on each node's load; \"maglev\" and \"rendezvous\" hash without a bound",
    ),
    (
        &["dns-01"],
        "let another ACME client answer it, such as certbot or lego, and write its directory into switch.tls.certificates",
    ),
    (
        &["source", "ip_hash", "ip-hash", "source_ip"],
        "no policy uses the client's address: write sticky = { by = \"cookie\" } under [switch]",
    ),
];

/// Returns the remedy for a name of another program.
pub(super) fn foreign(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    FOREIGN.iter().find(|(names, _)| names.contains(&name.as_str())).map(|(_, here)| *here)
}

/// Returns the most similar known names. If there are none, the known names are listed.
pub(crate) fn suggest(unknown: &str, known: &[&str]) -> String {
    let near = nearest(unknown, known);
    let listed = || {
        let few = known.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
        let more = if known.len() > LISTED_MAX { ", ..." } else { "" };
        format!("known here: {few}{more}")
    };
    match (foreign(unknown), did_you_mean(&near)) {
        (Some(here), _) => here.to_owned(),
        (None, Some(near)) if known.len() > SHORT_LIST => near,
        (None, Some(near)) => format!("{near} {}", listed()),
        (None, None) => listed(),
    }
}

pub(super) fn did_you_mean(near: &[&str]) -> Option<String> {
    let quoted: Vec<String> = near.iter().map(|name| format!("'{name}'")).collect();
    (!quoted.is_empty()).then(|| format!("did you mean {}?", quoted.join(" or ")))
}

/// Returns the most similar known names.
pub(super) fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Vec<&'a str> {
    let unknown = unknown.to_ascii_lowercase();
    let edits_max = (unknown.chars().count() * EDITS_PERCENT / 100).max(1);
    let distance =
        |name: &&'a str| (strsim::damerau_levenshtein(&unknown, &name.to_ascii_lowercase()), *name);
    let mut near: Vec<(usize, &str)> =
        known.iter().map(distance).filter(|(edits, _)| *edits <= edits_max).collect();
    near.sort_by_key(|(edits, _)| *edits);
    let least = near.first().map_or(0, |(edits, _)| *edits);
    // Names that are farther than the nearest only distract.
    near.into_iter().filter(|(edits, _)| *edits == least).map(|(_, name)| name).take(SUGGESTED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_are_suggested() {
        assert_eq!(
            suggest("lisen", &["nodes", "listen"]),
            "did you mean 'listen'? known here: nodes, listen"
        );
        assert_eq!(suggest("zzz", &["nodes", "listen"]), "known here: nodes, listen");
        assert_eq!(
            suggest("lard-t", &["lard", "lard-r", "rr"]),
            "did you mean 'lard-r'? known here: lard, lard-r, rr"
        );
    }
}
