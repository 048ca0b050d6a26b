//! Declaration of keys: [`keys!`] declares a section of the config.
//!
//! A key is declared once, with its meaning, type, default, range and example, and whether a running node can apply a
//! change. The declaration generates the struct, its default, the JSON Schema, the reference, the checks of ranges, and
//! the list of keys that a reload applies.

/// Declares the struct of a section.
///
/// In a `table`, every key has a value. The default is the given value, or the default of the type. In a `partial`
/// section, every key may be inherited from the section above: the default is `None`, and `standard` returns the given
/// values.
///
/// After the type and the default of a key may follow, in this order:
/// - `range`: the values that it may have, see [`super::range`];
/// - `entries`: the number of entries that the list may have;
/// - `when`: the condition on another key of the section without which this key is not checked, see [`super::check`];
/// - `elsewhere`: whether the key means the same as the one of its name under `[switch]`, where the reference describes it;
/// - `example`: the value that the reference shows where there is no default;
/// - `reload`: whether a running node takes a change.
macro_rules! keys {
    (@default) => { ::core::default::Default::default() };
    (@default $value:expr) => { $value };
    (
        $(#[$meta:meta])*
        table $name:ident $(, $from:pat = $base:expr)*;
        $($keys:tt)*
    ) => {
        keys! { @struct [ $(#[$meta])* ] $name; $($keys)* }
        keys! { @values [ impl Default for $name ] [ fn default ] [ $($from = $base;)* ] $($keys)* }
    };
    (
        $(#[$meta:meta])*
        partial $name:ident $(, $from:pat = $base:expr)*;
        $($keys:tt)*
    ) => {
        keys! { @struct [ #[derive(Default)] $(#[$meta])* ] $name; $($keys)* }
        keys! {
            @values [ impl $name ] [
                /// The values that hold where no section says another one.
                pub(in crate::config) fn standard
            ] [ $($from = $base;)* ] $($keys)*
        }
    };
    (@struct [ $($meta:tt)* ] $name:ident; $(
        $(#[$key_meta:meta])*
        $key:ident : $type:ty
        $(= $default:expr)?
        $(, range $range:expr)?
        $(, entries $entries:expr)?
        $(, when $when:literal)?
        $(, elsewhere $elsewhere:literal)?
        $(, example $example:expr)?
        $(, reload $reload:literal)?
    ;)*) => {
        $($meta)*
        #[derive(Clone, Debug, ::serde::Serialize, ::serde::Deserialize, ::schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $name {
            $(
                $(#[$key_meta])*
                $(#[schemars(extend("x-range" = $range))])?
                $(#[schemars(extend("x-entries" = $entries))])?
                $(#[schemars(extend("x-when" = $when))])?
                $(#[schemars(extend("x-elsewhere" = $elsewhere))])?
                $(#[schemars(example = &$example)])?
                $(#[schemars(extend("x-reload" = $reload))])?
                pub(crate) $key: $type,
            )*
        }
    };
    (@values [ $($head:tt)* ] [ $($function:tt)* ] [ $($from:pat = $base:expr;)* ] $(
        $(#[$key_meta:meta])*
        $key:ident : $type:ty
        $(= $default:expr)?
        $(, range $range:expr)?
        $(, entries $entries:expr)?
        $(, when $when:literal)?
        $(, elsewhere $elsewhere:literal)?
        $(, example $example:expr)?
        $(, reload $reload:literal)?
    ;)*) => {
        $($head)* {
            $($function)*() -> Self {
                $(let $from = $base;)*
                Self { $($key: keys!(@default $($default)?),)* }
            }
        }
    };
}
pub(super) use keys;
