"""The reference run: training with the outcome reward, whose FLOPs cap the other inner runs (paper appendix H).

Some rewards make the policy write longer outputs, which lengthens its training. The reference run says what an
ordinary training takes. It is a trial like any other, in the ledger and in the shared cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from derl_gym.envs.inner_runs import InfrastructureFailure, InnerRuns, Trial, what_next
from derl_gym.trials.ledger import Ledger


def training_flops(
    runs: InnerRuns,
    ledger: Ledger,
    trial: Trial,
    payload: Callable[[], dict[str, Any]],
    announce: Callable[[], None],
) -> float:
    """Floating point operations of the reference run's training, evaluation left out.

    Args:
        runs: Looks the trial up, or trains it.
        ledger: Where it is recorded.
        trial: The reference run.
        payload: Makes what the inner run is given; called only when it must be trained.
        announce: Called before it is trained.

    Raises:
        InfrastructureFailure: when it failed for good. There is no cap without it, so this is raised whatever
            ``on_infrastructure_failure`` says.
        ValueError: when the outcome reward is undefined on a real rollout.
    """
    row = runs.known(ledger, trial)
    if row is None:
        announce()
        with contextlib.closing(runs.train(ledger, {trial.identity: trial}, {trial.identity: payload()})) as rows:
            (row,) = rows
    if row["status"] == "failed":
        raise InfrastructureFailure(
            f"the reference run with {trial.program}, which inner.max_flops_ratio asks for, failed for good: "
            f"{row['reason']}; " + what_next([row["reason"]], ledger.run_dir, "tries it once more")
        )
    if row["status"] == "invalid":
        raise ValueError(
            f"the reference run with {trial.program}, which inner.max_flops_ratio asks for, is invalid "
            f"({row['reason']}): set max_flops, or inner={{'max_flops_ratio': None}}"
        )
    result = row["result"]
    return float(result["flops"] - result.get("eval_flops", 0.0))
