//! Check that every declared dependency of a crate is used by its code.

use crate::none;
use crate::repo::{list, metadata, root, string, texts};

/// Rust code of one crate.
#[derive(Default)]
struct Code {
    /// `src` and `build.rs`.
    product: String,
    /// Tests, benches and examples.
    tests: String,
}

/// A dependency as `Cargo.toml` declares it.
struct Dependency {
    /// Name in the code.
    name: String,
    only_for_tests: bool,
}

impl Dependency {
    fn is_named_in(&self, code: &Code) -> bool {
        let identifier = self.name.replace('-', "_");
        let names = |text: &str| {
            text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == identifier)
        };
        // Unit tests in the product code also use dependencies of tests.
        names(&code.product) || self.only_for_tests && names(&code.tests)
    }
}

/// Returns the code of the crate in `folder`, such as `crates/larder-core`.
fn code_in(folder: &str, files: &[(String, String)]) -> Code {
    let mut code = Code::default();
    for (path, text) in files {
        // The tests of `larder` run the fuzz targets.
        let path = path.replace("fuzz/fuzz_targets/", "crates/larder/tests/fuzz/");
        let Some(inner) = path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else { continue };
        let is_product = inner.starts_with("src/") || inner == "build.rs";
        let part = if is_product { &mut code.product } else { &mut code.tests };
        part.push_str(text);
    }
    code
}

#[test]
fn every_declared_dependency_is_used() {
    let files = texts(".rs");
    let metadata = metadata(false);
    let mut problems = Vec::new();
    let mut checked = 0;
    for package in list(&metadata, "packages") {
        let manifest = string(package, "manifest_path");
        let folder = manifest.trim_start_matches(&*root().to_string_lossy()).trim_start_matches('/');
        let folder = folder.trim_end_matches("/Cargo.toml");
        let code = code_in(folder, &files);
        for dependency in list(package, "dependencies") {
            let name = dependency["rename"].as_str().unwrap_or_else(|| string(dependency, "name")).to_owned();
            let dependency = Dependency { name, only_for_tests: dependency["kind"] == "dev" };
            checked += 1;
            if !dependency.is_named_in(&code) {
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
