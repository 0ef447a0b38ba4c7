"""Shared code of the benchmarks: servers, measured processes, alternating turns, JSON results and charts."""
