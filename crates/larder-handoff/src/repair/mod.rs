//! Reading a TCP connection out of a socket and putting it into another one.
