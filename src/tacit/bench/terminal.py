"""What the benchmarks print for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.table import Table

from tacit.printing import plain_console
from tacit.privacy.planner import percent


def print_votes(result: dict[str, Any]) -> None:
    """The simulation of votes, the two spreads that tell most."""
    table = Table(title="Chance of a good winner: published noise / Tacit's noise")
    table.add_column("votes", justify="right")
    shown = [
        p
        for p in result["points"]
        if p["figure"] == "loss deviation" and p["loss_deviation"] in (0.2, 1)
    ]
    columns = sorted({(p["epsilon"], p["loss_deviation"]) for p in shown})
    for epsilon, deviation in columns:
        table.add_column(f"ε {epsilon:g}, spread {deviation:g}", justify="right")
    cells = {(p["votes"], p["epsilon"], p["loss_deviation"]): p for p in shown}
    for number in sorted({p["votes"] for p in shown}):
        row = [cells[number, *column] for column in columns]
        table.add_row(
            str(number),
            *(
                f"{p['published']:.3f} / "
                + ("refused" if p["tacit"] is None else f"{p['tacit']:.3f}")
                for p in row
            ),
        )
    plain_console().print(table)


def print_speed(result: dict[str, Any]) -> None:
    """How much faster candidates are scored, and what halving saves."""
    table = Table(title="100 candidates against a plain loop, in one run")
    for heading in ("model", "times as fast", "on a grid", "seconds", "of the peak", "way"):
        table.add_column(heading, justify="left" if heading in ("model", "way") else "right")
    for row in result["rows"]:
        peak, shared = row.get("share_of_peak"), row.get("shared_epochs_ratio")
        table.add_row(
            row["model"],
            f"{row['ratio']:.1f}",
            "" if shared is None else f"{shared:.1f}",
            f"{row['seconds']:.2f}",
            "" if peak is None else f"{peak:.0%}",
            row["way"],
        )
    halving = Table(title="Successive halving against a full search")
    kind = {"data": "data", "federation": "clients", "space": "space", "cores": "cores"}
    for heading in (*kind.values(), "times as fast", "same best five", "or as good"):
        halving.add_column(heading, justify="left" if heading in ("data", "space") else "right")
    for row in result["halving"]:
        names = [str(row[name]) for name in kind]
        if "skipped" in row:
            halving.add_row(*names, "no data", "", "")
            continue
        halving.add_row(
            *names,
            f"{row['ratio']:.1f}",
            f"{row['agreement']:.0%}",
            f"{row['agreement_with_ties']:.0%}",
        )
    console = plain_console()
    console.print(table)
    console.print(halving)
    for reason in dict.fromkeys(row["skipped"] for row in result["halving"] if "skipped" in row):
        console.print(f"Skipped: {reason}", soft_wrap=True)


def print_scaling(result: dict[str, Any]) -> None:
    """Every measured point, and how each curve grows."""
    table = Table(title="How local evaluation grows")
    for heading in ("curve", "size", "measured", "grows with the power"):
        table.add_column(heading, justify="left" if heading == "curve" else "right")
    last = ""
    for point in result["points"]:
        curve = point["curve"]
        power = result["exponents"][curve]
        found = (
            f"{point['seconds']:.2f} s" if "seconds" in point else f"{point['megabytes']:.0f} MB"
        )
        shown = "" if power is None or curve == last else f"{power:.2f}"
        if last and curve != last:
            table.add_section()
        table.add_row(curve if curve != last else "", str(point["size"]), found, shown)
        last = curve
    plain_console().print(table)


def print_dp_hype(result: dict[str, Any]) -> None:
    """DP-HYPE's comparison by epsilon."""
    recipe = result["recipe"]
    table = Table(
        title=f"{result['table']}: {result['seeds']} seeds, {result['repeats']} draws of noise "
        f"each, {recipe['epochs']} epochs, {recipe['rounds']} rounds",
        caption="test accuracy: mean and 95 % interval over training seeds",
    )
    for heading in ("method", "ε", "Tacit's exact noise", "published noise"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    table.add_row("OPT", "", _spread(result["opt"]), "")
    for epsilon, found in result["vote"].items():
        shown = "∞" if epsilon == "inf" else epsilon
        published = _spread(result["vote_published_noise"][epsilon])
        table.add_row("vote", shown, _spread(found), published)
    table.add_row("RANDGUESS", "", _spread(result["randguess"]), "")
    once = result["protocol"]
    table.add_section()
    table.add_row(
        f"the protocol once, {once['dropped']} of {once['asked']} gone",
        f"{once['epsilon']:g}",
        f"{once['accuracy']:.1%}",
        "",
    )
    plain_console().print(table)


def _spread(found: dict[str, float]) -> str:
    return f"{found['mean']:.1%} ({found['low'] * 100:.1f}–{found['high'] * 100:.1f})"


def print_combine(result: dict[str, Any]) -> None:
    """How good every strategy is, how often it is nearest, and what holds of the paper."""
    rows, wins = result["rows"], result["wins"]
    skews = list(dict.fromkeys(row["skew"] for row in rows))
    table = Table(title=f"Test accuracy, a mean over settings and {result['seeds']} seeds")
    table.add_column("chosen by")
    for skew in skews:
        table.add_column(skew, justify="right")
    table.add_column(f"nearest of {wins['experiments']}", justify="right")
    for name in rows[0]["chosen"]:
        found = [
            [row["chosen"][name]["accuracy"] for row in rows if row["skew"] == skew]
            for skew in skews
        ]
        won = str(wins["won"][name]) if name in wins["won"] else ""
        table.add_row(name, *(percent(sum(one) / len(one)) for one in found), won)
    claims = Table(title="The paper's claims")
    for heading in ("claim", "effect", "95 % interval", "verdict"):
        claims.add_column(heading, justify="right" if heading == "effect" else "left")
    for claim in result["claims"]:
        low, high = claim["low"], claim["high"]
        interval = "needs two seeds" if low is None else f"{low:+.3f} to {high:+.3f}"
        claims.add_row(claim["claim"], f"{claim['effect']:+.3f}", interval, claim["verdict"])
    console = plain_console()
    console.print(table)
    console.print(claims)
    console.print(f"Processor time: {result['core_seconds'] / 60:.1f} minutes.")


def print_averaging(result: dict[str, Any]) -> None:
    """Accuracy against epsilon."""
    rows = result["rows"]
    table = Table("Data", "Clients", "ε", "Accuracy", "Noise of the mean, in every direction")
    seen = dict.fromkeys((row["data"], row["clients"], row["epsilon"]) for row in rows)
    for data, clients, epsilon in seen:
        own = [
            r for r in rows if (r["data"], r["clients"], r["epsilon"]) == (data, clients, epsilon)
        ]
        accuracy = sum(row["accuracy"] for row in own) / len(own)
        noise = f"{own[0]['update_noise'] / own[0]['parameters'] ** 0.5:.2g} x clip"
        table.add_row(data, str(clients), f"{epsilon:g}", f"{accuracy:.3f}", noise)
    plain_console().print(table)


def print_adaptive(result: dict[str, Any]) -> None:
    """Every method's best rate, how much depends on it, and the supplement's claims."""
    table = Table("Random data", "Method", "Best accuracy", "Best less worst rate", "Rates")
    for row in result["table"]:
        numbers = f"{row['best']:.3f}", f"{row['span']:.3f}" if row["rates"] > 1 else ""
        table.add_row(f"{row['random']:.0%}", row["method"], *numbers, str(row["rates"]))
    plain_console().print(table)
    print_claims(result)


def print_feathers(result: dict[str, Any]) -> None:
    """Accuracies and times, F1 against epsilon, and the paper's orderings."""
    table = Table("Clients", "Label skew", "Method", "Accuracy", "Processor seconds")
    for row in result["table"]:
        setting = str(row["clients"]), "yes" if row["skew"] else "no", row["method"]
        table.add_row(*setting, f"{row['accuracy']:.3f}", f"{row['seconds']:.0f}")
    fraud = Table("ε", "F1", "Least to most", "As published, rewards alone, were losses clipped")
    for row, other in zip(result["fraud_table"], result["published"], strict=True):
        price = other["rewards_if_clipped"]
        f1 = f"{row['f1']:.3f}", f"{row['least']:.3f} to {row['most']:.3f}"
        fraud.add_row(f"{row['epsilon']:g}", *f1, "" if price is None else f"ε = {price:.0f}")
    console = plain_console()
    console.print(table)
    console.print(fraud)
    print_claims(result)


def print_selection(result: dict[str, Any]) -> None:
    """Accuracy and its spread against the mean number of runs."""
    table = Table("Data", "Runs", "Mean runs", "Accuracy", "Deviation", "ε of one run", "Watched")
    for row in result["rows"]:
        accuracy = f"{row['accuracy']:.4f}", f"{row['deviation']:.4f}"
        costs = f"{row['single_epsilon']:.2f}", f"{row['watched_epsilon']:.2f}"
        table.add_row(row["data"], row["shape"], f"{row['mean_runs']:g}", *accuracy, *costs)
    for row in result["adaptive"]:
        accuracy = f"{row['accuracy']:.4f}", f"{row['deviation']:.4f}"
        table.add_row(row["data"], "adaptive rate", "1", *accuracy, "", "")
    console = plain_console()
    console.print(table)
    setup = result["setup"]
    console.print(
        f"All at ε = {setup['epsilon']:g}, δ = {setup['delta']:g} (per record, replace-one) "
        "for those who see the result alone."
    )


def print_pareto(result: dict[str, Any]) -> None:
    """Hypervolumes, what proposing takes, and the paper's claims."""
    table = Table("Problem", "Search", "Hypervolume")
    for problem, search in dict.fromkeys((r["problem"], r["acquisition"]) for r in result["rows"]):
        own = [
            r["volumes"][-1]
            for r in result["rows"]
            if (r["problem"], r["acquisition"]) == (problem, search)
        ]
        table.add_row(problem, search, f"{sum(own) / len(own):.4f}")
    for problem, row in result["grids"].items():
        table.add_row(problem, f"grid of {row['points']}", f"{row['volume']:.4f}")
    for problem, row in result["truths"].items():
        table.add_row(problem, "true front", f"{row['volume']:.4f}")
    console = plain_console()
    console.print(table)
    for name in ("nehvi", "hvpoi"):
        console.print(f"Proposing by {name}: {result['overhead'][name]['seconds']:.1f} s in all")
    calls = result["overhead"]["privacy_call"]
    console.print(
        f"One privacy call: {calls['fixed']:.2f} s for lots of a fixed size, "
        f"{calls['poisson']:.2f} s for lots by chance"
    )
    published = ", ".join(f"{name} +{gain:g}" for name, gain in result["published"].items())
    console.print(f"The paper's gains over random search, after 256 points: {published}")
    print_claims(result)


def print_ballots(result: dict[str, Any]) -> None:
    """Regret by method and epsilon on average, what auto needs, and what smoothing harms."""
    summary, console = result["summary"], plain_console()
    shown = [f"ε = {epsilon:g}" for epsilon in summary["epsilons"]]
    for group, found in summary["groups"].items():
        title = f"Regret in points, {group} clients, {found['tables']} real tables"
        table = Table("Method", *shown, title=title, title_justify="left")
        for method, points in found["curves"].items():
            table.add_row(method, *(f"{p['regret']:.1f} ± {p['se']:.1f}" for p in points))
        console.print(table)
        needs = found["needs"]
        console.print(
            f"What the published vote reaches at ε = {needs['published']:g}, auto "
            + ("does not" if needs["auto"] is None else f"reaches at ε = {needs['auto']:.2f}"),
            soft_wrap=True,
        )
    for method, harm in result["mean_harm"].items():
        console.print(
            f"Where neighbours say nothing, {method} is {harm['mean']:+.2f} ± {harm['se']:.2f} "
            f"points worse than plain on average, at most {harm['worst']:+.2f} ± "
            f"{harm['worst_se']:.2f} ({harm['where']})",
            soft_wrap=True,
        )


def print_claims(result: dict[str, Any]) -> None:
    """What became of a paper's claims."""
    table = Table("Claim", "Effect", "95 % interval", "Verdict")
    for one in result["claims"]:
        low, high = one["low"], one["high"]
        interval = "" if low is None else f"{low:+.3f} to {high:+.3f}"
        table.add_row(one["claim"], f"{one['effect']:+.3f}", interval, one["verdict"])
    plain_console().print(table)


def print_encrypted(result: dict[str, Any]) -> None:
    """What the benchmark of multiparty encryption measured."""
    table = Table(title="Multiparty encryption, every party in turn, all keys included")
    for heading in ("method", "clients", "seconds", "MB a client", "squared error", "wrong cells"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for key, name in (("pf_mean", "PF-Mean"), ("pf_dbscan", "PF-DBSCAN")):
        for row in result[key]:
            table.add_row(
                name,
                str(row["clients"]),
                f"{row['seconds']:.2f}",
                f"{row['bytes_per_client'] / 1e6:.1f}",
                f"{row['mse']:g}",
                str(row["mask_errors"]),
            )
    for row in result["pf_dbscan_with_noise"]:
        table.add_row(
            f"PF-DBSCAN, noise for ε = {row['epsilon']:g}",
            str(row["clients"]),
            f"{row['seconds']:.2f}",
            f"{row['bytes_per_client'] / 1e6:.1f}",
        )
    single = Table(title="Single operations")
    for heading in ("operation", "who", "clients", "milliseconds", "MB"):
        single.add_column(heading, justify="left" if heading in ("operation", "who") else "right")
    for row in result["operations"]:
        size = "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.2f}"
        counts = str(row["clients"]), f"{1000 * row['seconds']:.1f}"
        single.add_row(row["operation"], row["who"], *counts, size)
    console = plain_console()
    console.print(table)
    console.print(single)


def print_secure_sum(result: dict[str, Any]) -> None:
    """What the benchmark of the secure sum measured."""
    table = Table(title=f"One masked sum of {result['candidates']} integers a client, in process")
    names = ("clients", "setting", "in sum", "links", "core-s", "peak MB", "up kB", "down kB")
    for name in names:
        table.add_column(name, justify="left" if name == "setting" else "right")
    for point in result["points"]:
        table.add_row(
            str(point["clients"]),
            point["setting"],
            str(point["answered"]),
            str(point["degree"]),
            f"{point['processor_seconds']:.1f}",
            f"{point['peak_megabytes']:.0f}",
            f"{point['upload_bytes_per_client'] / 1000:.1f}",
            f"{point['download_bytes_per_client'] / 1000:.1f}",
        )
    console = plain_console()
    console.print(table)
    for row in result["lossy"]:
        console.print(
            f"{row['opened']} of {row['sums']} sums of {row['clients']} clients opened with "
            f"{result['loss']:.0%} of messages lost; the fewest answers were "
            f"{row['fewest_answers']}."
        )
    growth = result["growth"]
    if growth:
        console.print(
            f"From {growth['from_clients']} to {growth['to_clients']} clients: "
            f"{growth['seconds_ratio']:.1f} times as long; n log n grows "
            f"{growth['n_log_n_ratio']:.1f} times, the number of links "
            f"{growth['links_ratio']:.1f} times."
        )


def print_flower(result: dict[str, Any]) -> None:
    """What a vote over Flower takes, beside Flower itself."""
    table = Table(title="One private vote over Flower")
    for heading in ("nodes", "kind", "messages", "kB up", "kB down", "Flower", "Tacit"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for point in result["points"]:
        table.add_row(
            str(point["nodes"]),
            point["kind"],
            str(point["messages"]),
            f"{point['bytes_up_a_node'] / 1000:.1f}",
            f"{point['bytes_down_a_node'] / 1000:.1f}",
            f"{point['flower_seconds']:.2f} s",
            f"{point['our_seconds']:.2f} s",
        )
    table.caption = "kB: a node. Flower: as many rounds of empty messages. Tacit: what is beyond."
    plain_console().print(table)


def print_ledger(result: dict[str, Any]) -> None:
    """What a ledger's length costs, and how long rivals wait."""
    table = Table(title="A ledger of so many charges")
    for heading in ("charges", "releases", "first charge, s", "next, s", "verify, s"):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        taken = [row[f"{what}_seconds"] for what in ("first", "next", "verify")]
        cells = (f"{seconds:.3f}" for seconds in taken)
        table.add_row(f"{row['lines']:,}", row["releases"], *cells)
    plain_console().print(table)
    for found in result["rivals"]:
        plain_console().print(
            f"{found['processes']} processes charged {found['charges_each']:,} times each, "
            f"{found['releases']}: {found['recorded']:,} charges recorded, the longest wait was "
            f"{found['longest_wait_seconds']:.2f} s, of first charges "
            f"{found['longest_first_seconds']:.2f} s."
        )


def print_noise(result: dict[str, Any]) -> None:
    """What noise without holes costs a step."""
    table = Table(title="A step of DP-SGD with rounded normals, and before")
    table.add_column("model", no_wrap=True)
    for heading in ("lot", "places", "step, ms", "before, ms", "noise, ms", "times as long"):
        table.add_column(heading, justify="right")
    for row in result["rows"]:
        milliseconds = [row[f"{what}_milliseconds"] for what in ("step", "before", "noise")]
        table.add_row(
            row["model"],
            str(row["lot"]),
            f"{row['places'] * row['lot']:.0f}",
            *(f"{value:.2f}" for value in milliseconds),
            f"{row['ratio']:.2f}",
        )
    table.caption = (
        "Places: rows computed for a lot. Before: a whole step in single precision, whose noise "
        "has holes. Noise: the part of the step that draws it."
    )
    plain_console().print(table)


PRINTED: dict[str, Callable[[dict[str, Any]], None]] = {
    "adaptive": print_adaptive,
    "averaging": print_averaging,
    "ballots": print_ballots,
    "combine": print_combine,
    "dp-hype": print_dp_hype,
    "encrypted": print_encrypted,
    "feathers": print_feathers,
    "flower": print_flower,
    "ledger": print_ledger,
    "noise": print_noise,
    "pareto": print_pareto,
    "scaling": print_scaling,
    "secure-sum": print_secure_sum,
    "selection": print_selection,
    "speed": print_speed,
    "votes": print_votes,
}
"""What is printed of every benchmark, by its name."""
