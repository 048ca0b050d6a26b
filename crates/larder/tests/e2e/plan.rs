//! `larder plan` with small inputs: every output, and the errors for wrong arguments and logs.

use std::process::{Command, Output};

use serde_json::Value;

use crate::browser::Browser;
use crate::process::LARDER;

fn larder(arguments: &[&str]) -> Output {
    Command::new(LARDER).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_small_log_gives_sentences_table_json_page_and_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, page, config) = (path("access.log.zst"), path("plan.html"), path("larder.toml"));
    let synth = ["trace", "synth", "zipf", "--targets", "500", "--requests", "6000", "-o", &log];
    assert!(larder(&synth).status.success());
    let small = ["--nodes", "2,4", "--costs", "lard98", "--seeds", "1,2"];
    let mut arguments = vec!["plan", &log, "--html", &page, "--write-config", &config];
    arguments.extend(small);
    let output = larder(&arguments);
    let (words, talk) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{talk}");
    assert!(words.starts_with("Use ") && words.contains("(upper bound)"), "{words}");
    assert!(words.contains("warning: The log is short"), "{words}");

    let mut arguments = vec!["plan", &log, "--json"];
    arguments.extend(small);
    let output = larder(&arguments);
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["schema"], "larder-plan/2");
    assert_eq!(plan["cells"].as_array().unwrap().len(), 6 * 2 * 4);
    assert_eq!(plan["logs"][0]["replayed"], 6_000);
    let it = &plan["recommendation"];
    let answer = format!("Use {} on {} node", it["policy"].as_str().unwrap(), it["nodes"]);
    assert!(words.starts_with(&answer), "{answer}: {words}");

    let page = std::fs::read_to_string(page).unwrap();
    let drawn = page.matches("role=\"img\"").count();
    let left_out = page.split_once("one value only are left out: ").map_or("", |(_, rest)| rest);
    let left_out = left_out.split('<').next().filter(|names| !names.is_empty());
    assert_eq!(drawn + left_out.map_or(0, |names| names.matches(", ").count() + 1), 6, "{left_out:?}");
    for outside in ["src=", "href=", "url(", "@import", "https://", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let check = larder(&["check", "--no-preflight", &config]);
    assert!(check.status.success(), "{}", text(&check.stderr));
    let said = text(&check.stdout);
    assert!(said.contains(&format!("policy {}", it["policy"].as_str().unwrap())), "{said}");
}

/// One node is enough for a log whose targets all fit into its memory.
#[test]
fn one_node_is_singular_sizes_are_as_written_and_empty_charts_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, page) = (path("access.log"), path("plan.html"));
    let line = |n: u32| {
        let (minute, second) = (n / 13 % 60, n % 60);
        let at = format!("20/Feb/2016:{:02}:{minute:02}:{second:02} +0000", n / 780);
        format!("a - - [{at}] \"GET /{} HTTP/1.1\" 200 1000\n", n % 7)
    };
    std::fs::write(&log, (0..3000).map(line).collect::<String>()).unwrap();
    let small = ["--nodes", "1", "--memory", "128MiB,256MiB", "--seeds", "1", "--goal", "hit=50%"];
    let output = larder(&[&["plan", &log, "--html", &page], &small[..]].concat());
    let words = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(words.contains(" on 1 node with 128 MiB of memory for contents. "), "{words}");
    assert!(words.contains("On 1 node with 128 MiB:"), "{words}");
    assert!(!words.contains("1 nodes") && !words.contains(" MB each"), "{words}");
    let busiest = words.split_once("(busiest minute ").unwrap().1.split(')').next().unwrap();
    assert!(busiest.ends_with(" requests/s") && busiest.len() <= "99.9 requests/s".len(), "{busiest}");
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["on 1 node with 128 MiB</title>", "left out: Hit ratio by nodes,", "Load balance.</p>"] {
        assert!(page.contains(part), "{part}: {page}");
    }

    let largest = ["--nodes", "1", "--memory", "1KB,256MiB", "--seeds", "1", "--goal", "hit=99%"];
    let words = text(&larder(&[&["plan", &log], &largest[..]].concat()).stdout);
    assert!(words.contains(" with 256 MiB of memory") && !words.contains("more may be better"), "{words}");
}

