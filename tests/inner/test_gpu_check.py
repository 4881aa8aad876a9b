"""The GPU check takes the whole path on a CPU: with a tiny policy, and with adapters."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def test_the_architecture_is_that_of_qwen() -> None:
    """494,032,768 parameters with the embeddings, 357,898,112 without, by its configuration on paper."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    specification = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**module.QWEN))
    hidden, wide, keys = 896, 4864, 2 * 64
    attention = 2 * hidden * hidden + 2 * hidden * keys + hidden + 2 * keys  # biases on the queries, keys and values
    layer = attention + 3 * hidden * wide + 2 * hidden
    assert model.num_parameters() == 24 * layer + hidden + 151_936 * hidden == 494_032_768
    assert model.num_parameters(exclude_embeddings=True) == 24 * layer + hidden == 357_898_112


@pytest.mark.slow
def test_it_measures_every_phase(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    settings = {"lora_rank": 4, "backend": "transformers", "eval_examples": 32}
    command = [sys.executable, str(SCRIPT), "--tiny", "--inner", json.dumps(settings), "--out", str(out)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(out.read_text())
    assert found["steps"] == 2 and found["tiny"] and found["config"]["lora_rank"] == 4
    phases = found["phases"]
    assert set(phases) == {"rest", "generate", "score", "rewards", "update", "evaluate"}
    # 2 steps of 16 rollouts: a prompt of 8 digits and at most 16 new tokens; a random policy hardly ever ends before.
    assert 0.9 * 2 * 16 * (8 + 16) <= phases["generate"]["tokens"] == found["tokens"] <= 2 * 16 * (8 + 16)
    assert phases["update"]["tokens"] == phases["generate"]["tokens"]
    assert 32 * 8 < phases["evaluate"]["tokens"] <= 32 * (8 + 16)
    measured = sum(phase["seconds"] for name, phase in phases.items() if name not in ("rest", "evaluate"))
    assert 0 < measured <= found["train_seconds"] + 0.01
    if not found["gpu"]:
        assert "not how fast it is" in shown.stdout
        assert all(phase["utilisation"] is None for phase in phases.values()), "not measured, and not 0"
