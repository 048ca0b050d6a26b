//! Policies on the command line.

use std::str::FromStr;

use larder_core::PolicyKind;

/// A value of `--policies`: a policy, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicySelection {
    /// Every policy.
    All,
    /// One policy.
    One(PolicyKind),
}

impl FromStr for PolicySelection {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "all" => Ok(Self::All),
            _ => name.parse().map(Self::One).map_err(|error| format!("{error}, or 'all'")),
        }
    }
}

/// Returns the policies in the given order. `all` stands for all policies in the order of
/// [`PolicyKind::ALL`], and must be the only value.
///
/// # Errors
/// Returns an error if there is no policy, a policy twice, or `all` with other values.
pub fn expand_selection(selections: &[PolicySelection]) -> Result<Vec<PolicyKind>, String> {
    if selections == [PolicySelection::All] {
        return Ok(PolicyKind::ALL.to_vec());
    }
    let mut policies = Vec::with_capacity(selections.len());
    for name in selections {
        match name {
            PolicySelection::All => {
                return Err("--policies: 'all' cannot be combined with other policies".to_owned());
            }
            PolicySelection::One(kind) if policies.contains(kind) => {
                return Err(format!("--policies names '{kind}' twice"));
            }
            PolicySelection::One(kind) => policies.push(*kind),
        }
    }
    if policies.is_empty() {
        Err("--policies must name at least one policy".to_owned())
    } else {
        Ok(policies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stands_for_every_policy_and_alone() {
        let select = |text: &str| -> Result<Vec<PolicyKind>, String> {
            let names: Vec<PolicySelection> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
            expand_selection(&names)
        };
        assert_eq!(select("all"), Ok(PolicyKind::ALL.to_vec()));
        assert_eq!(select("rr,cap"), Ok(vec![PolicyKind::Rr, PolicyKind::Cap]));
        for (text, complaint) in
            [("all,rr", "cannot be combined"), ("rr,rr", "'rr' twice"), ("lrad", "unknown policy 'lrad'")]
        {
            assert!(select(text).is_err_and(|error| error.contains(complaint)), "{text}");
        }
        assert!(expand_selection(&[]).is_err());
    }
}
