from __future__ import annotations

import copy
import json
import math
import platform
import re
from html.parser import HTMLParser
from importlib import metadata
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

import tacit
from tacit.report import render
from tacit.result import (
    COVERS,
    COVERS_NOTHING,
    CURIOUS_SERVER,
    ENCRYPTED_SERVER,
    OPEN_SERVER,
    SIGNED_SERVER,
)
from tacit.tuners.tuner import Tuner

PLAN = '[method]\nname = "vote"\nvotes = 5\n'
SIGMA = 12.4
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'</pre></td>"


def guarantee(epsilon: float) -> dict[str, Any]:
    return {
        "epsilon": epsilon,
        "delta": 1e-5,
        "setting": "a simulation",
        "accounting": "exact worst pair, privacy-loss distribution",
        "unit": "client",
        "relation": "replace-one",
    }


def vote() -> dict[str, Any]:
    counts = [3, 61, -10, 34]
    candidates = [{"learning_rate": 10.0**-i, "optimizer": f"kind{i}"} for i in range(4)]
    return {
        "method": "vote",
        "config": candidates[1],
        "candidates": candidates,
        "tally": counts,
        "clients": {"planned": 50, "asked": 50, "answered": 49, "dropped": 1},
        "privacy": {
            **guarantee(0.99991),
            "mechanism": "skellam",
            "required_variance": 138.9163,
            "delivered_variance": SIGMA**2,
            "dropout": 5,
            "colluding": 0,
            "server": CURIOUS_SERVER,
            "covers": COVERS,
        },
        "accuracy": 0.97312,
        "note": "",
        "seconds": {"evaluate": 12.0, "open": 0.5},
        "bytes": {"evaluate": {"up": 5000, "down": 20_000}, "open": {"up": 1000, "down": 4000}},
        "evaluation": {
            "local": "halving",
            "ways": ["2 x 50 candidates stacked, on 2 cores"],
            "trials": {},
            "not_stacked_because": ["<Conv2d> cannot be stacked"],
            "peak_megabytes": 412.3,
        },
    }


def ledger(epsilon: float = 0.99991, kind: str = "skellam") -> dict[str, Any]:
    line = {
        "number": 3,
        "run": "run-1",
        "label": "the question",
        "event": {"kind": kind},
        "alone": guarantee(epsilon),
        "total": guarantee(epsilon + 0.5),
        "time": "2026-11-15T23:51:19+00:00",
    }
    return {
        "federation": "hospitals",
        "budget": {"epsilon": 4.0, "delta": 1e-5},
        "lifetime": guarantee(epsilon + 0.5),
        "run": "run-1",
        "lines": [line],
    }


def in_clear() -> dict[str, Any]:
    result = vote()
    result.update(method="combine", tally=None)
    result["clients"] = {"asked": 0, "answered": 0, "dropped": 0}
    result["privacy"].update(
        epsilon="inf",
        mechanism="none",
        required_variance=None,
        delivered_variance=None,
        covers=COVERS_NOTHING,
    )
    return result


def own_part(page: str) -> str:
    """The page without plotly.js."""
    library = get_plotlyjs()
    assert page.count(library) <= 1
    return page.replace(library, "")


