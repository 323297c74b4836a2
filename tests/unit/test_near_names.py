"""Which known names a mistyped name probably meant."""

from __future__ import annotations

import pytest

from casque.system.near_names import did_you_mean, near_names

SLIPS = {
    "send_email": [
        *("send_emial", "sned_email", "send_emal", "send_emaill", "send_emai"),
        *("sendemail", "send-email", "Send_Email", "sendEmail", "SEND_EMAIL", "send_eemail"),
    ],
    "charge": ["chrage", "chareg", "charg", "chaarge", "chargge", "Charge"],
    "billing": ["bilingg", "biling", "bililng", "billimg"],
    "mail": ["mial"],
    "shop.tasks.resize_photo": ["shop.tasks.resize_phoot", "shop.taks.resize_photo"],
    "2026_import_orders": ["2026_imoprt_orders"],
}
OTHERS = {
    "charge": [
        *("recharge", "discharge", "charges", "charged", "charger", "change", "large", "surcharge"),
        *("charge_back", "undo_charge", "harge"),
    ],
    "send_email": ["send_emails", "resend_email", "send_sms", "send_mail", "end_email", "email"],
    "import_orders": ["export_orders", "import_order", "import_users"],
    "order_created": ["order_create", "order_creates", "order_updated"],
    "encode": ["decode"],
    "lock": ["unlock", "block", "look", "clock"],
    "step_a": ["step_b"],
    "send_sms": ["send_mms"],
    "part-1": ["part-2", "part-12", "part-l", "part"],
    "2026-01-01": ["2026-01-02"],
    "daily_report": ["day_report", "weekly_report", "daily_export"],
    "sync": ["async", "resync", "syncs"],
    "a": ["b", "ab", "A1"],
    "cart": ["cat"],
    "book": ["bok"],
    "from_trial": ["form_trail"],
    "order_12345": ["order_12435", "order_1234", "order_123345"],
    "→": ["←"],
}


@pytest.mark.parametrize(
    ("typed", "meant"), [(typo, name) for name, typos in SLIPS.items() for typo in typos]
)
def test_one_slip_leads_to_a_near_name(typed: str, meant: str) -> None:
    assert near_names(typed, ["unlike", meant]) == [meant]


@pytest.mark.parametrize(
    ("one", "other"), [(name, other) for name, others in OTHERS.items() for other in others]
)
def test_another_name_is_no_slip(one: str, other: str) -> None:
    assert near_names(other, ["unlike", one]) == []
    assert near_names(one, ["unlike", other]) == []


def test_a_name_is_not_near_itself() -> None:
    assert near_names("same", ["same"]) == []
    assert near_names("x", []) == []


def test_at_most_three_names_are_near() -> None:
    assert near_names("email", [f"emai{letter}l" for letter in "abcd"]) == [
        f"emai{letter}l" for letter in "abc"
    ]


def test_the_question_names_all_of_them() -> None:
    assert did_you_mean(["a"]) == "did you mean 'a'?"
    assert did_you_mean(["a", "b", "c"]) == "did you mean 'a', 'b' or 'c'?"
