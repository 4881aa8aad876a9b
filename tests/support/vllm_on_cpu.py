"""Tasks with vLLM on a CPU: TRL's colocate mode needs two touches there, which a GPU does not.

Importing this sets vLLM up for a CPU. What changes vLLM and TRL happens when a task's data are loaded, which only the
inner runs' processes do.
"""

from __future__ import annotations

import os

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_LOGGING_LEVEL="WARNING",
    HF_HUB_OFFLINE="1",
)

import functools  # noqa: E402
import importlib.util  # noqa: E402

from toy_agents import Coins  # noqa: E402

from derl_gym.tasks.arithmetic import Arithmetic  # noqa: E402
from derl_gym.tasks.mathematics import GSM8K, MATH  # noqa: E402


@functools.cache
def prepare() -> None:
    if importlib.util.find_spec("vllm") is None:
        return
    import torch
    import trl.generation.vllm_generation as generation
    import vllm
    import vllm.model_executor.layers.utils as utils

    def keep_weights(layer, remove_weight):
        # vLLM repacks the weights for the CPU, and then cannot load new ones.
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep_weights
    vllm.LLM = generation.LLM = functools.partial(vllm.LLM, dtype="float32", enforce_eager=True)


class OnVllm:
    """A task's other half: ``class GSM8KOnVllm(OnVllm, GSM8K)``."""

    def load(self, split):
        prepare()
        return super().load(split)


class ArithmeticOnVllm(OnVllm, Arithmetic):
    pass


class GSM8KOnVllm(OnVllm, GSM8K):
    pass


class MATHOnVllm(OnVllm, MATH):
    pass


class CoinsOnVllm(OnVllm, Coins):
    pass
