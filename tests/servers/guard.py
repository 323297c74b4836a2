"""Runs a server and ends it when standard input ends: with whoever started it, however that went.

`python guard.py command…`
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main() -> int:
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def wait() -> None:
        server.wait()
        os._exit(server.returncode or 1)  # it was to run on

    threading.Thread(target=wait, daemon=True).start()
    sys.stdin.read()
    server.terminate()
    try:
        server.wait(5)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    return 0


if __name__ == "__main__":
    os._exit(main())
