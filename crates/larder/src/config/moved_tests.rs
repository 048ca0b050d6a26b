//! Old spellings: they load, warn, and can be rewritten.

use super::moved::rows;
use super::schema::Part;
use super::sections::moves::MOVES;
use super::*;

const SWITCH: &str = "[switch]\nlisten = \"127.0.0.1:80\"\nnodes = [\"a:1\"]\n";
const ROUTE: &str = "[[switch.routes]]\nname = \"r\"\npath = \"/r\"\n";
const NODE: &str = "[node]\nlisten = \"127.0.0.1:80\"\nroot = \"/\"\n";

/// A value that differs from the default.
fn value(old: &str) -> &'static str {
    match old.rsplit('.').next().unwrap() {
        "admission" | "queue_max" | "join_targets_per_s" | "join_warm_targets" | "seed" | "t_low" => "7",
        "nodes_max" | "t_high" => "77",
        "targets_max" => "1000",
        "threads" | "retries_max" => "2",
        "shards" => "8",
        "queue_timeout" | "replication_decay" | "follow_names" => "\"5s\"",
        "long_lived" => "{ after = \"5s\" }",
        "training" => "{ busy = 0.5 }",
        "cost" => "{ idle = 7 }",
        "util" => "{ low = 0.1 }",
        "cap" => "{ slack = 9 }",
        "hacc" => "{ level = 2 }",
        "bounded" => "{ points = 7 }",
        "maglev" => "{ size = 251 }",
        "rendezvous" => "{ places = 512 }",
        "ewma" => "{ decay = \"3s\" }",
        "wrr" => "{ gather = \"3s\" }",
        "static" => "{ shares = { n = 2 } }",
        "ward" => "{ carry = 0.25 }",
        "outliers" => "{ consecutive = 7 }",
        "via" | "user" | "group" => "\"x\"",
        "request_headers" | "reply_headers" => "{ remove = \"x-a\" }",
        "request_id" => "{ header = \"x-id\" }",
        "trusted_relays" | "proxy_protocol_from" => "[\"10.0.0.1\"]",
        "forwarded" => "\"overwrite\"",
        "underscores_in_headers" | "url_fields_in_headers" => "true",
        "node_proxy_protocol" => "\"v1\"",
        "node_tls" => "{ verify = false }",
        "access_log" | "record" | "record_log" => "\"/file\"",
        "access_log_format" => "\"json\"",
        other => panic!("give {other} a value"),
    }
}

/// A config whose last table gives a key, and the line of the key.
fn document(path: &str, value: &str) -> (String, u32) {
    let (head, key) = match (path.strip_prefix("switch.routes[]."), path.strip_prefix("switch.")) {
        (Some(key), _) => (format!("{SWITCH}{ROUTE}"), key),
        (None, Some(key)) => (SWITCH.to_owned(), key),
        (None, None) => (NODE.to_owned(), path.strip_prefix("node.").unwrap()),
    };
    let line = head.lines().count() as u32 + 1;
    (format!("{head}{key} = {value}\n"), line)
}

