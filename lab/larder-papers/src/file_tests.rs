use super::*;

const GOOD: &str = r#"
id = "small"
paper = "lard"
place = "figure 7"
title = "Throughput"
about = "A test."

[run]
recipe = "rice-like"
scale = 0.02
memory_mib = 1

[sweep]
over = "nodes"
values = [1, 4]

[[line]]
name = "WRR"
set = { policy = "wrr" }

[[line]]
name = "LARD/R"
set = { policy = "lard-r" }

[[figure]]
name = "Figure 7"
title = "Throughput"
x_label = "nodes"
y_label = "requests/s"
metric = "throughput"

[[claim]]
id = "four"
says = "LARD/R serves twice as many"
place = "4.1"
known = "S"
published = "2"
evidence = "reproduced"
measure = "value"
line = "LARD/R"
per = "WRR"
metric = "throughput"
at = 4
unit = "x"
near = 2.0
within = 0.5
tolerance = "about"
"#;

#[test]
fn a_good_file_is_read() {
    let experiment = parse("x.toml", GOOD).unwrap();
    assert_eq!((experiment.id.as_str(), experiment.claims.len()), ("small", 1));
    assert_eq!(experiment.claims[0].bounds, Bounds { min: Some(1.0), max: Some(3.0) });
    let SampleSource::Sweep(sweep) = &experiment.source else { unreachable!() };
    assert_eq!(sweep.lines[1].values, [1.0, 4.0]);
}

/// Replaces a line of the good file and returns the error.
fn complaint(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old}");
    parse("x.toml", &GOOD.replacen(old, new, 1)).unwrap_err().to_string()
}

#[test]
fn errors_name_file_line_and_key() {
    let cases = [
        ("id = \"small\"", "id = \"Small\"", "x.toml:2: id: must be 1 to 60 of a-z"),
        ("paper = \"lard\"", "paper = \"lrad\"", "x.toml:3: paper: unknown variant `lrad`"),
        ("memory_mib = 1", "memroy_mib = 1", "x.toml:11: run.memroy_mib: unknown field `memroy_mib`"),
        ("scale = 0.02", "scale = \"big\"", "x.toml:10: run.scale: invalid type: string \"big\""),
        (
            "over = \"nodes\"",
            "over = \"colour\"",
            "x.toml:18: line.name: at colour = 1: a sweep cannot run over 'colour'",
        ),
        ("values = [1, 4]", "values = []", "x.toml:13: sweep.values: must be 1 to 1,000 numbers"),
        (
            "{ policy = \"wrr\" }",
            "{ policy = \"wrr\" }\nvalues = []",
            "x.toml:18: line.values: must be 1 to 1,000",
        ),
        ("values = [1, 4]", "values = [0]", "x.toml:18: line.name: at nodes = 0: 'nodes' = 0 must be from 1"),
        ("{ policy = \"wrr\" }", "{ policy = \"wr\" }", "x.toml:19: line.set: unknown policy 'wr'"),
        ("name = \"LARD/R\"", "name = \"WRR\"", "x.toml:22: line.name: another line is called 'WRR'"),
        (
            "metric = \"throughput\"",
            "metric = \"speed\"",
            "x.toml:30: figure.metric: there is no metric 'speed'",
        ),
        (
            "per = \"WRR\"",
            "per = \"WR\"",
            "x.toml:41: claim.per: there is no line 'WR': use one of WRR, LARD/R",
        ),
        ("measure = \"value\"", "measure = \"worth\"", "x.toml:39: claim.measure: unknown variant `worth`"),
        ("at = 4\n", "at = 4\nversus = { line = \"W\" }\n", "x.toml:44: claim.versus: there is no line 'W'"),
        ("at = 4\n", "at = 4\namong = [\"WRR\"]\n", "x.toml:33: claim.among: the measures 'lowest'"),
        ("at = 4\n", "\n", "x.toml:33: claim.at: is missing"),
        ("within = 0.5", "within = 2", "x.toml:33: claim.within: must be a share"),
        ("near = 2.0\n", "\n", "x.toml:33: claim.near: a claim needs 'near' with 'within'"),
        (
            "evidence = \"reproduced\"",
            "evidence = \"seen\"",
            "x.toml:38: claim.evidence: 'seen' is no evidence: use reproduced",
        ),
        (
            "evidence = \"reproduced\"",
            "evidence = \"follows-from:five\"",
            "x.toml:38: claim.evidence: there is no claim 'five' in this file",
        ),
        (
            "evidence = \"reproduced\"",
            "evidence = \"follows-from:four\"",
            "x.toml:38: claim.evidence: a claim cannot follow from itself",
        ),
        ("evidence = \"reproduced\"\n", "", "x.toml:32: claim: missing field `evidence`"),
        ("[sweep]", "[swep]", "x.toml:13: swep: unknown field `swep`"),
    ];
    for (old, new, expected) in cases {
        let error = complaint(old, new);
        assert!(error.starts_with(expected), "{new}: {error}");
    }
    assert!(complaint("id = \"small\"", "id = ").starts_with("x.toml:2: "));
}

#[test]
fn any_text_ends_in_an_experiment_or_an_error() {
    for end in 0..GOOD.len() {
        let _ = parse("x.toml", &GOOD[..end]);
    }
    assert!(parse("x.toml", "").is_err());
}

#[test]
fn a_builtins_parameters_are_located() {
    let file = |params: &str| {
        let text = format!(
            "id = \"w\"\npaper = \"ward\"\nplace = \"3.3\"\ntitle = \"t\"\nabout = \"a\"\nbuiltin = \"ward-clusters\"\n\n\
             [params]\nworkload = {{ recipe = \"hp-hours-like\" }}\n{params}\n\n[[figure]]\nname = \"f\"\ntitle = \"t\"\n\
             x_label = \"x\"\ny_label = \"y\"\nmetric = \"throughput\"\n"
        );
        let error = parse("x.toml", &text).map(|_| ()).err().map(|error| error.to_string());
        error.unwrap_or_default()
    };
    let good = "memory_share = 0.05\nforward_us = 276.0\nover_nodes = [4]";
    assert_eq!(file(good), "");
    let cases = [
        ("0.05", "1.5", "x.toml:10: params.memory_share: must be above 0 and at most 1, not 1.5"),
        ("276.0", "1e7", "x.toml:11: params.forward_us: must be 0 to 1,000,000 us, not 10000000"),
        ("[4]", "[4, 4]", "x.toml:12: params.over_nodes: has a number twice"),
        ("[4]", "[0]", "x.toml:12: params.over_nodes: must be 1 to 1,024, not 0"),
        ("[4]", "4", "x.toml:12: params.over_nodes: invalid type: integer `4`, expected a sequence"),
        ("[4]", "[4]\nwindow = 0", "x.toml:13: params.window: must be 1 to 1048576, not 0"),
    ];
    for (from, to, expected) in cases {
        assert_eq!(file(&good.replace(from, to)), expected);
    }
}