#[test]
fn a_page_of_1200_pixels_does_not_scroll_sideways() {
    let Some(browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, page) = (path("access.log.zst"), path("plan.html"));
    let synth = ["trace", "synth", "zipf", "--targets", "200", "--requests", "3000", "-o", &log];
    assert!(larder(&synth).status.success());
    let counts = "1,2,3,4,5,6,7,8,9,10,11,12";
    let all =
        ["--policies", "all", "--nodes", counts, "--memory", "100KB", "--seeds", "1", "--sample", "50%"];
    let output = larder(&[&["plan", &log, "--html", &page], &all[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    browser.look(1200, 900, false);
    browser.open(&format!("file://{page}"));
    let wide = "[document.documentElement, ...document.querySelectorAll('.scroll, pre, figure')]\
                .filter(e => e.scrollWidth > e.clientWidth).map(e => e.outerHTML.slice(0, 200))";
    assert_eq!(browser.eval(wide), serde_json::json!([]));
}

#[test]
fn static_divides_the_nodes_by_the_log_s_classes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, config, switch) = (path("access.log.zst"), path("plan.toml"), path("switch.toml"));
    let synth = ["trace", "synth", "zipf", "--targets", "200", "--requests", "6000", "-o", &log];
    assert!(larder(&synth).status.success());
    let idle = |more: &[&str]| {
        let mut arguments = vec!["plan", &log, "--policies", "static", "--nodes", "4", "--memory", "200KB"];
        arguments.extend(["--costs", "lard98", "--seeds", "1", "--json"]);
        arguments.extend(more);
        let output = larder(&arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let shares = plan["cells"][0]["node_shares"].as_array().unwrap().clone();
        assert_eq!(shares.len(), 4);
        shares.iter().filter(|share| share.as_f64() == Some(0.0)).count()
    };
    assert_eq!(idle(&["--write-config", &config]), 0, "all is of class n, and so are all nodes");
    let written = std::fs::read_to_string(&config).unwrap();
    assert!(written.contains("[switch.policies.static]\nshares = { n = 1 }\n"), "{written}");
    assert!(larder(&["check", "--no-preflight", &config]).status.success());
    let head = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"10.0.0.1:80\"]\n";
    std::fs::write(&switch, format!("{head}[switch.policies.static]\nshares = {{ n = 1, db = 1 }}\n"))
        .unwrap();
    assert_eq!(idle(&["--switch", &switch]), 2, "shares that a config gives stand");
}

#[test]
fn two_logs_and_stdin_are_one_log() {
    let folder = tempfile::tempdir().unwrap();
    let line = |second: u32, name: &str| {
        format!("a - - [20/Feb/2016:00:00:{second:02} +0000] \"GET /{name} HTTP/1.1\" 200 1000\n")
    };
    let post = "a - - [20/Feb/2016:00:00:09 +0000] \"POST /x HTTP/1.1\" 200 5\nrubbish\n";
    let first: String = (0..30).map(|s| line(s, "x")).chain([post.to_owned()]).collect();
    let second: String = (0..30).map(|s| line(s, if s % 2 == 0 { "x" } else { "y" })).collect();
    let path = folder.path().join("one.log");
    std::fs::write(&path, first).unwrap();
    let output = assert_cmd::Command::new(LARDER)
        .args(["plan", path.to_str().unwrap(), "-", "--json", "--nodes", "2", "--memory", "1MB"])
        .write_stdin(second)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&plan["log"]["requests"], &plan["log"]["targets"]), (&60.into(), &2.into()));
    let left_out = &plan["logs"][0];
    assert_eq!((&left_out["other_methods"], &left_out["malformed"]), (&1.into(), &1.into()));
}

