//! Text with parts in braces, as operators write it: `{name}` stands for a part, `{{` and `}}` for the braces.

/// The longest template. Bytes.
pub const TEMPLATE_BYTES_MAX: usize = 1024;

/// A fault of a template. Fault of the config; trying again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {right}")]
pub struct FormatError {
    /// The fault.
    pub what: String,
    /// The remedy.
    pub right: String,
}

impl FormatError {
    /// A fault and its remedy.
    pub fn new(what: impl Into<String>, right: impl Into<String>) -> Self {
        Self { what: what.into(), right: right.into() }
    }
}

/// Takes a text apart: what stands between braces is read as a part, by its name and with its braces, and the rest is literal.
///
/// # Errors
/// The text is too long, its braces do not match, or `part` refuses a part.
pub fn pieces<P, E: From<FormatError>>(
    text: &str,
    literal: impl Fn(Box<[u8]>) -> P,
    part: impl Fn(&str, &str) -> Result<P, E>,
) -> Result<Vec<P>, E> {
    if text.len() > TEMPLATE_BYTES_MAX {
        let right = format!("at most {TEMPLATE_BYTES_MAX} bytes");
        return Err(FormatError::new(format!("{} bytes are too many", text.len()), right).into());
    }
    let (mut pieces, mut plain, mut rest) = (Vec::new(), Vec::new(), text);
    while let Some(at) = rest.find(['{', '}']) {
        plain.extend_from_slice(&rest.as_bytes()[..at]);
        let brace = &rest[at..];
        if brace.starts_with("{{") || brace.starts_with("}}") {
            plain.push(brace.as_bytes()[0]);
            rest = &brace[2..];
            continue;
        }
        if brace.starts_with('}') {
            return Err(
                FormatError::new("a '}' closes nothing", "write '}}' for the character itself").into()
            );
        }
        let Some(end) = brace.find('}') else {
            let right = "write '}' behind the name, or '{{' for the character itself";
            return Err(FormatError::new("a '{' is not closed", right).into());
        };
        if !plain.is_empty() {
            pieces.push(literal(std::mem::take(&mut plain).into()));
        }
        pieces.push(part(&brace[1..end], &brace[..=end])?);
        rest = &brace[end + 1..];
    }
    plain.extend_from_slice(rest.as_bytes());
    if !plain.is_empty() {
        pieces.push(literal(plain.into()));
    }
    Ok(pieces)
}