fn parsed(text: &str) -> Written {
    Written::parse("f", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn meaning(text: &str) -> serde_json::Value {
    serde_json::to_value(parsed(text).raw).unwrap()
}

#[test]
fn each_old_spelling_means_the_new_one_and_is_warned_of_once() {
    for (old, new) in MOVES {
        let (text, line) = document(old, value(old));
        let written = parsed(&text);
        let (now, _) = document(new, value(old));
        assert_eq!(serde_json::to_value(&written.raw).unwrap(), meaning(&now), "{old}");
        let (without, _) = text.trim_end().rsplit_once('\n').unwrap();
        assert_ne!(meaning(&text), meaning(without), "{old}: the value is the default");
        let [warning] = written.moved.as_slice() else { panic!("{old}: {:?}", written.moved) };
        assert_eq!(warning.line, Some(line), "{old}");
        let said = warning.to_string();
        assert!(said.contains(&new.replace("[]", "[0]")) && said.contains("--migrate"), "{said}");
        assert!(parsed(&now).moved.is_empty(), "{new}");
    }
}

#[test]
fn each_new_path_is_a_key_and_no_old_one_is() {
    for (row, (old, new)) in rows().zip(MOVES) {
        let entry = |path: &str| Part::find(&path.replace("[]", "[0]")).is_some();
        assert!(entry(new), "{new}");
        assert_eq!(entry(old), row.is_table_now(), "{old}");
    }
}

#[test]
fn both_spellings_of_a_key_are_refused_with_both_lines() {
    for (row, (old, new)) in rows().zip(MOVES) {
        let (text, line) = document(old, value(old));
        let name = new.rsplit_once("[].").map_or_else(|| new.split_once('.').unwrap().1, |(_, name)| name);
        let text = format!("{text}{name} = {}\n", value(old));
        let error = Written::parse("f", &text).unwrap_err();
        if row.is_table_now() {
            // The same name is given twice, which TOML itself refuses.
            assert_eq!(error.line, Some(line + 1), "{error}");
            continue;
        }
        assert_eq!(error.line, Some(line), "{error}\n{text}");
        assert!(error.what.contains(&format!("line {}", line + 1)), "{error}");
        assert_eq!(migrate("f", &text).unwrap_err().what, error.what);
    }
}

#[test]
fn tables_of_both_spellings_are_one_as_long_as_no_key_is_given_twice() {
    let text = |key| format!("{SWITCH}hacc.level = 2\n[switch.policies.hacc]\n{key}\n");
    let written = parsed(&text("margin = 0.5"));
    let policies = written.raw.switch.unwrap().policies;
    let hacc = policies.hacc.unwrap();
    assert_eq!((hacc.level, hacc.margin), (Some(2), Some(0.5)));
    let error = Written::parse("f", &text("level = 3")).unwrap_err();
    assert_eq!((error.line, error.key.as_str()), (Some(4), "switch.hacc.level"), "{error}");
    assert!(error.what.contains("switch.policies.hacc.level") && error.what.contains("line 6"), "{error}");
}

#[test]
fn an_error_about_a_value_points_at_its_old_spelling() {
    let error = |text: &str| {
        Written::parse("f", &format!("{SWITCH}{text}")).and_then(|written| written.validate()).unwrap_err()
    };
    for (text, line, key) in [
        ("via = \"a\"\nt_low = true\n", 5, "switch.policies.lard.t_low"),
        ("via = \"a\"\nt_low = 0\n", 5, "switch.policies.lard.t_low"),
        ("queue_max = 1\nqueue_timeout = \"1000d\"\n", 5, "switch.admission.queue_timeout"),
        ("[switch.hacc]\nlevel = 99\n", 5, "switch.policies.hacc.level"),
        ("[switch.hacc]\nlevle = 9\n", 5, "switch.policies.hacc.levle"),
        ("[switch.limits]\nretries_max = 9\n", 5, "switch.retries.max"),
        ("[[switch.routes]]\nname = \"r\"\nt_low = 0\n", 6, "switch.routes[0].policies.lard.t_low"),
    ] {
        let error = error(text);
        assert_eq!((error.line, error.key.as_str()), (Some(line), key), "{error}");
    }
    let both = error("t_low = 0\nshards = 63\npolcy = \"a\"\n");
    assert_eq!([both.line, both.more[0].line, both.more[1].line], [Some(4), Some(5), Some(6)], "{both}");
}

#[test]
fn a_value_is_quoted_as_the_file_has_it() {
    for (text, quoted) in [
        ("admission.queue_timeout = \"1000d\"", "1000d"),
        ("queue_timeout = \"1000d\"", "1000d"),
        ("admission.queue_max = 9_000_000", "9_000_000"),
        ("limits.uri_max = \"64GB\"", "64GB"),
        ("trust.relays = \"10.0.0.1\"\nshadow = { policies = \"all\", one_in = 0x3 }", "0x3"),
    ] {
        let error = parsed(&format!("{SWITCH}{text}\n")).validate().unwrap_err();
        let old = text.starts_with("queue_timeout");
        assert!(error.what.starts_with(&format!("{quoted} is out of range")), "{error}");
        assert_eq!(error.what.contains("larder check --migrate"), old, "{error}");
    }
}

#[test]
fn a_misspelt_old_name_leads_to_the_new_one() {
    for (text, says) in [
        ("queue_timout = \"1s\"\n", "'admission.queue_timeout'"),
        ("trusted_relay = \"10.0.0.1\"\n", "'trust.relays'"),
        ("relays = \"10.0.0.1\"\n", "[switch.trust]"),
        ("[[switch.routes]]\nname = \"r\"\nt_lwo = 5\n", "'policies.lard.t_low'"),
        ("[switch.policies.cap]\n", "'cap-load'"),
        ("[switch.policies.cost]\n", "'lard-cost'"),
        ("[switch.policies.util]\n", "'lard-util'"),
        ("[switch.policies.ewma]\n", "'peak-ewma'"),
        ("[[switch.routes]]\nname = \"r\"\npolicies.ewma = {}\n", "'peak-ewma'"),
    ] {
        let error = Written::parse("f", &format!("{SWITCH}{text}")).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn each_old_spelling_can_be_rewritten() {
    for (old, _) in MOVES {
        let (text, _) = document(old, value(old));
        let heading = match (value(old).strip_prefix("{ "), old.split_once("[].")) {
            (Some(inner), None) if old.starts_with("switch.") => {
                format!("{SWITCH}\n# Why.\n[{old}] # Here.\n{}\n", inner.strip_suffix(" }").unwrap())
            }
            _ => text.clone(),
        };
        for text in [text, heading] {
            let (rewritten, moved) = migrate("f", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(moved, 1, "{text}");
            assert_eq!(meaning(&rewritten), meaning(&text), "{rewritten}");
            assert!(parsed(&rewritten).moved.is_empty(), "{rewritten}");
            assert_eq!(migrate("f", &rewritten).unwrap(), (rewritten.clone(), 0), "{text}");
            assert_eq!(rewritten.matches('#').count(), text.matches('#').count(), "{rewritten}");
        }
    }
}

const OLD: &str = r#"# A switch.
[switch]
listen = "127.0.0.1:80" # for all
nodes = ["a:1"]

# Loads of the paper.
t_low = 20 # low
t_high = 60
policy = "lard-r"
admission = 100
queue_max = 5
access_log = "-"
trusted_relays = [
    "10.0.0.1", # the balancer
]

[switch.timeouts]
drain = "5s"

# Only for Domino.
[switch.hacc]
level = 2

[switch.limits]
uri_max = "1KiB"
retries_max = 1

[[switch.routes]]
name = "a"
path = "/a"
# Its own.
t_low = 5
request_headers = { remove = "x-a" }

[[switch.routes]]
name = "b"
path = "/b"
policy = "hash"

[switch.outliers]
consecutive = 5

# The end.
"#;

const NEW: &str = r#"# A switch.
[switch]
listen = "127.0.0.1:80" # for all
nodes = ["a:1"]
policy = "lard-r"

[switch.admission]
limit = 100
queue_max = 5

[switch.policies.lard]
# Loads of the paper.
t_low = 20 # low
t_high = 60

[switch.retries]
max = 1

[switch.trust]
relays = [
    "10.0.0.1", # the balancer
]

[switch.access_log]
file = "-"

[switch.timeouts]
drain = "5s"

# Only for Domino.
[switch.policies.hacc]
level = 2

[switch.limits]
uri_max = "1KiB"

[[switch.routes]]
name = "a"
path = "/a"

[switch.routes.headers]
request = { remove = "x-a" }

[switch.routes.policies.lard]
# Its own.
t_low = 5

[[switch.routes]]
name = "b"
path = "/b"
policy = "hash"

[switch.health.outliers]
consecutive = 5

# The end.
"#;

#[test]
fn a_rewritten_file_keeps_its_comments_and_its_order() {
    let (rewritten, moved) = migrate("f", OLD).unwrap();
    assert_eq!(moved, 11);
    assert_eq!(rewritten, NEW);
    assert_eq!(migrate("f", NEW).unwrap(), (NEW.to_owned(), 0));
    assert_eq!(meaning(OLD), meaning(NEW));
}

#[test]
fn keys_between_braces_and_dotted_keys_are_rewritten_where_they_stand() {
    for (old, new) in [
        (
            "switch = { listen = \"[::]:80\", t_low = 5, t_high = 9, nodes = [\"a:1\"] }\n",
            "switch = { listen = \"[::]:80\", nodes = [\"a:1\"], policies.lard.t_low = 5, policies.lard.t_high = 9 }\n",
        ),
        (
            "switch.listen = \"[::]:80\"\nswitch.queue_max = 5\nswitch.nodes = [\"a:1\"]\n",
            "switch.listen = \"[::]:80\"\nswitch.nodes = [\"a:1\"]\nswitch.admission.queue_max = 5\n",
        ),
        (
            "[switch]\nroutes = [{ name = \"r\", path = \"/\", t_low = 5 }]\n",
            "[switch]\nroutes = [{ name = \"r\", path = \"/\", policies.lard.t_low = 5 }]\n",
        ),
        (
            "[switch]\npolicies.seed = 5\nt_low = 5\n[switch.hacc]\nlevel = 2\n",
            "[switch]\npolicies.seed = 5\npolicies.lard.t_low = 5\n[switch.policies.hacc]\nlevel = 2\n",
        ),
    ] {
        assert_eq!(migrate("f", old).unwrap().0, new);
        assert_eq!(migrate("f", new).unwrap(), (new.to_owned(), 0));
    }
}

#[test]
fn a_file_that_is_no_toml_is_not_rewritten() {
    assert_eq!(migrate("f", "[switch\nt_low = 5\n").unwrap_err().line, Some(1));
    // Other faults are not changed.
    let (rewritten, _) = migrate("f", "[switch]\nt_low = true\npolcy = 1\n").unwrap();
    assert!(
        rewritten.contains("[switch.policies.lard]\nt_low = true\n") && rewritten.contains("polcy = 1\n")
    );
}

#[test]
fn comments_of_tables_that_are_merged_stay() {
    let policies = "[switch.policies.hacc]\nlevel = 2\n";
    for (old, new) in [
        (
            format!("{SWITCH}{policies}\n# IMPORTANT\n[switch.hacc] # tail\nmargin = 0.5 # own\n"),
            format!("{SWITCH}{policies}# IMPORTANT\n# tail\nmargin = 0.5 # own\n"),
        ),
        (
            format!("{SWITCH}# IMPORTANT\nhacc = {{ margin = 0.5 }} # tail\n{policies}"),
            format!("{SWITCH}{policies}# IMPORTANT\n# tail\nmargin = 0.5\n"),
        ),
        (
            format!(
                "{SWITCH}{ROUTE}[switch.routes.policies.hacc]\nlevel = 2\n# IMPORTANT\n[switch.routes.hacc] # tail\n\
                 margin = 0.5\n"
            ),
            format!(
                "{SWITCH}{ROUTE}[switch.routes.policies.hacc]\nlevel = 2\n# IMPORTANT\n# tail\nmargin = 0.5\n"
            ),
        ),
        (
            format!(
                "{NODE}# IMPORTANT\nforwarded = \"overwrite\" # tail\n[node.trust] # here\nrelays = \"::1\"\n"
            ),
            format!(
                "{NODE}[node.trust] # here\nrelays = \"::1\"\n# IMPORTANT\nforwarded = \"overwrite\" # tail\n"
            ),
        ),
    ] {
        let (rewritten, _) = migrate("f", &old).unwrap_or_else(|error| panic!("{error}\n{old}"));
        assert_eq!(rewritten, new);
        assert_eq!(meaning(&rewritten), meaning(&old));
    }
}

#[test]
fn a_file_is_not_rewritten_if_a_comment_would_be_lost() {
    let text =
        "[switch]\nlisten = \"[::]:80\"\nnodes = [\"a:1\"]\npolicies = { seed = 5 }\n# Why.\nt_low = 5\n";
    let said = migrate("f", text).unwrap_err().what;
    assert!(said.contains("a comment would be lost"), "{said}");
}

#[test]
fn line_ends_and_a_byte_order_mark_stay() {
    let windows = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
    assert_eq!(migrate("f", &windows(OLD)).unwrap().0, windows(NEW));
}

#[test]
fn faults_in_tables_that_moved_keys_make_are_all_found() {
    let error = Written::parse("f", &format!("{SWITCH}hacc = 5\nseed = \"x\"\n")).unwrap_err();
    assert_eq!([error.line, error.more[0].line], [Some(4), Some(5)], "{error}");
    assert_eq!(error.more.len(), 1, "{error}");
}

#[test]
fn an_error_about_an_old_spelling_suits_its_file() {
    for (text, what, hint) in [
        (
            "access_log = 5\n",
            Some("given as switch.access_log, the old spelling of switch.access_log.file"),
            "file =",
        ),
        ("admission = \"many\"\n", Some("the old spelling of switch.admission.limit"), "limit ="),
        ("[switch.hacc]\nlevel = 99\n", Some("the old spelling of switch.policies.hacc;"), "policies"),
        ("admission.limit = \"many\"\n", None, "no such hint"),
        ("hacc.margin = 0.5\npolicies.hacc.level = 99\n", None, "no such hint"),
    ] {
        let text = format!("{SWITCH}{text}");
        let error = Written::parse("f", &text).and_then(|written| written.validate()).unwrap_err();
        assert_eq!(what.is_some(), error.what.contains("old spelling"), "{error}");
        assert!(error.what.contains(what.unwrap_or_default()), "{error}");
        assert!(!error.hint.as_ref().is_some_and(|said| said.contains(hint)), "{error}");
    }
}

#[test]
fn a_key_beside_the_table_that_it_became_has_a_remedy() {
    for (text, says) in [
        ("access_log = \"-\"\n[switch.access_log]\nformat = \"json\"\n", "`access_log.file`"),
        ("access_log = \"-\"\naccess_log.format = \"json\"\n", "`access_log.file`"),
        ("admission = 5\n[switch.admission]\nqueue_max = 5\n", "`admission.limit`"),
        ("record = \"/r\"\nrecord.log = \"/l\"\n", "`record.file`"),
    ] {
        let error = Written::parse("f", &format!("{SWITCH}{text}")).unwrap_err();
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains(says)), "{error}");
    }
}

#[test]
fn old_spellings_in_comments_are_found() {
    let text = "#user = \"www\"\n[switch]\n# Who it is.\n#user = \"www\"\n# access_log = \"-\"\n#access_log.file = \"-\"\n\
                #policy = \"rr\"\nt_low = 5 # user = 1\n#[switch.hacc]\n#level = 2\n[[switch.routes]]\n#t_low = 5\n";
    let found: Vec<_> = in_comments(text).into_iter().map(|key| (key.line, key.new)).collect();
    let expected = [
        (4, "switch.process.user"),
        (5, "switch.access_log.file"),
        (9, "switch.policies.hacc"),
        (10, "switch.policies.hacc.level"),
        (12, "switch.routes[].policies.lard.t_low"),
    ];
    assert_eq!(found, expected.map(|(line, new)| (line, new.to_owned())));
}
