//! A link that loses, delays, reorders and duplicates.
