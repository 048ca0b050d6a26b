//! No crate declares a dependency that its code does not name.

use std::collections::BTreeMap;

use crate::none;
use crate::repo::{list, metadata, root, string, texts};

/// The Rust code of one crate.
#[derive(Default)]
struct Code {
    /// `src` and `build.rs`.
    product: String,
    /// Tests, benches and examples.
    tests: String,
}

/// A dependency as `Cargo.toml` declares it.
struct Dependency {
    /// The name by which code uses it.
    name: String,
    only_for_tests: bool,
}

impl Dependency {
    fn is_named_in(&self, code: &Code) -> bool {
        let identifier = self.name.replace('-', "_");
        let names = |text: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == identifier)
        };
        // Unit tests beside the code use dependencies of tests too.
        names(&code.product) || self.only_for_tests && names(&code.tests)
    }
}

/// The code of each crate folder, such as `crates/larder-core`.
fn code_by_folder() -> BTreeMap<String, Code> {
    let mut folders = BTreeMap::<String, Code>::new();
    for (path, text) in texts(".rs") {
        let mut parts = path.splitn(3, '/');
        let (Some(half), Some(name), Some(inner)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let code = folders.entry(format!("{half}/{name}")).or_default();
        let part = if inner.starts_with("src/") || inner == "build.rs" {
            &mut code.product
        } else {
            &mut code.tests
        };
        part.push_str(&text);
    }
    folders
}

#[test]
fn every_declared_dependency_is_used() {
    let folders = code_by_folder();
    let metadata = metadata(false);
    let mut problems = Vec::new();
    let mut checked = 0;
    for package in list(&metadata, "packages") {
        let manifest = string(package, "manifest_path");
        let folder = manifest.trim_start_matches(&*root().to_string_lossy()).trim_matches('/');
        let code = folder.strip_suffix("/Cargo.toml").and_then(|folder| folders.get(folder));
        let code = code.unwrap_or_else(|| panic!("{manifest}: no code beside it"));
        for dependency in list(package, "dependencies") {
            let name = dependency["rename"].as_str().unwrap_or_else(|| string(dependency, "name")).to_owned();
            let dependency = Dependency { name, only_for_tests: dependency["kind"] == "dev" };
            checked += 1;
            if !dependency.is_named_in(code) {
                problems.push(format!("{folder}: the code does not use '{}'; remove it", dependency.name));
            }
        }
    }
    assert!(checked >= 100, "cargo metadata shows only {checked} dependencies");
    none(&problems);
}

#[test]
fn an_unused_dependency_is_noticed() {
    let code = Code { product: "use serde_json::Value;".to_owned(), tests: "proptest! {}".to_owned() };
    let named =
        |name: &str, only_for_tests| Dependency { name: name.to_owned(), only_for_tests }.is_named_in(&code);
    assert!(named("serde-json", false));
    assert!(!named("serde", false), "a part of a name is not the name");
    assert!(named("proptest", true));
    assert!(!named("proptest", false), "product code does not use it");
}
