"""Which known names a mistyped name probably meant."""

from __future__ import annotations

import pytest

from casque.system.near_names import did_you_mean, near_names


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("send_emial", ["charge", "send_email"], ["send_email"]),
        ("emial", ["email"], ["email"]),
        ("bilingg", ["billing", "mail"], ["billing"]),
        ("send_sms", ["send_email"], []),
        ("part-2", ["part-1", "part-12"], []),
        ("2026-01-01", ["2026-01-02"], []),
        ("same", ["same"], []),
        ("x", [], []),
        ("aaaaa", [f"aaaaa{letter}" for letter in "bcdef"], ["aaaaaf", "aaaaae", "aaaaad"]),
    ],
)
def test_names_are_near_if_a_slip_explains_the_difference(
    name: str, known: list[str], near: list[str]
) -> None:
    assert near_names(name, known) == near


def test_the_question_names_all_of_them() -> None:
    assert did_you_mean(["a"]) == "did you mean 'a'?"
    assert did_you_mean(["a", "b", "c"]) == "did you mean 'a', 'b' or 'c'?"
