//! What a switch's config makes of a log's requests: their keys, their classes, and what the policies go by.

use std::path::Path;

use larder_core::dispatch::Settings;
use larder_core::rules::{ClassRules, Head, KeyTemplate};
use larder_front::SwitchConfig;
use larder_sim::plan::Sort;

use crate::config::Written;
use crate::outcome::usage;

/// The part of a switch's config that a plan goes by.
#[derive(Debug)]
pub(super) struct Sorting {
    config: SwitchConfig,
    /// The host of all requests: logs do not say it.
    host: String,
}

impl Sorting {
    /// Reads a config file.
    pub(super) fn read(path: &Path, host: &str) -> anyhow::Result<Self> {
        let config = Written::read_or_empty(Some(path))?.validate()?;
        match config.switch {
            Some(role) => Ok(Self { config: role.switch, host: host.to_owned() }),
            None => Err(usage(format!("--switch {}: there is no [switch] section", path.display()))),
        }
    }

    /// What the policies go by on the default route. Nodes and routing tables are the plan's own.
    pub(super) fn settings(&self) -> Settings {
        Settings { table: None, ..self.config.settings.clone() }
    }

    /// The key and the class of a target of the log, by the first route that takes it.
    pub(super) fn sort(&self, name: &str) -> Sort {
        let head = Head::get(self.host.as_bytes(), name.as_bytes());
        let takes =
            |route: &&larder_front::Route| route.matchers.iter().any(|matcher| matcher.matches(&head));
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
t_low = 7
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
    fn a_config_without_a_switch_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("larder.toml");
        std::fs::write(&path, "").unwrap();
        assert!(Sorting::read(&path, "").unwrap_err().to_string().contains("no [switch] section"));
    }
}
