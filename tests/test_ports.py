"""The ports that tests start processes on belong to one test, however late its process listens."""

from __future__ import annotations

import socket
import subprocess
import sys

from scripts.stack.ports import PORTS, free_port

DRAW = """
import sys
from scripts.stack import ports
ports.PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 20)
for line in sys.stdin:
    print(ports.free_port(), flush=True)
"""


def test_no_two_processes_get_the_same_port() -> None:
    command = [sys.executable, "-c", DRAW, str(free_port() & ~31)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    drawn = []
    for number in range(12):
        one = both[number % 2]
        assert one.stdin
        assert one.stdout
        one.stdin.write("\n")
        one.stdin.flush()
        drawn.append(int(one.stdout.readline()))
    for one in both:
        one.communicate(timeout=30)
    assert len(set(drawn)) == 12


def test_no_outgoing_connection_gets_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert not {server.getsockname()[1], client.getsockname()[1]} & {*PORTS}
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] in PORTS
