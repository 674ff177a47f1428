"""Base against strengthened formulations on the same instances: ratios of nodes, time and of the first moving bound.

Prints a Markdown table, one row for a size (m, n, k); every ratio is base / strengthened, so above 1 the strengthening
helps. Ratios are geometric means over the instances that both solved; times are of this machine's processor.

    python benchmarks/hyperplane_clustering.py --m 10 12 14 --n 2 --k 2 --instances 4
"""

import argparse
import itertools

import numpy as np

import lib.methods.hyperplane_clustering as khc

COLUMNS = ["m", "n", "k", "formulation", "solved", "nodes, base", "nodes ratio", "time ratio", "first bound ratio"]


def geometric_mean(ratios: np.ndarray) -> str:
    """Geometric mean of the finite ratios, as a table cell."""
    finite = ratios[np.isfinite(ratios)]
    return f"{np.exp(np.log(finite).mean()):.2f}" if len(finite) else "–"


def first_node_with_bound(points: np.ndarray, k: int, formulation: str, objective: float, time_limit: float) -> float:
    """Nodes until SCIP's lower bound exceeds 1e-4 of the optimum; NaN if it never did within the limit."""
    threshold = 1e-4 * objective
    log = khc.trace_bound(khc.hyperplane_clustering_model(points, k, formulation), time_limit, threshold)
    return float(log[-1, 0]) if log[-1, 1] > threshold else np.nan


def rows(m: int, n: int, k: int, options: argparse.Namespace) -> list[list[str]]:
    """Rows of the table for one size."""
    seeds = range(options.seed, options.seed + options.instances)
    clouds = [khc.make_hyperplane_clusters(m, n, k, np.random.default_rng(s), options.noise)[0] for s in seeds]
    records = {
        formulation: [
            khc.solve_miqcqp(
                khc.hyperplane_clustering_model(points, k, formulation), options.solver, options.time_limit
            )
            for points in clouds
        ]
        for formulation in khc.FORMULATIONS
    }
    missing = {record.status for solved in records.values() for record in solved} & {"solver missing"}
    if missing:
        raise SystemExit(f"{options.solver} is not installed: install it or choose another --solver")
    best = [min((r[i].objective or np.inf) for r in records.values()) for i in range(len(clouds))]
    first = {
        formulation: np.array(
            [
                first_node_with_bound(points, k, formulation, objective, options.time_limit)
                for points, objective in zip(clouds, best, strict=True)
            ]
        )
        for formulation in khc.FORMULATIONS
    }
    table = []
    base = records["2"]
    for formulation in khc.FORMULATIONS:
        solved = records[formulation]
        both = np.array([a.status == b.status == "optimal" for a, b in zip(base, solved, strict=True)])
        nodes, seconds = (
            np.array([getattr(a, field) / max(getattr(b, field), 1e-9) for a, b in zip(base, solved, strict=True)])
            for field in ("nodes", "seconds")
        )
        table.append(
            [
                *map(str, (m, n, k)),
                formulation,
                f"{sum(record.status == 'optimal' for record in solved)}/{len(solved)}",
                f"{np.median([record.nodes for record in base]):.0f}",
                geometric_mean(nodes[both]),
                geometric_mean(seconds[both]),
                geometric_mean(first["2"] / first[formulation]),
            ]
        )
    return table


def main() -> None:
    """Parse the command line, solve, print the table row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--m", type=int, nargs="+", default=[10, 12, 14], help="points")
    parser.add_argument("--n", type=int, nargs="+", default=[2], help="dimensions")
    parser.add_argument("--k", type=int, nargs="+", default=[2], help="hyperplanes")
    parser.add_argument("--instances", type=int, default=4, help="instances of each size")
    parser.add_argument("--noise", type=float, default=0.7, help="deviation around the planted hyperplanes")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for one solve")
    parser.add_argument("--solver", default="scip_direct", choices=khc.SOLVERS, help="Pyomo's name of the solver")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first instance")
    options = parser.parse_args()
    for m, n, k in itertools.product(options.m, options.n, options.k):
        if m <= n * k:
            parser.error(f"m={m} must exceed n * k = {n * k}: fewer points lie on k hyperplanes exactly")
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    for m, n, k in itertools.product(options.m, options.n, options.k):
        for row in rows(m, n, k, options):
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
