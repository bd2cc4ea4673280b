"""Who misbehaves in a sum is named where people look: in the result, its text, and on its page."""

from __future__ import annotations

import html
import json
from dataclasses import fields
from pathlib import Path

import numpy as np

from tacit.charged_questions import ChargedQuestions
from tacit.privacy.accounting import Budget
from tacit.report import write_run
from tacit.tuners.voting import Vote
from tacit.tuning import conclude
from tests.federations import SPACE, channel, federation, likes
from tests.test_transcripts import AccusingEndpoint

TOLD = "client 2 complained about a neighbour's shares without cause"


def test_a_member_that_misbehaves_is_named_in_the_result_and_on_its_page(tmp_path: Path) -> None:
    budget = Budget(30.0, 1e-5)
    built = federation([likes(0.5)] * 6, 139.0, budget=budget, dropout=2)
    local = channel(built)
    endpoints = list(local.endpoints)
    own = {field.name: getattr(endpoints[2], field.name) for field in fields(endpoints[2])}
    endpoints[2] = AccusingEndpoint(**own)
    local.endpoints = endpoints
    method = Vote(2, 10)
    outcome = method.tune(ChargedQuestions(built), SPACE, np.random.default_rng(1))
    result = conclude(method, outcome, built, budget)
    assert result.faults == (TOLD,)
    assert TOLD in str(result)
    write_run(result, "", tmp_path)
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept["faults"] == [TOLD]
    pages = "".join(page.read_text() for page in tmp_path.glob("*.html"))
    assert f"Misbehaved: {TOLD}." in html.unescape(pages)
