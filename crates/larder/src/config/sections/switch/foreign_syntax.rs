//! Warnings for values that HAProxy, nginx and Envoy read differently: variables in header values, and paths that end in
//! "/".

use crate::config::error::Fault;
use crate::config::sections::switch::edits::RulesSection;
use crate::config::sections::switch::section::SwitchSection;

/// Beginnings of variables of other programs, and larder's equivalents.
const VARIABLES: [(&str, &str); 13] = [
    ("$remote_addr", "{client}"),
    ("$proxy_add_x_forwarded_for", "nothing: the switch adds X-Forwarded-For itself"),
    ("$remote_port", "{client_port}"),
    ("$request_id", "{request_id}"),
    ("$request_method", "{method}"),
    ("$scheme", "{scheme}"),
    ("$host", "{host}"),
    ("$upstream_addr", "{node}"),
    ("%[src]", "{client}"),
    ("%[src_port]", "{client_port}"),
    ("%DOWNSTREAM_REMOTE_ADDRESS", "{client}"),
    ("%REQ(", "{header:name}"),
    ("%UPSTREAM_HOST", "{node}"),
];

/// Warns of values in `[switch]` that are valid and mean something else in another program.
pub(crate) fn warn_of_foreign_syntax(raw: &SwitchSection, warnings: &mut Vec<Fault>) {
    variable("switch.key", &raw.key, warnings);
    headers("switch.headers.request", &raw.headers.request, warnings);
    headers("switch.headers.reply", &raw.headers.reply, warnings);
    for (i, route) in raw.routes.iter().enumerate() {
        let at = format!("switch.routes[{i}]");
        route.key.iter().for_each(|key| variable(&format!("{at}.key"), key, warnings));
        headers(&format!("{at}.headers.request"), &route.headers.request, warnings);
        headers(&format!("{at}.headers.reply"), &route.headers.reply, warnings);
        for path in route.path.0.iter().filter(|path| path.len() > 1 && path.ends_with('/')) {
            let what = format!("'{path}' matches this one path, and none below it");
            let hint = format!("write \"{path}*\" for all paths below it");
            warnings.push(Fault::new(format!("{at}.path"), what).hint(hint));
        }
    }
}

fn headers(at: &str, raw: &RulesSection, warnings: &mut Vec<Fault>) {
    for (name, value) in &raw.set {
        variable(&format!("{at}.set.{name}"), value, warnings);
    }
    for (name, values) in &raw.add {
        values.0.iter().for_each(|value| variable(&format!("{at}.add.{name}"), value, warnings));
    }
}

fn variable(key: &str, value: &str, warnings: &mut Vec<Fault>) {
    if let Some((theirs, ours)) = VARIABLES.iter().find(|(theirs, _)| value.contains(theirs)) {
        let what = format!("'{theirs}' is sent as text: it is no variable of larder");
        warnings.push(Fault::new(key, what).hint(format!("write {ours}")));
    }
}
