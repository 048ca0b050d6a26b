use larder_core::PolicyKind;
use larder_core::dispatch::Settings;
use proptest::prelude::*;

use super::syntax::{self, Directive};
use super::{lines, parse};
use crate::proxy::cluster::{Cluster, Hosts};

const TILES: &str = r#"
user www-data;
events { worker_connections 768; }
http {
    include /etc/nginx/mime.types;
    log_format main '$remote_addr - [$time_local] "$request" $status {'
                    '$body_bytes_sent }';
    map $uri $kind { ~^/t/ "tile;{"; default ${scheme}; upstream 1; }
    upstream tiles {
        # three servers; the fourth is new }
        hash $request_uri consistent;
        server 10.0.0.1:80 weight=2;
        server 10.0.0.2 max_fails=3 fail_timeout=10s;
        server [2001:db8::1]:80;
        server unix:/run/tiles.sock;
        server 10.0.0.9:80 down;
        server 10.0.0.8:80 backup;
        keepalive 32;
    }
    server {
        location / { proxy_pass http://tiles; }
        location /lua { content_by_lua_block { local a = "}" -- }
            if a then ngx.say('{') end } }
    }
}
stream { upstream mail { server 10.0.0.7:25; } }
"#;

fn read(text: &str) -> Cluster {
    parse(text, None).unwrap()
}

/// Returns a config with an upstream of four servers and these lines.
fn upstream(lines: &str) -> String {
    format!(
        "upstream tier {{ {lines} server 10.0.0.1; server 10.0.0.2; server 10.0.0.3; server 10.0.0.4; }}\n\
         server {{ location / {{ proxy_pass http://tier/x; }} }}"
    )
}

fn refusal(text: &str, name: Option<&str>) -> String {
    parse(text, name).unwrap_err().to_string()
}

fn has(texts: &[String], part: &str) -> bool {
    texts.iter().any(|text| text.contains(part))
}

#[test]
fn an_upstream_is_read_from_a_whole_config() {
    let tiles = read(TILES);
    assert_eq!((&*tiles.name, &tiles.hosts), ("tiles", &Hosts::Listed(4)));
    assert_eq!(
        (tiles.in_use.kind, &*tiles.in_use.written),
        (PolicyKind::Hash, "hash $request_uri consistent")
    );
    assert_eq!(tiles.replaced, ["hash $request_uri consistent"]);
    for part in ["weights (1 to 2)", "backup servers (1)", "that are down (1)"] {
        assert!(has(&tiles.warnings, part), "{part}: {:?}", tiles.warnings);
    }
    assert_eq!(tiles.warnings.len(), 3, "{:?}", tiles.warnings);
}

#[test]
fn each_policy_has_its_equivalent() {
    for (line, kind, note) in [
        ("", PolicyKind::Rr, ""),
        ("least_conn;", PolicyKind::LeastConn, ""),
        ("least_time header;", PolicyKind::LeastConn, "response times"),
        ("random;", PolicyKind::Random, ""),
        ("random two;", PolicyKind::P2c, ""),
        ("random two least_conn;", PolicyKind::P2c, ""),
        ("random two least_time=header;", PolicyKind::P2c, "not response times"),
        ("ip_hash;", PolicyKind::Random, "the client's address"),
        ("hash $request_uri;", PolicyKind::Hash, ""),
        ("hash $host$request_uri consistent;", PolicyKind::Hash, "equal shares"),
        ("hash $uri;", PolicyKind::Hash, "nginx hashes $uri; the plan hashes the path with its query"),
        ("hash ${arg_id}x;", PolicyKind::Hash, "nginx hashes ${arg_id}x"),
        ("hash $my_key;", PolicyKind::Hash, "cannot evaluate $my_key"),
        ("hash $cookie_session consistent;", PolicyKind::Random, "random for a target"),
        ("hash $request_uri$http_user_agent;", PolicyKind::Random, "random for a target"),
        ("least_conn; hash $request_uri;", PolicyKind::Hash, ""),
        ("larder policy=lard-cost;", PolicyKind::LardCost, ""),
        ("larder policy=lard-r key=$uri;", PolicyKind::LardR, "not the `key` of the directive"),
        ("larder config=a.toml;", PolicyKind::LardR, "does not read the file of `config`"),
    ] {
        let used = read(&upstream(line)).in_use;
        assert_eq!(used.kind, kind, "{line}");
        assert_eq!(used.notes.len(), usize::from(!note.is_empty()), "{line}: {:?}", used.notes);
        assert!(note.is_empty() || has(&used.notes, note), "{line}: {:?}", used.notes);
    }
}

