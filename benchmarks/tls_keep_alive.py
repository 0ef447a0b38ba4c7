"""Measures new connections and CPU time per poll over TLS: `python -m benchmarks.tls_keep_alive [--full]`.

400 waits poll every 20 s. The servers have a latency of 50 ms and close idle connections after 15 s or 75 s. The quick
run has 100 waits that poll every 5 s.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.harness import kinds, peers, server, turns
from benchmarks.harness.waits import measured

CPU = "cpu_us_per_poll"


def certificate(folder: Path) -> tuple[str, str]:
    """Write a self-signed certificate for 127.0.0.1 and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    of_server, of_key = folder / "cert.pem", folder / "key.pem"
    of_server.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    format_ = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    of_key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *format_))
    return str(of_server), str(of_key)


def run(full: bool) -> str:
    count, interval, seconds, rounds = (400, 20.0, 40.0, 2) if full else (100, 5.0, 5.0, 1)
    table, kept = [], {}
    with tempfile.TemporaryDirectory() as folder:
        tls = certificate(Path(folder))
        for keep_alive in (15.0, 75.0):
            with server.running(server.Options(tls=tls, keep_alive=keep_alive, latency=0.05)) as where:
                measures = {kinds.OURS: partial(measured, kinds.OURS, count, interval, where, seconds, settle=1.5)}
                try:
                    peers.python(kinds.DATABRICKS)
                except peers.NotInstalled as reason:
                    print(reason)
                else:
                    measures[kinds.DATABRICKS] = partial(
                        measured, kinds.DATABRICKS, count, interval, where, seconds, settle=1.5
                    )
                found = turns.in_turn(measures, rounds)
            kept[f"keep-alive {keep_alive:.0f} s"] = found.of
            table += [
                [f"{keep_alive:.0f} s", case, found.shown(case, CPU), found.shown(case, "connections_per_poll", 3)]
                for case in found.of
            ]
    turns.keep("tls_keep_alive", kept)
    head = ["keep-alive of the server", "waits", "CPU µs per poll", "new connections per poll"]
    return f"{count} waits at {interval:.0f} s over TLS, latency 50 ms\n\n" + turns.table(head, table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="400 waits at 20 s")
    print(run(parser.parse_args().full))
