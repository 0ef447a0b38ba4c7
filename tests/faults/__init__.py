"""A server and a proxy that do to a client what networks and services do, on real sockets."""
