//! Applies a switch's config to the requests of a log: keys, service classes and policy settings.

use std::path::Path;

use larder_core::dispatch::Settings;
use larder_core::rules::{ClassRules, Head, KeyTemplate};
use larder_sim::plan::TargetIdentity;
use larder_switch::SwitchConfig;

use crate::config::Written;
use crate::outcome::usage;

/// The part of a switch's config that a plan uses.
#[derive(Debug)]
pub(super) struct RequestClassifier {
    config: SwitchConfig,
    /// Host of all requests, because logs do not contain it.
    host: String,
    has_shares: bool,
}

impl RequestClassifier {
    /// Reads a config file.
    pub(super) fn read(path: &Path, host: &str) -> anyhow::Result<Self> {
        let written = Written::read_or_empty(Some(path))?;
        let has_shares = written.gives(&["switch", "policies", "static", "shares"]);
        match written.validate()?.switch {
            Some(role) => Ok(Self { config: role.switch, host: host.to_owned(), has_shares }),
            None => Err(usage(format!("--switch {}: there is no [switch] section", path.display()))),
        }
    }

    /// Whether the config sets the shares of the policy `static`.
    pub(super) fn has_shares(&self) -> bool {
        self.has_shares
    }

    /// Returns a warning about settings that the plan ignores. Each compared policy serves all routes with
    /// one set of parameters.
    pub(super) fn ignored_settings(&self) -> Option<String> {
        let standard = &self.config.settings;
        let own = |route: &&larder_switch::Route| {
            Settings { policy: standard.policy, ..route.settings.clone() } != *standard
        };
        let names: Vec<_> =
            self.config.routes.iter().filter(own).map(|route| format!("'{}'", route.name)).collect();
        (!names.is_empty()).then(|| {
            let names = names.join(", ");
            format!("policy parameters of routes are ignored, and those of [switch] are used for all routes: {names}")
        })
    }

    /// Returns the policy settings for all routes. The plan creates nodes and routing tables itself.
    pub(super) fn settings(&self) -> Settings {
        Settings { table: None, ..self.config.settings.clone() }
    }

    /// Returns the key and the class of a target, from the first route that matches.
    pub(super) fn classify(&self, name: &str) -> TargetIdentity {
        let head = Head::get(self.host.as_bytes(), name.as_bytes());
        let takes =
            |route: &&larder_switch::Route| route.matchers.iter().any(|matcher| matcher.matches(&head));
        let route = self.config.routes.iter().find(takes);
        let key: &KeyTemplate = route.and_then(|route| route.key.as_ref()).unwrap_or(&self.config.key);
        let classes: &ClassRules =
            route.and_then(|route| route.classes.as_ref()).unwrap_or(&self.config.classes);
        TargetIdentity { id: key.id(&head), class: classes.classify(&head) }
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
        let classifier = RequestClassifier::read(&path, "www.example.com").unwrap();
        assert_eq!(classifier.settings().t_low, 7);
        let of = |name: &str| classifier.classify(name);
        assert_eq!((of("/a").class, of("/secure/a").class), (ServiceClass::N, ServiceClass::Cb));
        assert_eq!(of("/a?x").id, of("/a?y").id, "the key leaves the query out");
        let (one, other) = (of("/view/1/open"), of("/view/1/edit"));
        assert_eq!((one.id, one.class), (other.id, ServiceClass::Db));
        assert_ne!(one.id, of("/view/2/open").id);
    }

    #[test]
    fn ignored_settings_cause_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder.toml");
        let read = |more: &str| {
            std::fs::write(&path, format!("{CONFIG}{more}")).unwrap();
            RequestClassifier::read(&path, "").unwrap()
        };
        // The plan sets the policies, so a route's policy causes no warning.
        assert_eq!(read("policy = \"hash\"\n").ignored_settings(), None);
        let warning = read("policies.lard.t_high = 9\n").ignored_settings().unwrap();
        assert!(warning.contains("'views'"), "{warning}");
        assert!(!read("").has_shares());
        assert!(read("[switch.policies.static]\nshares = { n = 1 }\n").has_shares());
        let equal = "[switch.policies.static]\nshares = { n = 1, db = 1, cb = 1, dcb = 1 }\n";
        assert!(read(equal).has_shares(), "the default, but it is written");
    }

    #[test]
    fn a_config_without_a_switch_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder.toml");
        std::fs::write(&path, "").unwrap();
        assert!(RequestClassifier::read(&path, "").unwrap_err().to_string().contains("no [switch] section"));
    }
}
