//! The mapping from a request to its service class: the first rule that matches decides.
//!
//! CAP (Casalicchio and Colajanni, WWW 2001, section 3) sorts requests by their URL alone into four classes, by a
//! table that it does not print. Here a rule may also use the method and the fields.

use super::error::RuleError;
use super::head::Head;
use super::matcher::{Matcher, check_list, find_first};
use crate::class::ServiceClass;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Rules for the service class. Without any, every request is of class N.
///
/// ```
/// use larder_core::ServiceClass;
/// use larder_core::rules::{ClassRules, Head, Matcher};
///
/// let rules = ClassRules::new(vec![
///     (Matcher::new().path("/shop/pay*")?, ServiceClass::Dcb),
///     (Matcher::new().path("/secure/*")?, ServiceClass::Cb),
///     (Matcher::new().path("/cgi-bin/*")?.extension("php")?, ServiceClass::Db),
///     (Matcher::new().extension("asp")?, ServiceClass::Db),
/// ])?;
/// assert_eq!(rules.classify(&Head::get(b"h", b"/secure/index.asp")), ServiceClass::Cb);
/// assert_eq!(rules.classify(&Head::get(b"h", b"/index.html")), ServiceClass::N);
/// # Ok::<(), larder_core::rules::RuleError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassRules(Box<[(Matcher, ServiceClass)]>);

impl ClassRules {
    /// Creates the list of these rules, in this order.
    ///
    /// # Errors
    /// There are too many rules, or one can never be reached.
    pub fn new(rules: Vec<(Matcher, ServiceClass)>) -> Result<Self, RuleError> {
        check_list(&rules)?;
        Ok(Self(rules.into()))
    }

    /// Returns the class of the first rule that matches; N if none does.
    pub fn classify(&self, head: &Head<'_>) -> ServiceClass {
        find_first(&self.0, head).unwrap_or(ServiceClass::N)
    }

    /// Returns the rules, in their order.
    pub fn rules(&self) -> &[(Matcher, ServiceClass)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServiceClass::{Cb, Db, Dcb, N};

    /// The arrivals of CAP's figure 2, distinguished by their paths.
    #[test]
    fn figure_2_of_cap() -> Result<(), RuleError> {
        let rules = ClassRules::new(vec![
            (Matcher::new().path("/secure/cgi-bin/*")?, Dcb),
            (Matcher::new().path("/secure/*")?, Cb),
            (Matcher::new().path("/cgi-bin/*")?, Db),
        ])?;
        let arrivals: [(&[u8], ServiceClass); 7] = [
            (b"/index.html", N),
            (b"/secure/1", Cb),
            (b"/secure/2", Cb),
            (b"/cgi-bin/query?1", Db),
            (b"/secure/cgi-bin/pay", Dcb),
            (b"/logo.gif", N),
            (b"/cgi-bin/query?2", Db),
        ];
        for (target, class) in arrivals {
            assert_eq!(rules.classify(&Head::get(b"shop.example", target)), class);
        }
        Ok(())
    }

    #[test]
    fn first_matching_rule_decides() -> Result<(), RuleError> {
        let (wide, narrow) = (Matcher::new().path("/a*")?, Matcher::new().path("/ab*")?);
        let head = Head::get(b"h", b"/abc");
        assert_eq!(ClassRules::new(vec![(wide.clone(), Db), (narrow.clone(), Cb)])?.classify(&head), Db);
        assert_eq!(ClassRules::new(vec![(narrow, Cb), (wide, Db)])?.classify(&head), Cb);
        assert_eq!(ClassRules::default().classify(&head), N);
        Ok(())
    }
}
