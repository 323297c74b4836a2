"""Syscalls: the writes and syncs of a child process, in order, with its output in between.

Traced with strace; or with a small preloaded library, if strace is missing or forbidden.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void note(const char *what, int fd, const void *said, size_t size) {
    static int log = -1;
    char link[32], path[PATH_MAX], line[PATH_MAX + 128];
    if (log < 0) log = open(getenv("SHIM_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    int end = snprintf(line, sizeof line, "%s %d %s", what, fd, path);
    if (said && size < 100) end += snprintf(line + end, 110, " %.*s", (int)size, (char *)said);
    if (line[end - 1] != '\n') line[end++] = '\n';
    syscall(SYS_write, log, line, end);
}

#define SYNC(name) \
    int name(int fd) { \
        int (*next)(int) = dlsym(RTLD_NEXT, #name); \
        int done = next(fd); \
        if (!done) note("sync", fd, 0, 0); \
        return done; \
    }
#define WRITE_AT(name) \
    ssize_t name(int fd, const void *data, size_t size, off64_t at) { \
        ssize_t (*next)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, #name); \
        ssize_t done = next(fd, data, size, at); \
        if (done >= 0) note("write", fd, 0, 0); \
        return done; \
    }

SYNC(fsync)
SYNC(fdatasync)
WRITE_AT(pwrite)
WRITE_AT(pwrite64)

ssize_t write(int fd, const void *data, size_t size) {
    if (fd == 1) note("say", fd, data, size);
    else note("write", fd, 0, 0);
    return syscall(SYS_write, fd, data, size);
}
"""

Tracer = Literal["strace", "shim"]
TRACERS: tuple[Tracer, ...] = ("strace", "shim")


class Call(NamedTuple):
    """A write to a file or a sync of it; or an output of the child, which is then in `name`."""

    what: Literal["write", "sync", "say"]
    name: str


def trace(tracer: Tracer, folder: Path, code: str, *arguments: str) -> list[Call]:
    """Run a child process and return its calls; files are named without their folder."""
    command = [sys.executable, "-c", code, *arguments]
    return (_by_strace if tracer == "strace" else _by_shim)(folder, command)


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr


# -- strace --------------------------------------------------------------------

_LINE = re.compile(
    r"(?P<call>\w+)\((?P<fd>\d+)<(?P<path>[^>]*)>(, \"(?P<said>[^\"]*)\")?.* = (?P<done>-?\d+)"
)
_WRITES = ("write", "pwrite64", "pwritev", "pwritev2", "writev")


def _by_strace(folder: Path, command: list[str]) -> list[Call]:
    log = folder / "strace.log"
    calls = ",".join([*_WRITES, "fsync", "fdatasync", "sync_file_range"])
    strace = ["strace", "-f", "-y", "-s", "100", "-e", f"trace={calls}", "-o", str(log)]
    _run([*strace, *command], {})
    return list(_told_by_strace(log.read_text().splitlines()))


def _told_by_strace(lines: list[str]) -> Iterator[Call]:
    begun: dict[str, str] = {}
    for line in lines:
        process, _, rest = line.partition(" ")
        text = rest.strip()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>")
            continue
        if text.startswith("<... "):
            text = begun.pop(process) + text.partition("resumed>")[2]
        call = _LINE.match(text)
        if call is None or int(call["done"]) < 0:
            continue
        name = Path(call["path"]).name
        if call["call"] in ("fsync", "fdatasync"):
            yield Call("sync", name)
        elif call["fd"] == "1":
            yield Call("say", call["said"].removesuffix("\\n"))
        elif call["call"] in _WRITES:
            yield Call("write", name)


# -- the shim ------------------------------------------------------------------


def _by_shim(folder: Path, command: list[str]) -> list[Call]:
    source, library, log = (folder / name for name in ("shim.c", "shim.so", "shim.log"))
    source.write_text(SHIM)
    _run(["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(source), "-ldl"], {})
    _run(command, {"LD_PRELOAD": str(library), "SHIM_LOG": str(log)})
    return [_told_by_shim(line) for line in log.read_text().splitlines()]


def _told_by_shim(line: str) -> Call:
    what, _, path, *said = line.split(" ", 3)
    if what == "say":
        return Call("say", said[0])
    return Call("sync" if what == "sync" else "write", Path(path).name)


# -- available tracers ---------------------------------------------------------


def _works(tracer: Tracer, folder: Path) -> bool:
    if not shutil.which("strace" if tracer == "strace" else "cc"):
        return False
    try:
        return Call("say", "here") in trace(tracer, folder, r"import os; os.write(1, b'here\n')")
    except (AssertionError, OSError, subprocess.TimeoutExpired):
        return False


def tracers(folder: Path) -> list[Tracer]:
    """The tracers that work on this machine."""
    return [tracer for tracer in TRACERS if _works(tracer, folder)]


def require(tracer: Tracer, working: list[Tracer]) -> None:
    """Skip the test without this tracer. In CI at least one tracer must work."""
    if tracer in working:
        return
    if os.environ.get("CI") and not working:
        pytest.fail("neither strace nor a C compiler works here: no sync can be counted")
    pytest.skip(f"{tracer} does not work here")
