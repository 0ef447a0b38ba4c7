"""What systemd and a container runtime give to a service, imitated with mounts: its user, home, folders, and no more.

It needs root, or a `sudo` that asks for nothing, as CI has.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSIDE = "/srv/crew-service"  # where the service is installed; /srv is there on every Linux
AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
# The interpreter may be in a home, and the repository below /tmp; both are hidden.
SCRIPT = """\
set -e
mount -t tmpfs none /srv
mkdir -p {inside}/venv {inside}/repository {inside}/python
mount --bind {venv} {inside}/venv
mount --bind {repository} {inside}/repository
mount --bind {python} {inside}/python
cp -r {project} {inside}/project
chmod -R a+rX,go-w {inside}/project
mount -t tmpfs none /var/lib
mkdir -m {mode} {state}
chown {user} {state}
for hidden in /home /root /tmp /var/tmp; do mount -t tmpfs none $hidden; done
chmod 1777 /tmp /var/tmp
mkdir -p {python}
mount --bind {inside}/python {python}
{rest}
cd {folder}
exec env --ignore-environment {environment} setpriv --reuid {uid} --regid {gid} --clear-groups --no-new-privs \\
    --inh-caps=-all --bounding-set=-all {command}
"""


def is_there() -> bool:
    """Whether this machine lets the tests make mounts."""
    words = [*AS_ROOT, "unshare", "--mount", "true"]
    return bool(shutil.which("setpriv")) and subprocess.run(words, capture_output=True).returncode == 0


@dataclass
class Sandbox:
    project: Path
    state: str  # the folder that is the service's own
    folder: str  # where it starts
    uid: int = 61184
    gid: int = 61184
    mode: str = "0775"
    home: str = "/"  # of a user without an entry in /etc/passwd
    is_read_only: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command of the service, whose first word is the program."""
        python = [f"{INSIDE}/venv/bin/python", "-m", "crew_service"]
        given = {
            "PATH": f"{INSIDE}/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": self.home,
            "PYTHONPATH": f"{INSIDE}/repository/service",
            **self.environment,
        }
        rest = (
            "mount -o remount,bind,ro /" if self.is_read_only else f"install -d -o {self.uid} {shlex.quote(self.home)}"
        )
        script = SCRIPT.format(
            inside=INSIDE,
            venv=sys.prefix,
            repository=ROOT,
            python=sys.base_prefix,
            project=self.project,
            state=self.state,
            mode=self.mode,
            user=f"{self.uid}:{self.gid}",
            rest=rest,
            folder=self.folder,
            uid=self.uid,
            gid=self.gid,
            environment=shlex.join(f"{name}={value}" for name, value in given.items()),
            command=shlex.join([*python, *command[1:]]),
        )
        words = [*AS_ROOT, "unshare", "--mount"]
        with log.open("wb") as file:
            return subprocess.Popen(
                [*words, "--propagation", "private", "sh", "-c", script], stdout=file, stderr=subprocess.STDOUT, cwd="/"
            )
