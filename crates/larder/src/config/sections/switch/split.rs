//! Validation of shares of routes, and of mirror routes.

use larder_core::rules::Matcher;
use larder_switch::{DEFAULT_ROUTE, MirrorConfig, Route, RouteShare, SplitBy, StickyKey};

use crate::config::error::Fault;
use crate::config::sections::switch::edits::MirrorSection;
use crate::config::sections::switch::route::RouteSection;
use crate::config::sections::switch::rule::key as key_template;
use crate::config::suggest::suggest;

/// All requests, in thousandths of a percent.
const WHOLE: u32 = 100_000;
const ARMS_MAX: usize = 16;

/// Parses the key by which a route is split.
pub(crate) fn split_by(at: &str, text: &str) -> Result<SplitBy, Fault> {
    match text {
        "client" => Ok(SplitBy::Client),
        "target" => Ok(SplitBy::Target),
        text if text.contains('{') => Ok(SplitBy::Key(StickyKey::new(key_template(at, text)?))),
        other => {
            let hint = "\"client\", \"target\", or parts of the request such as \"{cookie:user}\"";
            Err(Fault::new(at, format!("unknown value '{}'", other.escape_debug())).hint(hint))
        }
    }
}

/// Returns the share that a route takes of another one.
pub(crate) fn share_of(at: &str, raw: &RouteSection, matcher: &Matcher) -> Result<Option<RouteShare>, Fault> {
    let (of, share) = match (&raw.of, raw.share) {
        (None, None) => return Ok(None),
        (None, Some(_)) => {
            return Err(Fault::new(format!("{at}.share"), "needs `of`, the route whose requests it takes")
                .hint("write of = \"NAME\", with the name of a route"));
        }
        (Some(_), None) => {
            let what = "missing: the share of the requests that it takes";
            return Err(Fault::new(format!("{at}.share"), what).hint("write share = 5.0, in percent"));
        }
        (Some(of), Some(share)) => (of, share),
    };
    if !matcher.takes_all() {
        let what = "contradicts conditions: this route takes a share of another route's requests";
        return Err(
            Fault::new(format!("{at}.of"), what).hint("leave out host, path, extension, method and header")
        );
    }
    if raw.split_by.is_some() {
        let what = "is not used: a route that takes a share is not split itself";
        return Err(Fault::new(format!("{at}.split_by"), what).hint(format!("write it into route '{of}'")));
    }
    Ok(Some(RouteShare { route: of.clone(), share: (share * 1000.0).round() as u32 }))
}

/// Validates a mirror route.
pub(crate) fn mirror_of(
    at: &str,
    raw: &RouteSection,
    mirror: &MirrorSection,
    matcher: &Matcher,
) -> Result<MirrorConfig, Fault> {
    let of = |key: &str| format!("{at}.mirror.{key}");
    if mirror.of.is_empty() {
        return Err(Fault::new(of("of"), "missing: the route whose requests are copied")
            .hint("write of = \"NAME\", with the name of a route"));
    }
    if raw.of.is_some() || !matcher.takes_all() {
        let what = "contradicts `of` and conditions: a mirror route gets copies of another route's requests";
        let hint = "leave out of, host, path, extension, method and header";
        return Err(Fault::new(format!("{at}.mirror"), what).hint(hint));
    }
    if raw.redirect.is_some() || raw.respond.is_some() {
        let what = "contradicts redirect and respond: replies to copies are discarded";
        return Err(Fault::new(format!("{at}.mirror"), what).hint("leave them out"));
    }
    Ok(MirrorConfig {
        route: mirror.of.clone(),
        share: (mirror.share * 1000.0).round() as u32,
        copies_max: mirror.copies_max,
        body_bytes_max: usize::try_from(mirror.body_max.0.get()).unwrap_or(usize::MAX),
        timeout: mirror.timeout.0,
    })
}

/// Checks the shares against the routes and against each other.
pub(crate) fn shares(raw: &[RouteSection], routes: &[Route], warnings: &mut Vec<Fault>) -> Result<(), Fault> {
    let takes = |name: &str| {
        let shares = routes.iter().filter_map(|route| route.share_of.as_ref());
        shares.filter(|share| share.route == name).map(|share| share.share).collect::<Vec<_>>()
    };
    for (i, route) in routes.iter().enumerate() {
        let at = format!("switch.routes[{i}]");
        if raw[i].split_by.is_some() && takes(&route.name).is_empty() {
            let what = "is not used: no route takes a share of this one";
            let hint = format!("write a route with of = \"{}\" and share = 5.0", route.name);
            warnings.push(Fault::new(format!("{at}.split_by"), what).hint(hint));
        }
        if let Some(mirror) = &route.mirror_of {
            let copied = routes.iter().find(|other| other.name == mirror.route);
            if mirror.route != DEFAULT_ROUTE && copied.is_none_or(|copied| copied.mirror_of.is_some()) {
                let others = routes.iter().filter(|other| other.mirror_of.is_none());
                let known: Vec<&str> =
                    std::iter::once(DEFAULT_ROUTE).chain(others.map(|other| &*other.name)).collect();
                let what = format!(
                    "there is no route '{}' whose requests can be copied",
                    mirror.route.escape_debug()
                );
                return Err(Fault::new(format!("{at}.mirror.of"), what).hint(suggest(&mirror.route, &known)));
            }
        }
        let Some(share) = &route.share_of else { continue };
        let split = routes.iter().find(|other| other.name == share.route);
        if share.route != DEFAULT_ROUTE && split.is_none() {
            let mut known: Vec<&str> = vec![DEFAULT_ROUTE];
            known.extend(routes.iter().filter(|other| other.share_of.is_none()).map(|other| &*other.name));
            let what = format!("there is no route '{}'", share.route.escape_debug());
            return Err(Fault::new(format!("{at}.of"), what).hint(suggest(&share.route, &known)));
        }
        if split.is_some_and(|split| split.share_of.is_some()) {
            let what = format!("'{}' takes a share itself", share.route);
            return Err(Fault::new(format!("{at}.of"), what).hint("take a share of the route in its `of`"));
        }
        let all = takes(&share.route);
        let sum: u32 = all.iter().sum();
        if sum > WHOLE || all.len() > ARMS_MAX {
            let what =
                format!("{} routes take {} percent of '{}'", all.len(), f64::from(sum) / 1000.0, share.route);
            return Err(
                Fault::new(format!("{at}.share"), what).hint("at most 16 routes, and 100 percent together")
            );
        }
    }
    Ok(())
}
