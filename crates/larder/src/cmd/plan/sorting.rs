//! What a switch's config makes of a log's requests: their keys, their classes, and what the policies go by.

use std::path::Path;

use larder_core::dispatch::Settings;
use larder_core::rules::{ClassRules, Head, KeyTemplate};
use larder_sim::plan::Sort;
use larder_switch::SwitchConfig;

use crate::config::Written;
use crate::outcome::usage;

/// The part of a switch's config that a plan goes by.
#[derive(Debug)]
pub(super) struct Sorting {
    config: SwitchConfig,
    /// The host of all requests: logs do not say it.
    host: String,
    gives_shares: bool,
}

impl Sorting {
    /// Reads a config file.
    pub(super) fn read(path: &Path, host: &str) -> anyhow::Result<Self> {
        let written = Written::read_or_empty(Some(path))?;
        let gives_shares = written.gives(&["switch", "policies", "static", "shares"]);
        match written.validate()?.switch {
            Some(role) => Ok(Self { config: role.switch, host: host.to_owned(), gives_shares }),
            None => Err(usage(format!("--switch {}: there is no [switch] section", path.display()))),
        }
    }

    /// Whether it says how `static` divides the nodes.
    pub(super) fn gives_shares(&self) -> bool {
        self.gives_shares
    }

    /// What of it the plan passes over: every policy compared serves all routes, and so goes by one set of parameters.
    pub(super) fn passed_over(&self) -> Option<String> {
        let standard = &self.config.settings;
        let own = |route: &&larder_switch::Route| {
            Settings { policy: standard.policy, ..route.settings.clone() } != *standard
        };
        let names: Vec<_> =
            self.config.routes.iter().filter(own).map(|route| format!("'{}'", route.name)).collect();
        (!names.is_empty()).then(|| {
            let names = names.join(", ");
            format!("parameters of a route's own are passed over, all go by those of [switch]: {names}")
        })
    }

    /// What the policies go by, on all routes. Nodes and routing tables are the plan's own.
    pub(super) fn settings(&self) -> Settings {
        Settings { table: None, ..self.config.settings.clone() }
    }

    /// The key and the class of a target of the log, by the first route that takes it.
    pub(super) fn sort(&self, name: &str) -> Sort {
        let head = Head::get(self.host.as_bytes(), name.as_bytes());
        let takes =
            |route: &&larder_switch::Route| route.matchers.iter().any(|matcher| matcher.matches(&head));
        let route = self.config.routes.iter().find(takes);
        let key: &KeyTemplate = route.and_then(|route| route.key.as_ref()).unwrap_or(&self.config.key);
        let classes: &ClassRules =
            route.and_then(|route| route.classes.as_ref()).unwrap_or(&self.config.classes);
        Sort { id: key.id(&head), class: classes.classify(&head) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::ServiceClass;

    const CONFIG: &str = r#"
[switch]
listen = "127.0.0.1:0"
nodes = ["127.0.0.1:1"]
policies.lard.t_low = 7
key = "{path}"

[[switch.classes]]
class = "cb"
path = "/secure/*"

[[switch.routes]]
name = "views"
path = "/view/*"
key = "{path:2}"
classes = [{ class = "db", path = "*" }]
"#;

    #[test]
    fn routes_keys_and_classes_of_a_config_apply() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder.toml");
        std::fs::write(&path, CONFIG).unwrap();
        let sorting = Sorting::read(&path, "www.example.com").unwrap();
        assert_eq!(sorting.settings().t_low, 7);
        let of = |name: &str| sorting.sort(name);
        assert_eq!((of("/a").class, of("/secure/a").class), (ServiceClass::N, ServiceClass::Cb));
        assert_eq!(of("/a?x").id, of("/a?y").id, "the key leaves the query out");
        let (one, other) = (of("/view/1/open"), of("/view/1/edit"));
        assert_eq!((one.id, one.class), (other.id, ServiceClass::Db));
        assert_ne!(one.id, of("/view/2/open").id);
    }

    #[test]
    fn what_the_plan_passes_over_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder.toml");
        let read = |more: &str| {
            std::fs::write(&path, format!("{CONFIG}{more}")).unwrap();
            Sorting::read(&path, "").unwrap()
        };
        // Policies are those of the plan, so that a route's own is nothing to speak of.
        assert_eq!(read("policy = \"hash\"\n").passed_over(), None);
        let warning = read("policies.lard.t_high = 9\n").passed_over().unwrap();
        assert!(warning.contains("'views'"), "{warning}");
        assert!(!read("").gives_shares());
        assert!(read("[switch.policies.static]\nshares = { n = 1 }\n").gives_shares());
        let equal = "[switch.policies.static]\nshares = { n = 1, db = 1, cb = 1, dcb = 1 }\n";
        assert!(read(equal).gives_shares(), "the default, but it is written");
    }

    #[test]
    fn a_config_without_a_switch_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder.toml");
        std::fs::write(&path, "").unwrap();
        assert!(Sorting::read(&path, "").unwrap_err().to_string().contains("no [switch] section"));
    }
}
