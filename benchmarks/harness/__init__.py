"""What the benchmarks share: servers and measured processes, pairs in turn, results as JSON, pictures."""
