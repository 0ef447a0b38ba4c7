"""Code shared by the benchmarks: servers, measured processes, alternating turns, JSON results and charts."""
