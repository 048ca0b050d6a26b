//! The page that shows a running switch in a browser. The files in this folder are served unchanged.

use super::AdminReply;

/// Returns the reply for a path of the page; `None` for any other path.
pub(super) fn page(path: &str) -> Option<AdminReply> {
    let (content_type, text) = match path {
        "/" | "/ui" => ("text/html; charset=utf-8", include_str!("index.html")),
        "/page.css" => ("text/css; charset=utf-8", include_str!("page.css")),
        "/page.js" => ("text/javascript; charset=utf-8", include_str!("page.js")),
        _ => return None,
    };
    Some(AdminReply::text(content_type, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the page works under its own content security policy.
    #[test]
    fn the_page_loads_no_external_resource_and_has_no_inline_script() {
        let html = page("/").expect("the page").body;
        assert_eq!(html.matches("<script").count(), 1);
        for mark in ["<style", " style=", "onclick", "onload", "//"] {
            let html = html.replace("<!doctype html>", "");
            assert!(!html.contains(mark), "{mark}");
        }
        let script = page("/page.js").expect("the script").body;
        for mark in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://"] {
            assert!(!script.contains(mark), "{mark}");
        }
    }
}