#[test]
fn a_goal_out_of_reach_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, config) = (path("a.log"), path("larder.toml"));
    assert!(
        larder(&["trace", "synth", "zipf", "--targets", "50", "--requests", "500", "-o", &log])
            .status
            .success()
    );
    let base = ["plan", &log, "--nodes", "2", "--memory", "1MB", "--goal", "throughput=1000000000/s"];
    let output = larder(&base);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("No simulated cluster meets"), "{}", text(&output.stdout));
    let output = larder(&[&base[..], &["--write-config", &config]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write "), "{}", text(&output.stderr));
}

#[test]
fn an_existing_config_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (log, config) = (path("a.log"), path("larder.toml"));
    let synth = ["trace", "synth", "zipf", "--targets", "50", "--requests", "500", "-o", &log];
    assert!(larder(&synth).status.success());
    std::fs::write(&config, "mine").unwrap();
    let base = ["plan", &log, "--nodes", "2", "--memory", "1MB", "--seeds", "1"];
    for (more, says) in [
        (
            &["--write-config", &*config][..],
            "larder.toml: the file exists (name another file, or add --force",
        ),
        (&["--config", &config], "use --write-config"),
    ] {
        let output = larder(&[&base[..], more].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
        assert_eq!(std::fs::read_to_string(&config).unwrap(), "mine");
    }
    let output = larder(&[&base[..], &["--write-config", &config, "--force"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(std::fs::read_to_string(&config).unwrap().contains("[switch]"));
}

#[test]
fn bad_arguments_and_logs_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good.log", &"a - - [20/Feb/2016:00:00:00 +0000] \"GET /x HTTP/1.1\" 200 5\n".repeat(9));
    let empty = file("empty.log", "");
    let only_posts = file("posts.log", "a - - [20/Feb/2016:00:00:00 +0000] \"POST /x HTTP/1.1\" 200 5\n");
    let costs = file("costs.toml", "model = \"lard98\"\nseek = 3\n");
    let json = file("app.json", &"{\"u\":\"/x\",\"n\":5}\n".repeat(9));
    let cases: [(&[&str], i32, &str); 18] = [
        (&[&json], 1, "app.json: line 1 has no known format (JSON)"),
        (&[&json, "--json-fields", "path=u,n=n"], 2, "'n' is not a field; known are time, method"),
        (&[&json, "--json-fields", "path=v"], 1, "line 1: no request"),
        (&[&json, "--format", "json"], 2, "give path=KEY"),
        (&[&json, "--json-fields", "path=u", "--format", "clf"], 2, "'clf' has its own"),
        (&[&good, "--goal", "fast"], 2, "is not a goal"),
        (&[&good, "--goal", "cost"], 2, "--node-price"),
        (&[&good, "--gb-price", "1"], 2, "--node-price"),
        (&[&good, "--policies", "rr,best"], 2, "unknown policy 'best'"),
        (&[&good, "--policies", "rr,rr"], 2, "twice"),
        (&[&good, "--policies", "all,ward"], 2, "cannot be combined"),
        (&[&good, "--nodes", "0"], 2, "1 to 1024"),
        (&[&good, "--sample", "80%"], 2, "0.5"),
        (&[&good, "--costs", "soup"], 2, "neither the name of a cost model"),
        (&[&good, "--costs", &costs], 2, "costs.toml"),
        (&[&good, "--t-low", "99"], 2, "t_high"),
        (&[&empty], 1, "empty"),
        (&[&only_posts], 1, "posts.log"),
    ];
    for (arguments, code, word) in cases {
        let output = larder(&[&["plan"], arguments].concat());
        let talk = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {talk}");
        assert!(talk.contains(word), "{arguments:?}: {talk}");
    }
    let output = larder(&["plan", "/nonexistent.log"]);
    assert!(text(&output.stderr).contains("/nonexistent.log"), "{}", text(&output.stderr));
}

#[test]
fn json_logs_of_any_server_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("app.json");
    let line = |n: u32| format!("{{\"at\":{n},\"http\":{{\"url\":\"/{}\",\"size\":1000}}}}\n", n % 3);
    std::fs::write(&log, (0..60).map(line).collect::<String>()).unwrap();
    let fields = "time=at,path=http.url,bytes=http.size";
    let small = ["--json", "--nodes", "2", "--memory", "1MB", "--json-fields", fields];
    let output = larder(&[&["plan", log.to_str().unwrap()], &small[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&plan["log"]["requests"], &plan["log"]["targets"]), (&60.into(), &3.into()));
    assert_eq!(plan["logs"][0]["format"], "json");
    let output = larder(&["trace", "convert", log.to_str().unwrap(), "--json-fields", fields]);
    let converted = text(&output.stdout);
    let first = "- - - [01/Jan/1970:00:00:00 +0000] \"GET /0 HTTP/1.0\" 200 1000\n";
    assert!(converted.starts_with(first), "{converted}");
    assert_eq!(converted.lines().count(), 60);
}