class Reader(HTMLParser):
    """Every tag with its attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.words.append(data + ("" if data.endswith(" ") else " "))


def cells(page: str, before: str) -> list[list[str]]:
    """The rows of the first table after some words."""
    body = page[page.index(before) :]
    body = body[body.index("<tbody>") : body.index("</tbody>")]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr.*?</tr>", body)]


def strong(page: str) -> list[str]:
    """The first row that stands out."""
    found = re.search("<tr class=strong>(.*?)</tr>", page)
    assert found
    return re.findall(r"<td[^>]*>(.*?)</td>", found.group(1))


def text_of(result: dict[str, Any], lines: dict[str, Any]) -> str:
    return Reader(own_part(render(result, PLAN, lines))).text


def test_shows_the_chosen_configuration_its_accuracy_and_the_method() -> None:
    text = text_of(vote(), ledger())
    assert "learning_rate 0.1 optimizer kind1" in text
    assert "97.31% accuracy on the public test split" in text
    assert "vote method, 4 candidates" in text
    assert "49 of 50 clients answered" in text


def test_leaves_accuracy_out_where_nothing_was_trained() -> None:
    assert "accuracy on the public" not in text_of(vote() | {"accuracy": None}, ledger())


def test_ranks_all_candidates_and_marks_the_winner() -> None:
    page = own_part(render(vote(), PLAN, ledger()))
    assert cells(page, "All 4 candidates") == [
        ["1", "61", "92%", "0.1", "kind1"],
        ["2", "34", "8%", "0.001", "kind3"],
        ["3", "3", "under 1%", "1", "kind0"],
        ["4", "-10", "under 1%", "0.01", "kind2"],
    ]
    assert strong(page) == ["1", "61", "92%", "0.1", "kind1"]


def test_a_run_off_is_shown_with_its_own_noise_before_the_first_vote() -> None:
    held = {"candidates": [vote()["candidates"][i] for i in (3, 1)], "tally": [20, 27]}
    page = own_part(render(vote() | {"run_off": held | {"variance": 30.25}}, PLAN, ledger()))
    assert "A second vote among 2 finalists of the first decided" in page
    assert "noise in each count has σ = 5.5" in page
    assert "0.90" in page, "a gap of 7 is 0.9 standard deviations of a difference"
    assert strong(page) == ["27", "50%", "0.1", "kind1"]
    assert page.index(">run-off count<") < page.index(">released count<")


def test_puts_the_chosen_one_first_among_equals() -> None:
    result = vote() | {"tally": [61, 61, 61, 2]}
    page = own_part(render(result, PLAN, ledger()))
    assert strong(page) == ["1", "61", "33%", "0.1", "kind1"]


def test_chart_draws_the_released_counts_and_the_noise_band() -> None:
    page = own_part(render(vote(), PLAN, ledger()))
    assert '"y":[61,34,3,-10]' in page
    assert f'"y0":{-2 * SIGMA},"y1":{2 * SIGMA}' in page
    assert '"#d9702b","#3b7dc4","#3b7dc4","#3b7dc4"' in page


def test_says_how_sure_the_choice_is_and_what_that_assumes() -> None:
    # The difference of two counts has a deviation of sqrt(2) 12.4 = 17.54; 27 / 17.54 = 1.54.
    text = text_of(vote(), ledger())
    assert "1.54 standard deviations of a difference: 61 against 34 of the runner-up" in text
    assert "92% chance that it truly has the most votes" in text
    assert "2 candidates hold the true leader with a chance of 95%" in text
    assert "Read the leaders as a group" in text
    assert "draws of one normal distribution" in text
    assert "released counts and public numbers alone, so they cost no privacy" in text
    assert "within ±24.8 of the true ones" in text


def test_does_not_belittle_a_clear_gap() -> None:
    text = text_of(vote() | {"tally": [3, 161, -10, 34]}, ledger())
    assert "7.24 standard deviations" in text
    assert "over 99% chance" in text
    assert "Read the leaders as a group" not in text


def test_a_tie_is_no_evidence() -> None:
    text = text_of(vote() | {"tally": [3, 34, -10, 34]}, ledger())
    assert "0.00 standard deviations" in text
    assert "Read the leaders as a group" in text


def test_says_so_if_the_chosen_one_does_not_lead_the_tally() -> None:
    text = text_of(vote() | {"tally": [3, 34, -10, 61]}, ledger())
    assert "The chosen configuration is not the leader of this tally" in text
    assert "8% chance that it truly has the most votes" in text


def test_draws_no_band_without_noise() -> None:
    page = own_part(render(in_clear() | {"tally": [3, 61, -10, 34]}, PLAN, ledger(math.inf)))
    assert "has 61 votes, the runner-up 34. No noise was added" in page
    assert "shapes" not in page


def test_states_the_guarantee_with_epsilon_rounded_up() -> None:
    text = text_of(vote(), ledger())
    assert "run run-1 of the federation hospitals released is (ε, δ)-diff" in text
    assert "differentially private at client level (replace-one), with ε = 1.000" in text
    assert "The server saw the noisy sums only; what single clients sent was masked. Other" in text
    assert "nothing but what the released sums tell. It assumes that who takes part" in text
    assert "The server must follow the protocol, since clients held no roster of keys" in text
    assert "Not covered: how long a client takes to answer" in text
    assert "Setting: a simulation. In its lifetime so far, the federation hospitals has" in text
    assert "has spent ε = 1.500 at δ = 0.00001 (client level, replace-one), this run incl" in text
    assert "δ = 0.00001" in text
    assert "exp(ε) = 2.719" in text  # e^0.99991 is 2.71804
    assert "Against whom honest-but-curious server" in text
    assert "What the server saw the noisy sums only" in text
    assert "that at most 5 of 50 clients drop out (1 of 50 did) and that none tells others" in text
    assert "holds while at most 5 of 50 clients drop out; 1 of 50 did" in text
    assert "holds against a curious client too, who knows its own noise, but not against" in text
    assert "variance required 138.9 (σ = 11.8), delivered 153.8 (σ = 12.4)" in text
    assert f"Covers {COVERS}" in text
    assert "epsilon 0.99991 delta 1e-05 required variance 138.9163" in text


def test_tells_how_many_colluders_were_planned_for() -> None:
    result = vote()
    result["privacy"]["colluding"] = 3
    text = text_of(result, ledger())
    assert "and that at most 3 of them tell others their noise" in text
    assert "holds while at most 3 of 50 clients tell others their noise; a curious client" in text


def test_a_roster_is_part_of_the_assumptions() -> None:
    result = vote()
    result["privacy"]["server"] = SIGNED_SERVER
    assert "The roster of keys that every client holds must be genuine" in text_of(result, ledger())


def test_a_run_that_may_stop_early_is_quoted_by_its_budget() -> None:
    result = vote() | {"method": "feathers", "tally": None}
    result["privacy"]["epsilon"] = 5.5
    plan = "[privacy]\nepsilon = 8.0\n"
    text = Reader(own_part(render(result, plan, ledger(5.5)))).text
    assert "with ε = 8.0 and δ = 0.00001" in text
    assert "What was asked costs ε = 5.5, less for a run that stops early" in text
    assert "not proved. Proved is the budget, ε = 8.0" in text
    assert "exp(ε) = 2981" in text
    usual = Reader(own_part(render(result | {"method": "vote"}, plan, ledger(5.5)))).text
    assert "with ε = 5.5 and" in usual
    assert "Proved is the budget" not in usual


def test_a_federation_without_a_name_has_no_lifetime_to_speak_of() -> None:
    text = text_of(vote(), ledger() | {"federation": "this-run"})
    assert "What run run-1 released is" in text
    assert "its ledger begins and ends with this run" in text


def test_warns_that_a_plain_sum_does_not_protect_from_the_server() -> None:
    result = vote()
    result["privacy"]["server"] = OPEN_SERVER
    text = text_of(result, ledger())
    assert "Not protected from the server." in text
    assert "What the server saw every client’s noisy answer" in text
    assert "ε at δ = 0.00001, not against the server" in text


def test_an_infinite_epsilon_is_a_warning_and_no_statement() -> None:
    page = render(in_clear(), PLAN, ledger(math.inf, "unprotected"))
    text = Reader(page).text
    assert '<div class="warning" role="alert"><strong>No privacy guarantee' in page
    assert "<blockquote>" not in page
    assert "What the server saw clients’ answers in clear, to “the question”" in text
    assert "There is no tally: the method “combine” had clients answer in clear" in text
    assert "spent so far ∞ 0.00001 budget 4.0 0.00001" in text


def test_an_encrypted_run_without_noise_says_what_was_hidden_and_what_was_not() -> None:
    found = in_clear()
    found["privacy"].update(
        server=ENCRYPTED_SERVER, accounting="none: sums were opened without noise"
    )
    text = text_of(found, ledger(math.inf, "unprotected"))
    assert "the method “combine” opened sums, but no count for each candidate" in text
    assert "No privacy guarantee" in text
    assert "exact outputs, without noise, of “the question”; answers were encrypted" in text
    assert "nothing is learned beyond the opened outputs" in text


def test_a_note_stands_beside_the_choice() -> None:
    assert "Note: no cell was dense." in text_of(vote() | {"note": "no cell was dense"}, ledger())
    assert "Note" not in text_of(vote(), ledger())


def test_a_page_without_tally_needs_no_plotly() -> None:
    page = render(in_clear(), PLAN, ledger(math.inf, "unprotected"))
    assert get_plotlyjs() not in page
    assert len(page) < 30_000


def test_shows_the_ledger() -> None:
    text = text_of(vote(), ledger())
    assert "3 the question skellam 1.000 1.500 2026-11-15T23:51:19+00:00" in text
    assert "spent so far 1.500 0.00001 budget 4.0 0.00001" in text


def test_tells_how_simulated_clients_trained_and_nothing_of_real_ones() -> None:
    words = text_of(vote(), ledger())
    assert "bad candidates were given up early: 2 x 50 candidates stacked, on 2 cores" in words
    assert "not stacked: <Conv2d> cannot be stacked. This process held at most 412 MB" in words
    assert "given up early" not in text_of(vote() | {"evaluation": None}, ledger())


def test_adds_up_time_and_bytes() -> None:
    text = text_of(vote(), ledger())
    assert "evaluate 12.00 s 5.0 kB 20.0 kB 500 B" in text
    assert "total 12.50 s 6.0 kB 24.0 kB 600 B" in text


def test_ends_with_the_plan_and_the_versions() -> None:
    page = own_part(render(vote(), PLAN, ledger()))
    assert "<pre>[method]\nname = &quot;vote&quot;\nvotes = 5\n</pre>" in page
    text = Reader(page).text
    assert f"tacit {metadata.version('tacit')} python {platform.python_version()} numpy" in text
    recorded = text_of(vote() | {"versions": {"tacit": "0.0.7", "torch": "9.9"}}, ledger())
    assert recorded.endswith("tacit 0.0.7 torch 9.9")


def test_text_from_the_data_never_becomes_markup() -> None:
    def page(word: str) -> Reader:
        result, lines = copy.deepcopy(vote()), ledger()
        for candidate in result["candidates"]:
            candidate["optimizer"] = candidate[word] = word
        for name in ("unit", "relation", "mechanism", "server", "accounting", "covers"):
            result["privacy"][name] = word
        result["method"] = lines["federation"] = lines["run"] = word
        lines["lifetime"]["accounting"] = word
        lines["lines"][0].update(label=word, time=word, event={"kind": word})
        for costs in (result["seconds"], result["bytes"]):
            costs[word] = costs.pop("open")
        result["versions"] = {word: word}
        return Reader(own_part(render(result, word, lines)))

    harmless, hostile = page("harmless"), page(HOSTILE)
    assert hostile.tags == harmless.tags
    assert hostile.text.count("<script>alert(1)") == harmless.text.count("harmless") > 20


def test_markup_in_a_hover_text_is_shown_not_drawn() -> None:
    result = vote()
    result["candidates"][0]["optimizer"] = "<b>bold</b></script>"
    page = own_part(render(result, PLAN, ledger()))
    hover = re.search(r'"customdata":\[(.*?)\]', page)
    assert hover
    assert "&lt;b&gt;bold" in json.loads(f"[{hover.group(1)}]")[2]


def test_loads_nothing_from_anywhere() -> None:
    page = own_part(render(vote(), PLAN, ledger()))
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    tags = Reader(page).tags
    assert {tag for tag, _ in tags}.isdisjoint({"link", "img", "iframe", "object", "base"})
    assert {name for _, attributes in tags for name, _ in attributes}.isdisjoint({"src", "href"})
    assert "default-src 'none'" in page


def test_is_smaller_than_six_megabytes_with_plotly_inside() -> None:
    page = render(vote(), PLAN, ledger())
    assert get_plotlyjs() in page
    assert len(page.encode()) < 6_000_000


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [
        (tacit.Vote(votes=3, candidates=16), 1.0),
        (tacit.RandomGuess(candidates=16), 1.0),
        (tacit.Combine("mean", "clear", candidates=16), math.inf),
    ],
)
def test_renders_what_a_real_run_wrote(method: Tuner, epsilon: float) -> None:
    def loss(config: dict[str, Any]) -> float:
        return float((config["x"] - 0.5) ** 2)

    budget = tacit.Budget(epsilon, 1e-5)
    result = tacit.tune([loss] * 12, {"x": tacit.Float(0.0, 1.0)}, method, budget, seed=1)
    written, lines = (json.loads(json.dumps(part)) for part in (result.to_json(), result.ledger))
    text = text_of(written, lines)
    assert f"x {result.config['x']:.6g}" in text
    assert ("No privacy guarantee" in text) == math.isinf(epsilon)
    assert ("standard deviations of a difference" in text) == (result.tally is not None)
