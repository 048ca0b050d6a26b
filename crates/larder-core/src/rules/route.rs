//! The mapping from a request to its route: the first rule that matches decides.

use super::RULES_MAX;
use super::error::RuleError;
use super::head::Head;
use super::matcher::{Matcher, check_list, find_first};
use crate::id::RouteId;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The rules for the route, in the order of the config. Several rules may have the same route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteRules(Box<[(Matcher, RouteId)]>);

impl RouteRules {
    /// The largest number of rules.
    pub const MAX: usize = RULES_MAX;

    /// Creates the list of these rules, in this order.
    ///
    /// # Errors
    /// There are too many rules, or one can never be reached.
    pub fn new(rules: Vec<(Matcher, RouteId)>) -> Result<Self, RuleError> {
        check_list(&rules)?;
        Ok(Self(rules.into()))
    }

    /// Returns the route of the first rule that matches; [`RouteId::DEFAULT`] if none does.
    pub fn find(&self, head: &Head<'_>) -> RouteId {
        find_first(&self.0, head).unwrap_or(RouteId::DEFAULT)
    }

    /// Returns the rules, in their order.
    pub fn rules(&self) -> &[(Matcher, RouteId)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RuleCoverage;

    const STATIC: RouteId = RouteId(1);
    const ASP: RouteId = RouteId(2);

    /// HACC, section 5.1: static requests go to one node, ASP requests to the others.
    #[test]
    fn rule_of_hacc_for_asp() -> Result<(), RuleError> {
        let rules = RouteRules::new(vec![(Matcher::new().extension("asp")?, ASP), (Matcher::new(), STATIC)])?;
        for (target, route) in [
            ("/crimson/search.asp?q=1", ASP),
            ("/A.ASP", ASP),
            ("/crimson/logo.gif", STATIC),
            ("/asp/", STATIC),
        ] {
            assert_eq!(rules.find(&Head::get(b"h", target.as_bytes())), route, "{target}");
        }
        assert_eq!(RouteRules::default().find(&Head::get(b"h", b"/")), RouteId::DEFAULT);
        Ok(())
    }

    #[test]
    fn unreachable_rule_is_refused() -> Result<(), RuleError> {
        let a = Matcher::new().path("/a")?;
        let error = RouteRules::new(vec![(Matcher::new(), STATIC), (a.clone(), ASP)]).expect_err("shadowed");
        assert_eq!(error, RuleError::Unreachable { rule: 2, by: 1, coverage: RuleCoverage(true) });
        let text = "rule 2 is never reached: rule 1 takes every request: put that one last";
        assert_eq!(error.to_string(), text);
        let error = RouteRules::new(vec![(a.clone(), STATIC), (a.clone(), ASP)]).expect_err("shadowed");
        let text = "rule 2 is never reached: rule 1 takes the same requests: leave one of them out";
        assert_eq!(error.to_string(), text);
        Ok(())
    }

    #[test]
    fn the_number_of_rules_is_limited() -> Result<(), RuleError> {
        let rules = |count: usize| -> Result<_, RuleError> {
            let rule = |n| Ok((Matcher::new().path(&format!("/{n}"))?, STATIC));
            RouteRules::new((0..count).map(rule).collect::<Result<_, RuleError>>()?)
        };
        assert_eq!(rules(RULES_MAX)?.find(&Head::get(b"h", b"/1023")), STATIC);
        assert_eq!(rules(RULES_MAX + 1), Err(RuleError::Rules(RULES_MAX + 1)));
        Ok(())
    }
}
