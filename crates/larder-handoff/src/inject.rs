//! Packets into this host's own stack.
