//! What a node's memory keeps.
