//! The lines of a cluster that make it use larder's module. docs/operate/embed.md shows them.

use larder_core::dispatch::Settings;

/// The name of the module.
pub(super) const MODULE: &str = "larder_envoy";

/// The lines, with a mark for the config of the policy.
const LINES: &str = r#"load_balancing_policy:
  policies: [{ typed_extension_config: { name: envoy.load_balancing_policies.dynamic_modules, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.dynamic_modules.v3.DynamicModulesLoadBalancerConfig,
    dynamic_module_config: { name: larder_envoy }, lb_policy_name: larder,
    lb_policy_config: { "@type": type.googleapis.com/google.protobuf.Struct, value: CONFIG } } } }]
typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
  "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: { http_protocol_options: {} },
  http_filters: [{ name: larder, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter,
    dynamic_module_config: { name: larder_envoy }, filter_name: larder } }, { name: envoy.filters.http.upstream_codec,
    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec } }] } }
"#;

/// Returns the lines for a policy. Thresholds are written if they are not the defaults.
pub(in crate::proxy) fn lines(settings: &Settings) -> String {
    let defaults = Settings::default();
    let policy = settings.policy;
    let (low, high) = (settings.t_low, settings.t_high);
    let config = if (low, high) == (defaults.t_low, defaults.t_high) {
        format!("{{ policy: {policy} }}")
    } else {
        format!("{{ policy: {policy}, policies: {{ lard: {{ t_low: {low}, t_high: {high} }} }} }}")
    };
    LINES.replace("CONFIG", &config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::PolicyKind;

    fn lard_r() -> Settings {
        Settings { policy: PolicyKind::LardR, ..Settings::default() }
    }

    #[test]
    fn the_guide_shows_these_lines() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operate/embed.md");
        let page = std::fs::read_to_string(page).unwrap();
        let shown = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
        assert_eq!(shown, Some(&*lines(&lard_r())));
    }

    #[test]
    fn thresholds_are_written_if_they_are_not_the_defaults() {
        let text = lines(&Settings { t_low: 40, ..lard_r() });
        assert!(
            text.contains(
                "value: { policy: lard-r, policies: { lard: { t_low: 40, t_high: 65 } } } } } } }]"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_lines_are_read_as_the_policy_in_use() {
        let cluster: String = lines(&lard_r()).lines().map(|line| format!("    {line}\n")).collect();
        let config = format!("static_resources:\n  clusters:\n  - name: tier\n{cluster}");
        let cluster = crate::proxy::envoy::parse(&config, None).unwrap();
        assert_eq!(
            (cluster.in_use.kind, &*cluster.in_use.written),
            (PolicyKind::LardR, "larder's policy lard-r")
        );
    }
}
