"""Ids of the toy tasks, for commands that run in processes of their own: ``toy_ids:DERL-Digits-v0``."""

import derl_gym

derl_gym.register("DERL-Digits-v0", task="toy_tasks:Digits", outer_steps=2, group_size=3)
derl_gym.register("DERL-Tested-v0", task="toy_tasks:Tested", outer_steps=2, group_size=3)
derl_gym.register("DERL-Dying-v0", task="toy_tasks:Dying", outer_steps=2, group_size=3)
derl_gym.register("DERL-Sized-v0", task="toy_tasks:Sized")
derl_gym.register("DERL-Benchmarks-v0", task="toy_tasks:Benchmarks", outer_steps=2, group_size=3)
derl_gym.register("DERL-Faulty-v0", task="toy_tasks:Faulty")
derl_gym.register("DERL-Coins-v0", task="toy_agents:Coins", outer_steps=2, group_size=2)
