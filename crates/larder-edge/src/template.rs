//! Templates, as operators write them: `{name}` is replaced by a value, `{{` and `}}` are literal braces.

/// Maximum length of a template, in bytes.
pub const TEMPLATE_BYTES_MAX: usize = 1024;

/// An error in a template. A fault of the config; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {right}")]
pub struct FormatError {
    /// Description of the fault.
    pub what: String,
    /// Description of the correct form.
    pub right: String,
}

impl FormatError {
    /// Makes an error.
    pub fn new(what: impl Into<String>, right: impl Into<String>) -> Self {
        Self { what: what.into(), right: right.into() }
    }
}

/// Splits a text into pieces. `part` parses the contents of braces, given without and with the braces; the rest is
/// literal.
///
/// # Errors
/// The text is too long, its braces do not match, or `part` rejects a part.
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
