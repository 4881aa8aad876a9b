"""The embedded task with vLLM on a CPU: TRL's colocate mode needs two touches there, which a GPU does not.

Importing this changes vLLM and TRL in this process, so only the inner runs' processes import it.
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

from derl_gym.tasks.arithmetic import Arithmetic  # noqa: E402


class ArithmeticOnVllm(Arithmetic):
    """The embedded task; loading its data prepares vLLM, which has to happen in the inner run's own process."""

    def load(self, split):
        prepare()
        return super().load(split)


@functools.cache
def prepare() -> None:
    if importlib.util.find_spec("vllm") is None:
        return
    import torch
    import trl.generation.vllm_generation as generation
    import vllm.model_executor.layers.utils as utils

    def keep_weights(layer, remove_weight):
        # vLLM repacks the weights for the CPU, and then cannot load new ones.
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep_weights
    generation.LLM = functools.partial(generation.LLM, dtype="float32", enforce_eager=True)
