use super::*;
use larder_core::dispatch::Admission;
use std::path::Path;

fn parse(text: &str) -> EmbeddedConfig {
    text.parse().expect("a valid config")
}

fn error(text: &str) -> String {
    text.parse::<EmbeddedConfig>().expect_err(text).to_string()
}

/// Removes keys that only larder's own switch has, and returns the rest of `[switch]` in the example.
fn embedded_part(example: &str) -> toml::Table {
    let mut example: toml::Table = example.parse().expect("the example is TOML");
    let Some(toml::Value::Table(mut switch)) = example.remove("switch") else { panic!("no [switch]") };
    let keep = |table: &mut toml::Table, keys: &[&str]| table.retain(|key, _| keys.contains(&key));
    keep(&mut switch, &["policy", "policies", "admission", "limits", "join", "signals", "process"]);
    let mut inner = |path: &[&str], keys: Option<&[&str]>, without: &[&str]| {
        let mut table = &mut switch;
        for key in path {
            table = table[*key].as_table_mut().expect("a table");
        }
        if let Some(keys) = keys {
            keep(table, keys);
        }
        table.retain(|key, _| !without.contains(&key));
    };
    inner(&["policies"], None, &["ward"]);
    inner(&["policies", "hacc"], None, &["level"]);
    inner(&["admission"], None, &["queue_max", "queue_timeout"]);
    inner(&["admission", "long_lived"], Some(&["max_per_node"]), &[]);
    inner(&["limits"], Some(&["nodes_max"]), &[]);
    inner(&["signals"], Some(&["missing_after"]), &[]);
    inner(&["process"], Some(&["shards"]), &[]);
    switch
}

/// The example lists every key of `larder.toml` with its default.
#[test]
fn keys_and_defaults_are_those_of_larder_toml() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/larder.toml");
    let example = std::fs::read_to_string(path).expect("the example is there");
    let part = embedded_part(&example);
    assert!(part["policies"].as_table().expect("a table").len() > 10);
    let config = parse(&toml::to_string(&part).expect("it can be written"));
    let settings = config.settings.clone();
    // The switch keeps reports as long as the default of the dispatcher, even if they count as missing earlier.
    let age = settings.report_age_max.max(Settings::default().report_age_max);
    assert_eq!(Settings { report_age_max: age, ..settings }, parse("").settings);
    assert_eq!(parse(&serde_json::to_string(&part).expect("JSON")), config);
}

#[test]
fn empty_config_has_the_defaults_of_the_core_without_a_queue() {
    let config = parse(" \n");
    let expected = Settings { admission: Admission::Auto, queue_max: 0, ..Settings::default() };
    assert_eq!((config.settings, config.nodes.len()), (expected, 0));
    assert_eq!(parse("{}"), parse(""));
}

#[test]
fn keys_change_their_settings() {
    let text = r#"
        policy = "hacc"
        nodes = ["a", { name = "b", weight = 2.5, cache = "1GiB", backup = true }]
        [admission]
        limit = 7
        [policies]
        seed = 9
        [policies.lard]
        t_low = "learned"
        t_high = { delay = "500ms", service = "5ms" }
        [policies.hacc]
        weights = { cpu = 0.25, queue = { weight = 0.5, full = 64 } }
        [policies.static]
        shares = { n = 2, db = 1 }
        [policies.lard-cost]
        miss = 70
    "#;
    let EmbeddedConfig { settings, nodes } = parse(text);
    assert_eq!(
        (settings.policy, settings.seed, settings.admission),
        (PolicyKind::Hacc, 9, Admission::Fixed(7))
    );
    assert_eq!(settings.policies.static_partition.shares, [2, 1, 0, 0]);
    let weights: Vec<u16> = settings.policies.hacc.signals().map(|weight| weight.permille).collect();
    assert_eq!(weights, [250, 500]);
    assert_eq!((nodes[0].name.as_str(), nodes[1].weight.milli(), nodes[1].backup), ("a", 2500, true));
}

#[test]
fn every_policy_is_accepted_by_name() {
    for policy in PolicyKind::ALL {
        assert_eq!(parse(&format!("policy = \"{policy}\"")).settings.policy, policy);
    }
}

#[test]
fn wrong_texts_are_refused_with_the_key() {
    for (text, part) in [
        ("policy = \"best\"", "unknown policy 'best'"),
        ("listen = \"0.0.0.0:80\"", "listen"),
        ("[admission]\nqueue_max = 5", "queue_max"),
        ("[policies.lard]\nt_low = 70", "t_high"),
        ("[policies.bounded]\nfactor = -1", "policies.bounded.factor"),
        ("[policies.bounded]\nfactor = 1.0", "bounded.factor_permille"),
        ("[policies.maglev]\nsize = 100", "maglev_size"),
        ("[policies.hacc]\nweights = { speed = 1 }", "unknown signal 'speed'"),
        ("[policies.hacc]\nweights = { queue = 1 }", "queue is not a share"),
        ("[policies.wrr]\ngather = \"soon\"", "'soon' is not a span of time"),
        ("[policies.static]\nshares = { n = 0 }", "no class has a share"),
        ("nodes = [\"a\", \"a\"]", "the same name"),
        ("nodes = [\"\"]", "1 to 1024 bytes"),
        ("nodes = [{ name = \"a\", weight = 0 }]", "nodes.weight"),
        ("nodes = [\"a\", \"b\"]\n[limits]\nnodes_max = 1", "limits.nodes_max"),
        ("{\"policy\": 7}", "line 1"),
        ("{", "EOF"),
    ] {
        let error = error(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}
