//! Hosts of our own in network namespaces.
