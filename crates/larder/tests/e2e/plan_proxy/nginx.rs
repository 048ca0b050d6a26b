//! `larder plan --nginx`.

use serde_json::Value;

use super::{Files, text};

/// nginx's config with an upstream of four servers. POLICY stands for the policy.
const CONFIG: &str = "http {
    upstream tier {
        POLICY
        server 10.0.0.1; server 10.0.0.2; server 10.0.0.3; server 10.0.0.4;
        keepalive 32;
    }
    server { listen 80; location / { proxy_pass http://tier; } }
}
";

/// Returns the files, with a log in the combined format.
fn files() -> Files {
    Files::new("--nginx", |_, [hour, minute, second], path| {
        format!(
            "192.0.2.1 - - [01/Mar/2026:0{hour}:{minute:02}:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 10000 \"-\" \"agent\""
        )
    })
}

#[test]
fn the_gain_and_the_lines_of_config_are_printed() {
    let files = files();
    let config = files.write("nginx.conf", &CONFIG.replace("POLICY", "least_conn;"));
    let output = files.plan(&config, &["--memory", "1MB"]);
    let words = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let flowing = words.replace('\n', " ");
    for part in [
        "nginx's upstream tier has 4 hosts and chooses hosts by least_conn. The plan simulates it as least-conn.",
        "Change the policy to lard-r: on 4 nodes with 1 MB each it serves ",
        "add these lines to the upstream tier of ",
        "nginx.conf, in place of least_conn:",
    ] {
        assert!(flowing.contains(part), "{part}: {words}");
    }

    let plan: Value =
        serde_json::from_slice(&files.plan(&config, &["--memory", "1MB", "--json"]).stdout).unwrap();
    let proxy = &plan["proxy"];
    let facts =
        ["proxy", "cluster", "in_use", "simulated_as", "policy"].map(|key| proxy[key].as_str().unwrap());
    assert_eq!(facts, ["nginx", "tier", "least_conn", "least-conn", "lard-r"]);
    let lines = proxy["lines"].as_str().unwrap();
    assert!(words.contains(lines), "the text has the lines of JSON");

    let changed = files.write("changed.conf", &CONFIG.replace("POLICY", lines));
    let words = text(&files.plan(&changed, &["--memory", "1MB"]).stdout).replace('\n', " ");
    assert!(words.contains("already uses larder's policy lard-r."), "{words}");
    assert!(!words.contains("add these lines"), "{words}");
}

#[test]
fn wrong_configs_are_named_with_the_remedy() {
    let files = files();
    let good = files.write("good.conf", &CONFIG.replace("POLICY", "hash $request_uri;"));
    let includes = files.write("includes.conf", "http { include conf.d/*.conf; }");
    let broken = files.write("broken.conf", "http {\n  upstream a {\n");
    let fair = files.write("fair.conf", &CONFIG.replace("POLICY", "fair;"));
    let state = files.write("state.conf", "upstream tier { zone a 1m; state /var/lib/a; }");
    let cases: [(&str, &[&str], &str); 7] = [
        (
            &includes,
            &[],
            "includes.conf: upstream: the file includes others and has no upstream itself (give the output of `nginx -T`)",
        ),
        (
            &broken,
            &[],
            "broken.conf: line 2: upstream: no '}' ends its block (add it, or give the whole file)",
        ),
        (&fair, &[], "fair.conf: line 3: fair: the plan does not know this directive of an upstream"),
        (
            &state,
            &[],
            "state.conf: the upstream 'tier' does not show the number of hosts: the servers are in another file (`state`) \
             (state the number with --nodes)",
        ),
        (&good, &["--cluster", "x"], "there is no upstream 'x', only: tier"),
        (&good, &["--envoy", "envoy.yaml"], "cannot be used with"),
        (&good, &["--switch", "larder.toml"], "cannot be used with"),
    ];
    for (config, more, part) in cases {
        let output = files.plan(config, more);
        let talk = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{config} {more:?}: {talk}");
        assert!(talk.contains(part), "{config} {more:?}: {part}: {talk}");
    }
}
