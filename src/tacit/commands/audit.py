"""``tacit audit``: run the real code on the worst neighbours, and compare with what is claimed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from tacit.audits.auditing import ERROR, FULL, QUICK, Finding, chosen, record, run
from tacit.commands.options import AsJson, filling, fresh_folder, number, whole
from tacit.files import json_text, write_whole
from tacit.page import command_line, versions
from tacit.printing import plain_console, styled
from tacit.privacy.accounting import LARGEST_EPSILON, LEAST_EPSILON
from tacit.terminal import counting_bar, print_json

FAILED = 1
"""Exit code of an audit that found a false claim."""
MOST_RUNS = 10**10


def audit(
    method: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="vote, auto, averaging, rewards, fedex, cells, dp-sgd, dp-sgd-steps, selection, "
            "front or record; default: all.",
        ),
    ] = None,
    epsilon: Annotated[
        float, typer.Option(parser=number, metavar="NUMBER", help="The budget of every method.")
    ] = 3.0,
    runs: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Runs a world, beside those through the whole federation, which are as many as "
            "with --quick; default: what each method needs.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer runs, in two minutes.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the result and the journal.")] = None,
    as_json: AsJson = False,
) -> None:
    """Audit what Tacit claims: can anybody tell two neighbours apart better than epsilon allows?

    Runs the real client path on two neighbouring worlds, many times, and computes a lower bound of
    epsilon that holds with the stated confidence. Writes audit.json to the folder, and continues
    after a kill if the folder is given again. Exit code 1: a bound exceeds its claim, so the claim
    is false.

    Example: tacit audit vote --quick
    """
    if quick and runs is not None:
        raise ValueError(f"found --quick and --runs {runs}; allowed is one of them")
    if runs is not None and not 1 <= runs <= MOST_RUNS:
        raise ValueError(f"--runs is {runs}; allowed is 1 to {MOST_RUNS}")
    if not LEAST_EPSILON <= epsilon <= LARGEST_EPSILON:
        raise ValueError(
            f"--epsilon is {epsilon:g}; allowed is {LEAST_EPSILON:g} to {LARGEST_EPSILON:g}"
        )
    methods = chosen(method)
    name = QUICK if quick else FULL
    folder = out or fresh_folder("audit")
    go_on = f"Go on with the same command and --out {folder}"
    with filling(folder, go_on), counting_bar("pieces of runs") as progress:
        findings = run(methods, epsilon, name if runs is None else runs, folder, progress)
    told = {
        **record(findings, epsilon, name if runs is None else f"{runs} runs"),
        "command": command_line(),
        "versions": versions(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "audit.json", json_text(told) + "\n")
    if as_json:
        print_json(told)
    else:
        _print(findings, 1 - ERROR, folder)
    failures = [sentence for finding in findings for sentence in finding.failures]
    if failures:
        console = plain_console(stderr=True, soft_wrap=True)
        for sentence in failures:
            console.print(f"tacit: {sentence}", style="red")
        raise typer.Exit(FAILED)


def _print(findings: Sequence[Finding], confidence: float, folder: Path) -> None:
    console = plain_console(soft_wrap=True)
    table = Table("Method", "ε", *(f"δ {point.delta:.0e}" for point in findings[0].curve))
    for finding in findings:
        table.add_row(finding.method, "claimed", *(f"{p.claimed:.3f}" for p in finding.curve))
        audited = (
            Text(f"{p.audited:.3f}", "red" if p.audited > p.claimed else "") for p in finding.curve
        )
        verdict = Text("false" if finding.failures else "", "red")
        table.add_row(verdict, "at least", *audited, end_section=True)
    console.print(table)
    for finding in findings:
        runs = " and ".join(f"{n:,} through {path}" for path, n in finding.runs.items())
        reached = f"The bound reaches {finding.tightness:.0%} of the claim"
        if math.isinf(finding.tightness):
            reached = "Nothing was charged, so nothing is claimed"
        console.print(
            styled(
                finding.method,
                "bold",
                f", per {finding.unit}, {finding.relation}: {finding.worlds}. Runs a world: "
                f"{runs}. {reached} at δ = {finding.curve[0].delta:g}.",
            )
        )
    console.print(
        f"All bounds hold together with a confidence of {confidence:.4%}. A bound below its claim "
        "does not prove the claim: these worlds and these tests found nothing against it."
    )
    console.print(f"Result: {folder / 'audit.json'}")
