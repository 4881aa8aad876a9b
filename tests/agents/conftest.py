"""A synthetic stand-in for the reward-design environment: same face, no inner runs, a score in microseconds."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from derl_gym.programs import Grammar, InvalidProgram, ProgramSpace, RewardProgram, UndefinedReward, states_of

TARGET = np.array([2.0, 1.0, -1.0, 1.0])
PRIMITIVES = tuple(
    SimpleNamespace(name=f"g{i + 1}", description=f"signal {i + 1}", values=(0.0, 1.0), low=0.0, high=1.0)
    for i in range(4)
)


def synthetic_score(program: RewardProgram, states: np.ndarray) -> float:
    """exp(-4 (1 - cos)) between the program's linear coefficients over the binary states and TARGET."""
    rewards = program(states)
    design = np.column_stack([states, np.ones(len(states))])
    weights = np.linalg.lstsq(design, rewards, rcond=None)[0][:4]
    norm = np.linalg.norm(weights)
    return 0.0 if norm < 1e-9 else float(np.exp(-4 * (1 - weights @ TARGET / norm / np.linalg.norm(TARGET))))


class SyntheticEnvs(VectorEnv):
    """n programs per step, scored by :func:`synthetic_score`, or by ``score`` when given (text -> float)."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, run_dir, num_envs=8, outer_steps=12, score=None, max_length=32):
        self.num_envs, self.outer_steps, self.run_dir, self.score = num_envs, outer_steps, Path(run_dir), score
        self.programs = ProgramSpace(Grammar(k=4, max_length=max_length))
        self.mask_kind = "grammar"
        self.proposer = "small"
        self.primitives = PRIMITIVES
        self.states = states_of(PRIMITIVES)
        self.instruction = "Write a reward program over g1, g2, g3, g4 with + - * / ** such as g1+0.5*g2."
        self.single_action_space = self.programs
        self.action_space = batch_space(self.programs, num_envs)
        self.single_observation_space = spaces.Dict(progress=spaces.Box(0, 1, (1,), np.float32))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.episode, self.outer_step, self.scored = -1, 0, 0

    @property
    def group_size(self):
        return self.num_envs

    def equivalence_key(self, text):
        try:
            return RewardProgram.parse(text, k=4).equivalence_key(self.states)
        except InvalidProgram:
            return None

    def _file(self, name):
        folder = self.run_dir / f"episode-{self.episode}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def recorded_actions(self):
        file = self._file("actions.json")
        return [np.array(actions) for actions in json.loads(file.read_text())] if file.exists() else []

    @contextlib.contextmanager
    def checkpoint(self):
        aside = self._file("aside")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        yield aside
        aside.rename(self._file(f"checkpoint-{self.outer_step:04d}"))

    def last_checkpoint(self):
        found = sorted(self._file("x").parent.glob("checkpoint-*"))
        return (int(found[-1].name[-4:]), found[-1]) if found else None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.outer_step = self.episode + 1, 0
        return self._observation(), self._infos([{"instruction": self.instruction, "seed": seed}] * self.num_envs)

    def step(self, actions):
        assert self.action_space.contains(actions), actions
        recorded = self.recorded_actions()
        if self.outer_step < len(recorded):
            assert np.array_equal(recorded[self.outer_step], actions), "replay of other programs"
        else:
            recorded.append(actions)
            self._file("actions.json").write_text(json.dumps([np.asarray(a).tolist() for a in recorded]))
            self.scored += 1
        rows = [self._score(self.programs.decode(row)) for row in actions]
        self.outer_step += 1
        scores, infos = np.array([row.pop("score") for row in rows]), self._infos(rows)
        over = np.full(self.num_envs, self.outer_step >= self.outer_steps)
        observation = self._observation()
        if over.all():
            final = infos
            observation, infos = self.reset()
            infos |= {"final_info": final, "_final_info": over.copy()}
        return observation, scores, over, np.zeros(self.num_envs, dtype=bool), infos

    def _score(self, text):
        row = {"program": text, "status": "scored", "reason": "", "key": self.equivalence_key(text) or "", "score": 0.0}
        try:
            program = RewardProgram.parse(text, k=4)
            row["score"] = self.score(text) if self.score else synthetic_score(program, self.states)
        except (InvalidProgram, UndefinedReward) as error:
            row |= {"status": "invalid", "reason": str(error)}
        return row

    def _observation(self):
        return {"progress": np.full((self.num_envs, 1), self.outer_step / self.outer_steps, dtype=np.float32)}

    def _infos(self, rows):
        infos = {}
        for slot, row in enumerate(rows):
            infos = self._add_info(infos, dict(row), slot)
        return infos


@pytest.fixture
def make_envs(tmp_path):
    """Synthetic environments over one run directory per name."""

    def make(name="run", **arguments):
        return SyntheticEnvs(tmp_path / name, **arguments)

    return make


@pytest.fixture(scope="session")
def stories260k():
    """Folder of a real pretrained model of 260,032 parameters."""
    folder = Path(os.environ.get("DERL_GYM_DATA", "nowhere")) / "stories260k"
    if not folder.is_dir():
        pytest.skip("needs the stories260k model in $DERL_GYM_DATA/stories260k")
    return folder


class StubServer:
    """An OpenAI-compatible endpoint on loopback whose replies a test decides.

    Attributes:
        reply: ``reply(request body) -> text``, or an HTTP status to fail with.
        requests: Bodies of the requests so far.
        headers: Their headers.
    """

    def __init__(self):
        self.requests, self.headers = [], []
        self.reply = self.programs

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler):
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                self.requests.append(body)
                self.headers.append(handler.headers)
                reply = self.reply(body)
                status, text = (reply, "") if isinstance(reply, int) else (200, reply)
                message = {"role": "assistant", "content": text}
                answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub"}
                answer |= {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
                if status != 200:
                    answer = {"error": {"message": f"refused {handler.headers['Authorization']}"}}
                content = json.dumps(answer).encode()
                handler.send_response(status)
                handler.send_header("Content-Type", "application/json")
                handler.send_header("Content-Length", str(len(content)))
                handler.end_headers()
                handler.wfile.write(content)

            def log_message(handler, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @staticmethod
    def programs(body):
        """Eight programs that depend on the prompt."""
        rng = np.random.default_rng(len(body["messages"][0]["content"]))
        grammar = Grammar()
        return "\n".join(f"{i + 1}. `{grammar.sample(rng)}`" for i in range(8))


@pytest.fixture
def stub_server():
    server = StubServer()
    yield server
    server.server.shutdown()
    server.server.server_close()
