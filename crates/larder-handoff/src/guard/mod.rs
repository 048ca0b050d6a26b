//! The programs on a node (and on the front-end for its own stack): who accepts what.
