"""Report: prints the figures of the benchmarks with their limits."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics


def introduce(rounds: int) -> None:
    """Print the line above all figures: the machine, and how to read the figures."""
    print(
        f"SQLite {sqlite3.sqlite_version}, every commit synced; {platform.python_version()}, "
        f"{os.cpu_count()} cores; {rounds} interleaved rounds; median of the rounds' ratios "
        "(and their spread), above 1x casque is the faster"
    )


class Report:
    """Counts the limits that were missed."""

    def __init__(self) -> None:
        self._missed = 0
        self._told = 0

    def _verdict(self, limit: str, *, kept: bool) -> str:
        self._told += 1
        self._missed += not kept
        return f"  {limit}: {'pass' if kept else 'MISSED'}"

    def ratios(self, title: str, ratios: list[float], at_least: float | None) -> None:
        """Print one comparison: above 1, casque is faster."""
        median = statistics.median(ratios)
        verdict = ""
        if at_least is not None:
            verdict = self._verdict(f"at least {at_least:g}x", kept=median >= at_least)
        spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"  {title:<52} {median:5.2f}x {spread:<14}{verdict}")

    def amount(self, title: str, amount: float, unit: str, below: float, places: int) -> None:
        verdict = self._verdict(f"below {below:g} {unit}", kept=amount < below)
        print(f"  {title:<52} {amount:.{places}f} {unit}{verdict}")

    def close(self) -> int:
        """Print how many limits were missed, and return the exit code."""
        if self._missed:
            print(f"\n{self._missed} of {self._told} limits missed")
            return 1
        print("\nevery limit kept")
        return 0
