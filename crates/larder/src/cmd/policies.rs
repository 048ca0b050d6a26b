//! Policies named on the command line.

use std::str::FromStr;

use larder_core::PolicyKind;

/// What `--policies` names: policies one by one, or `all`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Every policy.
    All,
    /// This one.
    One(PolicyKind),
}

impl FromStr for Named {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "all" => Ok(Self::All),
            _ => name.parse().map(Self::One).map_err(|error| format!("{error}, or 'all'")),
        }
    }
}

/// The policies, in the order named; `all` stands for those in the order of [`PolicyKind::ALL`] and stands alone.
///
/// # Errors
/// None, one twice, or `all` beside others; the text says so.
pub fn chosen(named: &[Named]) -> Result<Vec<PolicyKind>, String> {
    if named == [Named::All] {
        return Ok(PolicyKind::ALL.to_vec());
    }
    let mut policies = Vec::with_capacity(named.len());
    for name in named {
        match name {
            Named::All => return Err("--policies: 'all' stands alone".to_owned()),
            Named::One(kind) if policies.contains(kind) => {
                return Err(format!("--policies names '{kind}' twice"));
            }
            Named::One(kind) => policies.push(*kind),
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
        let named = |text: &str| -> Result<Vec<PolicyKind>, String> {
            let names: Vec<Named> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
            chosen(&names)
        };
        assert_eq!(named("all"), Ok(PolicyKind::ALL.to_vec()));
        assert_eq!(named("rr,cap"), Ok(vec![PolicyKind::Rr, PolicyKind::Cap]));
        for (text, complaint) in
            [("all,rr", "stands alone"), ("rr,rr", "'rr' twice"), ("lrad", "no policy 'lrad'")]
        {
            assert!(named(text).is_err_and(|error| error.contains(complaint)), "{text}");
        }
        assert!(chosen(&[]).is_err());
    }
}