#[test]
fn the_lines_are_read_as_the_policy_in_use() {
    let settings = Settings { policy: PolicyKind::LardR, ..Settings::default() };
    let own = read(&upstream(&lines(&settings))).in_use;
    assert_eq!((own.kind, &*own.written), (PolicyKind::LardR, "larder's policy lard-r"));
    let thresholds = lines(&Settings { t_low: 40, ..settings });
    assert!(thresholds.contains("policies.lard = { t_low = 40, t_high = 65 }"), "{thresholds}");
    assert!(has(&read(&upstream(&thresholds)).in_use.notes, "`config`"), "{thresholds}");
}

#[test]
fn nginx_caches_and_other_upstreams_are_named() {
    let cached = |cache: &str, location: &str| {
        let config = format!(
            "upstream tier {{ server a.example; }} http {{ {cache} server {{ location / {{ {location} proxy_pass http://tier; }} }} }}"
        );
        has(&read(&config).warnings, "$upstream_cache_status is HIT")
    };
    assert!(cached("proxy_cache pages;", "") && cached("", "proxy_cache pages;"));
    assert!(!cached("proxy_cache pages;", "proxy_cache off;") && !cached("proxy_cache_valid 1m;", ""));
    let two = "upstream a { server 10.0.0.1; } upstream b { server 10.0.0.1; server b.example; }";
    let chosen = parse(two, Some("b")).unwrap();
    assert!(has(&chosen.warnings, "nginx has other upstreams too"), "{:?}", chosen.warnings);
    assert!(has(&chosen.warnings, "each name as one server"), "{:?}", chosen.warnings);
    assert_eq!(
        refusal(two, None),
        "upstream: there are 2 upstreams: a, b (choose one of them with --cluster NAME)"
    );
    assert!(refusal(two, Some("c")).contains("there is no upstream 'c', only: a, b"));
}

#[test]
fn servers_elsewhere_are_unlisted() {
    let why = |servers: &str| match read(&format!("upstream a {{ zone a 1m; {servers} }}")).hosts {
        Hosts::Unlisted(reason) => reason,
        Hosts::Listed(count) => panic!("{servers}: {count}"),
    };
    assert_eq!(why(""), "the upstream lists no servers");
    assert_eq!(why("state /var/lib/a.state;"), "the servers are in another file (`state`)");
    assert_eq!(why("server 10.0.0.1 down;"), "all servers of the upstream are `backup` or `down`");
}

#[test]
fn errors_name_the_line_and_the_remedy() {
    for (text, part) in [
        ("", "upstream: the file has no upstream for HTTP (give the output of `nginx -T`)"),
        ("http { include conf.d/*.conf; }", "the file includes others and has no upstream itself"),
        ("stream { upstream a { server b; } }", "no upstream for HTTP"),
        ("upstream a {\n server b", "line 2: server: no ';' ends it"),
        ("upstream a {\n server b }", "line 2: server: no ';' ends it"),
        ("\nupstream a {", "line 2: upstream: no '}' ends its block"),
        ("a;\n}", "line 2: unexpected '}'"),
        ("{", "line 1: unexpected '{'"),
        (";", "line 1: unexpected ';'"),
        ("a \"b;\n", "line 1: no \" ends the text"),
        ("x_by_lua_block { {}", "line 1: x_by_lua_block: no '}' ends its block"),
        ("upstream { server a; }", "line 1: upstream: the upstream has no name"),
        ("upstream a { server; }", "line 1: server: there is no address"),
        ("upstream a { server b weight=0; }", "server: weight is not a number from 1"),
        ("upstream a {\n fair; server b; }", "line 2: fair: the plan does not know this directive"),
        ("upstream a { hash; server b; }", "hash: there is no key"),
        ("upstream a { hash $host; server b; }", "the key $host is the same for all targets"),
        ("upstream a { larder policy=best; server b; }", "larder: "),
    ] {
        let error = refusal(text, None);
        assert!(error.contains(part) && error.ends_with(')'), "{part}: {error}");
    }
    let deep = "a { ".repeat(100);
    assert!(refusal(&deep, None).contains("nested too deep"), "{}", refusal(&deep, None));
}

#[test]
fn words_are_read_as_nginx_reads_them() {
    let words = |text: &str| -> Vec<String> {
        let [Directive { parameters, .. }] = &syntax::parse(text).unwrap()[..] else { panic!("{text}") };
        parameters.clone()
    };
    assert_eq!(words("a ${b}c 'd e' \"f\\\"g\" h\\;i;"), ["${b}c", "d e", "f\"g", "h\\;i"]);
    assert_eq!(words("a b#c # d;\n e;"), ["b#c", "e"]);
}

proptest! {
    #[test]
    fn damaged_configs_give_an_upstream_or_an_error(at in 0_usize..1_200, cut in 0_usize..60, piece in "[-{};\"'#$\\\\a-z \\n]{0,6}") {
        let mut text: String = TILES.chars().take(at).collect();
        text.push_str(&piece);
        text.extend(TILES.chars().skip(at + cut));
        let _ = parse(&text, None);
    }
}
