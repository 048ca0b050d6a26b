//! The lines that make an upstream use larder's module. docs/operate/nginx.md shows them.

use larder_core::dispatch::Settings;

/// The key of the lines: host, path and query, as the module has it by default.
pub(super) const KEY: &str = "$host$request_uri";

/// Lines that say where the others belong.
const PLACES: &str =
    "# At the start of the file: load_module modules/ngx_http_larder_module.so;\n# Before keepalive:\n";

/// Returns the lines for a policy. Thresholds are written if they are not the defaults.
pub(in crate::proxy) fn lines(settings: &Settings) -> String {
    let defaults = Settings::default();
    let policy = settings.policy;
    let (low, high) = (settings.t_low, settings.t_high);
    if (low, high) == (defaults.t_low, defaults.t_high) {
        return format!("{PLACES}larder policy={policy} key={KEY};\n");
    }
    format!(
        "{PLACES}larder policy={policy} key={KEY} config=larder-policy.toml;\n\
         # larder-policy.toml: policies.lard = {{ t_low = {low}, t_high = {high} }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::PolicyKind;

    #[test]
    fn the_guide_shows_these_lines() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/nginx.md");
        let page = std::fs::read_to_string(page).unwrap();
        let lines = lines(&Settings { policy: PolicyKind::LardR, ..Settings::default() });
        let directive = lines.lines().find(|line| !line.starts_with('#')).unwrap();
        assert!(page.contains(directive), "{directive}");
    }
}
