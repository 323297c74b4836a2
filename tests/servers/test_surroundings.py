"""The tests see the same environment, however a run is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.servers.client import ROOT

LOOK = """
import os, signal, sys, time

def test_it():
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    child = [sys.executable, "-c", "import signal; print(*map(signal.getsignal, (1, 2, 3, 15)))"]
    sys.stdout.flush()
    os.system(" ".join(f"'{word}'" for word in child))
    print(os.umask(0o022), time.localtime(0).tm_hour, os.environ.get("CASQUE_STORE"))
    print("AWS_PROFILE" in os.environ, os.environ["LANG"], os.path.expanduser("~"))
"""


def test_a_run_with_ignored_signals_and_another_time_zone_sees_the_same_environment(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(LOOK)
    theirs = {"TZ": "Asia/Kolkata", "LANG": "de_DE", "CASQUE_STORE": "x", "AWS_PROFILE": "mine"}
    ours = {name: os.environ[name] for name in ("PATH", "CASQUE_TEST_SERVERS")}
    ignoring = 'trap "" HUP INT QUIT TERM; umask 077; exec "$@"'
    plugin = ["-p", "tests.surroundings", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", *plugin, "--rootdir", str(tmp_path)]
    told = subprocess.run(
        ["sh", "-c", ignoring, "sh", *command, str(tmp_path / "test_it.py")],
        env={**ours, **theirs, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = told.stdout.splitlines()
    assert told.returncode == 0, told.stdout + told.stderr
    assert lines[0] == "True", "Ctrl-C is an interrupt again"
    default = signal.Handlers.SIG_DFL
    interrupt = repr(signal.default_int_handler)
    assert lines[1].replace(interrupt, str(default)) == " ".join([str(default)] * 4)
    assert lines[2] == f"{0o022} 5 None"
    is_theirs, language, home = lines[3].split()
    assert (is_theirs, language) == ("False", "C.UTF-8")
    assert not Path(home).exists(), "it is gone with the run"
    assert home != str(tmp_path)
